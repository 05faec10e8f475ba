//! The clocks that a scheduler can run on. A clock also puts threads to sleep.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the choice of a clock |
//! | `reading.rs` | what a call knows of its moment |
//! | `fast.rs` | the processor's counter in this process, and whether it may be used |
//! | `anchors/` | the rules by which counts become times |
//! | `manual.rs` | a clock that a test moves |
//! | `tokio_clock.rs` | the clock of a runtime, which a manual clock can follow in tests |
//! | `parker.rs` | puts threads of users to sleep by a clock |
//! | `wall.rs` | the moments of a clock in calendar time |

pub(crate) mod anchors;
#[cfg(not(loom))]
mod fast;
mod manual;
mod parker;
mod reading;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
mod tokio_clock;
#[cfg(not(loom))]
mod wall;

pub(crate) use manual::Alarm;
pub use manual::ManualClock;
pub use parker::{ClockParker, ClockUnparker};
pub(crate) use reading::{ClaimReading, QuickReading, Reading};
#[cfg(not(loom))]
pub use wall::WallAnchor;

use std::time::Duration;
#[cfg(not(loom))]
use std::time::Instant;

use crate::sync::Parker;
use crate::tick::Time;
#[cfg(not(loom))]
use fast::FastClock;

/// Marks a branch that is rarely taken, so that the compiler tests the other cases first.
#[cold]
#[inline]
fn rarely() {}

/// A source of time for a scheduler.
///
/// The clock is chosen in the builder:
///
/// - [`Clock::fast`] is the default. It is the system's clock, read in a cheaper way by calls with
///   a long delay.
/// - [`Clock::system`] is `std::time::Instant`, which is monotonic. Whether it counts the time
///   while the machine is suspended depends on the platform (Linux does not count it).
/// - [`Clock::boottime`] counts that time.
/// - [`Clock::manual`] is for tests.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Clock, ManualClock, Time};
///
/// let hand = ManualClock::new();
/// let clock = Clock::manual(&hand);
/// hand.advance(Duration::from_secs(3));
/// assert_eq!(clock.now(), Time::ZERO + Duration::from_secs(3));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(ClockKind);

// With a tag of its own, so that a call asks for the kind with one comparison.
#[derive(Clone, Debug)]
#[repr(u8)]
enum ClockKind {
    #[cfg(not(loom))]
    System {
        start: Instant,
    },
    #[cfg(not(loom))]
    Fast(FastClock),
    /// Only made where [`since_boot`] returned a time.
    #[cfg(not(loom))]
    Boottime,
    Manual(ManualClock),
    /// A manual clock whose readings are cheap, and so much behind.
    #[cfg(all(test, not(loom)))]
    Behind(ManualClock, Duration),
}

/// Returns the time since the machine was booted, including suspensions, where there is a clock for
/// it.
#[cfg(all(not(loom), any(target_os = "linux", target_os = "android")))]
#[inline]
fn since_boot() -> Option<Duration> {
    use rustix::time::{DynamicClockId, clock_gettime_dynamic};
    // A dynamic id, because with the other kind a kernel without the clock would cause a panic.
    let since = clock_gettime_dynamic(DynamicClockId::Boottime).ok()?;
    Duration::try_from(since).ok()
}

#[cfg(all(not(loom), not(any(target_os = "linux", target_os = "android"))))]
fn since_boot() -> Option<Duration> {
    None
}

