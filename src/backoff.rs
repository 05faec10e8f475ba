//! Delays that grow from retry to retry.

use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::shard::splitmix64;

/// The delays between the attempts of something that fails: each one is longer than the one before.
///
/// A `Backoff` can be iterated any number of times. The iteration never ends; see
/// [`Retry`](crate::Retry) for limits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Backoff;
///
/// let second = Duration::from_secs(1);
/// let backoff = Backoff::exponential(second..=10 * second);
/// let delays: Vec<u64> = backoff.iter().take(6).map(|delay| delay.as_secs()).collect();
/// assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
/// ```
#[derive(Clone, PartialEq, Debug)]
#[must_use = "a backoff waits for nothing by itself"]
pub struct Backoff {
    first: Duration,
    most: Duration,
    factor: f64,
    jitter: f64,
    seed: Option<u64>,
}

impl Backoff {
    /// Creates delays that begin at the start of the range and double up to its end. If the end
    /// lies before the start, all delays have the length of the end.
    pub const fn exponential(delays: RangeInclusive<Duration>) -> Self {
        Backoff {
            first: *delays.start(),
            most: *delays.end(),
            factor: 2.0,
            jitter: 0.0,
            seed: None,
        }
    }

    /// Creates delays that all have this length.
    pub const fn fixed(delay: Duration) -> Self {
        Self::exponential(delay..=delay)
    }

    /// Sets how many times longer each delay is than the one before. The default is 2. A factor
    /// below 1, or one that is not a number, counts as 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Backoff;
    ///
    /// let ms = Duration::from_millis;
    /// let backoff = Backoff::exponential(ms(100)..=ms(1_000)).factor(1.5);
    /// assert_eq!(backoff.iter().take(3).collect::<Vec<_>>(), [ms(100), ms(150), ms(225)]);
    /// ```
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = if factor > 1.0 { factor } else { 1.0 };
        self
    }

    /// Lengthens or shortens each delay at random by up to this part of it, so that callers that
    /// failed together do not try again together. The default is 0.0. Parts below 0.0 or above 1.0
    /// count as these; one that is not a number counts as 0.0.
    ///
    /// The mean of the delays stays the same, and the longest ones are longer than the end of the
    /// range. With 1.0, a delay has any length from zero to twice its mean, which spreads callers
    /// best (*full jitter*).
    pub const fn jitter(mut self, part: f64) -> Self {
        self.jitter = if part > 1.0 {
            1.0
        } else if part > 0.0 {
            part
        } else {
            0.0
        };
        self
    }

    /// Makes the jitter of each iteration the same, for tests.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Backoff;
    ///
    /// let backoff = Backoff::fixed(Duration::from_secs(1)).jitter(0.5).seed(42);
    /// assert!(backoff.iter().take(9).eq(backoff.iter().take(9)));
    /// ```
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns the delay before the retry of this number, counted from 1. All bits of `random`
    /// choose the jitter. Use it where the number of retries is stored, such as in a database.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Backoff;
    ///
    /// let second = Duration::from_secs(1);
    /// let backoff = Backoff::exponential(second..=60 * second);
    /// assert_eq!(backoff.delay(3, 0), 4 * second);
    /// assert_eq!(backoff.jitter(0.5).delay(3, 0), 2 * second);
    /// ```
    #[must_use]
    pub fn delay(&self, retry: u32, random: u64) -> Duration {
        let steps = retry.saturating_sub(1);
        // Doubling is exact, as whole numbers.
        let grown = if self.factor == 2.0 {
            let times = 1_u32.checked_shl(steps).unwrap_or(u32::MAX);
            self.first.saturating_mul(times)
        } else {
            let times = self.factor.powf(f64::from(steps));
            seconds(self.first.as_secs_f64() * times)
        };
        let mean = grown.min(self.most);
        if self.jitter == 0.0 {
            return mean;
        }
        // 53 bits are what an f64 holds: from 0.0 to 1.0, without the latter.
        let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
        seconds(mean.as_secs_f64() * (1.0 + self.jitter * (2.0 * unit - 1.0)))
    }

    /// Returns the delays before the first retry, before the second one, and so on.
    #[must_use]
    pub fn iter(&self) -> Delays {
        let random_seed = || std::hash::RandomState::new().build_hasher().finish();
        Delays {
            backoff: self.clone(),
            retry: 0,
            random: self.seed.unwrap_or_else(random_seed),
        }
    }
}

