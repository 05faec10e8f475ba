//! Calls for many keys; see `shard/batch.rs`. The clock is read once for all of them.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::answers::{Cancel, Reschedule, Scheduled, refused};
use super::firing::Firing;
use super::handle::Handle;
use super::task::{Once, Task};
use crate::engine::Items;
use crate::error::ScheduleError;
use crate::job::{Garbage, drop_each};
use crate::shard::batch::{ArmMany, ITEMS_PER_HOLD, Located, keys_by_stripe};
use crate::shard::{Admission, KeyHash, Refusal, Stripe};
use crate::tick::Time;
use crate::when::When;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Calls [`reschedule`](Self::reschedule) for many keys. The results are in the order of the
    /// keys, and the clock is read once: all timers get the same deadline.
    ///
    /// The keys are sorted by stripe, and the locks of several stripes are held at a time, so that
    /// cache misses overlap. Among millions of timers this takes a quarter of the time of single
    /// calls.
    ///
    /// The call is not atomic: each key is moved on its own, and other calls may act in between. If
    /// a key's `Eq` panics, some of the keys have been moved, and the others have not.
    ///
    /// # Blocking
    ///
    /// Holds up to 16 locks for some microseconds, but never while it waits for another one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Reschedule, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule(1, Duration::from_secs(1), |_| ())?;
    /// let answers = timers.reschedule_many(&[1, 2], Duration::from_secs(9));
    /// assert!(matches!(answers[0], Reschedule::Moved { .. }));
    /// assert_eq!(answers[1], Reschedule::NotFound);
    ///
    /// let texts = Scheduler::<String>::builder().build_stepped(1)?;
    /// let answers = texts.handle().reschedule_many(["a", "b"], Duration::from_secs(9));
    /// assert_eq!(answers, [Reschedule::NotFound; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reschedule_many<'a, Q>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
        when: impl Into<When>,
    ) -> Vec<Reschedule>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        let (deadline, now) = self.engine().resolve_exactly(when.into());
        let stripes = self.engine().shards().stripes();
        let located = keys_by_stripe(stripes, keys, |key| self.hash_of(key));
        let mut answers = vec![Reschedule::NotFound; located.len()];
        // A hold of the lock can hand over one timer that is due at once, so these go key by key.
        let per_stripe = if deadline <= now { 1 } else { ITEMS_PER_HOLD };
        let mut groups = self.engine().groups(&located, per_stripe);
        while groups.lock_next() {
            let slots = groups.find();
            groups.each_at(&slots, |stripe, slot, located| {
                answers[located.index()] =
                    stripe.reschedule_slot(slot, deadline, now, false).into();
            });
            groups.release();
        }
        answers
    }

    /// Calls [`schedule`](Self::schedule) for many timers, each with a key, a time and a task. The
    /// results are in the order of the timers, and each timer has its own: the task of one that is
    /// refused comes back, and the others are scheduled. The clock is read once. If not all of them
    /// fit, it is not said which ones are refused.
    ///
    /// The keys are sorted by stripe, as in [`reschedule_many`](Self::reschedule_many). Of a key
    /// that comes twice, the last timer remains, and the ones before it never run.
    ///
    /// The call is not atomic: each timer is scheduled on its own, and other calls may act in
    /// between. If a key's `Eq` panics, some of the timers have been scheduled, and the tasks of the
    /// others are dropped.
    ///
    /// # Errors
    ///
    /// For each timer as for [`schedule`](Self::schedule).
    ///
    /// # Blocking
    ///
    /// As for [`reschedule_many`](Self::reschedule_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Firing, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// // A page of a table: an order, and the seconds that are left to pay it.
    /// let page = [(7, 900), (8, 30)];
    /// let answers = timers.schedule_many(page.map(|(order, seconds)| {
    ///     let cancel = |firing: &Firing<'_, u64>| println!("{} was not paid", firing.key());
    ///     (order, Duration::from_secs(seconds), cancel)
    /// }));
    /// assert!(answers.iter().all(Result::is_ok));
    /// assert_eq!(scheduler.advance(Duration::from_secs(60)).len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the task of a timer that is refused comes back"]
    pub fn schedule_many<W, F>(
        &self,
        timers: impl IntoIterator<Item = (K, W, F)>,
    ) -> Vec<Result<Scheduled, ScheduleError<F>>>
    where
        W: Into<When>,
        F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
    {
        let engine = self.engine();
        let now = self.now();
        let mut may_be_due = false;
        let mut places = Vec::new();
        // The boxes are made without a lock.
        let items = Items::new(timers.into_iter().map(|(key, when, task)| {
            let deadline = engine.deadline_from(now, when.into());
            may_be_due |= deadline <= now;
            places.push(self.hash_of(&key));
            (key, deadline, Box::new(Once(task)))
        }));
        let mut armings = Armings {
            handle: self,
            now,
            items,
            garbage: Garbage::new(),
        };
        engine.arm_many(&places, may_be_due, &mut armings);
        let Armings { items, garbage, .. } = armings;
        let answers = items.into_answers();
        drop(garbage);
        answers
    }

    /// Calls [`cancel`](Self::cancel) for many keys. The results are in the order of the keys. The
    /// call is not atomic, like [`reschedule_many`](Self::reschedule_many).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::Cancel;
    ///
    /// # let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule(1, Duration::from_secs(1), |_| ())?;
    /// let answers = timers.cancel_many(&[1, 2]);
    /// assert!(answers[0].is_cancelled());
    /// assert_eq!(answers[1], Cancel::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>) -> Vec<Cancel>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        let stripes = self.engine().shards().stripes();
        let located = keys_by_stripe(stripes, keys, |key| self.hash_of(key));
        let mut answers = vec![Cancel::NotFound; located.len()];
        let mut garbage = Vec::with_capacity(ITEMS_PER_HOLD.min(located.len()));
        let mut groups = self.engine().groups(&located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            let slots = groups.find();
            groups.each_at(&slots, |stripe, slot, located| {
                let (answer, dropped) = Self::cancel_answer(stripe.cancel_slot(slot));
                answers[located.index()] = answer;
                garbage.push(dropped);
            });
            groups.release();
            // Keys and tasks are user code, so they are dropped between two holds of the locks.
            drop_each(garbage.drain(..));
        }
        answers
    }
}

