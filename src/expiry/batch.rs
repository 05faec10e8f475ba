//! The calls for many keys; see `shard/batch.rs`.

use std::borrow::Borrow;
use std::hash::Hash;

use super::content::{MadeEntry, MapEntry};
use super::grouping::kind::MapKind;
use super::many::leave_groups;
use super::touch::touch_slot;
use super::{ExpiryMap, InsertError, InsertRefusal, Inserted, MapHasher, Reason, Removed, Touch};
use crate::engine::Items;
use crate::job::Garbage;
use crate::shard::batch::{ArmMany, ITEMS_PER_HOLD, Located, keys_by_stripe};
use crate::shard::{Admission, Cancelling, KeyHash, Refusal, Stripe};
use crate::sync::atomic::Ordering;
use crate::tick::Time;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Calls [`touch`](Self::touch) for many keys. The results are in the order of the keys, and
    /// all deadlines count from one reading of the clock. The clock is read again only for an entry
    /// whose lifetime ends within 2 ms, or whose own time to idle is below a second.
    ///
    /// The keys are sorted by stripe, and the locks of several stripes are held at a time, so that
    /// cache misses overlap. For large maps this takes about half the time of single touches, or
    /// less. A [`toucher`](Self::toucher) collects keys for this call.
    ///
    /// The call is not atomic: each key is touched on its own, and other calls may act in between.
    /// If a key's `Eq` panics, some of the keys have been touched, and the others have not.
    ///
    /// # Blocking
    ///
    /// Holds up to 16 locks for some microseconds, but never while it waits for another one.
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
        let (clock, reading) = self.reading_for_touches();
        let stripes = self.engine.shards().stripes();
        let located = keys_by_stripe(stripes, keys, |key| self.hash_of(key));
        let mut answers = vec![Touch::NotFound; located.len()];
        let mut found = 0;
        let mut groups = self.engine.groups(&located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            let slots = groups.find();
            groups.each_at(&slots, |stripe, slot, located| {
                answers[located.index()] = touch_slot(stripe, slot, reading, clock);
                found += 1;
            });
            groups.release();
        }
        if found < answers.len() {
            let missed = (answers.len() - found) as u64;
            // Relaxed: a count orders nothing.
            let all = &self.engine.frontend.missed;
            all.fetch_add(missed, Ordering::Relaxed);
        }
        answers
    }

    /// Calls [`insert`](Self::insert) for many entries. The results are in the order of the entries,
    /// and each entry has its own: one that is refused comes back, and the others are inserted. The
    /// clock is read once, except for entries that live for less than a second. If not all of them
    /// fit, it is not said which ones are refused.
    ///
    /// The keys are sorted by stripe, as in [`touch_many`](Self::touch_many). Into a map of
    /// millions, entries are inserted in half the time of single insertions. Of a key that comes
    /// twice, the last entry remains, and the ones before it come back as replaced.
    ///
    /// The call is not atomic: each entry is inserted on its own, and other calls may act in
    /// between. If a key's `Eq` panics, some of the entries have been inserted, and the others are
    /// dropped.
    ///
    /// # Errors
    ///
    /// For each entry as for [`insert`](Self::insert).
    ///
    /// # Blocking
    ///
    /// As for [`touch_many`](Self::touch_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<u64, String>::builder()
    ///     .time_to_idle(Duration::from_secs(9))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// // A page of a table.
    /// let rows = [(7, "Ada".to_owned()), (8, "Grace".to_owned())];
    /// for refused in map.insert_many(rows).into_iter().filter_map(Result::err) {
    ///     println!("{} is not kept: {refused}", refused.key);
    /// }
    /// assert_eq!(map.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "an entry that is refused comes back"]
    pub fn insert_many(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Vec<Result<Inserted<V>, InsertError<K, V>>> {
        let (clock, reading) = self.engine.clock_and_reading();
        let expiry = self.expiry();
        let (idle, lifetime, _) = expiry.parts();
        let entries = entries.into_iter().map(|(key, value)| {
            let place = self.hash_of(&key);
            let made = MapEntry::new(value, expiry, place.1, reading, clock);
            (place, key, made)
        });
        self.put_many(entries, idle.min(lifetime) == 0, false)
    }

    /// Inserts entries that have been made; `if_absent` refuses to replace one that lives.
    pub(super) fn put_many(
        &self,
        entries: impl Iterator<Item = ((usize, KeyHash), K, MadeEntry<V, S::Tag>)>,
        may_be_due: bool,
        if_absent: bool,
    ) -> Vec<Result<Inserted<V>, InsertError<K, V>>> {
        let mut places = Vec::new();
        let items = Items::new(entries.map(|(place, key, made)| {
            places.push(place);
            (key, made)
        }));
        let mut insertions = Insertions {
            map: self,
            items,
            replaced: Vec::new(),
            if_absent,
            garbage: Garbage::new(),
        };
        self.engine.arm_many(&places, may_be_due, &mut insertions);
        let Insertions { items, garbage, .. } = insertions;
        let answers = items.into_answers();
        // Keys are user code.
        drop(garbage);
        answers
    }

    /// Calls [`remove`](Self::remove) for many keys. The results are in the order of the keys. The
    /// call is not atomic, like [`touch_many`](Self::touch_many). If a key's `Eq` panics, the values
    /// that have been removed are dropped.
    ///
    /// # Blocking
    ///
    /// As for [`touch_many`](Self::touch_many).
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
    /// let removed = map.remove_many(&[8, 9, 7]).into_iter();
    /// let names: Vec<Option<&str>> = removed.map(|removed| removed.value()).collect();
    /// assert_eq!(names, [Some("Grace"), None, Some("Ada")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn remove_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>) -> Vec<Removed<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        let stripes = self.engine.shards().stripes();
        let located = keys_by_stripe(stripes, keys, |key| self.hash_of(key));
        let mut answers: Vec<_> = located.iter().map(|_| Removed::NotFound).collect();
        let mut keys = Garbage::new();
        let mut removed = Vec::new();
        let mut groups = self.engine.groups(&located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            let slots = groups.find();
            groups.each_at(&slots, |stripe, slot, located| {
                match stripe.cancel_slot(slot) {
                    Cancelling::Cancelled {
                        deadline,
                        dropped: (key, Some(session)),
                        ..
                    } => removed.push((located.index(), deadline, key, session)),
                    Cancelling::Cancelled { .. } => {
                        unreachable!("a cancelled entry returns its payload")
                    }
                    Cancelling::Running(_) => answers[located.index()] = Removed::Expired,
                    Cancelling::NotFound => {}
                }
            });
            groups.release();
            leave_groups(removed.iter_mut().map(|(.., session)| session));
            for (index, deadline, key, session) in removed.drain(..) {
                let value = session.value;
                if let Some(key) = &key {
                    self.removed(key, &value, Reason::Removed);
                }
                answers[index] = Removed::Removed { value, deadline };
                keys.push(key, ());
            }
        }
        answers
    }
}

