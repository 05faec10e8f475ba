//! The calls that cancel, and those that also wait for the end of a run.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::super::answers::Cancel;
use super::Handle;
use crate::error::WaitError;
use crate::job::{drop_catching, drop_each};
use crate::shard::is_under_lock;
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Cancels the pending timer of `key` and drops its task. [`Cancel::Cancelled`] means that the
    /// task has not started and never will, even if it was due and queued for a worker.
    ///
    /// A run in progress continues, but is notified; see
    /// [`Firing::is_cancelled`](crate::Firing::is_cancelled). No further round of a repeating task
    /// follows it.
    ///
    /// # Complexity
    ///
    /// Constant. The memory is free at once. No clock is read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::Cancel;
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| println!("timed out"))?;
    /// assert!(timers.cancel("request 7").is_cancelled());
    /// assert_eq!(timers.cancel("request 7"), Cancel::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> Cancel
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let mut stripe = self.engine.lock(stripe);
        let reason = match stripe.cancel_usual(hash, key) {
            Ok((deadline, key, task)) => {
                stripe.unlock();
                drop_catching((key, task));
                return Cancel::Cancelled {
                    deadline,
                    running: false,
                };
            }
            Err(reason) => reason,
        };
        let Some(slot) = stripe.find_other(reason, hash, key) else {
            return Cancel::NotFound;
        };
        let cancelling = stripe.cancel_slot(slot);
        drop(stripe);
        Self::answer(cancelling)
    }

    /// Cancels, and waits for the end of a run in progress. While it waits, arming the key is
    /// refused with [`ScheduleError::Closing`](crate::ScheduleError::Closing). So when it returns,
    /// nothing runs for the key, and only timers armed after the end of the run are pending.
    ///
    /// # Errors
    ///
    /// [`WaitError::WouldDeadlock`] from inside a task of this scheduler, if there is a run to wait
    /// for. The timer is cancelled all the same.
    ///
    /// # Blocking
    ///
    /// Blocks until the run has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |_| { /* reads a file */ })?;
    /// timers.cancel_and_wait("import")?;
    /// // The task is not running and never will, so the file can be deleted.
    /// assert!(!timers.contains("import"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_and_wait<Q>(&self, key: &Q) -> Result<Cancel, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.cancel_and_wait_until(key, None)
    }

    /// Like [`cancel_and_wait`](Self::cancel_and_wait), but waits for at most `limit` by the
    /// scheduler's clock. This may also be called from inside a task.
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`]: the run continues, and the key can be armed again.
    ///
    /// # Blocking
    ///
    /// Blocks until the run has ended, and at most for `limit`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::WaitError;
    ///
    /// # let scheduler = Scheduler::<&str>::new()?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("import", Duration::ZERO, |_| { /* may take long */ })?;
    /// match timers.cancel_and_wait_for("import", Duration::from_secs(1)) {
    ///     Ok(cancel) => println!("nothing runs any more: {cancel:?}"),
    ///     Err(WaitError::TimedOut) => println!("the import is still running"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_and_wait_for<Q>(&self, key: &Q, limit: Duration) -> Result<Cancel, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.cancel_and_wait_until(key, Some(self.now() + limit))
    }

    fn cancel_and_wait_until<Q>(&self, key: &Q, until: Option<Time>) -> Result<Cancel, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let (cancelling, waiting) = self
            .engine
            .cancel_to_wait(stripe, until, |stripe| stripe.cancel(hash, key));
        if self.engine.is_forked() {
            return Err(WaitError::Forked);
        }
        if is_under_lock() {
            // The thread panics under a lock: no stripe was searched, and the task may be running.
            return Err(WaitError::WouldDeadlock);
        }
        let (answer, dropped) = Self::cancel_answer(cancelling);
        // Dropped before the wait: the run may wait for something that this drop releases.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop_catching(dropped))) {
            // Nobody is going to wait, so the key must not stay closed.
            if let Some(waiting) = &waiting {
                self.engine.give_up(waiting);
            }
            resume_unwind(panic);
        }
        match waiting {
            None => Ok(answer),
            Some(waiting) => self.engine.wait_for_run(waiting).map(|()| answer),
        }
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Cancels all pending timers and returns their number. Running tasks continue. A repeating
    /// task that runs is notified and gets no further round; it is not included in the number.
    ///
    /// # Complexity
    ///
    /// Linear in the greatest number of timers that existed at one time since the last
    /// [`shrink_to_fit`](Self::shrink_to_fit), in portions per stripe. A timer that is armed during
    /// the call may or may not be cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// timers.schedule("b", Duration::from_secs(2), |_| ())?;
    /// assert_eq!(timers.cancel_all(), 2);
    /// assert!(timers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        let taken = self.engine.take_pending(false);
        let count = taken.len();
        drop_each(taken.into_iter().map(|(key, _, task)| (key, task)));
        count
    }
}
