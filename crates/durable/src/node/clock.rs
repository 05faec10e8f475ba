//! The estimate of the store's clock: a lower bound of it, so that no claim is early.

use super::interface::Mono;
use crate::store::StoreTime;

/// How far the store's clock may seem to go back, in microseconds, before that counts as a step. It
/// is below the margin of a mark, which bears such a step.
pub(super) const LEAST_STEP: i64 = 100_000;

/// The part of the local clock's time by which the store's clock may fall behind without a step:
/// one in this number. It is more than daemons take that correct a clock without setting it.
const DRIFT: i64 = 10;

/// An answer that was read at the time `t` of the store's clock, to a call that was sent at `s` and
/// answered at `a` by the local clock, shows that the store's clock was at least `t` at `a`, and
/// that it was at most `t` at `s`. The greatest of the lower bounds is used. If it contradicts an
/// upper bound, then it is replaced by the lower bound of the same answer.
///
/// There are two reasons for a contradiction. The store's clock may run slower than the local one,
/// which is normal and harmless. Or somebody has set the store's clock back.
///
/// A second bound distinguishes them. It starts as the greatest lower bound, too, and then falls
/// with the local time, faster than a clock falls behind if nobody sets it. If an answer is more
/// than [`LEAST_STEP`] below the second bound, the store's clock was set back. Small steps add up.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// The store's clock minus the local clock, in microseconds.
    offset: Option<i64>,
    /// The second bound, and the local time at which it was taken.
    unset: Option<(i64, Mono)>,
}

/// The local time in whole microseconds.
fn micros(now: Mono) -> i64 {
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

impl Estimate {
    /// Takes the time of an answer. Returns `false` if the store's clock was set back.
    pub(super) fn learn(&mut self, sent: Mono, arrived: Mono, store: StoreTime) -> bool {
        // Rounded up, since the estimate must not be too great.
        let lower = store.as_micros() - micros(arrived + Mono::from_nanos(999));
        let upper = store.as_micros() - micros(sent);
        self.offset = match self.offset {
            Some(offset) if offset <= upper => Some(offset.max(lower)),
            _ => Some(lower),
        };
        let least = self.unset.map(|(bound, taken)| {
            let drift = micros(arrived.saturating_sub(taken)) / DRIFT;
            bound.saturating_sub(drift)
        });
        let was_set = least.is_some_and(|least| upper < least.saturating_sub(LEAST_STEP));
        let bound = match least {
            Some(least) if !was_set => lower.max(least),
            _ => lower,
        };
        self.unset = Some((bound, arrived));
        !was_set
    }

    /// The least time that the store's clock can show, if it does not run slower than the local
    /// one. `None` before the first answer.
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

    /// Answers each second for an hour, 0.2 ms after their calls, from a clock of this rate.
    /// Returns how often it seems to have gone back.
    fn steps_seen(rate: f64, back: impl Fn(u64) -> f64) -> usize {
        let mut clock = Estimate::default();
        let mut steps = 0;
        for second in 0..3_600 {
            let sent = Mono::from_secs(second);
            let arrived = sent + Mono::from_micros(200);
            let shows = |at: Mono| 1e12 + at.as_secs_f64() * 1e6 * rate - back(second) * 1e6;
            let read = StoreTime::from_micros(shows(sent + Mono::from_micros(100)) as i64);
            steps += usize::from(!clock.learn(sent, arrived, read));
            let estimate = clock.at(arrived).expect("an answer").as_micros() as f64;
            // A slower clock is found out when it contradicts the estimate.
            let round_trip = 201.0;
            assert!(estimate <= shows(arrived) + round_trip, "too great");
        }
        steps
    }

    #[test]
    fn a_store_whose_clock_runs_slower_has_not_gone_back() {
        for rate in [1.0, 0.999_98, 0.999, 0.92, 1.000_02, 1.1] {
            assert_eq!(steps_seen(rate, |_| 0.0), 0, "{rate}");
        }
    }

    #[test]
    fn a_step_back_is_seen_once_whether_it_comes_at_once_or_in_parts() {
        let at_once = |second| if second < 100 { 0.0 } else { 3.0 };
        assert_eq!(steps_seen(0.999_98, at_once), 1);
        // Each part is too small to be seen alone. No mark bears more than half a second.
        let in_parts = |second: u64| second.saturating_sub(100).min(3) as f64 * 0.15;
        assert_eq!(steps_seen(1.0, in_parts), 1);
        let little = |second| if second < 100 { 0.0 } else { 0.15 };
        assert_eq!(steps_seen(1.0, little), 0);
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
