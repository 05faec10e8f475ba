//! Calls for many keys; see `shard/batch.rs`. The clock is read once for all of them.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::answers::{Cancel, Reschedule};
use super::handle::Handle;
use crate::job::drop_each;
use crate::shard::batch::{ITEMS_PER_HOLD, keys_by_stripe};
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
