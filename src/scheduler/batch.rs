//! Calls for many keys. The clock is read once, the keys are sorted by stripe once, and one hold of
//! a lock serves up to 64 of them.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::answers::{Cancel, Reschedule};
use super::handle::Handle;
use crate::job::drop_each;
use crate::shard::batch::{KEYS_PER_HOLD, by_stripe, find_all, portions};
use crate::when::When;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Calls [`reschedule`](Self::reschedule) for many keys. The results are in the order of the
    /// keys, and the clock is read once: all timers get the same
    /// deadline.
    ///
    /// The call is not atomic: each key is moved on its own, and other calls may act in between. If
    /// a key's `Eq` panics, some of the keys have been moved, and the others have not.
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
        let located = by_stripe(self.engine().shards().stripes(), keys, |key| {
            self.hash_of(key)
        });
        let mut answers = vec![Reschedule::NotFound; located.len()];
        // A hold of the lock can hand over one timer that is due at once, so these go key by key.
        let per_hold = if deadline <= now { 1 } else { KEYS_PER_HOLD };
        let mut slots = Vec::with_capacity(per_hold.min(located.len()));
        portions(&located, per_hold, |stripe, located| {
            self.engine().with(stripe, |stripe| {
                // All keys are found before any timer is moved: an `Eq` that panics leaves the
                // stripe unchanged.
                find_all(stripe, located, &mut slots);
                for (located_key, slot) in located.iter().zip(&slots) {
                    if let Some(slot) = *slot {
                        answers[located_key.index as usize] =
                            stripe.reschedule_slot(slot, deadline, now, false).into();
                    }
                }
            });
        });
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
        let located = by_stripe(self.engine().shards().stripes(), keys, |key| {
            self.hash_of(key)
        });
        let mut answers = vec![Cancel::NotFound; located.len()];
        let mut slots = Vec::with_capacity(KEYS_PER_HOLD.min(located.len()));
        let mut garbage = Vec::new();
        portions(&located, KEYS_PER_HOLD, |stripe, located| {
            self.engine().with(stripe, |stripe| {
                find_all(stripe, located, &mut slots);
                for (located_key, slot) in located.iter().zip(&slots) {
                    if let Some(slot) = *slot {
                        let (answer, dropped) = Self::cancel_answer(stripe.cancel_slot(slot));
                        answers[located_key.index as usize] = answer;
                        garbage.push(dropped);
                    }
                }
            });
            // Keys and tasks are user code, so they are dropped between two holds of a lock.
            drop_each(garbage.drain(..));
        });
        answers
    }
}
