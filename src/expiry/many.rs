//! The calls for many keys, or all.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::face::Session;
use super::touch::touch_slot;
use super::{ExpiryMap, Grouping, NoGroups, Touch};
use crate::job::drop_each;
use crate::scheduler::RandomState;
use crate::shard::batch::{KEYS_PER_HOLD, by_stripe};

/// So many entries are looked at under one hold of a lock.
const PORTION: u32 = 256;

impl<K, V, S, G> ExpiryMap<K, V, S, G>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    /// [`touch`](Self::touch) for many keys: answers per key, in the caller's order, all counted
    /// from one reading of the clock. The keys are sorted by stripe, and the locks of several
    /// stripes are held at a time, so that waits for memory overlap: for large maps about half of
    /// the time of single touches, or less. Not atomic: each key is settled on its own, and others
    /// may act in between. If a key's `Eq` panics, some of the keys have been touched, and the
    /// others have not.
    ///
    /// # Blocking
    ///
    /// Up to 16 locks are held for some microseconds, but never while waiting for another one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Touch};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<String, u8>::builder()
    ///     .time_to_idle(Duration::from_secs(9))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert("a".to_owned(), 1)?;
    /// stepped.advance(Duration::from_secs(5));
    /// let answers = map.touch_many(["a", "b"]);
    /// assert!(answers[0].is_alive());
    /// assert_eq!(answers[1], Touch::NotFound);
    /// # Ok(())
    /// # }
    /// ```
    pub fn touch_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>) -> Vec<Touch>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        let now = self.now();
        let places = by_stripe(self.engine.shards().stripes(), keys, |key| {
            self.hash_of(key)
        });
        let mut answers = vec![Touch::NotFound; places.len()];
        let mut slots = Vec::with_capacity(KEYS_PER_HOLD.min(places.len()));
        self.engine.with_groups(&places, |group| {
            group.find_all(&mut slots);
            let mut slots = slots.iter();
            group.each(|stripe, place| {
                if let Some(Some(slot)) = slots.next() {
                    answers[place.index as usize] = touch_slot(stripe, *slot, now);
                }
            });
        });
        answers
    }
}

