//! The handle and its calls by key.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use super::answers::{Cancel, PullIn, Reschedule, Scheduled, TimerId, TimerInfo, refused};
use super::firing::Firing;
use super::frontend::SchedulerFrontend;
use super::hasher::RandomState;
use super::task::{Once, Task};
use crate::engine::{Engine, Lifecycle};
use crate::error::{ScheduleError, WaitError};
use crate::job::{drop_catching, drop_each};
use crate::shard::{Arming, Cancelling, EntryId, KeyHash, Refusal, is_under_lock};
use crate::sync::Arc;
use crate::tick::Time;

/// Schedules, moves and cancels timers of one scheduler, from any thread.
///
/// A handle is cheap to clone and does not keep the scheduler alive. After the scheduler was shut
/// down or dropped, calls that arm a timer return [`ScheduleError::Closed`], and all others find
/// nothing.
///
/// # Blocking
///
/// Except for [`cancel_and_wait`](Self::cancel_and_wait) and its variants, no call waits for a
/// task. A call takes one stripe's lock at a time, for well under a microsecond.
///
/// # Panics
///
/// A key's `Eq`, `Borrow` and `Clone` run under such a lock. They must not call the scheduler: such
/// a call panics with a message. But they may drop schedulers, guards and futures of this crate;
/// the thread does the work of such a drop after it has released the lock. If `Eq`, `Borrow` or
/// `Clone` panics, the call that needed it panics and has changed nothing.
///
/// Tasks and keys are dropped without a lock and may call the scheduler. If such a drop panics, the
/// call that dropped them panics after its work is done.
///
/// # Panic hooks
///
/// In a panic hook that runs while the thread holds such a lock, calls do nothing and do not panic.
/// [The crate's page](crate#panic-hooks) lists what they return.
///
/// # Ordering
///
/// Calls for one key, from any threads, take effect one after the other. A task sees everything
/// that happened before the call that scheduled it.
pub struct Handle<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    engine: Arc<Engine<SchedulerFrontend<K, S>>>,
}

/// The key and task of a cancelled or replaced arming. They must be dropped without a lock.
pub(super) type Dropped<K, S> = (Option<K>, Option<Task<K, S>>);

