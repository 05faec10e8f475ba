//! The time that a call may take.

use std::time::{Duration, Instant};

/// The longest limit. It is as good as no limit, and adding it to a time never overflows.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3_600);

/// A store reports a timeout this much before the limit of the call. So the caller gets the error of
/// the store, which names the server, before the leases drop the call.
const EARLIER: Duration = Duration::from_millis(3);

/// The most by which a timer of a runtime may fire after a limit.
const SLACK: Duration = Duration::from_millis(1);

/// The time by which a call has to end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Limit {
    end: Instant,
    whole: Duration,
}

impl Limit {
    /// Creates the limit of a call that may take this time.
    pub(crate) fn new(limit: Duration) -> Self {
        let whole = limit.min(LONGEST_LIMIT);
        Limit {
            end: Instant::now() + (whole - (whole / 16).min(EARLIER)),
            whole,
        }
    }

    /// Returns the time that the call had at the beginning.
    #[cfg(feature = "postgres")]
    pub(crate) fn whole(self) -> Duration {
        self.whole
    }

    /// Returns the time that is left, which is zero after the end.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns whether no time is left, or nearly none. Then it is too late to begin something.
    pub(crate) fn is_near(self) -> bool {
        self.left() <= SLACK
    }
}
