//! The clocks that a scheduler can run on. Sleeping belongs to the clock: a thread that waits for a
//! moment of a manual clock is woken by whoever moves that clock.

#[cfg(not(loom))]
use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Parker, Unparker};
use crate::tick::Time;
use std::time::Duration;

/// What a scheduler tells the time by.
///
/// Chosen in the builder. [`Clock::system`] is the default: `std::time::Instant`, monotonic, whose
/// treatment of suspended time is the platform's (Linux does not count it).
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
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    #[cfg(not(loom))]
    System {
        start: Instant,
    },
    Manual(ManualClock),
}

impl Clock {
    /// The system's monotonic clock, starting at [`Time::ZERO`] now.
    #[cfg(not(loom))]
    #[must_use]
    pub fn system() -> Self {
        Clock(Kind::System {
            start: Instant::now(),
        })
    }

    /// A clock that stands still until `clock` is moved.
    #[must_use]
    pub fn manual(clock: &ManualClock) -> Self {
        Clock(Kind::Manual(clock.clone()))
    }

    /// The hand that moves this clock, if it is a manual one.
    #[must_use]
    pub fn as_manual(&self) -> Option<ManualClock> {
        match &self.0 {
            #[cfg(not(loom))]
            Kind::System { .. } => None,
            Kind::Manual(clock) => Some(clock.clone()),
        }
    }

    /// The present moment of this clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        match &self.0 {
            #[cfg(not(loom))]
            Kind::System { start } => Time::ZERO + start.elapsed(),
            Kind::Manual(clock) => clock.now(),
        }
    }

    /// The moment of this clock that corresponds to `instant`.
    ///
    /// On a manual clock it is as far from the clock's present as `instant` is from the system's.
    #[cfg(not(loom))]
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> Time {
        match &self.0 {
            Kind::System { start } => Time::ZERO + instant.saturating_duration_since(*start),
            Kind::Manual(clock) => {
                let real = Instant::now();
                let now = clock.now();
                instant.checked_duration_since(real).map_or_else(
                    || now - real.saturating_duration_since(instant),
                    |ahead| now + ahead,
                )
            }
        }
    }

    /// Blocks until `until`, until the parker is unparked, or a little less; `None` waits for the
    /// unpark alone.
    pub(crate) fn park_until(&self, parker: &Parker, until: Option<Time>) {
        let Some(until) = until.filter(|time| *time != Time::MAX) else {
            parker.park();
            return;
        };
        match &self.0 {
            #[cfg(not(loom))]
            Kind::System { .. } => {
                let left = until.since(self.now());
                if !left.is_zero() {
                    crate::sync::park_for(parker, left);
                }
            }
            Kind::Manual(clock) => clock.park_until(parker, until),
        }
    }
}

/// A clock that moves only when it is told to, for tests and simulations.
///
/// Clones share one clock. Moving it wakes the threads that wait for a moment which has come.
///
/// Everything that a scheduler measures goes by its clock: on one that stands still the pool does
/// not grow, however long its workers are blocked, and no limit of a shutdown passes.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    now: AtomicU64,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    waiting: Vec<(u64, Time, Unparker)>,
    next: u64,
}

impl ManualClock {
    /// A clock that shows [`Time::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Time::ZERO)
    }

    /// A clock that shows `start`.
    #[must_use]
    pub fn starting_at(start: Time) -> Self {
        ManualClock(Arc::new(Manual {
            now: AtomicU64::new(start.as_nanos()),
            waiters: Mutex::new(Waiters::default()),
        }))
    }

    /// The moment that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        // Acquire pairs with the Release in `set`: who sees the time sees what led to it.
        Time::from_nanos(self.0.now.load(Ordering::Acquire))
    }

    /// Moves the clock forward by `by`, saturating at [`Time::MAX`], and wakes those whose moment
    /// has come. Returns the new time.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn advance(&self, by: Duration) -> Time {
        let later = |now| Time::from_nanos(now) + by;
        // AcqRel, Acquire: as in `set` and `now`.
        let before = self
            .0
            .now
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                Some(later(now).as_nanos())
            })
            .unwrap_or_else(|now| now);
        let now = later(before);
        self.wake(now);
        now
    }

    /// Moves the clock to `now`, also backwards: schedulers then fire nothing until the clock has
    /// caught up, and lose nothing.
    pub fn set(&self, now: Time) {
        // Release pairs with the Acquire in `now`. A waiter looks at the time under the lock that
        // is taken below, so it sees the new time or is seen.
        let before = self.0.now.swap(now.as_nanos(), Ordering::Release);
        // Set back, everybody looks again: what they wait for may be another moment now.
        let all = now.as_nanos() < before;
        self.wake(if all { Time::MAX } else { now });
    }

    fn wake(&self, now: Time) {
        let waiters = self.0.waiters.lock();
        for (_, until, unparker) in &waiters.waiting {
            if *until <= now {
                unparker.unpark();
            }
        }
    }

    fn park_until(&self, parker: &Parker, until: Time) {
        let ticket = {
            let mut waiters = self.0.waiters.lock();
            if self.now() >= until {
                return;
            }
            waiters.next += 1;
            let ticket = waiters.next;
            waiters
                .waiting
                .push((ticket, until, parker.unparker().clone()));
            ticket
        };
        parker.park();
        let mut waiters = self.0.waiters.lock();
        waiters.waiting.retain(|(number, ..)| *number != ticket);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn moving_the_clock_wakes_who_waits_for_it() {
        let hand = ManualClock::new();
        let clock = Clock::manual(&hand);
        let until = Time::from_nanos(10);
        let sleeper = std::thread::spawn(move || {
            let parker = Parker::new();
            while clock.now() < until {
                clock.park_until(&parker, Some(until));
            }
            clock.now()
        });
        hand.advance(Duration::from_nanos(4));
        hand.advance(Duration::from_nanos(6));
        assert_eq!(sleeper.join().unwrap(), until);
    }

    #[test]
    fn instants_become_times_of_the_clock() {
        let clock = Clock::system();
        let now = Instant::now();
        let later = clock.time_of(now + Duration::from_secs(1));
        assert_eq!(later.since(clock.time_of(now)), Duration::from_secs(1));
        let hand = ManualClock::starting_at(Time::ZERO + Duration::from_secs(60));
        let past = Instant::now().checked_sub(Duration::from_secs(5));
        let clock = Clock::manual(&hand);
        assert!(past.is_none_or(|past| clock.time_of(past) < hand.now()));
        assert!(clock.time_of(Instant::now() + Duration::from_secs(5)) > hand.now());
    }
}
