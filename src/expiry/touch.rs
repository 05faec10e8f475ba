//! The calls that move the deadline of an entry.

use std::borrow::Borrow;
use std::hash::Hash;

use super::frontend::MapEntry;
use super::{Expiry, ExpiryMap, MapHasher, Touch};
use crate::clock::{Clock, Reading};
use crate::shard::Stripe;
use crate::tick::Time;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Restarts the time to idle of `key`.
    ///
    /// # Complexity
    ///
    /// Constant: one probe and one write. The wheel is not touched until the old deadline comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Touch};
    ///
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(matches!(map.touch(&7), Touch::Touched { .. }));
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(map.contains(&7));
    /// assert_eq!(map.touch(&8), Touch::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch<Q>(&self, key: &Q) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let (clock, reading) = self.engine.clock_and_reading();
        self.engine.with(stripe, move |stripe| {
            let slot = stripe.find(hash, key);
            slot.map_or(Touch::NotFound, |slot| {
                touch_slot(stripe, slot, reading, clock)
            })
        })
    }

    /// Calls [`touch`](Self::touch) with the time to idle counted from `now`, a time of the
    /// [map's clock](Self::now) that the caller has read before. For an entry without a lifetime, the
    /// call does not read the clock. Use it in an event loop that reads the clock once per iteration.
    ///
    /// An old `now` does not move a deadline back. Then the answer is
    /// [`Unchanged`](Touch::Unchanged). Whether a lifetime is over is always decided by the clock. A
    /// `now` that is ahead of the clock makes the entry live longer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{ExpiryMap, Touch};
    /// let idle = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(idle)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// let before = map.now();
    /// stepped.advance(Duration::from_secs(10));
    /// let now = map.now();
    /// assert_eq!(map.touch_at(&7, now), Touch::Touched { deadline: now + idle });
    /// assert_eq!(map.touch_at(&7, before), Touch::Unchanged { deadline: now + idle });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch_at<Q>(&self, key: &Q, now: Time) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.with(stripe, |stripe| {
            let Some(slot) = stripe.find(hash, key) else {
                return Touch::NotFound;
            };
            touched(stripe.put_off(slot, now, |session| session.touched_at(now, clock)))
        })
    }

    /// Returns a clone of the value and touches the entry. The value's `Clone` runs under a lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert_eq!(map.get_and_touch(&7), Some("Ada"));
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(map.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get_and_touch<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let (stripe, hash) = self.hash_of(key);
        let (clock, reading) = self.engine.clock_and_reading();
        self.engine.with(stripe, |stripe| {
            let slot = stripe.find(hash, key)?;
            let (session, _) = stripe.pending_payload(slot)?;
            if !session.lives(reading, clock) {
                return None;
            }
            // Cloned before the touch: if `Clone` panics, nothing has changed.
            let value = session.value.clone();
            touch_slot(stripe, slot, reading, clock);
            Some(value)
        })
    }

    /// Gives `key` another [`Expiry`]. Its time to idle and its lifetime start now.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// // "Remember me": a day instead of the map's own times.
    /// let day = Duration::from_secs(24 * 3600);
    /// assert!(map.set_expiry(&7, Expiry::NEVER.time_to_live(day)).is_alive());
    /// assert_eq!(map.deadline(&7), Some(map.now() + day));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_expiry<Q>(&self, key: &Q, expiry: Expiry) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let (clock, reading) = self.engine.clock_and_reading();
        self.engine.with(stripe, |stripe| {
            let Some(slot) = stripe.find(hash, key) else {
                return Touch::NotFound;
            };
            let (deadline, before) = match stripe.pending_payload_mut(slot) {
                Some((session, before)) if session.lives(reading, clock) => {
                    (session.set_expiry(expiry, hash, reading, clock), before)
                }
                _ => return Touch::Expired,
            };
            move_slot(stripe, slot, deadline, before, reading.low())
        })
    }
}

/// Touches the entry in `slot`.
#[inline]
pub(super) fn touch_slot<K, V, T>(
    stripe: &mut Stripe<K, MapEntry<V, T>>,
    slot: u32,
    reading: Reading,
    clock: &Clock,
) -> Touch {
    // The thread that read the clock first may get the lock last. The later deadline that was
    // reported by the other thread stands.
    touched(stripe.put_off(slot, reading.low(), |session| {
        session.touched(reading, clock)
    }))
}

/// Converts the answer of [`Stripe::put_off`].
#[inline(always)]
fn touched(answer: Option<(Time, bool)>) -> Touch {
    match answer {
        Some((deadline, true)) => Touch::Touched { deadline },
        Some((deadline, false)) => Touch::Unchanged { deadline },
        None => Touch::Expired,
    }
}

/// Moves the entry in `slot` to `deadline`.
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
