//! One lane to the store: the call that is under way, and the pause after a failure.

use std::time::Duration;

use super::interface::Mono;
use crate::store::Epoch;

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A call that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) id: u64,
    pub(super) sent: Mono,
    /// The epoch of the node when it was sent. The answer to a call of an earlier epoch is dropped.
    pub(super) epoch: Epoch,
}

/// The state of a lane.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) under_way: Option<UnderWay>,
    failures: u32,
    retry_at: Mono,
}

impl LaneState {
    /// Whether a call may be sent now. If not, also returns the time at which one may.
    pub(super) fn is_free(&self, now: Mono) -> Result<(), Option<Mono>> {
        if self.under_way.is_some() {
            return Err(None);
        }
        match now >= self.retry_at {
            true => Ok(()),
            false => Err(Some(self.retry_at)),
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = Mono::ZERO;
    }

    /// Starts the pause after a failure: up to `longest`, between a half and the whole of it by
    /// `random`, so that many nodes do not come back to a store at one moment.
    pub(super) fn failed(&mut self, now: Mono, longest: Duration, random: u64) {
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(31))
            .min(longest.max(Duration::from_millis(1)));
        self.failures = self.failures.saturating_add(1);
        let half = pause / 2;
        let part = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.retry_at = now + half + Duration::from_nanos(random % part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_however_long_that_is() {
        let hour = Duration::from_secs(3_600);
        for longest in [Duration::from_millis(1), Duration::from_secs(2), 30 * hour] {
            let mut lane = LaneState::default();
            let mut before = Duration::ZERO;
            for _ in 0..40 {
                lane.failed(Mono::ZERO, longest, 0);
                let pause = lane.is_free(Mono::ZERO).unwrap_err().unwrap() - Mono::ZERO;
                assert!(pause >= before && pause <= longest);
                before = pause;
            }
            assert_eq!(before, longest / 2, "the random half is zero here");
        }
    }
}
