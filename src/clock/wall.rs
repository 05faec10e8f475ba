//! The moments of a clock in calendar time.

use std::time::{Duration, SystemTime};

use super::Clock;
use crate::tick::Time;

/// The greatest time between the two readings of a clock around a reading of the calendar.
const NARROW: Duration = Duration::from_micros(100);

/// The number of readings out of which the narrowest is taken, if none is narrow enough.
const TRIES: usize = 8;

/// One moment, by a [`Clock`] and by the calendar. It converts the times of that clock to calendar
/// times, and back.
///
/// The calendar of a machine may be stepped, by hand or by a time server. A clock of this crate
/// never is. An anchor does not notice such a step: all its conversions agree with each other, and
/// with the calendar as it was when the anchor was made. Make a new anchor, by
/// [`Clock::wall_anchor`], for each use or group of uses. A time server also makes the calendar run
/// up to 0.05 % faster or slower, which is 1.8 s in an hour.
///
/// A deadline never follows the calendar. A timer that was scheduled for noon by an anchor runs
/// when as much time has passed as was left until noon.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tourbillon::{Clock, Time, WallAnchor};
///
/// let anchor = Clock::system().wall_anchor();
/// let in_an_hour = anchor.time() + Duration::from_secs(3600);
/// let date = anchor.system_time_of(in_an_hour).expect("the calendar has it");
/// assert_eq!(date, anchor.system_time() + Duration::from_secs(3600));
/// assert_eq!(anchor.time_of(date), in_an_hour);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WallAnchor {
    time: Time,
    wall: SystemTime,
}

impl WallAnchor {
    /// Creates the anchor of a moment that is `time` by a clock and `wall` by the calendar. For
    /// tests, whose clock is manual.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{Time, WallAnchor};
    ///
    /// let anchor = WallAnchor::new(Time::ZERO, SystemTime::UNIX_EPOCH);
    /// let second = Duration::from_secs(1);
    /// assert_eq!(anchor.system_time_of(Time::ZERO + second), Some(SystemTime::UNIX_EPOCH + second));
    /// ```
    #[must_use]
    pub const fn new(time: Time, wall: SystemTime) -> Self {
        WallAnchor { time, wall }
    }

    /// Returns the moment by the clock.
    #[must_use]
    pub const fn time(&self) -> Time {
        self.time
    }

    /// Returns the moment by the calendar.
    #[must_use]
    pub const fn system_time(&self) -> SystemTime {
        self.wall
    }

    /// Converts a time of the clock. Returns `None` for [`Time::MAX`], which means *never*, and for
    /// times that a `SystemTime` can't hold.
    #[must_use]
    pub fn system_time_of(&self, time: Time) -> Option<SystemTime> {
        if time == Time::MAX {
            return None;
        }
        match time >= self.time {
            true => self.wall.checked_add(time.since(self.time)),
            false => self.wall.checked_sub(self.time.since(time)),
        }
    }

    /// Converts a time of the calendar. A time before the clock's start becomes [`Time::ZERO`].
    #[must_use]
    pub fn time_of(&self, wall: SystemTime) -> Time {
        match wall.duration_since(self.wall) {
            Ok(ahead) => self.time + ahead,
            Err(behind) => self.time - behind.duration(),
        }
    }
}

impl Clock {
    /// Returns the present moment, by this clock and by the calendar. The two readings are at most
    /// 0.1 ms apart, unless the machine is too busy for that. A manual clock has a calendar of its
    /// own: [`ManualClock::wall`](crate::ManualClock::wall).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{Scheduler, Time};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::new()?;
    /// let timers = scheduler.handle();
    /// let date = SystemTime::now() + Duration::from_secs(3600); // from a calendar
    /// let deadline = timers.clock().wall_anchor().time_of(date);
    /// timers.schedule("report", deadline, |_| println!("it is time"))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wall_anchor(&self) -> WallAnchor {
        if let Some(hand) = self.as_manual() {
            return WallAnchor::new(hand.now(), hand.wall());
        }
        let read = || {
            let before = self.now();
            let wall = SystemTime::now();
            let between = self.now().since(before);
            (between, WallAnchor::new(before + between / 2, wall))
        };
        let mut narrowest = read();
        for _ in 1..TRIES {
            if narrowest.0 <= NARROW {
                break;
            }
            let next = read();
            if next.0 < narrowest.0 {
                narrowest = next;
            }
        }
        narrowest.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn an_anchor_converts_both_ways_on_both_sides() {
        let noon = SystemTime::UNIX_EPOCH + 43_200 * S;
        let anchor = WallAnchor::new(Time::ZERO + 100 * S, noon);
        for (time, wall) in [(0, noon - 100 * S), (100, noon), (250, noon + 150 * S)] {
            let time = Time::ZERO + time * S;
            assert_eq!(anchor.system_time_of(time), Some(wall));
            assert_eq!(anchor.time_of(wall), time);
        }
        assert_eq!(anchor.system_time_of(Time::MAX), None);
        assert_eq!(anchor.time_of(noon - 101 * S), Time::ZERO);
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000 * 365 * 86_400);
        assert_eq!(anchor.time_of(far), Time::MAX);
    }

    #[test]
    fn an_anchor_is_taken_at_the_present() {
        let hand = ManualClock::new();
        hand.advance(7 * S);
        let anchor = Clock::manual(&hand).wall_anchor();
        assert_eq!(anchor.time(), Time::ZERO + 7 * S);
        assert_eq!(anchor.system_time(), SystemTime::UNIX_EPOCH + 7 * S);
        for clock in [Clock::system(), Clock::fast(), Clock::boottime()] {
            let before = clock.now();
            let anchor = clock.wall_anchor();
            assert!(before <= anchor.time() && anchor.time() <= clock.now());
        }
    }
}
