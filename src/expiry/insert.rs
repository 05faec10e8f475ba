//! The calls that insert an entry.

use std::hash::Hash;

use super::content::{MadeEntry, MapEntry};
use super::tag::Tag;
use super::{Expiry, ExpiryMap, InsertError, InsertRefusal, Inserted, MapHasher};
use crate::clock::{Clock, Reading};
use crate::shard::{Admission, KeyHash, Stripe};
use crate::tick::Time;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Inserts an entry that lives as long as the builder says. An entry of the same key, due or
    /// not, is replaced in the same step. Its value comes back, and it is not delivered.
    ///
    /// # Errors
    ///
    /// The error contains key and value: the map is [full](InsertRefusal::Full) or
    /// [closed](InsertRefusal::Closed).
    ///
    /// # Complexity
    ///
    /// Constant: one hash, one lock, one probe of the index.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// assert_eq!(map.insert(7, "Ada")?.replaced, None);
    /// assert_eq!(map.insert(7, "Grace")?.replaced, Some("Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, key: K, value: V) -> Result<Inserted<V>, InsertError<K, V>> {
        self.insert_with(key, value, self.expiry())
    }

    /// Inserts an entry that lives as long as `expiry` says, whatever the builder said.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<&str, u32>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert("as the others", 1)?;
    /// map.insert_with("for a minute more", 2, map.expiry().time_to_idle(Duration::from_secs(120)))?;
    /// map.insert_with("for good", 3, Expiry::NEVER)?;
    /// stepped.advance(Duration::from_secs(60));
    /// assert_eq!(map.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_with(
        &self,
        key: K,
        value: V,
        expiry: Expiry,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        self.put(key, value, expiry, self.engine.reading(), false)
    }

    /// Calls [`insert`](Self::insert) with the entry's times counted from `now`, a time of the
    /// [map's clock](Self::now) that the caller has read before. The call does not read the clock,
    /// unless the entry has a time of zero, or a listener has to learn whether the lifetime of the
    /// replaced entry was over. Use it in an event loop that reads the clock once per iteration.
    ///
    /// The entry never expires before `now` plus its time, even if `now` is ahead of the clock. An
    /// entry whose time has passed already expires at once.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let idle = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(idle)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// let now = map.now();
    /// for (key, name) in [(7, "Ada"), (8, "Grace")] {
    ///     map.insert_at(key, name, now)?;
    /// }
    /// assert_eq!(map.deadline(&8), Some(now + idle));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_at(&self, key: K, value: V, now: Time) -> Result<Inserted<V>, InsertError<K, V>> {
        let place @ (_, hash) = self.hash_of(&key);
        let clock = self.engine.clock();
        let (session, deadline, _) =
            MapEntry::new(value, self.expiry(), hash, Reading::given(now), clock);
        let low = Reading::low_beside(now, deadline, clock);
        self.put_entry(place, key, (session, deadline, Reading::given(low)), false)
    }

    /// Inserts an entry; `if_absent` refuses to replace one that lives.
    fn put(
        &self,
        key: K,
        value: V,
        expiry: Expiry,
        reading: Reading,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        let (number, hash) = self.hash_of(&key);
        let clock = self.engine.clock();
        let made = MapEntry::new(value, expiry, hash, reading, clock);
        self.put_entry((number, hash), key, made, if_absent)
    }

    /// Inserts an entry that has been made, with its deadline and the reading of the call.
    #[inline(always)]
    pub(super) fn put_entry(
        &self,
        (number, hash): (usize, KeyHash),
        key: K,
        (session, deadline, reading): MadeEntry<V, S::Tag>,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        let clock = self.engine.clock();
        let now = reading.low();
        let admitted = self.engine.admit(number, |stripe| {
            // An entry whose lifetime is over counts as absent, even if it still waits for its
            // delivery.
            let if_absent = if_absent && !is_over(stripe, hash, &key, reading, clock);
            stripe.admit(hash, &key, if_absent)
        });
        let (mut stripe, admission) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                return Err(InsertError {
                    key,
                    value: session.value,
                    refusal: InsertRefusal::of(refusal),
                });
            }
        };
        match admission {
            Admission::Vacant(vacancy) => {
                stripe.arm_vacant(vacancy, hash, key, session, deadline, now);
                stripe.unlock();
                Ok(Inserted {
                    deadline,
                    replaced: None,
                })
            }
            Admission::Present(present) => {
                let arming = stripe.arm_present(present, hash, key, session, deadline, now);
                drop(stripe);
                let replaced = self.replaced(arming.dropped);
                Ok(Inserted { deadline, replaced })
            }
        }
    }

    /// Like [`insert`](Self::insert), unless there is an entry for the key. An entry whose lifetime
    /// is over does not count: if it has not been delivered yet, it is replaced.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert), and [`Occupied`](InsertRefusal::Occupied).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, InsertRefusal};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert_if_absent(7, "Ada")?;
    /// let error = map.insert_if_absent(7, "Grace").unwrap_err();
    /// assert_eq!(error.refusal, InsertRefusal::Occupied);
    /// assert_eq!(error.value, "Grace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_if_absent(&self, key: K, value: V) -> Result<Inserted<V>, InsertError<K, V>> {
        self.put(key, value, self.expiry(), self.engine.reading(), true)
    }
}

/// Returns whether there is an entry for `key` whose lifetime is over.
#[inline(never)]
pub(super) fn is_over<K: Eq, V, T: Tag>(
    stripe: &Stripe<K, MapEntry<V, T>>,
    hash: KeyHash,
    key: &K,
    reading: Reading,
    clock: &Clock,
) -> bool {
    stripe
        .find(hash, key)
        .and_then(|slot| stripe.pending_payload(slot))
        .is_some_and(|(session, _)| !session.lives(reading, clock))
}
