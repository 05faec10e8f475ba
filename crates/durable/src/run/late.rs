//! The treatment of timers that are far too late.

use std::time::Duration;

/// The treatment of a timer that could not start in time, because all processes were down or its
/// queue was paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Late {
    /// It runs, however late.
    #[default]
    Run,
    /// It runs until this span after its planned time. After that it does not start any more, and
    /// becomes a dead letter. That also holds for retries.
    ExpireAfter(Duration),
}
