//! The calls that change nothing.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::Instant;

use super::super::answers::TimerInfo;
use super::super::pending::next_deadline;
use super::Handle;
use crate::clock::Clock;
use crate::engine::{Lifecycle, show_key};
use crate::health::{Dump, Health};
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns what is known of `key` at this moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::TimerState;
    ///
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// scheduler.advance(Duration::from_secs(2));
    /// let info = timers.get("request 7").expect("the timer is pending");
    /// assert_eq!(info.state, TimerState::Pending);
    /// assert_eq!(info.remaining(timers.now()), Duration::from_secs(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<TimerInfo>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .shards()
            .peek(stripe, |stripe| stripe.get(hash, key))
            .map(|entry_info| TimerInfo::new(self.engine.tag(), stripe as u32, entry_info))
    }

    /// Returns whether `key` is pending, queued or running.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// assert!(timers.contains("request 7"));
    /// assert!(!timers.contains("request 8"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key).is_some()
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the current time of the scheduler's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::Time;
    ///
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// assert_eq!(timers.now(), Time::ZERO);
    /// scheduler.advance(Duration::from_secs(1));
    /// assert_eq!(timers.now(), Time::ZERO + Duration::from_secs(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// Returns the scheduler's clock. It converts [`Instant`]s, and, through an
    /// [anchor](crate::Clock::wall_anchor), the times of a calendar.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::new()?;
    /// let timers = scheduler.handle();
    /// let timer = timers.schedule("report", Duration::from_secs(3600), |_| ())?;
    /// let anchor = timers.clock().wall_anchor();
    /// let due = anchor.system_time_of(timer.deadline).expect("it is not never");
    /// println!("the report is due at {due:?}");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.engine.clock()
    }

    /// Returns the earliest deadline that is still to come, or `None` if there is none. Timers that
    /// are due already do not count.
    ///
    /// # Complexity
    ///
    /// Visits the timers of those parts of the scheduler, out of at least 128, that may hold the
    /// earliest one: often a few parts, at most all. Takes one lock at a time. Exact while no other
    /// thread changes the timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// assert_eq!(timers.next_deadline(), None);
    /// timers.schedule("a", Duration::from_secs(60), |_| ())?;
    /// timers.schedule("b", Duration::from_secs(2), |_| ())?;
    /// assert_eq!(timers.next_deadline(), Some(timers.now() + Duration::from_secs(2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        next_deadline(&self.engine)
    }

    /// Converts `instant` to the time of the scheduler's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Scheduler;
    /// use std::time::{Duration, Instant};
    ///
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// timers.schedule("request 7", timers.time_of(deadline), |_| println!("timed out"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> Time {
        self.engine.clock().time_of(instant)
    }

    /// Returns the stage of the scheduler's life.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{Lifecycle, Scheduler};
    ///
    /// let scheduler = Scheduler::<&str>::new()?;
    /// let timers = scheduler.handle();
    /// assert_eq!(timers.state(), Lifecycle::Running);
    /// drop(scheduler);
    /// assert_ne!(timers.state(), Lifecycle::Running);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.engine.lifecycle()
    }

    /// Returns whether the scheduler is alive and ready, and the reasons if not, with the time since
    /// when. For a probe each second.
    ///
    /// # Complexity
    ///
    /// Reads a number for each stripe, and takes no stripe's lock: about a microsecond. If the workers
    /// have been stuck for 10 s, it asks the system about up to 32 of them, which takes some hundred
    /// microseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle();
    /// timers.schedule(7, Duration::from_secs(60), |_| ())?;
    /// let health = timers.health();
    /// assert!(health.is_alive() && health.is_ready());
    /// assert_eq!(health.to_string(), "alive, ready\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.engine.health()
    }

    /// Returns what is pending by shard and time, and which tasks run and since when, for people:
    /// also while the process is in trouble. Its `Display` writes some hundred lines at most.
    ///
    /// The keys of running tasks are in it, as their `Debug` writes them. If keys are secrets, their
    /// `Debug` has to hide that. The time since when a task runs is known to a millisecond; it may
    /// count a little less. `examples/dump_on_signal.rs` prints it on a signal.
    ///
    /// # Blocking
    ///
    /// Waits for no lock. Parts that others keep locked are asked again for 20 ms in all, and then
    /// counted as busy.
    ///
    /// # Complexity
    ///
    /// Visits each timer: some milliseconds for a million. Each lock is held for some ten
    /// microseconds at a time.
    ///
    /// # Panics
    ///
    /// As for all calls, if it is made from under a lock of this crate. If `Clone` or `Debug` of a
    /// key panics, the text says so.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |firing| {
    ///     let dump = firing.handle().dump();
    ///     assert_eq!((dump.running.len(), dump.running_total), (1, 1));
    ///     assert!(dump.to_string().contains("running for 0.0ns: \"request 7\"\n"));
    /// })?;
    /// scheduler.advance(Duration::from_secs(5));
    /// assert_eq!(timers.stats().panicked, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump
    where
        K: fmt::Debug,
    {
        self.engine.dump("scheduler", show_key)
    }

    /// Returns the number of timers that have not started and were not cancelled, including queued
    /// ones. A repeating timer is pending between its rounds.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, one after the other. No snapshot while others arm and cancel.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// timers.schedule("b", Duration::from_secs(2), |_| ())?;
    /// assert_eq!(timers.len(), 2);
    /// scheduler.advance(Duration::from_secs(1));
    /// assert_eq!(timers.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.pending()
    }

    /// Returns whether no timer is pending.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// assert!(timers.is_empty());
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// assert!(!timers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }
}
