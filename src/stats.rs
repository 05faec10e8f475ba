//! Counters and lateness. Each stripe keeps them as plain numbers under its lock; they are summed
//! on request.

use core::fmt;
use std::time::Duration;

/// Counts of the armings of one stripe by outcome. `pending` is counted on its own and not derived,
/// so that the balance is a real check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) scheduled: u64,
    pub(crate) ran: u64,
    pub(crate) cancelled: u64,
    pub(crate) replaced: u64,
    pub(crate) handed_back: u64,
    pub(crate) panicked: u64,
    pub(crate) pending: u64,
    pub(crate) queued: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Counters) {
        self.scheduled += other.scheduled;
        self.ran += other.ran;
        self.cancelled += other.cancelled;
        self.replaced += other.replaced;
        self.handed_back += other.handed_back;
        self.panicked += other.panicked;
        self.pending += other.pending;
        self.queued += other.queued;
    }
}

/// A histogram of lateness. It has 4 buckets per octave from 1 us to about 70 minutes, so a
/// percentile is at most a quarter above the true value. The maximum is exact.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: [u32; Histogram::BUCKETS],
    total: u64,
    max: u64,
}

impl Histogram {
    const FIRST_OCTAVE: u32 = 10;
    const OCTAVES: u32 = 32;
    const BUCKETS: usize = (Self::OCTAVES as usize) * 4 + 1;

    pub(crate) const fn new() -> Self {
        Histogram {
            counts: [0; Self::BUCKETS],
            total: 0,
            max: 0,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        let bucket = &mut self.counts[Self::bucket(nanos)];
        *bucket = bucket.saturating_add(1);
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    fn bucket(nanos: u64) -> usize {
        let octave = nanos.checked_ilog2().unwrap_or(0);
        if octave < Self::FIRST_OCTAVE {
            return 0;
        }
        let quarter = (nanos >> (octave - 2)) & 3;
        let bucket = (octave - Self::FIRST_OCTAVE) as usize * 4 + quarter as usize + 1;
        bucket.min(Self::BUCKETS - 1)
    }

    /// The value that stands for those of `bucket` in a sum.
    fn middle(bucket: usize) -> u64 {
        match bucket {
            0 => 0,
            // The last one has no end.
            _ if bucket + 1 >= Self::BUCKETS => Self::upper_end(bucket - 1) + 1,
            _ => {
                let first = Self::upper_end(bucket - 1) + 1;
                first + (Self::upper_end(bucket) - first) / 2
            }
        }
    }

    /// The greatest value that falls into `bucket`.
    fn upper_end(bucket: usize) -> u64 {
        if bucket + 1 >= Self::BUCKETS {
            return u64::MAX;
        }
        // Bucket b >= 1 begins at (4 + q) << (octave - 2) with q = (b - 1) % 4, and ends where b +
        // 1 begins.
        let (octave, quarter) = (bucket / 4, bucket % 4);
        ((quarter as u64 + 4) << (octave as u32 + Self::FIRST_OCTAVE - 2)) - 1
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sum = HistogramSum::new();
        sum.add(self);
        sum.summary().fmt(f)
    }
}

/// The histograms of several stripes, added up. Its counts are wider than those of a stripe: within
/// some hours a scheduler can start more tasks than 32 bits count.
#[derive(Clone)]
pub(crate) struct HistogramSum {
    counts: [u64; Histogram::BUCKETS],
    total: u64,
    max: u64,
}

impl HistogramSum {
    /// The greatest power of two at which a bucket ends.
    pub(crate) const LAST_POWER: u32 = Histogram::FIRST_OCTAVE + Histogram::OCTAVES - 1;

    pub(crate) const fn new() -> Self {
        HistogramSum {
            counts: [0; Histogram::BUCKETS],
            total: 0,
            max: 0,
        }
    }

    pub(crate) fn add(&mut self, histogram: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&histogram.counts) {
            *sum += u64::from(*count);
        }
        self.total += histogram.total;
        self.max = self.max.max(histogram.max);
    }

    pub(crate) fn merge(&mut self, other: &HistogramSum) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn summary(&self) -> Lateness {
        let at = |per_mille: u64| {
            let rank = (self.total * per_mille).div_ceil(1_000).max(1);
            let mut seen = 0_u64;
            for (bucket, count) in self.counts.iter().enumerate() {
                seen += count;
                if seen >= rank {
                    // The bucket may end above the greatest value.
                    return Duration::from_nanos(Histogram::upper_end(bucket).min(self.max));
                }
            }
            Duration::from_nanos(self.max)
        };
        Lateness {
            count: self.total,
            p50: at(500),
            p99: at(990),
            p99_9: at(999),
            max: Duration::from_nanos(self.max),
        }
    }

    /// The number of values.
    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    /// The number of values below this power of two, in nanoseconds. It is exact, since a bucket
    /// ends there. The exponent must lie within the octaves of the histogram.
    pub(crate) fn below_power_of_two(&self, exponent: u32) -> u64 {
        debug_assert!((Histogram::FIRST_OCTAVE..=Self::LAST_POWER).contains(&exponent));
        let last = (exponent - Histogram::FIRST_OCTAVE) as usize * 4;
        self.counts[..=last].iter().sum()
    }

    /// The approximate sum of the values. Each value counts as the middle of its
    /// bucket, so it is at most an eighth off. Those below 1,024 ns count as zero, and those above
    /// all octaves as the beginning of the last bucket. The greatest value is exact. As values are
    /// added the sum never falls.
    pub(crate) fn approximate_sum(&self) -> Duration {
        if self.total == 0 {
            return Duration::ZERO;
        }
        let counts = self.counts.iter().enumerate();
        let sum: u128 = counts
            .map(|(bucket, count)| u128::from(Histogram::middle(bucket)) * u128::from(*count))
            .sum();
        let counted = u128::from(Histogram::middle(Histogram::bucket(self.max)));
        let nanos = (sum + u128::from(self.max)).saturating_sub(counted);
        let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        // Below a billion.
        Duration::new(seconds, (nanos % 1_000_000_000) as u32)
    }
}

impl fmt::Debug for HistogramSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(f)
    }
}

