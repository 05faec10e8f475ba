//! Timers whose clock a test moves, as the kit for tests needs them.

use std::collections::HashSet;

use super::Durable;
use crate::run::NodeSender;
use crate::sync::Arc;

impl Durable {
    /// Returns the way to the node, and the queues that it handles. `None` without handlers.
    pub(crate) fn node_and_queues(&self) -> Option<(NodeSender, Arc<HashSet<Arc<str>>>)> {
        let inner = self.inner();
        let node = inner.node.as_ref()?;
        Some((node.sender.clone(), Arc::clone(&inner.queues)))
    }
}
