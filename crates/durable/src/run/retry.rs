//! When a run that returned an error is tried again.

use std::ops::RangeInclusive;
use std::time::Duration;

use tourbillon::retry::Backoff;

/// When a run that returned an error, or panicked, is tried again, and how often.
///
/// The default is `RetryPolicy::exponential(1 s ..= 10 min).jitter(0.2).attempts(20)`, which gives
/// up after about two hours. A run whose process died counts elsewhere: see
/// [`crash_limit`](crate::QueueBuilder::crash_limit).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::RetryPolicy;
///
/// let retry = RetryPolicy::exponential(Duration::from_secs(1)..=Duration::from_secs(600))
///     .jitter(0.2)
///     .attempts(20);
/// # let _ = retry;
/// ```
#[doc(alias("backoff", "exponential backoff", "max attempts"))]
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub struct RetryPolicy {
    least: Duration,
    most: Duration,
    /// Whether all spans are the same.
    fixed: bool,
    jitter: f64,
    attempts: u32,
}

impl RetryPolicy {
    /// Waits for the least span after the first error, and twice as long after each further one, up
    /// to the greatest span. Without [`attempts`](Self::attempts), it gives up at the 20th error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::RetryPolicy;
    ///
    /// // 1 s, 2 s, 4 s .. up to a minute, 20 errors in all.
    /// let retry = RetryPolicy::exponential(Duration::from_secs(1)..=Duration::from_secs(60));
    /// # let _ = retry;
    /// ```
    pub const fn exponential(spans: RangeInclusive<Duration>) -> Self {
        RetryPolicy {
            least: *spans.start(),
            most: *spans.end(),
            fixed: false,
            jitter: 0.0,
            attempts: 20,
        }
    }

    /// Waits for the same span after each error. Without [`attempts`](Self::attempts), it gives up
    /// at the 20th error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::RetryPolicy;
    ///
    /// let retry = RetryPolicy::fixed(Duration::from_secs(30)).attempts(3);
    /// # let _ = retry;
    /// ```
    pub const fn fixed(span: Duration) -> Self {
        let mut retry = Self::exponential(span..=span);
        retry.fixed = true;
        retry
    }

    /// Never tries again: the first error makes a dead letter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory, RetryPolicy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .retry(RetryPolicy::never())
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn never() -> Self {
        Self::fixed(Duration::from_secs(1)).attempts(1)
    }

    /// Lengthens or shortens each span at random by up to this part of it, from 0.0 to 1.0, so that
    /// timers that failed together are not tried again together. The default is 0.0.
    ///
    /// The spans of [`exponential`](Self::exponential) stay within its range: each is drawn evenly
    /// from the part of the jitter that lies within.
    pub const fn jitter(mut self, part: f64) -> Self {
        self.jitter = part;
        self
    }

    /// Sets after how many errors a timer becomes a dead letter. With 1, the first error does it.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Says what is wrong with the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        let RetryPolicy {
            least,
            most,
            jitter,
            attempts,
            fixed: _,
        } = self;
        if least.is_zero() || most < least {
            return Err(format!(
                "a retry after {least:?} to {most:?}: the first span must be greater than zero, and \
                 not greater than the second"
            ));
        }
        if !(0.0..=1.0).contains(jitter) {
            return Err(format!("a jitter of {jitter}: choose one from 0.0 to 1.0"));
        }
        if *attempts == 0 {
            return Err("0 attempts: choose at least 1".to_owned());
        }
        Ok(())
    }

    /// Returns the span until the next run after this number of errors, or `None` if there is to be
    /// none. `random` is a number of which all bits are random.
    pub(crate) fn after(&self, fails: u32, random: u64) -> Option<Duration> {
        if fails >= self.attempts {
            return None;
        }
        let backoff = match self.fixed {
            true => Backoff::fixed(self.least),
            false => Backoff::exponential(self.least..=self.most),
        };
        // A span that is too long for the store is cut at the year 9999.
        Some(backoff.jitter(self.jitter).delay(fails, random))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy::exponential(Duration::from_secs(1)..=Duration::from_secs(600)).jitter(0.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn spans_double_up_to_the_greatest() {
        let retry = RetryPolicy::exponential(SECOND..=SECOND * 10).attempts(u32::MAX);
        let spans: Vec<u64> = (1..=6)
            .map(|fails| retry.after(fails, 0).unwrap().as_secs())
            .collect();
        assert_eq!(spans, [1, 2, 4, 8, 10, 10]);
        assert_eq!(retry.after(u32::MAX - 1, u64::MAX), Some(SECOND * 10));
    }

    #[test]
    fn attempts_are_counted_with_the_first() {
        let retry = RetryPolicy::fixed(SECOND).attempts(2);
        assert_eq!(retry.after(1, 0), Some(SECOND));
        assert_eq!(retry.after(2, 0), None);
        assert_eq!(RetryPolicy::never().after(1, 0), None);
    }

    #[test]
    fn the_longest_spans_do_not_overflow() {
        let retry = RetryPolicy::fixed(Duration::MAX)
            .jitter(1.0)
            .attempts(u32::MAX);
        assert!(retry.after(40, u64::MAX) > Some(SECOND * u32::MAX));
        assert_eq!(retry.after(40, 0), Some(Duration::ZERO));
    }

    #[test]
    fn jitter_stays_within_its_part() {
        let retry = RetryPolicy::fixed(SECOND * 100).jitter(0.2).attempts(9);
        assert_eq!(retry.after(1, 0), Some(SECOND * 80));
        let longest = retry.after(1, u64::MAX).unwrap();
        assert!(
            longest > SECOND * 119 && longest <= SECOND * 120,
            "{longest:?}"
        );
        let middle = retry.after(1, 1 << 63).unwrap();
        assert_eq!(middle, SECOND * 100);
    }

    #[test]
    fn the_range_has_the_last_word_over_growth_and_jitter() {
        let hours =
            RetryPolicy::exponential(Duration::from_micros(1)..=SECOND * 7_200).attempts(99);
        assert_eq!(hours.after(40, 0), Some(SECOND * 7_200));
        let jittered = RetryPolicy::exponential(SECOND..=SECOND * 8).jitter(0.5);
        for (fails, least, most) in [(1, 1_000, 1_500), (3, 2_000, 6_000), (19, 4_000, 8_000)] {
            let span = |random| jittered.after(fails, random).unwrap();
            assert_eq!(span(0), Duration::from_millis(least));
            assert!(span(u64::MAX) <= Duration::from_millis(most));
            assert!(span(u64::MAX) > Duration::from_millis(most - 10));
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        assert_eq!(RetryPolicy::default().check(), Ok(()));
        assert_eq!(RetryPolicy::never().check(), Ok(()));
        for bad in [
            RetryPolicy::fixed(Duration::ZERO),
            RetryPolicy::exponential(SECOND * 2..=SECOND),
            RetryPolicy::fixed(SECOND).jitter(f64::NAN),
            RetryPolicy::fixed(SECOND).jitter(-0.1),
            RetryPolicy::fixed(SECOND).jitter(1.1),
            RetryPolicy::fixed(SECOND).attempts(0),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