impl<K, V, S, G> ExpiryMap<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    /// Removes the entries of which `keep` says no, and returns how many. They are not delivered.
    /// Entries whose lifetime is over are left to their delivery.
    ///
    /// `keep` runs under a lock, see [above](Self#user-code-under-a-lock), for up to 256 entries at
    /// a time. If it panics, so does this call; what it had refused by then is removed.
    ///
    /// # Complexity
    ///
    /// Linear in the greatest number of entries there were at one time, until
    /// [`shrink_to_fit`](Self::shrink_to_fit) is called. What is inserted during the call may or
    /// may not be shown.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) -> usize {
        let now = self.now();
        let mut removed = 0;
        let mut garbage = Vec::new();
        for stripe in self.engine.stripes_of(None) {
            let mut next = Some(0);
            while let Some(from) = next {
                // The panic goes on when what was removed before it is gone.
                let portion = catch_unwind(AssertUnwindSafe(|| {
                    self.engine.with(stripe, |stripe| {
                        stripe.sieve(
                            from,
                            PORTION,
                            |key, session, _| !session.lives(now) || keep(key, &mut session.value),
                            &mut garbage,
                        )
                    })
                }));
                removed += garbage.len();
                leave_groups(
                    garbage
                        .iter_mut()
                        .filter_map(|(_, session)| session.as_mut()),
                );
                drop_each(garbage.drain(..));
                next = portion.unwrap_or_else(|panic| resume_unwind(panic));
            }
        }
        removed
    }

    /// Removes all entries, and returns how many. They are dropped without being delivered.
    ///
    /// # Complexity
    ///
    /// As for [`retain`](Self::retain).
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn clear(&self) -> usize {
        let mut taken = self.engine.take_pending(false);
        leave_groups(taken.iter_mut().map(|(.., session)| session));
        let count = taken.len();
        drop_each(taken.into_iter().map(|(key, _, session)| (key, session)));
        count
    }

    /// Gives back memory that a peak has left behind.
    ///
    /// A map keeps the place of an entry that is gone for the next one. So there is memory for the
    /// greatest number of entries there were at one time, in each of its parts, and
    /// [`retain`](Self::retain), [`clear`](Self::clear) and [`iter`](Self::iter) walk over as many
    /// places, until this is called. Keys, values and groups that are gone need no call: they are
    /// dropped at once.
    ///
    /// Entries do not move. Each part keeps the places up to the last one that is in use, or that
    /// has been used a billion times, in blocks of 4,096. New entries take the first free places
    /// from then on. So if an old entry holds much memory, a later call, after that one has gone,
    /// gives it back.
    ///
    /// # Blocking
    ///
    /// Each part is locked for as long as its walk takes: about 0.3 ms with one million entries in 128
    /// parts.
    ///
    /// # Complexity
    ///
    /// Linear in the number of places, as for [`retain`](Self::retain).
    ///
    /// # Panics
    ///
    /// If it is called by [user code under a lock](Self#user-code-under-a-lock).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<u64, u8>::builder()
    ///     .time_to_idle(Duration::from_secs(9))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// for key in 0..10_000 {
    ///     map.insert(key, 1)?;
    /// }
    /// map.retain(|key, _| *key == 0);
    /// map.shrink_to_fit();
    /// assert_eq!(map.iter().collect::<Vec<_>>(), [(0, 1)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shrink_to_fit(&self) {
        self.engine.shrink_to_fit();
        G::shrink_to_fit(&self.engine.face.groups);
    }

    /// Walks over clones of all entries, in no order. Portions are cloned under one stripe's lock
    /// at a time, so entries that come or go meanwhile may or may not show.
    ///
    /// # Complexity
    ///
    /// As for [`retain`](Self::retain), over the whole walk.
    #[must_use]
    pub fn iter(&self) -> Entries<'_, K, V, S, G>
    where
        V: Clone,
    {
        Entries {
            map: self,
            at: (0, 0),
            portion: Vec::new().into_iter().zip(Vec::new()),
        }
    }
}

/// What has been taken out counts in no group any more, before any of it is dropped: that is user
/// code, and may take long or call the map.
fn leave_groups<'a, V: 'a, T: Default + 'a>(taken: impl Iterator<Item = &'a mut Session<V, T>>) {
    for session in taken {
        drop(std::mem::take(&mut session.tag));
    }
}

impl<'a, K, V, S, G> IntoIterator for &'a ExpiryMap<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    type Item = (K, V);
    type IntoIter = Entries<'a, K, V, S, G>;

    fn into_iter(self) -> Entries<'a, K, V, S, G> {
        self.iter()
    }
}

/// Walks over clones of a map's entries; see [`ExpiryMap::iter`].
pub struct Entries<'a, K, V, S = RandomState, G = NoGroups>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    map: &'a ExpiryMap<K, V, S, G>,
    /// Stripe and slot to go on at.
    at: (usize, u32),
    portion: std::iter::Zip<std::vec::IntoIter<K>, std::vec::IntoIter<V>>,
}

impl<K, V, S, G> Iterator for Entries<'_, K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        let shards = self.map.engine.shards();
        loop {
            if let Some(next) = self.portion.next() {
                return Some(next);
            }
            let (stripe, from) = self.at;
            if stripe >= shards.stripes() {
                return None;
            }
            let now = self.map.now();
            // Keys and values apart, and out here: should a clone panic under the lock, what was
            // cloned before is dropped without it.
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let on = shards.peek(stripe, |stripe| {
                stripe.walk(from, PORTION, |key, session, _| {
                    if session.lives(now) {
                        keys.push(key.clone());
                        values.push(session.value.clone());
                    }
                })
            });
            self.at = on.map_or((stripe + 1, 0), |slot| (stripe, slot));
            self.portion = keys.into_iter().zip(values);
        }
    }
}

impl<K, V, S, G> fmt::Debug for Entries<'_, K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
