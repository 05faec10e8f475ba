//! Delays that grow from retry to retry.

use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::shard::splitmix64;

/// The delays between the attempts of something that fails: each one is longer than the one before.
///
/// A `Backoff` can be iterated any number of times. The iteration never ends; see
/// [`Retry`](crate::retry::Retry) for limits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::retry::Backoff;
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
    /// Whether the delays are those of [`fixed`](Self::fixed), whose jitter has no range.
    fixed: bool,
    factor: f64,
    jitter: f64,
    seed: Option<u64>,
}

/// The second delay of a range that begins with zero, which no factor makes longer.
const SHORTEST: Duration = Duration::from_millis(1);

impl Backoff {
    /// Creates delays that begin at the start of the range and double up to its end. No delay lies
    /// outside of the range.
    ///
    /// If the range begins with zero, the first retry comes at once, and the second one after 1 ms,
    /// from where the delays grow. If the end lies before the start, all delays have the length of
    /// the end.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::retry::Backoff;
    ///
    /// let ms = Duration::from_millis;
    /// let backoff = Backoff::exponential(Duration::ZERO..=ms(5));
    /// let delays: Vec<_> = backoff.iter().take(6).collect();
    /// assert_eq!(delays, [ms(0), ms(1), ms(2), ms(4), ms(5), ms(5)]);
    /// ```
    pub const fn exponential(delays: RangeInclusive<Duration>) -> Self {
        Backoff {
            first: *delays.start(),
            most: *delays.end(),
            fixed: false,
            factor: 2.0,
            jitter: 0.0,
            seed: None,
        }
    }

