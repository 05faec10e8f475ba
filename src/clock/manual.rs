//! A clock that a test moves. A thread or a ticker that waits for a moment of it is woken by the
//! thread that moves the clock.

use std::time::Duration;
#[cfg(not(loom))]
use std::time::SystemTime;

#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
use super::tokio_clock::TokioClock;
#[cfg(not(loom))]
use super::wall::WallAnchor;
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::fork::Origin;
use crate::sync::{Arc, Mutex, MutexGuard, Parker, Ring, Sleeper};
use crate::tick::Time;

/// A clock that moves only on request, for tests and simulations.
///
/// Clones share one clock. Moving the clock wakes the threads whose moment has come.
///
/// A scheduler measures all times by its clock. While the clock stands still, the pool does not
/// grow however long its workers are blocked, and no limit of a shutdown passes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ManualClock, Time};
///
/// let hand = ManualClock::new();
/// assert_eq!(hand.now(), Time::ZERO);
/// hand.advance(Duration::from_secs(3));
/// assert_eq!(hand.now(), Time::ZERO + Duration::from_secs(3));
/// ```
#[doc(alias("mock", "fake"))]
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

/// Number of generations of copies that have a list of their own. Later ones share the last.
const GENERATIONS: usize = 4;

#[derive(Debug)]
struct Manual {
    now: AtomicU64,
    /// A moment of this clock, and what the wall clock showed then.
    #[cfg(not(loom))]
    wall: Mutex<WallAnchor>,
    /// The clock of tokio that this clock follows, once it follows one.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    followed: OnceLock<TokioClock>,
    origin: Origin,
    /// The threads and tickers that wait in this process, and in copies of it, by the number of
    /// forks in between. So no copy takes a lock that may have been held at the fork.
    waiters: [Mutex<Waiters>; GENERATIONS],
}

#[derive(Debug, Default)]
struct Waiters {
    waiting: Vec<(u64, Time, Sleeper)>,
    next: u64,
}

impl Waiters {
    fn add(&mut self, until: Time, sleeper: Sleeper) -> u64 {
        self.next += 1;
        self.waiting.push((self.next, until, sleeper));
        self.next
    }

    fn remove(&mut self, number: u64) {
        self.waiting.retain(|(other, ..)| *other != number);
    }
}

/// A ticker that is rung at a moment of a manual clock. Dropped, it is not rung any more.
#[derive(Debug)]
pub(crate) struct Alarm {
    clock: ManualClock,
    number: u64,
    forks: u32,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // In a copy of the process, the number is somebody else's.
        if self.forks == self.clock.0.origin.forks_since() {
            self.clock.waiters().remove(self.number);
        }
    }
}

