//! The calls for all entries of a group.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hash};

use super::members::Member;
use super::touch::touch_slot;
use super::{ExpiryMap, GroupedBy, Reason};

/// # Whole groups
///
/// These calls exist on a [`GroupedExpiryMap`](crate::GroupedExpiryMap).
impl<K, V, G, S> ExpiryMap<K, V, GroupedBy<G, S>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Returns clones of the group's entries, in no particular order. Entries are cloned in
    /// portions, each under one stripe's lock. Entries that end meanwhile may be missing.
    ///
    /// # Complexity
    ///
    /// Linear in the present number of entries of the group, however many it had before. Under the
    /// group's lock, 12 bytes are copied for each entry, and at most 48 are read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.entry(1).group("ada").insert("phone")?;
    /// for (session, device) in map.group_entries("ada") {
    ///     println!("session {session} on a {device}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group_entries<Q>(&self, group: &Q) -> Vec<(K, V)>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let (clock, reading) = self.engine.clock_and_reading();
        // Separate vectors, declared outside the lock: see `iter`.
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let act = |number, portion: &[Member], missed: &mut Vec<_>| {
            keys.reserve(portion.len());
            values.reserve(portion.len());
            self.engine.shards().peek(number, |stripe| {
                for member in portion {
                    let Some(slot) = stripe.pending_slot(member.id) else {
                        missed.push(*member);
                        continue;
                    };
                    if let Some((session, _)) = stripe.pending_payload(slot)
                        && let Some(key) = stripe.key(slot)
                        && session.lives(reading, clock)
                    {
                        keys.push(key.clone());
                        values.push(session.value.clone());
                    }
                }
            });
        };
        self.walk(group, act, || ());
        keys.into_iter().zip(values).collect()
    }

    /// Calls [`touch`](Self::touch) for all entries of the group, with one reading of the clock, as
    /// [`touch_many`](Self::touch_many) does. Returns how many entries live on. One hold of a lock
    /// serves up to 64 entries of a stripe.
    ///
    /// # Complexity
    ///
    /// As for [`group_entries`](Self::group_entries).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .groups::<String>()
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.entry(1).group("ada").insert("phone")?;
    /// map.entry(2).group("ada").insert("laptop")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert_eq!(map.touch_group("ada"), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn touch_group<Q>(&self, group: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (clock, reading) = self.reading_for_touches();
        let mut alive = 0;
        let act = |stripe, portion: &[Member], missed: &mut Vec<_>| {
            self.engine.with(stripe, |stripe| {
                for member in portion {
                    match stripe.pending_slot(member.id) {
                        Some(slot) => {
                            let touch = touch_slot(stripe, slot, reading, clock);
                            alive += usize::from(touch.is_alive());
                        }
                        None => missed.push(*member),
                    }
                }
            });
        };
        self.walk(group, act, || ());
        alive
    }

    /// Calls [`remove`](Self::remove) for all entries of the group, and returns their keys and
    /// values. They are not delivered. An entry that a handler has right now is not included. An
    /// entry that was inserted while the handler ran for its key comes with a clone of the key; if
    /// `Clone` panics, the entry is dropped.
    ///
    /// # Complexity
    ///
    /// As for [`group_entries`](Self::group_entries).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.entry(1).group("ada").insert("phone")?;
    /// map.entry(2).group("ada").insert("laptop")?;
    /// // Signed out everywhere.
    /// assert_eq!(map.remove_group("ada").len(), 2);
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn remove_group<Q>(&self, group: &Q) -> Vec<(K, V)>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let group_hash = self.group_hash(group);
        let mut removed = Vec::new();
        let taken = RefCell::new(Vec::new());
        let act = |stripe, portion: &[Member], missed: &mut Vec<_>| {
            let mut taken = taken.borrow_mut();
            taken.reserve(portion.len());
            self.engine.with(stripe, |stripe| {
                for member in portion {
                    match stripe.take_pending_payload(member.id) {
                        Some(pair) => taken.push(pair),
                        None => missed.push(*member),
                    }
                }
            });
        };
        let finish = || {
            let mut taken = taken.borrow_mut();
            // All entries of this portion leave the group under one hold of its lock.
            let tags = taken
                .iter_mut()
                .filter_map(|(_, session)| session.tag.membership.take());
            self.groups().leave_all(group_hash, tags);
            // Without a key, the clone of a running key panicked; the value is dropped.
            let of_group = removed.len();
            let pairs = taken.drain(..);
            removed.extend(pairs.filter_map(|(key, session)| Some((key?, session.value))));
            for (key, value) in &removed[of_group..] {
                self.removed(key, value, Reason::Removed);
            }
        };
        self.walk(group, act, finish);
        removed
    }

    /// Runs a [`Walk`](super::groups::Walk) through a group.
    fn walk<Q>(
        &self,
        group: &Q,
        act: impl FnMut(usize, &[Member], &mut Vec<Member>),
        finish: impl FnMut(),
    ) where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(walk) = self.groups().walk(self.group_hash(group), group) {
            walk.run(act, finish);
        }
    }
}
