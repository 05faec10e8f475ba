//! The estimate of the store's clock: a lower bound of it, so that no claim is early.

use crate::node::interface::Mono;
use crate::time::StoreTime;

/// An answer that was read at the time `t` of the store's clock, to a call that was sent at `s` and
/// answered at `a` by the local clock, shows that the store's clock was at least `t` at `a`, and that
/// it was at most `t` at `s`. The greatest of the lower bounds is used. If it contradicts an upper
/// bound, then the store's clock was set back, or runs slower than the local one.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// The store's clock minus the local clock, in microseconds.
    offset: Option<i64>,
}

/// The local time in whole microseconds.
fn micros(now: Mono) -> i64 {
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

impl Estimate {
    /// Takes the time of an answer. Returns `false` if the store's clock has gone back.
    pub(super) fn learn(&mut self, sent: Mono, arrived: Mono, store: StoreTime) -> bool {
        // Rounded up, since the estimate must not be too great.
        let lower = store.as_micros() - micros(arrived + Mono::from_nanos(999));
        let upper = store.as_micros() - micros(sent);
        match self.offset {
            Some(offset) if offset > upper => {
                self.offset = Some(lower);
                false
            }
            Some(offset) => {
                self.offset = Some(offset.max(lower));
                true
            }
            None => {
                self.offset = Some(lower);
                true
            }
        }
    }

    /// The least time that the store's clock can show. `None` before the first answer.
    pub(super) fn at(&self, now: Mono) -> Option<StoreTime> {
        self.offset
            .map(|offset| StoreTime::from_micros(offset.saturating_add(micros(now))))
    }

    /// The local time at which the estimate reaches `time`.
    pub(super) fn when(&self, time: StoreTime) -> Option<Mono> {
        let wait = time.as_micros().saturating_sub(self.offset?);
        Some(Mono::from_micros(u64::try_from(wait).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Mono {
        Mono::from_millis(millis)
    }

    fn store(millis: i64) -> StoreTime {
        StoreTime::from_micros(millis * 1_000)
    }

    #[test]
    fn the_estimate_is_never_later_than_the_stores_clock() {
        // The store's clock shows 1,000 ms more than the local one.
        let mut clock = Estimate::default();
        assert_eq!(clock.at(millis(1)), None);
        assert!(clock.learn(millis(10), millis(30), store(1_012)));
        assert_eq!(clock.at(millis(30)), Some(store(1_012)));
        assert!(clock.learn(millis(40), millis(44), store(1_041)));
        assert_eq!(clock.at(millis(44)), Some(store(1_041)));
        // A slow answer says nothing new.
        assert!(clock.learn(millis(50), millis(90), store(1_060)));
        assert_eq!(clock.at(millis(90)), Some(store(1_087)));
        assert_eq!(clock.when(store(1_087)), Some(millis(90)));
    }

    #[test]
    fn an_estimate_that_an_answer_contradicts_is_dropped() {
        let mut clock = Estimate::default();
        assert!(clock.learn(millis(10), millis(11), store(5_000)));
        assert!(!clock.learn(millis(20), millis(22), store(1_000)));
        assert_eq!(clock.at(millis(22)), Some(store(1_000)));
        assert!(clock.learn(millis(30), millis(31), store(9_000)));
        assert_eq!(clock.at(millis(31)), Some(store(9_000)));
    }
}
