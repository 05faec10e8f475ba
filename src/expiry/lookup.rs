//! The calls that read, change or remove the entry of a key.

use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

use super::content::MapEntry;
use super::frontend::Reason;
use super::{ExpiryMap, MapHasher, Removed};
use crate::shard::{Cancelling, Lookup, NotUsual};
use crate::tick::Time;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns a clone of the value, without touching the entry. The value's `Clone` runs under a
    /// lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// assert_eq!(map.get(&7), Some("Ada"));
    /// assert_eq!(map.get(&8), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.with(key, V::clone)
    }

    /// Calls `look` with the value and returns its result, without touching the entry. `look` runs
    /// [under a lock](Self#user-code-under-a-lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada".to_owned())?;
    /// // The value is not cloned.
    /// assert_eq!(map.with(&7, |name| name.len()), Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |value, _| look(value))
    }

    /// Calls `look` with the value and the deadline of an entry that lives.
    fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&V, Time) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.shards().peek(stripe, |stripe| {
            if let Some((session, deadline)) = stripe.payload_of(hash, key)
                && session.lives_now(clock)
            {
                stripe.count_lookup(Lookup::Found);
                return Some(look(&session.value, deadline));
            }
            stripe.count_lookup(Lookup::Missed);
            None
        })
    }

    /// Calls `change` with the value and returns its result, without touching the entry. `change`
    /// runs [under a lock](Self#user-code-under-a-lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, u32>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, 1)?;
    /// let requests = map.update(&7, |requests| {
    ///     *requests += 1;
    ///     *requests
    /// });
    /// assert_eq!(requests, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.with(stripe, |stripe| {
            let result = stripe.change_payload_of(hash, key, |session| {
                let lives = session.lives_now(clock);
                lives.then(|| change(&mut session.value))
            });
            let result = result.flatten();
            stripe.count_lookup(match result {
                Some(_) => Lookup::Found,
                None => Lookup::Missed,
            });
            result
        })
    }

    /// Returns whether there is an entry for `key`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// assert!(map.contains(&7));
    /// assert!(!map.contains(&8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.deadline(key).is_some()
    }

    /// Returns the time at which `key` expires unless it is touched; [`Time::MAX`] if it never
    /// does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// assert_eq!(map.deadline(&7), Some(map.now() + Duration::from_secs(60)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deadline<Q>(&self, key: &Q) -> Option<Time>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |_, deadline| deadline)
    }

    /// Returns how long the entry has to live unless it is touched, and `Duration::MAX` for an
    /// entry that never expires. The result is zero for an entry that is due and not delivered.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let minute = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(minute)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(15));
    /// assert_eq!(map.remaining(&7), Some(Duration::from_secs(45)));
    /// assert_eq!(map.remaining(&8), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let deadline = self.deadline(key)?;
        Some(deadline.remaining(self.now()))
    }

    /// Removes the entry. It is not delivered any more, even if it is due and waits for its
    /// delivery.
    ///
    /// # Complexity
    ///
    /// Constant. The memory is free at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Removed};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// assert_eq!(map.remove(&7).value(), Some("Ada"));
    /// assert_eq!(map.remove(&7), Removed::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("invalidate", "delete", "evict"))]
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn remove<Q>(&self, key: &Q) -> Removed<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let mut stripe = self.engine.lock(stripe);
        // A listener needs the key, too, which would cost all others time.
        let reason = if self.listens() {
            NotUsual::Unknown
        } else {
            match stripe.cancel_usual(hash, key) {
                Ok((deadline, _key, entry)) => {
                    stripe.unlock();
                    return Removed::Removed {
                        value: entry.value,
                        deadline,
                    };
                }
                Err(reason) => reason,
            }
        };
        let Some(slot) = stripe.find_other(reason, hash, key) else {
            return Removed::NotFound;
        };
        let cancelling = stripe.cancel_slot(slot);
        drop(stripe);
        match cancelling {
            Cancelling::Cancelled {
                deadline,
                dropped: (key, Some(MapEntry { value, .. })),
                ..
            } => {
                if let Some(key) = key {
                    self.removed(&key, &value, Reason::Removed);
                }
                Removed::Removed { value, deadline }
            }
            Cancelling::Cancelled { .. } => unreachable!("a cancelled entry returns its payload"),
            Cancelling::Running(_) => Removed::Expired,
            Cancelling::NotFound => Removed::NotFound,
        }
    }
}