/// A key, and the entry that has been made for it.
type EntryToInsert<K, V, S> = (K, MadeEntry<V, <S as MapKind>::Tag>);

/// The answer of an insertion.
type Insertion<K, V> = Result<Inserted<V>, InsertError<K, V>>;

/// The key and the entry that an insertion has replaced.
type Replaced<K, V, S> = (Option<K>, Option<MapEntry<V, <S as MapKind>::Tag>>);

/// The entries of a call that inserts many.
struct Insertions<'a, K, V, S: MapHasher> {
    map: &'a ExpiryMap<K, V, S>,
    items: Items<EntryToInsert<K, V, S>, Insertion<K, V>>,
    /// What was replaced under the last hold of the locks: the position, the deadline of the new
    /// entry, and what is to be dropped.
    replaced: Vec<(usize, Time, Replaced<K, V, S>)>,
    if_absent: bool,
    garbage: Garbage<Option<K>, ()>,
}

impl<K, V, S> ArmMany<K, MapEntry<V, S::Tag>> for Insertions<'_, K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    #[inline]
    fn key(&self, index: usize) -> &K {
        &self.items.get(index).0
    }

    fn keeps(&self, stripe: &Stripe<K, MapEntry<V, S::Tag>>, slot: u32) -> bool {
        // An entry whose lifetime is over counts as absent.
        let lives =
            |(session, _): (&MapEntry<V, S::Tag>, Time)| session.lives_now(self.map.engine.clock());
        self.if_absent && stripe.pending_payload(slot).is_none_or(lives)
    }

    #[inline]
    fn arm(
        &mut self,
        stripe: &mut Stripe<K, MapEntry<V, S::Tag>>,
        admission: Admission,
        item: &Located<KeyHash>,
    ) {
        let (key, (session, deadline, reading)) = self.items.take(item.index());
        let now = reading.low();
        match admission {
            Admission::Vacant(vacancy) => {
                stripe.arm_vacant(vacancy, item.item, key, session, deadline, now);
                self.items.answer(
                    item.index(),
                    Ok(Inserted {
                        deadline,
                        replaced: None,
                    }),
                );
            }
            Admission::Present(present) => {
                let arming = stripe.arm_present(present, item.item, key, session, deadline, now);
                self.replaced.push((item.index(), deadline, arming.dropped));
            }
        }
    }

    fn settle(&mut self) {
        for (index, deadline, (key, old)) in self.replaced.drain(..) {
            let replaced = self.map.replaced(key.as_ref(), old);
            self.items
                .answer(index, Ok(Inserted { deadline, replaced }));
            self.garbage.push(key, ());
        }
    }

    fn refuse(&mut self, index: usize, refusal: Refusal) {
        let (key, (session, ..)) = self.items.take(index);
        let value = session.value;
        let refusal = InsertRefusal::of(refusal);
        self.items.answer(
            index,
            Err(InsertError {
                key,
                value,
                refusal,
            }),
        );
    }
}