/// Converts to a duration; a number that is too great for one becomes `Duration::MAX`.
fn seconds(seconds: f64) -> Duration {
    // `0.0 * infinity` is no number: the first delay is zero, and all others are, too.
    if seconds.is_nan() {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

impl IntoIterator for &Backoff {
    type Item = Duration;
    type IntoIter = Delays;

    fn into_iter(self) -> Delays {
        self.iter()
    }
}

impl IntoIterator for Backoff {
    type Item = Duration;
    type IntoIter = Delays;

    fn into_iter(self) -> Delays {
        self.iter()
    }
}

/// The delays of a [`Backoff`]. This iterator never ends.
#[derive(Clone, Debug)]
pub struct Delays {
    backoff: Backoff,
    retry: u32,
    random: u64,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.retry = self.retry.saturating_add(1);
        self.random = splitmix64(self.random);
        Some(self.backoff.delay(self.retry, self.random))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn delays_grow_by_the_factor_up_to_the_greatest() {
        for (factor, expected) in [
            (2.0, [1_000, 2_000, 4_000, 5_000]),
            (3.0, [1_000, 3_000, 5_000, 5_000]),
            (1.5, [1_000, 1_500, 2_250, 3_375]),
            (1.0, [1_000; 4]),
            (0.5, [1_000; 4]),
            (-1.0, [1_000; 4]),
            (f64::NAN, [1_000; 4]),
            (f64::INFINITY, [1_000, 5_000, 5_000, 5_000]),
        ] {
            let backoff = Backoff::exponential(S..=5 * S).factor(factor);
            let delays = backoff.iter().take(4).map(|delay| delay.as_millis());
            assert!(delays.eq(expected), "{factor}");
        }
    }

    #[test]
    fn odd_ranges_make_delays_of_their_end() {
        let all = |backoff: Backoff| backoff.iter().take(100).collect::<Vec<_>>();
        assert_eq!(all(Backoff::exponential(5 * S..=S)), [S; 100]);
        let zero = Backoff::exponential(Duration::ZERO..=S);
        assert_eq!(all(zero.clone()), [Duration::ZERO; 100]);
        assert_eq!(all(zero.factor(f64::INFINITY)), [Duration::ZERO; 100]);
        let longest = Backoff::fixed(Duration::MAX);
        assert_eq!(all(longest.clone()), [Duration::MAX; 100]);
        assert_eq!(longest.jitter(1.0).delay(1, u64::MAX), Duration::MAX);
        let endless = Backoff::exponential(S..=Duration::MAX);
        for factor in [1.1, 2.0, 1e300] {
            let delay = endless.clone().factor(factor).delay(u32::MAX, 0);
            assert!(delay >= S * u32::MAX, "{factor} {delay:?}");
        }
    }

    #[test]
    fn jitter_stays_within_its_part_and_fills_it() {
        for part in [0.2, 1.0, 7.0] {
            let backoff = Backoff::fixed(100 * S).jitter(part);
            let width = 100.0 * part.min(1.0);
            let delays: Vec<f64> = backoff
                .iter()
                .take(10_000)
                .map(|d| d.as_secs_f64())
                .collect();
            let near = |delay: f64| (delay - 100.0).abs() <= width;
            assert!(delays.iter().all(|delay| near(*delay)), "{part}");
            let least = delays.iter().copied().fold(f64::MAX, f64::min);
            let most = delays.iter().copied().fold(0.0, f64::max);
            assert!(most - least > 1.9 * width, "{part}: {least} to {most}");
        }
        for part in [f64::NAN, -1.0, 0.0] {
            let backoff = Backoff::fixed(S).jitter(part);
            assert!(backoff.iter().take(100).all(|delay| delay == S), "{part}");
        }
    }

    #[test]
    fn two_iterations_differ_unless_they_have_a_seed() {
        let backoff = Backoff::fixed(S).jitter(0.5);
        assert!(backoff.iter().take(9).ne(backoff.iter().take(9)));
        let seeded = backoff.seed(7);
        assert!((&seeded).into_iter().take(9).eq(seeded.into_iter().take(9)));
    }
}