/// The lateness histograms of one stripe. They are allocated with the first run.
#[derive(Clone, Debug)]
pub(crate) struct Latenesses {
    pub(crate) total: Histogram,
    pub(crate) tick: Histogram,
    pub(crate) queue: Histogram,
}

impl Latenesses {
    pub(crate) const fn new() -> Self {
        Latenesses {
            total: Histogram::new(),
            tick: Histogram::new(),
            queue: Histogram::new(),
        }
    }
}

/// The lateness of several stripes.
#[derive(Clone, Debug)]
pub(crate) struct LatenessSums {
    pub(crate) total: HistogramSum,
    pub(crate) tick: HistogramSum,
    pub(crate) queue: HistogramSum,
}

impl LatenessSums {
    pub(crate) const fn new() -> Self {
        LatenessSums {
            total: HistogramSum::new(),
            tick: HistogramSum::new(),
            queue: HistogramSum::new(),
        }
    }

    pub(crate) fn add(&mut self, stripe: &Latenesses) {
        self.total.add(&stripe.total);
        self.tick.add(&stripe.tick);
        self.queue.add(&stripe.queue);
    }

    pub(crate) fn merge(&mut self, other: &LatenessSums) {
        self.total.merge(&other.total);
        self.tick.merge(&other.tick);
        self.queue.merge(&other.queue);
    }
}

