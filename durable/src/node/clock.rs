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
        let lower = store.as_micros() - micros(arrived) - 1;
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
