//! The calls that insert an entry.

use std::hash::Hash;

use super::content::{MadeEntry, MapEntry};
use super::entry::{Entry, Placement, Times};
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
    #[doc(alias("set", "put"))]
    pub fn insert(&self, key: K, value: V) -> Result<Inserted<V>, InsertError<K, V>> {
        let reading = self.engine.reading();
        self.put_as_of(key, value, self.expiry(), reading, None, false)
    }

    /// Inserts an entry; `if_absent` refuses to replace one that lives.
    #[inline]
    pub(super) fn put(
        &self,
        key: K,
        value: V,
        Times { expiry, now }: Times,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        let expiry = expiry.unwrap_or_else(|| self.expiry());
        let reading = now.map_or_else(|| self.engine.reading(), Reading::given);
        self.put_as_of(key, value, expiry, reading, now, if_absent)
    }

    /// Inserts an entry whose times count from `reading`; from `given`, if the caller has given it.
    // One function for both, so that its parts are inlined in it.
    fn put_as_of(
        &self,
        key: K,
        value: V,
        expiry: Expiry,
        reading: Reading,
        given: Option<Time>,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        let (number, hash) = self.hash_of(&key);
        let clock = self.engine.clock();
        let (session, deadline, mut reading) = MapEntry::new(value, expiry, hash, reading, clock);
        if let Some(now) = given {
            reading = Reading::given(Reading::low_beside(now, deadline, clock));
        }
        self.put_entry((number, hash), key, (session, deadline, reading), if_absent)
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
            let if_absent = if_absent && !is_over(stripe, hash, &key, clock);
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
                let (key, old) = arming.dropped;
                let replaced = self.replaced(key.as_ref(), old);
                Ok(Inserted { deadline, replaced })
            }
        }
    }
}

impl<K, V, S, P> Entry<'_, K, V, S, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Inserts an entry, like [`ExpiryMap::insert`]: an entry of the same key, due or not, is
    /// replaced in the same step, whatever group it is in. Its value comes back, and it is not
    /// delivered.
    ///
    /// # Errors
    ///
    /// The error contains key and value: the map is [full](InsertRefusal::Full) or
    /// [closed](InsertRefusal::Closed), or the [group](Self::group) is full.
    ///
    /// # Complexity
    ///
    /// Constant: one hash, one lock, one probe of the index; in a group as [`group`](Self::group)
    /// says.
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
    /// let hour = Duration::from_secs(3600);
    /// map.entry(7).expiry(Expiry::NEVER.time_to_live(hour)).insert("Ada")?;
    /// assert_eq!(map.deadline(&7), Some(map.now() + hour));
    /// assert_eq!(map.entry(7).insert("Grace")?.replaced, Some("Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn insert(self, value: V) -> Result<Inserted<V>, InsertError<K, V>>
    where
        P: Placement<K, V, S>,
    {
        (self.place).put(self.map, self.key, value, self.times, false)
    }

    /// Inserts an entry, unless there is one for the key, in any group or in none. Then the value
    /// comes back. An entry whose lifetime is over does not count: if it has not been delivered
    /// yet, it is replaced.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert), and [`Occupied`](InsertRefusal::Occupied). A closed map
    /// says that it is closed, whether there is an entry or not. If there is an entry, a full map
    /// or group does not matter.
    ///
    /// # Complexity
    ///
    /// As for [`insert`](Self::insert), plus one probe.
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
    /// map.entry(7).insert_if_absent("Ada")?;
    /// let error = map.entry(7).insert_if_absent("Grace").unwrap_err();
    /// assert_eq!(error.refusal, InsertRefusal::Occupied);
    /// assert_eq!(error.value, "Grace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn insert_if_absent(self, value: V) -> Result<Inserted<V>, InsertError<K, V>>
    where
        P: Placement<K, V, S>,
    {
        (self.place).put(self.map, self.key, value, self.times, true)
    }
}

/// Returns whether there is an entry for `key` whose lifetime is over.
#[inline(never)]
pub(super) fn is_over<K: Eq, V, T: Tag>(
    stripe: &Stripe<K, MapEntry<V, T>>,
    hash: KeyHash,
    key: &K,
    clock: &Clock,
) -> bool {
    stripe
        .find(hash, key)
        .and_then(|slot| stripe.pending_payload(slot))
        .is_some_and(|(session, _)| !session.lives_now(clock))
}