/// Whether an arming may replace a pending timer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Upsert {
    Always,
    IfAbsent,
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn new(engine: Arc<Engine<SchedulerFrontend<K, S>>>) -> Self {
        Handle { engine }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<SchedulerFrontend<K, S>>> {
        &self.engine
    }

    /// Returns the current time of the scheduler's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// Converts `instant` to the time of the scheduler's clock.
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> Time {
        self.engine.clock().time_of(instant)
    }

    /// Returns the stage of the scheduler's life.
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.engine.closing().state()
    }

    /// Returns the number of timers that have not started and were not cancelled, including queued
    /// ones. A repeating timer is pending between its rounds.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, one after the other. No snapshot while others arm and cancel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.pending()
    }

    /// Returns whether no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }

    /// Cancels all pending timers and returns their number. Running tasks continue. A repeating
    /// task that runs is notified and gets no further round; it is not included in the number.
    ///
    /// # Complexity
    ///
    /// Linear in the greatest number of timers that existed at one time since the last
    /// [`shrink_to_fit`](Self::shrink_to_fit), in portions per stripe. A timer that is armed during
    /// the call may or may not be cancelled.
    pub fn cancel_all(&self) -> usize {
        let taken = self.engine.take_pending(false);
        let count = taken.len();
        drop_each(taken.into_iter().map(|(key, _, task)| (key, task)));
        count
    }

    fn timer_id(&self, stripe: usize, entry: EntryId) -> TimerId {
        TimerId {
            tag: self.engine.tag(),
            stripe: stripe as u32,
            entry,
        }
    }

    /// Returns the stripe of an id of this scheduler, or `None` for the id of another one.
    pub(super) fn stripe_of(&self, id: TimerId) -> Option<usize> {
        let stripe = id.stripe as usize;
        (id.tag == self.engine.tag() && stripe < self.engine.shards().stripes()).then_some(stripe)
    }

    /// Converts the result of a cancellation, and drops the key and the task without a lock.
    pub(super) fn answer(cancelling: Cancelling<K, Task<K, S>>) -> Cancel {
        let (answer, dropped) = Self::cancel_answer(cancelling);
        drop_catching(dropped);
        answer
    }

    /// Splits the result of a cancellation into the answer and what to drop without a lock.
    #[inline]
    pub(super) fn cancel_answer(cancelling: Cancelling<K, Task<K, S>>) -> (Cancel, Dropped<K, S>) {
        match cancelling {
            Cancelling::Cancelled {
                deadline,
                run,
                dropped,
            } => {
                let running = run.is_some();
                (Cancel::Cancelled { deadline, running }, dropped)
            }
            Cancelling::Running(_) => (Cancel::Running, (None, None)),
            Cancelling::NotFound => (Cancel::NotFound, (None, None)),
        }
    }

    pub(super) fn hash_of<Q>(&self, key: &Q) -> (usize, KeyHash)
    where
        Q: Hash + ?Sized,
    {
        let hash = self.engine.frontend.hasher.hash_one(key);
        let hash = self.engine.shards().finalize_hash(hash);
        (self.engine.shards().stripe_of(hash), hash)
    }
}

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
        let now = self.now();
        self.arm(key, now + delay, now, Upsert::Always, task)
    }

    /// Like [`schedule`](Self::schedule), at a time of the scheduler's clock. A time in the past is
    /// due at once.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    pub fn schedule_at<F>(&self, key: K, at: Time, task: F) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        self.arm(key, at, self.now(), Upsert::Always, task)
    }

    /// Like [`schedule`](Self::schedule), unless a timer is pending for the key. A running key
    /// counts as absent, unless it has a successor or its repeating task has a further round.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule), and [`Occupied`](ScheduleError::Occupied).
    pub fn schedule_if_absent<F>(
        &self,
        key: K,
        delay: Duration,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let now = self.now();
        self.arm(key, now + delay, now, Upsert::IfAbsent, task)
    }

    /// Like [`schedule`](Self::schedule), at some time in `window`, counted from now. The time is
    /// chosen so that timers with overlapping windows run together, which saves wake-ups; the wider
    /// the windows, the more. Use it for a cache refresh "in 30 s, or 5 s later", for example.
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
        let now = self.now();
        let (earliest, latest) = (now + *window.start(), now + *window.end());
        let at = self.engine.tick_size().shared_between(earliest, latest);
        self.arm(key, at, now, Upsert::Always, task)
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
        let mut given = Some((key, Box::new(Once(task))));
        let answer = self.arm_boxed(&mut given, deadline, now, upsert, |task| Task::of(task));
        match (answer, given) {
            (Ok(scheduled), _) => Ok(scheduled),
            (Err(refusal), Some((_key, task))) => Err(refused(refusal, task.0)),
            (Err(_), None) => unreachable!("a refused call takes nothing"),
        }
    }

    /// Arms a boxed task. `given` is taken only if the arming is accepted.
    pub(super) fn arm_boxed<T>(
        &self,
        given: &mut Option<(K, T)>,
        deadline: Time,
        now: Time,
        upsert: Upsert,
        boxed: impl Fn(T) -> Task<K, S>,
    ) -> Result<Scheduled, Refusal> {
        let Some((key, _)) = given.as_ref() else {
            unreachable!("the caller passes a task");
        };
        let (stripe, hash) = self.hash_of(key);
        let (mut replaced, mut after_run, mut garbage) = (None, false, (None, None));
        let id = self.engine.arm(
            stripe,
            given,
            |stripe, (key, _)| stripe.admit(hash, key, upsert == Upsert::IfAbsent),
            |stripe, admission, (key, task)| {
                // The usual case, without the large answer of `arm`.
                if admission.is_vacant() {
                    return stripe.arm_vacant(hash, key, boxed(task), deadline, now);
                }
                let id;
                Arming {
                    id,
                    replaced,
                    after_run,
                    dropped: garbage,
                } = stripe.arm(admission, hash, key, boxed(task), deadline, now);
                id
            },
        )?;
        drop_catching(garbage);
        Ok(Scheduled {
            id: self.timer_id(stripe, id),
            deadline,
            replaced,
            after_run,
        })
    }

    /// Moves the pending timer of `key` to `delay` from now. The timer keeps its task and its id.
    /// This never arms a timer.
    ///
    /// A timer that is due and queued but has not started is moved, too. While a round of a
    /// repeating timer runs, this sets when the next round is due; see [`repeat`](Self::repeat).
    ///
    /// # Complexity
    ///
    /// Constant. To a later time it takes one probe and one write: the wheel is not touched until
    /// the old time comes.
    pub fn reschedule<Q>(&self, key: &Q, delay: Duration) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        self.move_to(key, now + delay, now)
    }

    /// Like [`reschedule`](Self::reschedule), to a time of the scheduler's clock.
    pub fn reschedule_at<Q>(&self, key: &Q, at: Time) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, at, self.now())
    }

    fn move_to<Q>(&self, key: &Q, deadline: Time, now: Time) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .with(stripe, |stripe| {
                stripe.reschedule(hash, key, deadline, now, false)
            })
            .into()
    }

    /// Moves the pending timer of `key` to `delay` from now if that is earlier than its deadline.
    /// This never delays a timer.
    pub fn pull_in<Q>(&self, key: &Q, delay: Duration) -> PullIn
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .with(stripe, |stripe| {
                stripe.reschedule(hash, key, now + delay, now, true)
            })
            .into()
    }

    /// Cancels the pending timer of `key` and drops its task. [`Cancel::Cancelled`] means that the
    /// task has not started and never will, even if it was due and queued for a worker.
    ///
    /// A run in progress continues, but is notified ([`Firing::is_cancelled`]), and no further
    /// round of a repeating task follows it.
    ///
    /// # Complexity
    ///
    /// Constant. The memory is free at once. No clock is read.
    pub fn cancel<Q>(&self, key: &Q) -> Cancel
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let mut garbage = (None, None);
        let answer = self.engine.with(stripe, |stripe| {
            let Some(slot) = stripe.find(hash, key) else {
                return Cancel::NotFound;
            };
            if let Some((deadline, key, task)) = stripe.cancel_armed(slot) {
                garbage = (Some(key), Some(task));
                return Cancel::Cancelled {
                    deadline,
                    running: false,
                };
            }
            let (answer, dropped) = Self::cancel_answer(stripe.cancel_running(slot));
            garbage = dropped;
            answer
        });
        drop_catching(garbage);
        answer
    }

    /// Cancels, and waits for the end of a run in progress. While it waits, arming the key is
    /// refused with [`ScheduleError::Closing`]. So when it returns, nothing runs for the key, and
    /// only timers armed after the end of the run are pending.
    ///
    /// # Errors
    ///
    /// [`WaitError::WouldDeadlock`] from inside a task of this scheduler, if there is a run to wait
    /// for. The timer is cancelled all the same.
    ///
    /// # Blocking
    ///
    /// Blocks until the run has ended.
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

    /// Returns what is known of `key` at this moment.
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
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key).is_some()
    }
}

impl<K, S> Clone for Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        Handle {
            engine: Arc::clone(&self.engine),
        }
    }
}

impl<K, S> fmt::Debug for Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("engine", &self.engine)
            .finish()
    }
}
