//! What is kept: a key, its lease, and what is planned for it.

use std::time::Duration;

use tourbillon::Time;

use super::lease_state::LeaseState;
use super::queue::DestinationQueue;
use crate::sync::{Arc, Mutex};

pub(super) type SharedQueue<K> = Arc<DestinationQueue<Arc<Registration<K>>>>;

/// A key that is kept, from its start to its end.
pub(super) struct Registration<K> {
    pub(super) number: u64,
    pub(super) key: K,
    pub(super) lease: Duration,
    pub(super) renewed: bool,
    pub(super) queue: SharedQueue<K>,
    pub(super) lease_state: Arc<LeaseState>,
    /// When the next renewal is due, and whether it is queued. A queue's lock may be taken inside.
    pub(super) plan: Mutex<Plan>,
    /// Whether the loss was posted. No event may follow it.
    pub(super) told: Mutex<bool>,
}

/// What a registration does next.
pub(super) struct Plan {
    /// When the next renewal or attempt is due.
    pub(super) due: Time,
    /// The number of attempts that failed since the last success.
    pub(super) failed: u32,
    /// When the first of these was, and the error of the last one.
    pub(super) failing: Option<(Time, String)>,
    /// Whether the event about the risk was posted since the last success.
    pub(super) warned: bool,
    /// `None` if no renewal is queued, else the end of the lease under which it is queued.
    pub(super) queued: Option<Time>,
    /// Whether the registration has ended. Then its renewal must not be queued any more.
    pub(super) ended: bool,
}
