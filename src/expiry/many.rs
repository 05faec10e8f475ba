//! The calls for all entries.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::content::MapEntry;
use super::{ExpiryMap, MapHasher, Reason};
use crate::job::drop_each;
use crate::scheduler::RandomState;
use crate::tick::Time;

/// The number of entries that are visited under one hold of a lock.
pub(super) const PORTION: u32 = 256;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Removes the entries for which `keep` returns false, and returns their number. They are not
    /// delivered. Entries whose lifetime is over are left to their delivery.
    ///
    /// `keep` runs [under a lock](Self#user-code-under-a-lock), for up to 256 entries at a time. If
    /// it panics, the call panics, and the entries that it had refused by then are removed.
    ///
    /// # Complexity
    ///
    /// Linear in the greatest number of entries that existed at one time since the last
    /// [`shrink_to_fit`](Self::shrink_to_fit). An entry that is inserted during the call may or may
    /// not be visited.
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
    /// map.insert(8, "Grace")?;
    /// assert_eq!(map.retain(|_, name| name.starts_with('G')), 1);
    /// assert!(!map.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) -> usize {
        let (clock, reading) = self.engine.clock_and_reading();
        let mut removed = 0;
        let mut garbage = Vec::new();
        for stripe in self.engine.stripes_of(None) {
            let mut next = Some(0);
            while let Some(from) = next {
                // The panic continues after the entries that were removed before it are dropped.
                let portion = catch_unwind(AssertUnwindSafe(|| {
                    self.engine.with(stripe, |stripe| {
                        stripe.retain_range(
                            from,
                            PORTION,
                            // An entry whose lifetime is over is left to its delivery.
                            |key, session, _| {
                                !session.lives(reading, clock) || keep(key, &mut session.value)
                            },
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
                for (key, session) in &garbage {
                    if let (Some(key), Some(session)) = (key, session) {
                        self.removed(key, &session.value, Reason::Removed);
                    }
                }
                drop_each(garbage.drain(..));
                next = portion.unwrap_or_else(|panic| resume_unwind(panic));
            }
        }
        removed
    }

    /// Removes all entries, and returns their number. They are dropped without being delivered.
    ///
    /// # Complexity
    ///
    /// As for [`retain`](Self::retain).
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
    /// map.insert(8, "Grace")?;
    /// assert_eq!(map.clear(), 2);
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn clear(&self) -> usize {
        let mut taken = self.engine.take_pending(false);
        leave_groups(taken.iter_mut().map(|(.., session)| session));
        for (key, _, session) in &taken {
            if let Some(key) = key {
                self.removed(key, &session.value, Reason::Cleared);
            }
        }
        let count = taken.len();
        drop_each(taken.into_iter().map(|(key, _, session)| (key, session)));
        count
    }

    /// Releases memory that a peak has left behind.
    ///
    /// A map keeps the slot of a removed entry for the next one. So until this is called, each
    /// stripe keeps memory for the greatest number of entries that it held at one time, and
    /// [`retain`](Self::retain), [`clear`](Self::clear) and [`iter`](Self::iter) visit as many
    /// slots. Keys, values and groups need no such call: they are dropped at once.
    ///
    /// Entries do not move. Each stripe keeps the slots up to the last one that is in use, or that
    /// has been used a billion times, in blocks of 4,096. New entries then take the first free
    /// slots. So if an old entry keeps much memory allocated, call this again after that entry is
    /// gone.
    ///
    /// # Blocking
    ///
    /// Locks each stripe while it visits its slots: about 0.3 ms with one million entries in 128
    /// stripes.
    ///
    /// # Complexity
    ///
    /// Linear in the number of slots, as for [`retain`](Self::retain).
    ///
    /// # Panics
    ///
    /// Panics if it is called by [user code under a lock](Self#user-code-under-a-lock).
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
        S::shrink_to_fit(&self.engine.frontend.groups);
    }

    /// Iterates over clones of all entries, in no particular order;
    /// [`with_deadlines`](Iter::with_deadlines) adds when they expire. Entries are cloned in
    /// portions, each under one stripe's lock. An entry that is inserted or removed meanwhile may
    /// or may not be included.
    ///
    /// # Complexity
    ///
    /// As for [`retain`](Self::retain), over the whole iteration.
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
    /// map.insert(8, "Grace")?;
    /// let mut names: Vec<&str> = map.iter().map(|(_, name)| name).collect();
    /// names.sort();
    /// assert_eq!(names, ["Ada", "Grace"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V, S>
    where
        V: Clone,
    {
        Iter {
            map: self,
            at: (0, 0),
            portion: Portion::default(),
        }
    }
}

/// Takes removed entries out of their groups before any of them is dropped. A drop is user code,
/// which may take long or call the map, and must not find the entries counted in their groups.
pub(super) fn leave_groups<'a, V: 'a, T: Default + 'a>(
    taken: impl Iterator<Item = &'a mut MapEntry<V, T>>,
) {
    for session in taken {
        drop(std::mem::take(&mut session.tag));
    }
}

impl<'a, K, V, S> IntoIterator for &'a ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    type Item = (K, V);
    type IntoIter = Iter<'a, K, V, S>;

    fn into_iter(self) -> Iter<'a, K, V, S> {
        self.iter()
    }
}