impl Clock {
    /// Returns the system's monotonic clock, which starts at [`Time::ZERO`] now.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Clock, Scheduler};
    ///
    /// let clock = Clock::system();
    /// let start = clock.now();
    /// let scheduler = Scheduler::<&str>::builder().clock(clock).build()?;
    /// assert!(scheduler.handle().now() >= start);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub fn system() -> Self {
        Clock(ClockKind::System {
            start: Instant::now(),
        })
    }

    /// Returns [`Clock::system`], with a cheap way to read it for calls whose delay is at least one
    /// second. It is the default of all builders.
    ///
    /// Reading the system's clock makes the processor wait for all memory that it has asked for. A
    /// call such as a touch spends most of its time waiting for memory. With this clock, it reads a
    /// counter of the processor instead, which does not wait.
    ///
    /// What it changes:
    ///
    /// - A deadline that is a delay of at least one second from now lies up to 1 ms later than with
    ///   [`Clock::system`], usually by nearly that, and never earlier. The calls return the
    ///   deadline that they have set.
    /// - A call that moves a timer to the earlier of two deadlines, such as
    ///   [`pull_in`](crate::Handle::pull_in), counts from the system's clock. So it may find that
    ///   its deadline is earlier by up to 1 ms, where with [`Clock::system`] both are the same.
    /// - A [lateness](crate::Firing::lateness) that is reported, also in statistics, may be up to
    ///   1 ms less than it is. Usually it is a few microseconds less, and never negative. Rounds of
    ///   a repeating timer report theirs exactly.
    ///
    /// [`now`](Clock::now), shorter delays, deadlines that are given as a [`Time`], the decision
    /// that a timer is due, and which rounds were missed all use the system's clock.
    ///
    /// It is used on x86-64 with Linux, while the kernel itself takes its time from that counter
    /// (`/sys/devices/system/clocksource/clocksource0/current_clocksource` says `tsc`). Elsewhere
    /// this is [`Clock::system`]. It also becomes [`Clock::system`], for all schedulers of the
    /// process and until the process ends, if the counter and the system's clock disagree three
    /// times within a second. A process reads the system's clock for the first 40 ms, while it
    /// measures the rate of the counter.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ExpiryMap};
    ///
    /// let sessions = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(30 * 60))
    ///     .clock(Clock::fast())
    ///     .build(|_, expired| println!("{} has left", expired.value))?;
    /// sessions.insert(7, "Ada")?;
    /// assert!(sessions.touch(&7).is_alive());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub fn fast() -> Self {
        FastClock::new().map_or_else(Self::system, |clock| Clock(ClockKind::Fast(clock)))
    }

    /// Returns a manual clock whose readings for calls are cheap ones, `behind` its time.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn behind(clock: &ManualClock, behind: Duration) -> Self {
        Clock(ClockKind::Behind(clock.clone(), behind))
    }

    /// Returns the clock that counts from the machine's boot and goes on while the machine is
    /// suspended: `CLOCK_BOOTTIME`, on Linux and Android. Use it for leases, and for anything else
    /// for which the outside world does not wait while the machine is suspended.
    ///
    /// Its times are nanoseconds since the boot. So the times of all processes of one machine can
    /// be compared until the machine is rebooted. A container with a time namespace of its own may
    /// have another zero.
    ///
    /// On other platforms, or if the kernel does not have that clock, this returns
    /// [`Clock::system`], starting at [`Time::ZERO`] now. [`counts_suspend`](Clock::counts_suspend)
    /// tells which of the two it is.
    ///
    /// # Blocking
    ///
    /// After a suspension, the clock shows the right time at once, and timers that expired
    /// meanwhile are late by that time. But threads sleep by the system's monotonic clock, which
    /// has these effects:
    ///
    /// - A ticker that slept when the machine was suspended still sleeps for the time that it had
    ///   left, unless a deadline earlier than the one it sleeps for wakes it.
    /// - Until then nothing in its shard expires, not even timers that were armed after the
    ///   suspension. So a task is late by up to that sleep, once.
    /// - In a scheduler with one shard, a [repeating](crate::Handle::repeat) timer bounds this
    ///   delay, at the cost of its wake-ups.
    /// - The limits of calls that wait, such as a shutdown, pass late in the same way.
    ///
    /// No timer is early.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Clock, Scheduler};
    ///
    /// # fn main() -> Result<(), tourbillon::BuildError> {
    /// let clock = Clock::boottime();
    /// let scheduler = Scheduler::<&str>::builder().clock(clock.clone()).build()?;
    /// let lease_taken = clock.now();
    /// assert!(scheduler.handle().now() >= lease_taken);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub fn boottime() -> Self {
        since_boot().map_or_else(Self::system, |_| Clock(ClockKind::Boottime))
    }

    /// Returns a clock that stands still until `clock` is moved.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock, Timer};
    ///
    /// let hand = ManualClock::new();
    /// let timer = Timer::builder().clock(Clock::manual(&hand)).build()?;
    /// let timeout = timer.after(Duration::from_secs(60), || println!("a minute has passed"))?;
    /// hand.advance(Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn manual(clock: &ManualClock) -> Self {
        Clock(ClockKind::Manual(clock.clone()))
    }

    /// Returns the [`ManualClock`] that moves this clock, if it is a manual one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock, Time};
    ///
    /// /// Lets time pass in a test, and nothing in production.
    /// fn skip(clock: &Clock, by: Duration) {
    ///     if let Some(hand) = clock.as_manual() {
    ///         hand.advance(by);
    ///     }
    /// }
    /// let clock = Clock::manual(&ManualClock::new());
    /// skip(&clock, Duration::from_secs(3));
    /// assert_eq!(clock.now(), Time::ZERO + Duration::from_secs(3));
    /// assert!(Clock::system().as_manual().is_none());
    /// ```
    #[must_use]
    pub fn as_manual(&self) -> Option<ManualClock> {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::System { .. } | ClockKind::Fast(_) | ClockKind::Boottime => None,
            ClockKind::Manual(clock) => Some(clock.clone()),
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(clock, _) => Some(clock.clone()),
        }
    }

    /// Returns whether this clock is known to go on while the machine is suspended. That is true
    /// for [`Clock::boottime`] on a platform that has it. It is not known for [`Clock::system`],
    /// and a manual clock goes on only when it is moved.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Clock;
    ///
    /// let clock = Clock::boottime();
    /// if !clock.counts_suspend() {
    ///     eprintln!("timers stand still while the machine is suspended");
    /// }
    /// assert!(!Clock::system().counts_suspend());
    /// ```
    #[must_use]
    pub fn counts_suspend(&self) -> bool {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::Boottime => true,
            #[cfg(not(loom))]
            ClockKind::System { .. } | ClockKind::Fast(_) => false,
            ClockKind::Manual(_) => false,
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(..) => false,
        }
    }

    /// Returns the present moment of this clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::System { start } => Time::ZERO + start.elapsed(),
            #[cfg(not(loom))]
            ClockKind::Fast(clock) => Time::ZERO + clock.start().elapsed(),
            #[cfg(not(loom))]
            ClockKind::Boottime => {
                Time::ZERO + since_boot().expect("a kernel that knew the clock still knows it")
            }
            ClockKind::Manual(clock) => clock.now(),
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(clock, _) => clock.now(),
        }
    }

    /// Returns the moment of a call, read in the cheapest way that this clock has.
    #[inline]
    pub(crate) fn reading(&self) -> Reading {
        // Only what is short is inlined into all calls. The usual clock is asked for first: a match
        // over all of them becomes a table of jumps.
        #[cfg(not(loom))]
        if let ClockKind::Fast(clock) = &self.0 {
            let (low, margin) = clock.low();
            return Reading::new(low, margin);
        }
        match &self.0 {
            ClockKind::Manual(clock) => Reading::exact(clock.now()),
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(clock, behind) => {
                Reading::new(clock.now() - *behind, reading::MARGIN)
            }
            #[cfg(not(loom))]
            _ => Reading::read_again(self),
        }
    }

    /// Returns whether this clock ever has a quick reading.
    #[inline(always)]
    pub(crate) fn has_quick_readings(&self) -> bool {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::System { .. } | ClockKind::Boottime => false,
            _ => true,
        }
    }

    /// Returns a quick reading, if the clock can make one now.
    #[inline(always)]
    pub(crate) fn quick_reading(&self) -> Option<QuickReading> {
        #[cfg(not(loom))]
        if let ClockKind::Fast(clock) = &self.0 {
            return clock.quick();
        }
        match &self.0 {
            ClockKind::Manual(clock) => {
                rarely();
                QuickReading::exact(clock.now())
            }
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(clock, behind) => {
                let margin = Duration::from_nanos(reading::MARGIN);
                let start = clock.now() - *behind + margin;
                Some(QuickReading::new(start, reading::MARGIN))
            }
            #[cfg(not(loom))]
            _ => None,
        }
    }

    /// Returns the moment of a call that counts `delay` from it.
    #[inline]
    pub(crate) fn reading_for(&self, delay: Duration) -> Reading {
        // Asked first, since an exact reading is not made of a cheap one.
        if reading::is_long(delay) {
            self.reading()
        } else {
            Reading::exact(self.now())
        }
    }

    /// Returns the moment of this clock that corresponds to `instant`.
    ///
    /// On a clock other than the system's, the result is as far from the clock's present as
    /// `instant` is from the system's present, or a little later. This includes
    /// [`Clock::boottime`]: a suspension between `instant` and now is not counted.
    #[cfg(not(loom))]
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> Time {
        let since = |start| Time::ZERO + instant.saturating_duration_since(start);
        match &self.0 {
            ClockKind::System { start } => since(*start),
            ClockKind::Fast(clock) => since(clock.start()),
            _ => {
                // In this order: time that passes between the two reads makes the answer later,
                // never earlier.
                let real = Instant::now();
                let now = self.now();
                instant.checked_duration_since(real).map_or_else(
                    || now - real.saturating_duration_since(instant),
                    |ahead| now + ahead,
                )
            }
        }
    }

    /// Returns the instant that corresponds to `time`, or `None` if there is none: for
    /// [`Time::MAX`], which means *never*, and for times that an `Instant` can't hold.
    ///
    /// It is the inverse of [`time_of`](Self::time_of): on a clock other than the system's, the
    /// instant is as far from the system's present as `time` is from the clock's present, or a
    /// little later.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tourbillon::{Clock, Time};
    ///
    /// let clock = Clock::system();
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// assert_eq!(clock.instant_of(clock.time_of(deadline)), Some(deadline));
    /// assert_eq!(clock.instant_of(Time::MAX), None);
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub fn instant_of(&self, time: Time) -> Option<Instant> {
        if time == Time::MAX {
            return None;
        }
        let since_start = time.since(Time::ZERO);
        match &self.0 {
            ClockKind::System { start } => start.checked_add(since_start),
            ClockKind::Fast(clock) => clock.start().checked_add(since_start),
            _ => {
                // In this order: time that passes between the two reads makes the answer later.
                let now = self.now();
                let real = Instant::now();
                match time >= now {
                    true => real.checked_add(time.since(now)),
                    false => real.checked_sub(now.since(time)),
                }
            }
        }
    }

    /// Blocks until `until`, until the parker is unparked, or a little less. `None` waits for the
    /// unpark alone.
    pub(crate) fn park_until(&self, parker: &Parker, until: Option<Time>) {
        let Some(until) = until.filter(|time| *time != Time::MAX) else {
            parker.park();
            return;
        };
        match &self.0 {
            // A suspension does not shorten the time that a thread still has to sleep. Sleeping in
            // shorter pieces would, but threads would then wake when nothing is due.
            #[cfg(not(loom))]
            ClockKind::System { .. } | ClockKind::Fast(_) | ClockKind::Boottime => {
                let left = until.since(self.now());
                if !left.is_zero() {
                    crate::sync::park_for(parker, left);
                }
            }
            ClockKind::Manual(clock) => clock.park_until(parker, until),
            #[cfg(all(test, not(loom)))]
            ClockKind::Behind(clock, _) => clock.park_until(parker, until),
        }
    }
}
