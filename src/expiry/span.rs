//! How long an entry lives.

use std::time::Duration;

/// The rule for how long an entry of an [`ExpiryMap`](crate::ExpiryMap) lives: for a time without a
/// touch, for a time since it was inserted, or until whichever comes first.
///
/// Times are kept in nanoseconds, so a time above 584 years means forever.
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
    /// In nanoseconds; `u64::MAX` means forever.
    idle: u64,
    lifetime: u64,
    /// In percent.
    jitter: u8,
}

const FOR_GOOD: u64 = u64::MAX;

#[inline]
fn nanos(span: Duration) -> u64 {
    // The usual number of seconds needs no multiplication of 128 bits.
    match u32::try_from(span.as_secs()) {
        Ok(seconds) => u64::from(seconds) * 1_000_000_000 + u64::from(span.subsec_nanos()),
        Err(_) => many_nanos(span),
    }
}

#[cold]
fn many_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(FOR_GOOD)
}

fn span(nanos: u64) -> Option<Duration> {
    (nanos != FOR_GOOD).then(|| Duration::from_nanos(nanos))
}

impl Expiry {
    /// The entry does not expire.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.entry(7).expiry(Expiry::NEVER).insert("Ada")?;
    /// stepped.advance(Duration::from_secs(3600));
    /// assert!(map.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const NEVER: Expiry = Expiry {
        idle: FOR_GOOD,
        lifetime: FOR_GOOD,
        jitter: 0,
    };

    /// Returns the same rule with this time to idle: an entry expires this long after its last
    /// touch, or its insertion. Zero means at once.
    #[inline]
    #[must_use]
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        self.idle = nanos(idle);
        self
    }

    /// Returns the same rule with this time to live: an entry expires this long after its
    /// insertion, touched or not.
    #[inline]
    #[must_use]
    pub fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.lifetime = nanos(lifetime);
        self
    }

    /// Returns the same rule with jitter: each entry's times are up to `percent` percent longer or
    /// shorter, at random. So entries that were inserted at the same time do not all expire at
    /// once. An entry keeps its own times through all its touches. More than 100 means 100.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Expiry;
    ///
    /// // Between 54 and 66 minutes, at random for each entry.
    /// let expiry = Expiry::NEVER.time_to_live(Duration::from_secs(3600)).jitter(10);
    /// ```
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter = percent.min(100);
        self
    }

    /// Returns the times to idle and to live of an entry, in nanoseconds; `u64::MAX` means forever.
    /// `jitter_seed` is called only if there is jitter.
    #[inline]
    pub(super) fn drawn(&self, jitter_seed: impl FnOnce() -> u64) -> (u64, u64) {
        if self.jitter == 0 {
            return (self.idle, self.lifetime);
        }
        let seed = jitter_seed();
        (
            jittered(self.idle, self.jitter, seed),
            jittered(self.lifetime, self.jitter, seed),
        )
    }

    /// Returns the times to idle and to live, and the jitter.
    #[inline(always)]
    pub(super) fn parts(&self) -> (u64, u64, u8) {
        (self.idle, self.lifetime, self.jitter)
    }

    /// Returns the expiry with these [parts](Self::parts).
    #[inline(always)]
    pub(super) fn of_parts(idle: u64, lifetime: u64, jitter: u8) -> Self {
        Expiry {
            idle,
            lifetime,
            jitter,
        }
    }

    /// Returns the times to idle and to live, or `None` if there is jitter.
    #[inline(always)]
    pub(super) fn steady(&self) -> Option<(u64, u64)> {
        (self.jitter == 0).then_some((self.idle, self.lifetime))
    }

    /// Returns the time to idle in nanoseconds; `u64::MAX` means forever.
    pub(super) fn idle_nanos(&self) -> u64 {
        self.idle
    }

    /// Returns the time to idle, if there is one.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        span(self.idle)
    }

    /// Returns the time to live, if there is one.
    #[must_use]
    pub fn lifetime(&self) -> Option<Duration> {
        span(self.lifetime)
    }
}

/// Adds jitter to one time.
fn jittered(nanos: u64, percent: u8, jitter_seed: u64) -> u64 {
    if nanos == FOR_GOOD {
        return nanos;
    }
    let most = u128::from(nanos) * u128::from(percent) / 100;
    // Bounded so that the product below fits into 128 bits.
    let most = most.min(u128::from(u64::MAX / 2));
    // Drawn evenly from 0 to twice `most`, then shifted to the range from -most to +most.
    let drawn = ((2 * most + 1) * u128::from(jitter_seed)) >> u64::BITS;
    let jittered = u128::from(nanos) + drawn - most;
    u64::try_from(jittered).unwrap_or(FOR_GOOD)
}

impl Default for Expiry {
    /// Returns [`NEVER`](Self::NEVER).
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
        assert_eq!(expiry.drawn(|| 0), (90_000_000_000, FOR_GOOD));
        assert_eq!(expiry.drawn(|| u64::MAX), (110_000_000_000, FOR_GOOD));
        assert_eq!(expiry.drawn(|| 1 << 63).0, 100_000_000_000);
        let whole = Expiry::NEVER.time_to_live(second).jitter(255);
        assert_eq!(whole.drawn(|| 0), (FOR_GOOD, 0));
        assert_eq!(whole.drawn(|| u64::MAX), (FOR_GOOD, 2_000_000_000));
        let longest = Expiry::NEVER
            .time_to_idle(Duration::from_nanos(FOR_GOOD - 1))
            .jitter(100);
        assert_eq!(longest.drawn(|| u64::MAX).0, FOR_GOOD);
        assert_eq!(
            Expiry::NEVER.time_to_idle(second).drawn(|| u64::MAX).0,
            1_000_000_000
        );
    }
}
