//! The seats of a pool, and what is noted of the threads on them.

use crate::job::Ticket;
use crate::sync::Parker;
use crate::sync::deque::Worker as Deque;
use crate::tick::Time;

/// What belongs to a place in the pool and is handed from one worker to the next.
pub(super) struct Seat {
    pub(super) number: usize,
    pub(super) local: Deque<Ticket>,
    pub(super) parker: Parker,
}

/// Nobody sits there, or the thread has not started yet.
pub(super) const NO_THREAD: u64 = 0;
/// A thread sits there that the kernel cannot be asked about.
pub(super) const UNKNOWN_THREAD: u64 = u64::MAX;

/// What tickers remember of their looks, for the next one who looks.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// When a worker was started by age alone.
    pub(super) last_blind: Option<Time>,
    /// With which of the threads the next look begins.
    pub(super) begin: usize,
}
