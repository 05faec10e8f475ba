//! Nodes with short poll intervals, and what tests wait for.

use std::time::Duration;

use kit::wait;
use tourbillon_durable::{Durable, DurableBuilder, Memory, RetryPolicy};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NOW: Duration = Duration::ZERO;
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A node that polls often. Its lease is so long that a busy machine does not end it.
pub(crate) fn node(store: &Memory) -> DurableBuilder {
    Durable::builder(store.clone())
        .poll_interval(ms(20))
        .node_lease(SECOND * 60)
}

/// A node whose lease is as short as tests have it.
pub(crate) fn short_node(store: &Memory) -> DurableBuilder {
    Durable::builder(store.clone())
        .poll_interval(ms(50))
        .node_lease(ms(300))
}

/// Tries again at once.
pub(crate) fn soon(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(ms(1)).attempts(attempts)
}

/// Waits until a timer is not there any more: its run was settled.
#[track_caller]
pub(crate) fn settled(timers: &Durable, queue: &str, key: &str) {
    wait::until("the timer is settled", || {
        timers.get(queue, key).wait().unwrap().is_none()
    });
}