    /// Creates delays that all have this length. With jitter, this is their mean.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::retry::Backoff;
    ///
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Backoff::fixed(second).iter().take(3).collect::<Vec<_>>(), [second; 3]);
    /// let spread = Backoff::fixed(second).jitter(0.5).delay(1, 7);
    /// assert!(second / 2 <= spread && spread <= second * 3 / 2);
    /// ```
    pub const fn fixed(delay: Duration) -> Self {
        let mut backoff = Self::exponential(delay..=delay);
        backoff.fixed = true;
        backoff
    }

    /// Sets how many times longer each delay is than the one before. The default is 2. A factor
    /// below 1, or one that is not a number, counts as 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::retry::Backoff;
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
    /// A delay never leaves the range: it is drawn evenly from the part of the jitter that lies
    /// within. So delays do not pile up at the end, and those that have reached it are only
    /// shortened. With 1.0, a delay has any length of the range up to twice what it would be, which
    /// spreads callers best (*full jitter*).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::retry::Backoff;
    ///
    /// let second = Duration::from_secs(1);
    /// let backoff = Backoff::exponential(second..=8 * second).jitter(0.5);
    /// // The fourth delay is the end of the range, less up to a half.
    /// assert_eq!(backoff.delay(4, 0), 4 * second);
    /// assert!(backoff.delay(4, u64::MAX) <= 8 * second);
    /// ```
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
    /// use tourbillon::retry::Backoff;
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
    /// use tourbillon::retry::Backoff;
    ///
    /// let second = Duration::from_secs(1);
    /// let backoff = Backoff::exponential(second..=60 * second);
    /// assert_eq!(backoff.delay(3, 0), 4 * second);
    /// assert_eq!(backoff.jitter(0.5).delay(3, 0), 2 * second);
    /// ```
    #[must_use]
    pub fn delay(&self, retry: u32, random: u64) -> Duration {
        let delay = self.grown(retry.saturating_sub(1)).min(self.most);
        if self.jitter == 0.0 {
            return delay;
        }
        let (least, most) = match self.fixed {
            true => (Duration::ZERO, Duration::MAX),
            false => (self.first.min(self.most), self.most),
        };
        let times = |part: f64| seconds(delay.as_secs_f64() * part).clamp(least, most);
        let (shortest, longest) = (times(1.0 - self.jitter), times(1.0 + self.jitter));
        // 53 bits are what an f64 holds: from 0.0 to 1.0, without the latter.
        let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let drawn = seconds((longest - shortest).as_secs_f64() * unit);
        // The sum may be rounded to more than the longest one.
        shortest.saturating_add(drawn).min(longest)
    }

    /// Returns the delay that has grown `steps` times, or one beyond the end of the range.
    fn grown(&self, steps: u32) -> Duration {
        let (first, steps) = match steps {
            0 => return self.first,
            // Zero does not grow, so the growth begins with the second delay.
            _ if self.first.is_zero() => (SHORTEST, steps - 1),
            _ => (self.first, steps),
        };
        if self.factor != 2.0 {
            return seconds(first.as_secs_f64() * self.factor.powf(f64::from(steps)));
        }
        // Doubling is exact, as whole numbers. No range is longer than 94 steps.
        let mut grown = first;
        for _ in 0..steps {
            if grown >= self.most {
                break;
            }
            grown = grown.saturating_mul(2);
        }
        grown
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
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::retry::{Backoff, Delays};
///
/// struct Reconnect {
///     pauses: Delays,
/// }
///
/// let pauses = Backoff::fixed(Duration::from_millis(100)).jitter(0.0).iter();
/// let mut reconnect = Reconnect { pauses };
/// assert_eq!(reconnect.pauses.next(), Some(Duration::from_millis(100)));
/// ```
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
        let longest = Backoff::fixed(Duration::MAX);
        assert_eq!(all(longest.clone()), [Duration::MAX; 100]);
        assert!(longest.jitter(1.0).delay(1, u64::MAX) >= S * u32::MAX);
        assert_eq!(all(Backoff::fixed(Duration::ZERO)), [Duration::ZERO; 100]);
        let zero = Backoff::fixed(Duration::ZERO).jitter(1.0);
        assert_eq!(all(zero), [Duration::ZERO; 100]);
    }

    #[test]
    fn a_range_that_begins_with_zero_tries_again_at_once_and_then_grows_from_1_ms() {
        let ms = Duration::from_millis;
        for (factor, expected) in [
            (2.0, [0, 1, 2, 4, 8, 16]),
            (3.0, [0, 1, 3, 9, 27, 81]),
            (1.0, [0, 1, 1, 1, 1, 1]),
            (f64::INFINITY, [0, 1, 1_000, 1_000, 1_000, 1_000]),
        ] {
            let backoff = Backoff::exponential(Duration::ZERO..=S).factor(factor);
            assert!(backoff.iter().take(6).eq(expected.map(ms)), "{factor}");
            assert_eq!(backoff.delay(0, 0), Duration::ZERO);
        }
        // A range that ends before 1 ms, and one whose delays are jittered.
        let short = Backoff::exponential(Duration::ZERO..=Duration::from_micros(5));
        assert!(
            short
                .iter()
                .skip(1)
                .take(9)
                .all(|delay| delay.as_micros() == 5)
        );
        let jittered = Backoff::exponential(Duration::ZERO..=S).jitter(1.0);
        for _ in 0..100 {
            let delays: Vec<Duration> = jittered.iter().take(99).collect();
            assert_eq!(delays[0], Duration::ZERO);
            assert!(
                delays.iter().sum::<Duration>() > S,
                "no range of retries is without a wait"
            );
        }
    }

    #[test]
    fn every_range_is_walked_to_its_end_and_no_further() {
        let (us, nanos) = (Duration::from_micros, Duration::from_nanos);
        let ends = [nanos(1), us(7), S, 7_200 * S, S * u32::MAX, Duration::MAX];
        for first in [Duration::ZERO, nanos(1), us(1), S] {
            for end in ends {
                for factor in [1.1, 1.5, 2.0, 2.0001, 1e300] {
                    let backoff = Backoff::exponential(first..=end).factor(factor);
                    for retry in [2_000, u32::MAX] {
                        assert_eq!(backoff.delay(retry, 0), end, "{backoff:?}");
                    }
                    let grows = backoff.iter().take(2_000);
                    assert!(grows.is_sorted(), "{backoff:?}");
                }
            }
        }
    }

    #[test]
    fn jitter_is_drawn_from_the_part_that_lies_within_the_range() {
        for (range, part, retry, expected) in [
            (S..=8 * S, 0.5, 1, 1.0..=1.5),
            (S..=8 * S, 0.5, 2, 1.0..=3.0),
            (S..=8 * S, 0.5, 3, 2.0..=6.0),
            (S..=8 * S, 0.5, 4, 4.0..=8.0),
            (S..=8 * S, 0.5, 99, 4.0..=8.0),
            (S..=8 * S, 1.0, 99, 1.0..=8.0),
            (S..=10 * S, 0.5, 4, 4.0..=10.0),
            (Duration::ZERO..=8 * S, 1.0, 99, 0.0..=8.0),
            (5 * S..=S, 1.0, 99, 1.0..=1.0),
        ] {
            let backoff = Backoff::exponential(range).jitter(part);
            let (least, most) = expected.into_inner();
            assert_eq!(backoff.delay(retry, 0), Duration::from_secs_f64(least));
            assert!(backoff.delay(retry, u64::MAX) <= Duration::from_secs_f64(most));
            // Each tenth of the width gets about a tenth of the delays, the last one, too.
            let mut tenths = [0_u32; 10];
            let mut random = 7;
            for _ in 0..10_000 {
                random = splitmix64(random);
                let delay = backoff.delay(retry, random).as_secs_f64();
                assert!((least..=most).contains(&delay), "{backoff:?} {delay}");
                let place = (delay - least) / (most - least).max(1e-9) * 10.0;
                tenths[(place as usize).min(9)] += 1;
            }
            let even = tenths.iter().all(|count| (850..1_150).contains(count));
            assert!(even || least == most, "{backoff:?} {tenths:?}");
        }
    }

    #[test]
    fn the_longest_delays_with_jitter_do_not_overflow() {
        for random in [0, 1 << 63, u64::MAX] {
            let endless = Backoff::exponential(S..=Duration::MAX).jitter(1.0);
            assert!(endless.delay(u32::MAX, random) >= S);
            let fixed = Backoff::fixed(Duration::MAX).jitter(0.5);
            assert!(fixed.delay(1, random) >= Duration::MAX / 3);
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
