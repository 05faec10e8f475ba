//! The calls that move a pending timer.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::super::answers::{PullIn, Reschedule};
use super::super::task::Task;
use super::Handle;
use crate::clock::QuickReading;
use crate::shard::{KeyHash, PutOff, UsualCall};
use crate::when::When;

/// A usual call of a scheduler.
type UsualHandleCall<'a, K, S> = UsualCall<'a, K, Task<K, S>>;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Moves the pending timer of `key`; [`When`] says what `when` may be. The timer keeps its task
    /// and its id. This never arms a timer.
    ///
    /// A timer that is due and queued but has not started is moved, too. While a round of a
    /// repeating timer runs, this sets when the next round is due; see [`repeat`](Self::repeat).
    ///
    /// # Complexity
    ///
    /// Constant. To a later time it takes one probe and one write: the wheel is not touched until
    /// the old time comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let idle = Duration::from_secs(30);
    /// timers.schedule("connection 7", idle, |_| println!("idle for 30 s"))?;
    /// scheduler.advance(Duration::from_secs(20));
    /// // A message came, so the 30 s start again.
    /// let _ = timers.reschedule("connection 7", idle);
    /// assert!(scheduler.advance(Duration::from_secs(20)).is_empty());
    /// assert_eq!(scheduler.advance(Duration::from_secs(10)).len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("postpone", "snooze", "reset", "extend"))]
    // Inlined, as usual calls are. If more has to be done, a function of its own does it.
    #[inline(always)]
    pub fn reschedule<Q>(&self, key: &Q, when: impl Into<When>) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let when = when.into();
        let Some(delay) = when.delay() else {
            return self.move_to(key, when);
        };
        let Some((nanos, hash, mut call)) = self.usual(key, delay) else {
            return self.reschedule_unusual(key, delay);
        };
        let put_off = call.stripe().put_usual_off(
            hash,
            key,
            || Some(self.engine.clock().quick_reading()?.after_counted(nanos)),
            |_, deadline| Some((deadline, ())),
            |_, ()| (),
        );
        let Some(PutOff { before, .. }) = put_off else {
            return self.reschedule_after(call, key, delay);
        };
        call.end();
        Reschedule::Moved { before }
    }

    /// Begins a usual call, unless it is known before the lock that it is not one, or the lock is
    /// not free.
    #[inline(always)]
    fn usual<Q>(
        &self,
        key: &Q,
        delay: Duration,
    ) -> Option<(u64, KeyHash, UsualHandleCall<'_, K, S>)>
    where
        Q: Hash + ?Sized,
    {
        let nanos = QuickReading::counted(delay)?;
        let shards = self.engine.usual()?;
        let (stripe, hash) = self.hash_of(key);
        Some((nanos, hash, UsualCall::lock(shards, stripe)?))
    }

    /// Ends a usual call that has changed nothing, and moves the timer in the general way.
    #[cold]
    #[inline(never)]
    fn reschedule_after<Q>(
        &self,
        call: UsualHandleCall<'_, K, S>,
        key: &Q,
        delay: Duration,
    ) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        call.end();
        self.reschedule_unusual(key, delay)
    }

    /// Moves a timer in all cases. A delay is passed in registers, and a `When` would not be.
    #[cold]
    #[inline(never)]
    fn reschedule_unusual<Q>(&self, key: &Q, delay: Duration) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, delay.into())
    }

    fn move_to<Q>(&self, key: &Q, when: When) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        // Converted where the answer is made: after it, the conversion would be a table of jumps.
        self.engine.with(stripe, |stripe| {
            let read = || self.engine.resolve(when);
            stripe.reschedule(hash, key, read, false).into()
        })
    }

    /// Moves the pending timer of `key` if `when` is earlier than its deadline. This never delays a
    /// timer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::PullIn;
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let scheduled = timers.schedule("sync", Duration::from_secs(60), |_| println!("syncing"))?;
    /// // Something has changed, so sync in 5 s.
    /// let earlier = timers.pull_in("sync", Duration::from_secs(5));
    /// assert_eq!(earlier, PullIn::Moved { before: scheduled.deadline });
    /// // A further change does not delay it.
    /// let later = timers.pull_in("sync", Duration::from_secs(10));
    /// assert!(matches!(later, PullIn::Unchanged { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pull_in<Q>(&self, key: &Q, when: impl Into<When>) -> PullIn
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // Exact: the margin of a cheap reading would let the timer run later than it is asked to.
        let resolved = self.engine.resolve_exactly(when.into());
        let (stripe, hash) = self.hash_of(key);
        self.engine.with(stripe, |stripe| {
            stripe.reschedule(hash, key, || resolved, true).into()
        })
    }

    /// Runs the pending timer of `key` as soon as a worker is free. A repeating timer keeps its
    /// rhythm: this is an extra round, and the round that was pending stays due when it was. So a
    /// job that runs every hour can be started by hand without moving the hour.
    ///
    /// | the key | answer and effect |
    /// |---|---|
    /// | is pending, runs once | [`Moved`](PullIn::Moved): it runs now, as after a [`pull_in`](Self::pull_in) of zero |
    /// | is pending, repeats | [`Moved`](PullIn::Moved), with the deadline of the round that follows the extra one |
    /// | is due already, for example because of an earlier `run_now` | [`Unchanged`](PullIn::Unchanged) |
    /// | runs, and nothing is pending for it | [`Running`](PullIn::Running): nothing changes. The next round of a repeating timer keeps its deadline. For another round right after this one, call `pull_in` with zero, which starts the rhythm anew |
    /// | is unknown | [`NotFound`](PullIn::NotFound) |
    ///
    /// The extra round counts as a round, in [`Round::number`](crate::Round::number) too, and its
    /// answer is obeyed: [`Next::Again`](crate::Next::Again) lets the pending round follow, and all
    /// others decide as always. If the extra round ends after the pending one was due, that one
    /// starts at once, or is missed as the period says. A [`reschedule`](Self::reschedule) before
    /// the extra round has started moves it, and is then an ordinary move. A
    /// [`cancel`](Self::cancel) ends the repetition.
    ///
    /// # Complexity
    ///
    /// As for [`reschedule`](Self::reschedule).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Period, PullIn, Scheduler, Time};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let hour = Duration::from_secs(3600);
    /// let first = timers.repeat("clean up", Period::fixed_rate(hour), |_| ())?;
    /// scheduler.advance(hour / 2);
    /// // Somebody presses the button.
    /// assert_eq!(timers.run_now("clean up"), PullIn::Moved { before: first.deadline });
    /// assert_eq!(scheduler.settle().len(), 1);
    /// // The next round comes at the full hour, as before.
    /// assert_eq!(scheduler.advance(hour).len(), 1);
    /// assert_eq!(timers.get("clean up").map(|next| next.deadline), Some(Time::ZERO + 2 * hour));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("trigger", "flush"))]
    pub fn run_now<Q>(&self, key: &Q) -> PullIn
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        let (stripe, hash) = self.hash_of(key);
        self.engine.with(stripe, |stripe| {
            stripe
                .run_now(hash, key, now, |task, kept| task.run_now(kept, now))
                .into()
        })
    }
}
