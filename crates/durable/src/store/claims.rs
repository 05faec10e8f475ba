//! Claims of due timers, and the store's answers to them.

use super::time::StoreTime;
use super::{Epoch, Horizon, Payload, StoreError};
use crate::sync::Arc;

/// Timers that a node wants to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The node.
    pub epoch: Epoch,
    /// By the store's clock: from this moment on the claim does nothing.
    pub deadline: StoreTime,
    /// Timers that are due, with the crash limit of their queue.
    pub timers: Vec<Wanted>,
    /// Runs that the node has claimed, by an answer that was lost. Nothing of them is written.
    pub adopt: Vec<Run>,
}

/// A timer to claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The queue.
    pub queue: Arc<str>,
    /// The key within the queue.
    pub key: Box<str>,
    /// A timer whose nodes have died this often becomes a dead letter.
    pub crash_limit: u32,
}

/// One run of a node. With the node's epoch it is the *fence*: what holds it no longer may not
/// settle.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The queue.
    pub queue: Arc<str>,
    /// The key within the queue.
    pub key: Box<str>,
    /// The generation.
    pub generation: i64,
    /// The number of the run, from 1.
    pub attempt: u32,
}

/// The answer to a [`Claim`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claimed {
    /// Whether the node is gone, or unknown. Then nothing was claimed.
    pub gone: bool,
    /// The store's clock.
    pub now: StoreTime,
    /// What the node runs now. Timers that are not here are locked, paused, claimed by others, not
    /// due yet, or not there any more.
    pub runs: Vec<ClaimedRun>,
    /// Of the runs to adopt, those that must not start any more: they were cancelled, or another
    /// timer follows. The node gives them back.
    pub over: Vec<Run>,
    /// The number of timers that became dead letters since their nodes died too often.
    pub dead: u32,
    /// Timers that the store can't write, each with the reason.
    pub refused: Vec<RefusedClaim>,
    /// Where marks may be set. See [`Horizon`].
    pub horizon: Option<Horizon>,
}

/// A timer that the store can't claim, for instance since a trigger refuses the change of its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedClaim {
    /// The queue.
    pub queue: Arc<str>,
    /// The key within the queue.
    pub key: Box<str>,
    /// The reason.
    pub error: StoreError,
}

/// A claimed timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimedRun {
    /// The run.
    pub run: Run,
    /// When it was due.
    pub due: StoreTime,
    /// When it was due first, before retries.
    pub planned: StoreTime,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose node died.
    pub crashes: u32,
    /// Whether it was moved here from an occurrence that was missed, by [`Outcome::Step`]. Then it
    /// was decided that this one runs.
    ///
    /// [`Outcome::Step`]: super::Outcome::Step
    pub stepped: bool,
    /// What it carries.
    pub payload: Payload,
}
