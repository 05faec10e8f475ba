//! Which node of a cluster serves which slot.

use std::time::{Duration, Instant};

use super::scripts::Standing;
use super::slot::{Slot, Whose};
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// Which node serves which slot.
pub(super) struct SlotMap {
    pub(super) masters: Vec<Arc<Node>>,
    /// The place of a master for each slot.
    pub(super) owners: Vec<Option<usize>>,
    pub(super) newest: u64,
    pub(super) learned: Instant,
    /// Nodes that serve no slot yet, to which calls were sent.
    pub(super) others: Mutex<Vec<Arc<Node>>>,
}

/// A node, with its connections.
pub(super) struct Node {
    /// Its identity, which it keeps when it restarts.
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) standing: Standing,
    pub(super) callers: Slot,
    pub(super) holders: Slot,
}

/// When the nodes may be asked for the map again.
#[derive(Default)]
pub(super) struct Pace {
    /// When they were asked last.
    pub(super) last: Option<Instant>,
    /// The pause after that.
    pub(super) pause: Duration,
    /// The error if all have failed then.
    pub(super) failed: Option<StoreError>,
}

impl Pace {
    /// Returns how much is left of the pause, if it takes no longer than this.
    pub(super) fn left(&self, most: Duration) -> Duration {
        let gone = self.last.map(|last| last.elapsed());
        gone.map_or(Duration::ZERO, |gone| {
            self.pause.min(most).saturating_sub(gone)
        })
    }
}

impl SlotMap {
    /// Returns whether another map says the same.
    pub(super) fn is_like(&self, other: &SlotMap) -> bool {
        let nodes = self.masters.iter().zip(&other.masters);
        self.owners == other.owners
            && self.masters.len() == other.masters.len()
            && nodes
                .into_iter()
                .all(|(one, other)| Arc::ptr_eq(one, other))
    }

    pub(super) fn find(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let is_it = |node: &&Arc<Node>| node.host == host && node.port == port;
        self.masters.iter().find(is_it).cloned()
    }

    /// Returns a node that may serve no slot yet.
    pub(super) fn at(&self, host: &str, port: u16, new: impl FnOnce() -> Arc<Node>) -> Arc<Node> {
        self.find(host, port).unwrap_or_else(|| {
            let mut others = self.others.lock();
            let is_it = |node: &&Arc<Node>| node.host == host && node.port == port;
            let known = others.iter().find(is_it).cloned();
            known.unwrap_or_else(|| {
                let node = new();
                others.push(Arc::clone(&node));
                node
            })
        })
    }
}

impl Node {
    pub(super) fn slot(&self, whose: Whose) -> &Slot {
        match whose {
            Whose::Callers => &self.callers,
            Whose::Holders => &self.holders,
        }
    }
}
