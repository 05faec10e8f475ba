//! The calls that arm a timer that runs once.

use std::hash::{BuildHasher, Hash};

use super::super::answers::{Scheduled, refused};
use super::super::firing::Firing;
use super::super::task::{Once, RunTask, Task};
use super::{Handle, Upsert};
use crate::error::ScheduleError;
use crate::job::drop_catching;
use crate::shard::{Admission, Arming, Refusal};
use crate::tick::Time;
use crate::when::When;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Runs `task` once, at or after the time that `when` means: a delay from now, or one of the
    /// other forms of [`When`]. A pending timer of the same key is replaced in the same step and
    /// never runs.
    ///
    /// Any time is allowed. A delay of zero, or a time in the past, runs as soon as a worker is
    /// free, without waiting for a tick. [`Time::MAX`] never comes. If the key is running, the new
    /// task runs after that run, at its own deadline: [`Scheduled::after_run`].
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
    #[doc(alias("setTimeout", "enqueue", "delay", "defer", "job", "deadline"))]
    pub fn schedule<F>(
        &self,
        key: K,
        when: impl Into<When>,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        self.arm(key, when.into(), Upsert::Always, task)
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
        when: impl Into<When>,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        self.arm(key, when.into(), Upsert::IfAbsent, task)
    }

    #[inline]
    fn arm<F>(
        &self,
        key: K,
        when: When,
        upsert: Upsert,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let (deadline, now) = self.engine.resolve(when);
        self.arm_task(key, Once(task), deadline, now, upsert, |once| once.0)
    }

    /// Arms a task. A refusal returns what `closure` takes out of it.
    #[inline]
    pub(in crate::scheduler) fn arm_task<T, F>(
        &self,
        key: K,
        task: T,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        closure: impl FnOnce(T) -> F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        T: RunTask<K, S> + 'static,
    {
        // The box is made outside the lock. A refused call returns the closure from the same box.
        let task = Box::new(task);
        let (number, hash) = self.hash_of(&key);
        let mut stripe = self.engine.lock(number);
        let admission = match stripe.admit(hash, &key, upsert == Upsert::IfAbsent) {
            Ok(admission) => admission,
            Err(refusal) => {
                drop(stripe);
                return self.arm_refused(refusal, key, task, deadline, now, upsert, closure);
            }
        };
        let task = Task::of(task);
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
                Ok(self.scheduled(number, arming, deadline))
            }
        }
    }

    /// Arms a task after a refusal, if another try may succeed.
    ///
    /// With a loop around the first try, that one would keep its variables in memory.
    #[cold]
    #[inline(never)]
    #[allow(
        clippy::too_many_arguments,
        reason = "those of `arm_task`, and the refusal"
    )]
    fn arm_refused<T, F>(
        &self,
        refusal: Refusal,
        key: K,
        task: Box<T>,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        closure: impl FnOnce(T) -> F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        T: RunTask<K, S> + 'static,
    {
        let (number, hash) = self.hash_of(&key);
        let admitted = self.engine.admit_again(refusal, number, |stripe| {
            stripe.admit(hash, &key, upsert == Upsert::IfAbsent)
        });
        let (mut stripe, admission) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return Err(refused(refusal, closure(*task))),
        };
        let arming = stripe.arm(admission, hash, key, Task::of(task), deadline, now);
        drop(stripe);
        Ok(self.scheduled(number, arming, deadline))
    }

    /// Drops what an arming has replaced, and returns the answer.
    #[inline(always)]
    fn scheduled(&self, number: usize, arming: Arming<K, Task<K, S>>, deadline: Time) -> Scheduled {
        drop_catching(arming.dropped);
        Scheduled {
            id: self.timer_id(number, arming.id),
            deadline,
            replaced: arming.replaced,
            after_run: arming.after_run,
        }
    }
}
