//! The clocks that a scheduler can run on. A clock also puts threads to sleep: a thread that waits
//! for a moment of a manual clock is woken by the thread that moves the clock.

#[cfg(not(loom))]
use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Parker, Unparker};
use crate::tick::Time;
use std::task::Wake;
use std::time::Duration;

/// A source of time for a scheduler.
///
/// The clock is chosen in the builder:
///
/// - [`Clock::system`] is the default. It is `std::time::Instant`, which is monotonic. Whether it
///   counts the time while the machine is suspended depends on the platform (Linux does not count
///   it).
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

#[derive(Clone, Debug)]
enum ClockKind {
    #[cfg(not(loom))]
    System {
        start: Instant,
    },
    /// Only made where [`since_boot`] returned a time.
    #[cfg(not(loom))]
    Boottime,
    Manual(ManualClock),
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
    #[cfg(not(loom))]
    #[must_use]
    pub fn system() -> Self {
        Clock(ClockKind::System {
            start: Instant::now(),
        })
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
    #[must_use]
    pub fn as_manual(&self) -> Option<ManualClock> {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::System { .. } | ClockKind::Boottime => None,
            ClockKind::Manual(clock) => Some(clock.clone()),
        }
    }

    /// Returns whether this clock is known to go on while the machine is suspended. That is true
    /// for [`Clock::boottime`] on a platform that has it. It is not known for [`Clock::system`],
    /// and a manual clock goes on only when it is moved.
    #[must_use]
    pub fn counts_suspend(&self) -> bool {
        match &self.0 {
            #[cfg(not(loom))]
            ClockKind::Boottime => true,
            #[cfg(not(loom))]
            ClockKind::System { .. } => false,
            ClockKind::Manual(_) => false,
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
            ClockKind::Boottime => {
                Time::ZERO + since_boot().expect("a kernel that knew the clock still knows it")
            }
            ClockKind::Manual(clock) => clock.now(),
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
        match &self.0 {
            ClockKind::System { start } => Time::ZERO + instant.saturating_duration_since(*start),
            ClockKind::Boottime | ClockKind::Manual(_) => {
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
            ClockKind::System { .. } | ClockKind::Boottime => {
                let left = until.since(self.now());
                if !left.is_zero() {
                    crate::sync::park_for(parker, left);
                }
            }
            ClockKind::Manual(clock) => clock.park_until(parker, until),
        }
    }
}

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

/// Blocks a thread until a moment of a [`Clock`], or until another thread unparks it.
///
/// It is for threads of your own that go by the clock of a scheduler: on a manual clock they wake when
/// the clock is moved to their moment. It holds one token, as `std::thread::park` does: an unpark
/// before the park makes that park return at once.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Clock, ClockParker, ManualClock};
///
/// let hand = ManualClock::new();
/// let clock = Clock::manual(&hand);
/// let sleeper = std::thread::spawn(move || {
///     let parker = ClockParker::new(&clock);
///     let until = clock.now() + Duration::from_secs(3600);
///     while clock.now() < until {
///         parker.park_until(until);
///     }
/// });
/// while !sleeper.is_finished() {
///     hand.advance(Duration::from_secs(60));
/// }
/// ```
#[derive(Debug)]
pub struct ClockParker {
    clock: Clock,
    parker: Parker,
}

impl ClockParker {
    /// A parker that goes by `clock`.
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        ClockParker {
            clock: clock.clone(),
            parker: Parker::new(),
        }
    }

    /// Blocks this thread until the clock shows `until`, or until it is unparked; with [`Time::MAX`]
    /// until it is unparked. It may also return a little earlier, or for no reason: look at the clock,
    /// and at what the thread waits for, and park again.
    ///
    /// # Blocking
    ///
    /// A suspension of the machine does not shorten the sleep, as [`Clock::boottime`] describes.
    pub fn park_until(&self, until: Time) {
        self.clock.park_until(&self.parker, Some(until));
    }

    /// Blocks this thread for `limit` by the clock, or until it is unparked; see
    /// [`park_until`](Self::park_until).
    pub fn park_for(&self, limit: Duration) {
        self.park_until(self.clock.now() + limit);
    }

    /// What unparks the thread, from anywhere.
    #[must_use]
    pub fn unparker(&self) -> ClockUnparker {
        ClockUnparker(self.parker.unparker().clone())
    }
}

/// Unparks the thread of a [`ClockParker`]. It is a [`Wake`], so it can be made a
/// [`Waker`](std::task::Waker).
///
/// # Examples
///
/// ```
/// use tourbillon::{Clock, ClockParker, Time};
///
/// let parker = ClockParker::new(&Clock::system());
/// let unparker = parker.unparker();
/// let waker = std::thread::spawn(move || unparker.unpark());
/// parker.park_until(Time::MAX);
/// # waker.join().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ClockUnparker(Unparker);

impl ClockUnparker {
    /// Unparks the thread: the present park returns, or the next one if the thread is not parked.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}

impl Wake for ClockUnparker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

impl ManualClock {
    /// Creates a clock that shows [`Time::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Time::ZERO)
    }

