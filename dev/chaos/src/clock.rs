//! The clock that all processes of the machine share, and the wall clock beside it, which is the
//! servers'.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the start of the machine, as of `Clock::boottime`.
pub type Moment = u64;

/// This moment.
pub fn now() -> Moment {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    // Neither is negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The nanoseconds of a span.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// For people: milliseconds, with three digits behind the point.
pub fn millis(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1_000_000, nanos / 1_000 % 1_000)
}

/// How far the wall clock, which is the server's, is ahead of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset(u64);

impl Offset {
    /// The best of some readings: one that was interrupted between the two clocks says little.
    pub fn read() -> Self {
        let reading = || {
            let before = now();
            let wall = SystemTime::now().duration_since(UNIX_EPOCH);
            let after = now();
            let wall = nanos(wall.unwrap_or_default());
            (after - before, wall.wrapping_sub(before.midpoint(after)))
        };
        let best = (0..20).map(|_| reading()).min();
        Offset(best.map_or(0, |(_, offset)| offset))
    }

    /// The moment of microseconds of the wall clock.
    pub fn moment(self, wall_micros: u64) -> Moment {
        wall_micros.wrapping_mul(1_000).saturating_sub(self.0)
    }

    /// Whether the wall clock has been set meanwhile. When it is only corrected it goes faster or
    /// slower, and so does ours.
    pub fn agrees(self, later: Offset) -> bool {
        self.0.abs_diff(later.0) < 100_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_becomes_a_moment() {
        let offset = Offset::read();
        let before = now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let after = now();
        let moment = offset.moment(u64::try_from(wall.as_micros()).unwrap());
        // Unless it is set in this very moment.
        if offset.agrees(Offset::read()) {
            assert!(moment + 200_000 > before && moment < after + 200_000);
        }
        assert!(!offset.agrees(Offset(offset.0 + 1_000_000)));
        assert_eq!(millis(1_234_567), "1.234");
    }
}
