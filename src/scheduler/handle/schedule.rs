//! The calls that arm a timer that runs once.

use std::hash::{BuildHasher, Hash};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::super::answers::{Scheduled, refused};
use super::super::firing::Firing;
use super::super::task::{Once, Task};
use super::{Handle, Upsert};
use crate::error::ScheduleError;
use crate::job::drop_catching;
use crate::shard::{Admission, Refusal};
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Runs `task` once, at or after `delay` from now. A pending timer of the same key is replaced
    /// in the same step and never runs.
    ///
    /// Any delay is allowed. A delay of zero runs as soon as a worker is free, without waiting for
    /// a tick. A delay that reaches [`Time::MAX`] never runs. If the key is running, the new task
    /// runs after that run, at its own deadline: [`Scheduled::after_run`].
    ///
    /// # Errors
    ///
    /// The error contains the task; the key is dropped. [`Full`](ScheduleError::Full) at
    /// `max_pending`, [`Closed`](ScheduleError::Closed) after shutdown,
    /// [`Closing`](ScheduleError::Closing) while `cancel_and_wait` waits for this key.
    ///
    /// # Complexity
    ///
    /// Constant: one hash, one lock, one probe of the index.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let first = timers.schedule(7, Duration::from_secs(30), |_| println!("too slow"))?;
    /// let second = timers.schedule(7, Duration::from_secs(60), |_| println!("far too slow"))?;
    /// assert_eq!(second.replaced, Some(first.deadline));
    /// assert_eq!(scheduler.advance(Duration::from_secs(60)).len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule<F>(
        &self,
        key: K,
        delay: Duration,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let reading = self.engine.reading_for(delay);
        self.arm(
            key,
            reading.after(delay),
            reading.low(),
            Upsert::Always,
            task,
        )
    }

    /// Like [`schedule`](Self::schedule), with the delay counted from `now`, a time of the
    /// [scheduler's clock](Self::now) that the caller has read before. The call does not read the
    /// clock. Use it in an event loop that reads the clock once per iteration.
    ///
    /// The task never starts before `now` plus `delay`. If that has passed already, it is due at once.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let limit = Duration::from_secs(5);
    /// let now = timers.now();
    /// for request in 0..100 {
    ///     timers.schedule_from(now, request, limit, |_| println!("too slow"))?;
    /// }
    /// assert_eq!(timers.get(&99).map(|timer| timer.deadline), Some(now + limit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_from<F>(
        &self,
        now: Time,
        key: K,
        delay: Duration,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        self.arm(key, now + delay, now, Upsert::Always, task)
    }

    /// Like [`schedule`](Self::schedule), at a time of the scheduler's clock. A time in the past is
    /// due at once.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let deadline = timers.now() + Duration::from_secs(3600);
    /// let scheduled = timers.schedule_at("report", deadline, |_| println!("report"))?;
    /// assert_eq!(scheduled.deadline, deadline);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_at<F>(&self, key: K, at: Time, task: F) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let reading = self.engine.reading_until(at);
        self.arm(key, at, reading.low(), Upsert::Always, task)
    }

    /// Like [`schedule`](Self::schedule), unless a timer is pending for the key. A running key
    /// counts as absent, unless it has a successor or its repeating task has a further round.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule), and [`Occupied`](ScheduleError::Occupied).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::ScheduleError;
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let second = Duration::from_secs(1);
    /// timers.schedule_if_absent("flush", second, |_| println!("flushing"))?;
    /// // The pending timer stays as it is.
    /// let refused = timers.schedule_if_absent("flush", second, |_| ());
    /// assert!(matches!(refused, Err(ScheduleError::Occupied(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_if_absent<F>(
        &self,
        key: K,
        delay: Duration,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let reading = self.engine.reading_for(delay);
        self.arm(
            key,
            reading.after(delay),
            reading.low(),
            Upsert::IfAbsent,
            task,
        )
    }

    /// Like [`schedule`](Self::schedule), at some time in `window`, counted from now. The time is
    /// chosen so that timers with overlapping windows run together, which saves wake-ups. Wider
    /// windows save more. Use it for a cache refresh "in 30 s, or 5 s later", for example.
    ///
    /// The timer never runs before the window, and late only as any timer may be. In a wide window
    /// the time may lie near the end. A window that ends before it starts counts as its start.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let second = Duration::from_secs(1);
    /// let one = timers.schedule_within(1, 30 * second..=35 * second, |_| ())?;
    /// scheduler.advance(second);
    /// let other = timers.schedule_within(2, 30 * second..=35 * second, |_| ())?;
    /// assert_eq!(one.deadline, other.deadline);
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule_within<F>(
        &self,
        key: K,
        window: RangeInclusive<Duration>,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let (at, now) = self.shared_time_within(&window);
        self.arm(key, at, now, Upsert::Always, task)
    }

    /// Returns the time in the window that timers share, and the current time.
    pub(in crate::scheduler) fn shared_time_within(
        &self,
        window: &RangeInclusive<Duration>,
    ) -> (Time, Time) {
        let now = self.now();
        let (earliest, latest) = (now + *window.start(), now + *window.end());
        let at = self.engine.tick_size().shared_between(earliest, latest);
        (at, now)
    }

    fn arm<F>(
        &self,
        key: K,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        // The box is made outside the lock. A refused call returns the closure from the same box.
        let task = Box::new(Once(task));
        self.arm_boxed(key, task, deadline, now, upsert, |task| Task::of(task))
            .map_err(|(refusal, task)| refused(refusal, task.0))
    }

    /// Arms a boxed task. A refusal returns it.
    #[inline]
    pub(in crate::scheduler) fn arm_boxed<T>(
        &self,
        key: K,
        task: T,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        boxed: impl FnOnce(T) -> Task<K, S>,
    ) -> Result<Scheduled, (Refusal, T)> {
        let (number, hash) = self.hash_of(&key);
        let if_absent = upsert == Upsert::IfAbsent;
        let admitted = (self.engine).admit(number, |stripe| stripe.admit(hash, &key, if_absent));
        let (mut stripe, admission) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return Err((refusal, task)),
        };
        let task = boxed(task);
        match admission {
            Admission::Vacant(vacancy) => {
                let id = stripe.arm_vacant(vacancy, hash, key, task, deadline, now);
                stripe.unlock();
                Ok(Scheduled {
                    id: self.timer_id(number, id),
                    deadline,
                    replaced: None,
                    after_run: false,
                })
            }
            Admission::Present(present) => {
                let arming = stripe.arm_present(present, hash, key, task, deadline, now);
                drop(stripe);
                drop_catching(arming.dropped);
                Ok(Scheduled {
                    id: self.timer_id(number, arming.id),
                    deadline,
                    replaced: arming.replaced,
                    after_run: arming.after_run,
                })
            }
        }
    }
}
