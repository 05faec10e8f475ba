//! Calls for many keys: the clock is read once, the keys are sorted by stripe once, and one hold of
//! a lock serves up to 64 of them.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::answers::{Cancel, Reschedule};
use super::handle::Handle;
use crate::job::drop_each;
use crate::shard::{KeyHash, Stripe};

/// So many keys are served under one hold of a lock.
const KEYS_PER_HOLD: usize = 64;

struct Place {
    stripe: u32,
    /// In the caller's order.
    index: u32,
    hash: KeyHash,
}

/// All keys of a portion are looked up before anything is changed: an `Eq` that panics leaves the
/// stripe as it was. A slot that comes twice is freed by the first of two cancellations, and stays
/// so under this hold of the lock.
fn find_all<K, V, Q>(
    stripe: &Stripe<K, V>,
    keys: &[Q],
    places: &[Place],
    slots: &mut Vec<Option<u32>>,
) where
    K: Borrow<Q>,
    Q: Eq,
{
    slots.clear();
    slots.extend(
        places
            .iter()
            .map(|place| stripe.find(place.hash, &keys[place.index as usize])),
    );
}

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// [`reschedule`](Self::reschedule) for many keys: answers per key, in the caller's order, all
    /// counted from one reading of the clock. Not atomic: each key is settled on its own, and
    /// others may act in between. If a key's `Eq` panics, some of the keys have been moved, and the
    /// others have not.
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
    /// # Ok(())
    /// # }
    /// ```
    pub fn reschedule_many<Q>(&self, keys: &[Q], delay: Duration) -> Vec<Reschedule>
    where
        K: Borrow<Q>,
        Q: Hash + Eq,
    {
        let now = self.now();
        let deadline = now + delay;
        let mut answers = vec![Reschedule::NotFound; keys.len()];
        // What is due at once is handed over key by key.
        let per_hold = if deadline <= now { 1 } else { KEYS_PER_HOLD };
        let mut slots = Vec::with_capacity(per_hold.min(keys.len()));
        self.by_stripe(keys, per_hold, |stripe, places| {
            self.engine().with(stripe, |stripe| {
                find_all(stripe, keys, places, &mut slots);
                for (place, slot) in places.iter().zip(&slots) {
                    if let Some(slot) = *slot {
                        answers[place.index as usize] =
                            stripe.reschedule_slot(slot, deadline, now, false).into();
                    }
                }
            });
        });
        answers
    }

    /// [`cancel`](Self::cancel) for many keys: answers per key, in the caller's order. Not atomic,
    /// like [`reschedule_many`](Self::reschedule_many).
    pub fn cancel_many<Q>(&self, keys: &[Q]) -> Vec<Cancel>
    where
        K: Borrow<Q>,
        Q: Hash + Eq,
    {
        let mut answers = vec![Cancel::NotFound; keys.len()];
        let mut slots = Vec::with_capacity(KEYS_PER_HOLD.min(keys.len()));
        let mut garbage = Vec::new();
        self.by_stripe(keys, KEYS_PER_HOLD, |stripe, places| {
            self.engine().with(stripe, |stripe| {
                find_all(stripe, keys, places, &mut slots);
                for (place, slot) in places.iter().zip(&slots) {
                    if let Some(slot) = *slot {
                        let (answer, dropped) = Self::settled(stripe.cancel_slot(slot));
                        answers[place.index as usize] = answer;
                        garbage.push(dropped);
                    }
                }
            });
            drop_each(garbage.drain(..));
        });
        answers
    }

    fn by_stripe<Q>(&self, keys: &[Q], per_hold: usize, mut serve: impl FnMut(usize, &[Place]))
    where
        Q: Hash,
    {
        let mut places: Vec<Place> = keys
            .iter()
            .enumerate()
            .map(|(index, key)| {
                let (stripe, hash) = self.hash_of(key);
                Place {
                    stripe: stripe as u32,
                    index: index as u32,
                    hash,
                }
            })
            .collect();
        // By index, too: two calls for one key are settled in the caller's order.
        places.sort_unstable_by_key(|place| (place.stripe, place.index));
        for same_stripe in places.chunk_by(|a, b| a.stripe == b.stripe) {
            for portion in same_stripe.chunks(per_hold) {
                serve(portion[0].stripe as usize, portion);
            }
        }
    }
}
