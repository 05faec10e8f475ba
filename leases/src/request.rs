//! What is asked of the store: to acquire a name, and to give it back.

use std::time::Duration;

use tourbillon::Time;

use super::background::QueuedItem;
use super::keep_alive::KeepOptions;
use crate::sync::channel::Sender;

/// What is to be acquired, checked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) lease: Duration,
    pub(super) keep: KeepOptions,
}

impl Request {
    /// What may have been granted without our knowing, or may still be.
    pub(super) fn give_back(&self) -> PendingRelease {
        PendingRelease {
            name: self.name.clone(),
            owner: self.owner.clone(),
            lease: self.lease,
            sure: false,
        }
    }
}

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptOptions {
    /// The release is to be announced.
    pub(super) waits: bool,
    /// For how long it has waited.
    pub(super) waited: Duration,
    /// When it is of no use any more.
    pub(super) until: Time,
    /// An earlier one may still arrive.
    pub(super) unsure: bool,
    /// A drop of the guard may wait for the store.
    pub(super) drop_waits: bool,
}

/// A name that is to be given back.
pub(super) struct PendingRelease {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) lease: Duration,
    /// Nothing of this owner is under way that may still be granted: what the store does not know is
    /// given back.
    pub(super) sure: bool,
}

/// A name in the line.
pub(super) struct Queued {
    pub(super) back: PendingRelease,
    /// Until when it is of use.
    pub(super) until: Time,
    pub(super) tried: u32,
    /// It is held for certain: the first release ends that holding, and not one that may still be
    /// granted.
    pub(super) held: bool,
    /// Counts it, until the store has answered.
    pub(super) entered: Option<QueuedItem>,
    /// Dropped when it has been tried.
    pub(super) tells: Option<Sender<()>>,
}