impl ManualClock {
    /// Creates a clock that shows [`Time::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Time::ZERO)
    }

    /// Creates a clock that shows `start`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock, Scheduler, Time};
    ///
    /// let start = Time::ZERO + Duration::from_secs(1_000);
    /// let hand = ManualClock::starting_at(start);
    /// let scheduler = Scheduler::<&str>::builder().clock(Clock::manual(&hand)).build()?;
    /// assert_eq!(scheduler.handle().now(), start);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn starting_at(start: Time) -> Self {
        ManualClock(Arc::new(Manual {
            now: AtomicU64::new(start.as_nanos()),
            #[cfg(not(loom))]
            wall: Mutex::new(WallAnchor::new(Time::ZERO, SystemTime::UNIX_EPOCH)),
            #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
            followed: OnceLock::new(),
            origin: Origin::here(),
            waiters: std::array::from_fn(|_| Mutex::default()),
        }))
    }

    /// Whether both are clones of one clock.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the moment that the clock shows.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        // Acquire pairs with the Release in `set`: a thread that sees the time also sees the
        // changes made before the clock was moved.
        let now = Time::from_nanos(self.0.now.load(Ordering::Acquire));
        #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
        if let Some(followed) = self.followed() {
            return now.max(followed.now());
        }
        now
    }

    /// Goes on as the clock of this runtime does from now on. A clock follows one runtime at most.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    pub(crate) fn follow(&self, runtime: tokio::runtime::Handle) {
        let start = self.now();
        let followed = &self.0.followed;
        followed.get_or_init(|| TokioClock::starting_at(start, runtime));
    }

    /// Returns the clock that this clock follows.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    pub(crate) fn followed(&self) -> Option<&TokioClock> {
        self.0.followed.get()
    }

    /// Returns the calendar time of this clock. It goes on as the clock does. At [`Time::ZERO`] it is
    /// the start of 1970, by UTC, until [`set_wall`](Self::set_wall) sets it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::ManualClock;
    ///
    /// let hand = ManualClock::new();
    /// hand.advance(Duration::from_secs(3));
    /// assert_eq!(hand.wall(), SystemTime::UNIX_EPOCH + Duration::from_secs(3));
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        let anchor = *self.0.wall.lock();
        // The end of what a date can hold is further away than any clock gets.
        let wall = anchor.system_time_of(self.now());
        wall.unwrap_or(anchor.system_time())
    }

    /// Sets the calendar time of this clock, forward or back, as if somebody had set the machine's
    /// wall clock. [`now`](Self::now) stays as it is. Nobody is woken: what follows the calendar
    /// finds the step when it reads the wall clock the next time, as in a program.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{Clock, ManualClock, Time};
    ///
    /// let hand = ManualClock::new();
    /// let date = SystemTime::UNIX_EPOCH + Duration::from_secs(1_774_746_000);
    /// hand.set_wall(date);
    /// assert_eq!(Clock::manual(&hand).wall_anchor().system_time(), date);
    /// assert_eq!(hand.now(), Time::ZERO);
    /// ```
    #[cfg(not(loom))]
    pub fn set_wall(&self, date: SystemTime) {
        *self.0.wall.lock() = WallAnchor::new(self.now(), date);
    }

    /// Moves the clock forward by `by`, saturating at [`Time::MAX`], and wakes the threads whose
    /// moment has come. Returns the new time.
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

    /// Moves the clock to `now`, which may be in the past. After a move backwards, schedulers fire
    /// nothing until the clock has caught up, and lose nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{ManualClock, Time};
    ///
    /// let hand = ManualClock::new();
    /// hand.set(Time::from_nanos(7));
    /// assert_eq!(hand.now(), Time::from_nanos(7));
    /// ```
    pub fn set(&self, now: Time) {
        // Release pairs with the Acquire in `now`. A waiting thread reads the time under the lock
        // that is taken below, so it sees the new time or is found there.
        let before = self.0.now.swap(now.as_nanos(), Ordering::Release);
        // After a move backwards all threads look again, because they may now have to wait for
        // another moment.
        let all = now.as_nanos() < before;
        self.wake(if all { Time::MAX } else { now });
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        let forks = self.0.origin.forks_since() as usize;
        self.0.waiters[forks.min(GENERATIONS - 1)].lock()
    }

    /// Returns how many threads and tickers wait.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiting(&self) -> usize {
        self.waiters().waiting.len()
    }

    /// Wakes those that wait for `now` or an earlier moment. They wait no longer.
    fn wake(&self, now: Time) {
        self.waiters().waiting.retain(|(_, until, sleeper)| {
            let waits = *until > now;
            if !waits {
                sleeper.wake();
            }
            waits
        });
    }

    /// Has the sleeper woken at `until`, once. `None` if that moment has come.
    fn wait(&self, until: Time, sleeper: impl FnOnce() -> Sleeper) -> Option<u64> {
        let mut waiters = self.waiters();
        // Read under the lock, so that a move of the clock is seen here or finds the sleeper in
        // the list.
        (self.now() < until).then(|| waiters.add(until, sleeper()))
    }

    /// Rings at `until`, once, unless the clock moves backwards before that; then it rings at that
    /// moment. `None` if `until` has come.
    pub(crate) fn ring_at(&self, until: Time, ring: &Ring) -> Option<Alarm> {
        let number = self.wait(until, || Sleeper::Ticker(ring.clone()))?;
        Some(Alarm {
            clock: self.clone(),
            number,
            forks: self.0.origin.forks_since(),
        })
    }

    /// Blocks until the clock shows `until` or the parker is unparked.
    pub(super) fn park_until(&self, parker: &Parker, until: Time) {
        let sleeper = || Sleeper::Thread(parker.unparker().clone());
        if let Some(number) = self.wait(until, sleeper) {
            parker.park();
            self.waiters().remove(number);
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}
