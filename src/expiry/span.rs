//! How long an entry lives.

use std::time::Duration;

/// How long an entry of an [`ExpiryMap`](crate::ExpiryMap) lives: for a time without a touch, for a
/// time since it was inserted, or until whichever comes first.
///
/// In nanoseconds, so what is longer than 584 years is for good.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Expiry;
///
/// let hour = Duration::from_secs(3600);
/// let expiry = Expiry::NEVER.time_to_idle(hour / 2).time_to_live(12 * hour);
/// assert_eq!(expiry.idle(), Some(hour / 2));
/// assert_eq!(Expiry::NEVER.lifetime(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry {
    /// Nanoseconds; `u64::MAX` is for good.
    idle: u64,
    lifetime: u64,
    /// Percent.
    jitter: u8,
}

const FOR_GOOD: u64 = u64::MAX;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(FOR_GOOD)
}

fn span(nanos: u64) -> Option<Duration> {
    (nanos != FOR_GOOD).then(|| Duration::from_nanos(nanos))
}

impl Expiry {
    /// It does not expire.
    pub const NEVER: Expiry = Expiry {
        idle: FOR_GOOD,
        lifetime: FOR_GOOD,
        jitter: 0,
    };

    /// The same with this time to idle: how long after its last touch, or its insertion, it
    /// expires. With zero it expires at once.
    #[must_use]
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        self.idle = nanos(idle);
        self
    }

    /// The same with this time to live: how long after its insertion it expires, touched or not.
    #[must_use]
    pub fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.lifetime = nanos(lifetime);
        self
    }

    /// The same with jitter: each entry's times are up to so many percent longer or shorter, by
    /// chance, so that entries that were inserted at the same time don't all expire at once. An
    /// entry keeps its own times through all its touches. More than 100 means 100.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter = percent.min(100);
        self
    }

    /// Nanoseconds to idle and to live, `u64::MAX` for good, for an entry with this luck.
    pub(super) fn drawn(&self, luck: u64) -> (u64, u64) {
        if self.jitter == 0 {
            return (self.idle, self.lifetime);
        }
        (
            self.jittered(self.idle, luck),
            self.jittered(self.lifetime, luck),
        )
    }

    fn jittered(&self, nanos: u64, luck: u64) -> u64 {
        if nanos == FOR_GOOD {
            return nanos;
        }
        let most = u128::from(nanos) * u128::from(self.jitter) / 100;
        let most = most.min(u128::from(u64::MAX / 2));
        // Evenly from 0 to twice that, which is then taken as from -most to +most.
        let drawn = ((2 * most + 1) * u128::from(luck)) >> u64::BITS;
        let jittered = u128::from(nanos) + drawn - most;
        u64::try_from(jittered).unwrap_or(FOR_GOOD)
    }

    /// The time to idle, if there is one.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        span(self.idle)
    }

    /// The time to live, if there is one.
    #[must_use]
    pub fn lifetime(&self) -> Option<Duration> {
        span(self.lifetime)
    }
}

impl Default for Expiry {
    /// [`NEVER`](Self::NEVER).
    fn default() -> Self {
        Expiry::NEVER
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_its_percentage_and_uses_all_of_it() {
        let second = Duration::from_secs(1);
        let expiry = Expiry::NEVER.time_to_idle(100 * second).jitter(10);
        assert_eq!(expiry.drawn(0), (90_000_000_000, FOR_GOOD));
        assert_eq!(expiry.drawn(u64::MAX), (110_000_000_000, FOR_GOOD));
        assert_eq!(expiry.drawn(1 << 63).0, 100_000_000_000);
        let whole = Expiry::NEVER.time_to_live(second).jitter(255);
        assert_eq!(whole.drawn(0), (FOR_GOOD, 0));
        assert_eq!(whole.drawn(u64::MAX), (FOR_GOOD, 2_000_000_000));
        let longest = Expiry::NEVER
            .time_to_idle(Duration::from_nanos(FOR_GOOD - 1))
            .jitter(100);
        assert_eq!(longest.drawn(u64::MAX).0, FOR_GOOD);
        assert_eq!(
            Expiry::NEVER.time_to_idle(second).drawn(u64::MAX).0,
            1_000_000_000
        );
    }
}
