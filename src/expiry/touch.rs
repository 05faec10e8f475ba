//! The calls that move a deadline.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::face::Session;
use super::{Expiry, ExpiryMap, Grouping, Touch};
use crate::shard::{KeyHash, Stripe, mix};
use crate::tick::Time;

impl<K, V, S, G> ExpiryMap<K, V, S, G>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    /// Starts the time to idle of `key` anew.
    ///
    /// # Complexity
    ///
    /// Constant: one probe and one write; the wheel is not touched until the old deadline comes.
    pub fn touch<Q>(&self, key: &Q) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let now = self.now();
        self.engine.with(stripe, |stripe| {
            let slot = stripe.find(hash, key);
            slot.map_or(Touch::NotFound, |slot| touch_slot(stripe, slot, now))
        })
    }

    /// A clone of the value, if a touch finds it. The value's `Clone` runs under a lock.
    #[must_use]
    pub fn get_and_touch<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let (stripe, hash) = self.hash_of(key);
        let now = self.now();
        self.engine.with(stripe, |stripe| {
            let slot = stripe.find(hash, key)?;
            let (session, _) = stripe.unclaimed(slot)?;
            if !session.lives(now) {
                return None;
            }
            let value = session.value.clone();
            touch_slot(stripe, slot, now);
            Some(value)
        })
    }

    /// Gives `key` another [`Expiry`]: its time to idle and its lifetime begin anew, now.
    pub fn set_expiry<Q>(&self, key: &Q, expiry: Expiry) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let now = self.now();
        self.engine.with(stripe, |stripe| {
            let Some(slot) = stripe.find(hash, key) else {
                return Touch::NotFound;
            };
            let (deadline, before) = match stripe.unclaimed_mut(slot) {
                Some((session, before)) if session.lives(now) => {
                    session.set_expiry(expiry, luck(hash, now), now);
                    (session.deadline(now), before)
                }
                _ => return Touch::Expired,
            };
            move_slot(stripe, slot, deadline, before, now)
        })
    }
}

/// What an entry's jitter goes by: differs from key to key and from time to time, and is the same
/// again in a simulation.
pub(super) fn luck(hash: KeyHash, now: Time) -> u64 {
    mix(hash.0 ^ now.as_nanos())
}

/// A touch of whatever is in `slot`.
#[inline]
pub(super) fn touch_slot<K, V, T>(
    stripe: &mut Stripe<K, Session<V, T>>,
    slot: u32,
    now: Time,
) -> Touch {
    match stripe.unclaimed(slot) {
        Some((session, before)) if session.lives(now) => {
            // Who read the clock first may get the lock last; what the other one was told stands.
            let deadline = session.deadline(now).max(before);
            move_slot(stripe, slot, deadline, before, now)
        }
        _ => Touch::Expired,
    }
}

#[inline]
fn move_slot<K, V>(
    stripe: &mut Stripe<K, V>,
    slot: u32,
    deadline: Time,
    before: Time,
    now: Time,
) -> Touch {
    if deadline == before {
        return Touch::Unchanged { deadline };
    }
    let _ = stripe.reschedule_slot(slot, deadline, now, false);
    Touch::Touched { deadline }
}
