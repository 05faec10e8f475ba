//! What goes wrong in an engine without a caller to tell.

use crate::sync::atomic::AtomicU64;

/// Counters of faults that should not occur.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How often the system refused a thread to the pool.
    pub(crate) spawn: AtomicU64,
    /// Batches that a foreign executor refused or dropped.
    pub(crate) refused: AtomicU64,
    /// Panics on a ticker's thread. After each of them the ticker's loop starts again.
    pub(crate) ticker: AtomicU64,
    /// How often a ticker began to find the pool at its maximum size while tasks waited.
    pub(crate) saturated: AtomicU64,
    /// How often a ticker began to wait, since the most tickets of its shard were unclaimed.
    #[cfg(feature = "tracing")]
    pub(crate) stalled: AtomicU64,
}
