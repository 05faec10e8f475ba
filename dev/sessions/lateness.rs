//! Counts how late handlers began, in buckets that can be read while they are written. The
//! difference of two readings is the lateness between them. The engine's own percentiles are of the
//! whole run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The upper end of the first bucket: 8 us.
const FIRST_OCTAVE: u32 = 13;
/// The last bucket ends at 73 minutes.
const LAST_OCTAVE: u32 = 41;
/// The number of buckets in which a lateness doubles.
const PARTS: u32 = 8;
const BUCKETS: usize = 1 + ((LAST_OCTAVE - FIRST_OCTAVE + 1) * PARTS) as usize;

/// The histogram that handlers write.
#[derive(Debug)]
pub(crate) struct Histogram([AtomicU64; BUCKETS]);

/// The counts of a histogram at one time, or between two times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts([u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts([0; BUCKETS])
    }
}

impl Histogram {
    pub(crate) fn record(&self, lateness: Duration) {
        self.0[bucket(lateness)].fetch_add(1, Relaxed);
    }

    /// Adds the current counts of a histogram.
    pub(crate) fn add_to(&self, counts: &mut Counts) {
        for (count, more) in counts.0.iter_mut().zip(&self.0) {
            *count += more.load(Relaxed);
        }
    }
}

impl Counts {
    /// Returns the counts since an earlier reading.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        let mut between = self.clone();
        for (count, before) in between.0.iter_mut().zip(&earlier.0) {
            *count -= before;
        }
        between
    }

    /// Returns the lateness that this percentage of the samples did not exceed. The result is at
    /// most an eighth too high, and never too low. `None` without samples.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let total: u64 = self.0.iter().sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        reached.map(upper_end)
    }
}

fn bucket(lateness: Duration) -> usize {
    let nanos = u64::try_from(lateness.as_nanos()).unwrap_or(u64::MAX);
    let Some(octave) = nanos
        .checked_ilog2()
        .filter(|&octave| octave >= FIRST_OCTAVE)
    else {
        return 0;
    };
    if octave > LAST_OCTAVE {
        return BUCKETS - 1;
    }
    let part = (nanos >> (octave - PARTS.ilog2())) as u32 % PARTS;
    (1 + (octave - FIRST_OCTAVE) * PARTS + part) as usize
}

/// Returns the upper end of a bucket.
fn upper_end(bucket: usize) -> Duration {
    let bucket = bucket as u32;
    let (octave, part) = (bucket / PARTS, bucket % PARTS);
    let start = u64::from(PARTS + part) << (octave + FIRST_OCTAVE - PARTS.ilog2());
    Duration::from_nanos(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_most_an_eighth_above_what_it_holds() {
        let mut nanos = 1_u64 << FIRST_OCTAVE;
        while nanos < 1 << LAST_OCTAVE {
            for nanos in [nanos - 1, nanos, nanos + nanos / 9] {
                let lateness = Duration::from_nanos(nanos);
                let end = upper_end(bucket(lateness));
                let most = lateness.mul_f64(1.125).max(upper_end(0)) + Duration::from_nanos(1);
                assert!(lateness < end && end <= most, "{lateness:?} {end:?}");
            }
            nanos += nanos / 5;
        }
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_time_between_two_readings() {
        let histogram = Histogram::default();
        let read = || {
            let mut counts = Counts::default();
            histogram.add_to(&mut counts);
            counts
        };
        assert_eq!(read().percentile(99), None);
        for _ in 0..100 {
            histogram.record(Duration::from_millis(900));
        }
        let before = read();
        assert_eq!(read().since(&before).percentile(50), None);
        for _ in 0..98 {
            histogram.record(Duration::from_millis(1));
        }
        for _ in 0..2 {
            histogram.record(Duration::from_millis(30));
        }
        let second = read().since(&before);
        let [p50, p98, p99] = [50, 98, 99].map(|percent| second.percentile(percent));
        assert_eq!(p50, p98);
        let near = |found: Option<Duration>, millis: u64| {
            let truth = Duration::from_millis(millis);
            found.is_some_and(|found| found >= truth && found <= truth.mul_f64(1.125))
        };
        assert!(near(p50, 1) && near(p99, 30), "{p50:?} {p99:?}");
        assert!(near(read().percentile(99), 900));
    }
}
