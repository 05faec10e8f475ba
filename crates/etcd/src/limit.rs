//! The time that a call may take.

use std::time::{Duration, Instant};

use tourbillon_leases::StoreError;

/// A longer limit is as good as none, and adding it to a time never overflows.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// The store reports a timeout this much before the leases drop the call, so that the error names the server.
const EARLIER: Duration = Duration::from_millis(3);

/// The time by which a call has to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    end: Instant,
    whole: Duration,
}

impl Limit {
    pub(crate) fn new(limit: Duration) -> Self {
        let whole = limit.min(LONGEST);
        Limit {
            end: Instant::now() + (whole - (whole / 16).min(EARLIER)),
            whole,
        }
    }

    /// Returns the time that is left, which is zero after the end.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns whether less than half of the time is left.
    pub(crate) fn is_half_over(self) -> bool {
        self.left() < self.whole / 2
    }

    /// The error of a call that has reached its limit. `what` names what did not happen.
    pub(crate) fn reached(self, what: &str) -> StoreError {
        StoreError::Unavailable(format!("{what} within {:?}", self.whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_any_length_have_an_end() {
        for limit in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(Limit::new(limit).left() <= limit.min(LONGEST));
        }
        assert!(Limit::new(Duration::ZERO).left().is_zero());
        assert!(!Limit::new(LONGEST).is_half_over());
        assert_eq!(
            Limit::new(Duration::from_secs(2)).reached("no answer"),
            StoreError::Unavailable("no answer within 2s".to_owned())
        );
    }
}
