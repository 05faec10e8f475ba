//! Worker slots of a pool, and what is known of their threads.

use std::time::Duration;

use crate::job::Ticket;
use crate::sync::Parker;
use crate::sync::deque::Worker as Deque;
use crate::tick::Time;

/// A worker slot: the state that passes from one worker to the next one in this slot.
pub(super) struct WorkerSlot {
    pub(super) number: usize,
    pub(super) local: Deque<Ticket>,
    pub(super) parker: Parker,
}

/// The worker slot is free, or its thread has not started yet.
pub(super) const NO_THREAD: u64 = 0;
/// The worker slot has a thread that the kernel can't be asked about.
pub(super) const UNKNOWN_THREAD: u64 = u64::MAX;

/// State that the tickers share between their checks.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// When a worker was last started because of age alone.
    pub(super) last_blind: Option<Time>,
    /// Number of the thread with which the next check begins.
    pub(super) begin: usize,
    /// Since when the system refuses threads, and how long none is asked for from then on.
    pub(super) refused: Option<(Time, Duration)>,
}