/// A timer to be scheduled.
type Given<K, F> = (K, Time, Box<Once<F>>);

/// The timers of a call that schedules many.
struct Armings<'a, K, S, F> {
    handle: &'a Handle<K, S>,
    now: Time,
    items: Items<Given<K, F>, Result<Scheduled, ScheduleError<F>>>,
    /// Keys and tasks, which are user code.
    garbage: Garbage<Option<K>, Option<Task<K, S>>>,
}

impl<K, S, F> ArmMany<K, Task<K, S>> for Armings<'_, K, S, F>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnOnce(&Firing<'_, K, S>) + Send + 'static,
{
    #[inline]
    fn key(&self, index: usize) -> &K {
        &self.items.get(index).0
    }

    #[inline]
    fn arm(
        &mut self,
        stripe: &mut Stripe<K, Task<K, S>>,
        admission: Admission,
        item: &Located<KeyHash>,
    ) {
        let (key, deadline, task) = self.items.take(item.index());
        let arming = stripe.arm(
            admission,
            item.item,
            key,
            Task::of(task),
            deadline,
            self.now,
        );
        let (key, task) = arming.dropped;
        if key.is_some() || task.is_some() {
            self.garbage.push(key, task);
        }
        self.items.answer(
            item.index(),
            Ok(Scheduled {
                id: self.handle.timer_id(item.stripe(), arming.id),
                deadline,
                replaced: arming.replaced,
                after_run: arming.after_run,
            }),
        );
    }

    /// Keys and tasks are dropped at the end of the call.
    fn settle(&mut self) {}

    fn refuse(&mut self, index: usize, refusal: Refusal) {
        let (key, _, task) = self.items.take(index);
        self.items.answer(index, Err(refused(refusal, task.0)));
        self.garbage.push(Some(key), None);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::{Firing, Scheduler};

    /// Before a timer is refused, unused permits of other stripes are collected. Smaller bounds are
    /// handed out one by one, so no permit of theirs is ever unused.
    #[test]
    fn a_batch_uses_the_room_of_other_stripes() {
        let builder = Scheduler::<u64>::builder().stripes(8).max_pending(10_000);
        let scheduler = builder.build_stepped(1).unwrap();
        let timers = scheduler.handle();
        let delay = Duration::from_secs(1);
        for round in 0..4 {
            let keys: Vec<u64> = (0..10_000).map(|key| key + 10_000 * round).collect();
            let nothing = |_: &Firing<'_, u64>| ();
            let answers = timers.schedule_many(keys.iter().map(|key| (*key, delay, nothing)));
            assert!(answers.iter().all(Result::is_ok), "{round}");
            let answers = timers.cancel_many(&keys);
            assert!(answers.iter().all(|answer| answer.is_cancelled()));
        }
    }
}