    /// Creates a clock that shows `start`.
    #[must_use]
    pub fn starting_at(start: Time) -> Self {
        ManualClock(Arc::new(Manual {
            now: AtomicU64::new(start.as_nanos()),
            waiters: Mutex::new(Waiters::default()),
        }))
    }

    /// Returns the moment that the clock shows.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        // Acquire pairs with the Release in `set`: a thread that sees the time also sees the
        // changes made before the clock was moved.
        Time::from_nanos(self.0.now.load(Ordering::Acquire))
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

    /// Wakes the threads that wait for `now` or an earlier moment.
    fn wake(&self, now: Time) {
        let waiters = self.0.waiters.lock();
        for (_, until, unparker) in &waiters.waiting {
            if *until <= now {
                unparker.unpark();
            }
        }
    }

    /// Blocks until the clock shows `until` or the parker is unparked.
    fn park_until(&self, parker: &Parker, until: Time) {
        let ticket = {
            let mut waiters = self.0.waiters.lock();
            // Read under the lock, so that a move of the clock is seen here or finds this thread in
            // the list.
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
    fn a_parked_thread_is_woken_by_its_clock_and_by_its_unparker() {
        let hand = ManualClock::new();
        let parker = ClockParker::new(&Clock::manual(&hand));
        let unparker = Arc::new(parker.unparker());
        // The token is kept until the thread parks.
        unparker.unpark();
        parker.park_until(Time::MAX);
        std::task::Waker::from(Arc::clone(&unparker)).wake_by_ref();
        parker.park_until(Time::MAX);
        hand.advance(Duration::from_nanos(10));
        parker.park_until(Time::from_nanos(10));
        let sleeper = std::thread::spawn(move || parker.park_until(Time::from_nanos(20)));
        hand.advance(Duration::from_nanos(10));
        sleeper.join().unwrap();
        let parker = ClockParker::new(&Clock::system());
        parker.park_for(Duration::from_nanos(1));
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

    #[test]
    fn boottime_is_there_where_it_is_promised() {
        let has_it = cfg!(any(target_os = "linux", target_os = "android"));
        assert_eq!(Clock::boottime().counts_suspend(), has_it);
        assert!(Clock::boottime().as_manual().is_none());
        assert!(!Clock::system().counts_suspend());
        assert!(!Clock::manual(&ManualClock::new()).counts_suspend());
    }

    #[test]
    fn boottime_goes_at_least_as_far_as_the_systems_clock_and_never_back() {
        let clock = Clock::boottime();
        let (begin, start) = (clock.now(), Instant::now());
        let mut last = begin;
        while last.since(begin) < Duration::from_millis(5) {
            let elapsed = start.elapsed();
            let now = clock.now();
            assert!(now >= last);
            assert!(now.since(begin) >= elapsed);
            last = now;
        }
    }

    #[test]
    fn all_boottime_clocks_show_one_time() {
        let one = Clock::boottime();
        let begin = one.now();
        while one.now().since(begin) < Duration::from_millis(2) {}
        let other = Clock::boottime();
        if one.counts_suspend() {
            let (first, second, third) = (one.now(), other.now(), one.now());
            assert!(first <= second && second <= third);
        }
    }

    #[test]
    fn instants_become_times_since_boot() {
        let clock = Clock::boottime();
        let away = Duration::from_secs(5);
        let before = clock.now();
        let instant = Instant::now();
        let present = clock.time_of(instant);
        let ahead = clock.time_of(instant + away);
        let behind = instant.checked_sub(away).map(|past| clock.time_of(past));
        let after = clock.now();
        assert!(before <= present && present <= after);
        assert!(before + away <= ahead && ahead <= after + away);
        if let Some(behind) = behind.filter(|_| clock.counts_suspend()) {
            assert!(before - away <= behind && behind <= after - away);
        }
    }

    #[test]
    fn a_scheduler_counts_by_boottime() {
        let clock = Clock::boottime();
        let built = clock.now();
        let scheduler = crate::Scheduler::<u32>::builder()
            .clock(clock.clone())
            .shards(1)
            .workers(1)
            .build()
            .unwrap();
        let handle = scheduler.handle();
        assert!(built <= handle.now() && handle.now() <= clock.now());
        let (told, runs) = std::sync::mpsc::channel();
        let deadline = clock.now() + Duration::from_millis(20);
        for (key, time) in [(1, deadline), (2, built)] {
            let (clock, told) = (clock.clone(), told.clone());
            let tell = move |firing: &crate::Firing<'_, u32>| {
                told.send((*firing.key(), firing.deadline(), clock.now()))
                    .unwrap();
            };
            handle.schedule_at(key, time, tell).unwrap();
        }
        for _ in 0..2 {
            let (key, asked, started) = runs.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(asked, if key == 1 { deadline } else { built });
            assert!(started >= asked, "{started:?} is before {asked:?}");
        }
    }
}