/// An iterator over clones of a map's entries; see [`ExpiryMap::iter`].
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
/// for (id, name) in &map {
///     println!("{id}: {name}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Iter<'a, K, V, S: MapHasher = RandomState> {
    map: &'a ExpiryMap<K, V, S>,
    /// The stripe and the slot to continue at.
    at: (usize, u32),
    portion: Portion<K, V>,
}

/// Entries that were cloned under one hold of a lock, with their deadlines.
struct Portion<K, V> {
    keys: std::vec::IntoIter<K>,
    rest: std::vec::IntoIter<(V, Time)>,
}

impl<K, V> Default for Portion<K, V> {
    fn default() -> Self {
        Portion {
            keys: Vec::new().into_iter(),
            rest: Vec::new().into_iter(),
        }
    }
}

impl<'a, K, V, S> Iter<'a, K, V, S>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    /// Iterates over keys, values and deadlines. An entry that never expires has the deadline
    /// [`Time::MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{Expiry, ExpiryMap};
    /// let minute = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(minute)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// map.entry(8).expiry(Expiry::NEVER).insert("Grace")?;
    /// let soon = map.now() + minute;
    /// let soon = map.iter().with_deadlines().filter(|(_, _, deadline)| *deadline <= soon);
    /// assert_eq!(soon.map(|(key, _, _)| key).collect::<Vec<_>>(), [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_deadlines(mut self) -> impl Iterator<Item = (K, V, Time)> + use<'a, K, V, S> {
        std::iter::from_fn(move || self.next_entry())
    }

    fn next_entry(&mut self) -> Option<(K, V, Time)> {
        let shards = self.map.engine.shards();
        loop {
            if let (Some(key), Some((value, deadline))) =
                (self.portion.keys.next(), self.portion.rest.next())
            {
                return Some((key, value, deadline));
            }
            let (stripe, from) = self.at;
            if stripe >= shards.stripes() {
                return None;
            }
            let (clock, reading) = self.map.engine.clock_and_reading();
            // Separate vectors, declared outside the lock: if a clone panics under the lock, the
            // earlier clones are dropped without it.
            let (mut keys, mut rest) = (Vec::new(), Vec::new());
            let on = shards.peek(stripe, |stripe| {
                stripe.for_each_range(from, PORTION, |_, key, session, deadline| {
                    if session.lives(reading, clock) {
                        keys.push(key.clone());
                        rest.push((session.value.clone(), deadline));
                    }
                })
            });
            self.at = on.map_or((stripe + 1, 0), |slot| (stripe, slot));
            self.portion = Portion {
                keys: keys.into_iter(),
                rest: rest.into_iter(),
            };
        }
    }
}

impl<K, V, S> Iterator for Iter<'_, K, V, S>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        self.next_entry().map(|(key, value, _)| (key, value))
    }
}

impl<K, V, S> fmt::Debug for Iter<'_, K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