/// A snapshot of how late tasks started, since the scheduler was built.
///
/// Percentiles come from buckets of a quarter octave. Each one is at most a quarter above the true
/// value, never below it, and never above `max`, which is exact.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// scheduler.advance(Duration::from_secs(1));
/// let lateness = timers.stats().lateness();
/// assert_eq!(lateness.count, 1);
/// assert!(lateness.p50 <= lateness.p99 && lateness.p99 <= lateness.max);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Lateness {
    /// The number of starts that were measured.
    pub count: u64,
    /// Half of the starts were at most this late.
    pub p50: Duration,
    /// 99 % of the starts were at most this late.
    pub p99: Duration,
    /// 99.9 % of the starts were at most this late.
    pub p99_9: Duration,
    /// The greatest lateness of a start.
    pub max: Duration,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_its_bucket_and_a_fifth_of_its_end() {
        for exponent in 0..63 {
            for value in [
                1_u64 << exponent,
                (1 << exponent) + 1,
                (1 << exponent) / 4 * 7,
            ] {
                let bucket = Histogram::bucket(value);
                let end = Histogram::upper_end(bucket);
                assert!(value <= end, "{value} in {bucket} up to {end}");
                if (1 << 11..1 << 41).contains(&value) {
                    assert!(end - value <= value / 4, "{value} up to {end}");
                }
                assert!(bucket == 0 || Histogram::upper_end(bucket - 1) < value);
            }
        }
    }

    #[test]
    fn percentiles_of_a_known_series() {
        let mut histogram = Histogram::new();
        for micros in 1..=1_000 {
            histogram.record(micros * 1_000);
        }
        let mut sum = HistogramSum::new();
        sum.add(&histogram);
        let summary = sum.summary();
        assert_eq!(summary.count, 1_000);
        assert_eq!(summary.max, Duration::from_micros(1_000));
        for (got, want) in [(summary.p50, 500), (summary.p99, 990), (summary.p99_9, 999)] {
            let want = Duration::from_micros(want);
            assert!(got >= want && got <= want * 5 / 4, "{got:?} for {want:?}");
        }
        let mut twice = sum.clone();
        twice.merge(&sum);
        assert_eq!(twice.summary().count, 2_000);
        assert_eq!(twice.summary().p50, summary.p50);
        assert_eq!(HistogramSum::new().summary(), Lateness::default());
    }

    #[test]
    fn a_sum_counts_further_than_the_histogram_of_a_stripe() {
        let mut full = Histogram::new();
        full.counts[Histogram::bucket(5_000)] = u32::MAX;
        let mut sum = HistogramSum::new();
        sum.add(&full);
        sum.add(&full);
        assert_eq!(sum.below_power_of_two(13), 2 * u64::from(u32::MAX));
    }

    #[test]
    fn what_lies_below_a_power_of_two_is_counted_exactly() {
        let mut histogram = Histogram::new();
        for exponent in 10..=41 {
            for value in [(1 << exponent) - 1, 1 << exponent, (1 << exponent) + 1] {
                histogram.record(value);
            }
        }
        let mut sum = HistogramSum::new();
        sum.add(&histogram);
        for exponent in Histogram::FIRST_OCTAVE..=HistogramSum::LAST_POWER {
            let below = 3 * u64::from(exponent - 10) + 1;
            assert_eq!(sum.below_power_of_two(exponent), below, "{exponent}");
        }
    }

    #[test]
    fn the_approximate_sum_is_an_eighth_off_at_most_and_never_falls() {
        let mut histogram = Histogram::new();
        let (mut exact, mut before) = (0_u128, 0);
        let mut value = 7_u64;
        for _ in 0..5_000 {
            // Up to half an hour.
            value = value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let value = (value >> 23) >> (value % 31);
            histogram.record(value);
            exact += u128::from(value);
            let mut sum = HistogramSum::new();
            sum.add(&histogram);
            let approximate = sum.approximate_sum().as_nanos();
            assert!(approximate >= before);
            let under_1_024 = 1_024 * u128::from(sum.total);
            assert!(approximate.abs_diff(exact) <= exact / 8 + under_1_024);
            before = approximate;
        }
    }

    #[test]
    fn the_sum_of_one_value_is_exact() {
        for value in [0, 1, 1_023, 1_024, 5_000, 1 << 50, u64::MAX] {
            let mut histogram = Histogram::new();
            histogram.record(value);
            let mut sum = HistogramSum::new();
            assert_eq!(sum.approximate_sum(), Duration::ZERO);
            sum.add(&histogram);
            assert_eq!(sum.approximate_sum(), Duration::from_nanos(value));
        }
    }
}
