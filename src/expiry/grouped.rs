//! Calls of maps whose entries may belong to groups.

use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};

use super::face::Session;
use super::groups::{Entered, GroupIndex, Membership};
use super::members::Member;
use super::touch::{luck, touch_slot};
use super::{Expiry, ExpiryMap, Groups, InsertError, InsertRefusal, Inserted};
use crate::engine::Lifecycle;
use crate::shard::{EntryId, KeyHash, Refusal, Stripe, is_under_a_lock};

const _: () = assert!(size_of::<Session<u64, ()>>() == 24);
const _: () = assert!(size_of::<Session<u64, Option<Membership<String>>>>() == 40);

/// So many entries are acted on under one hold of a lock.
const MEMBERS_PER_HOLD: usize = 64;

/// # Groups
///
/// Calls of a map that was built with [`groups`](crate::ExpiryMapBuilder::groups). An entry is in
/// the group that it was [inserted in](Self::insert_in), or in none, until it ends or is replaced;
/// a touch or an update changes nothing about that. Groups need not be made or dropped: one is
/// there while it has an entry, and its place is used again afterwards.
///
/// **What is exact.** An insertion in a group and a call for all of that group are one before the
/// other: what was inserted before is in the call's reach, what is inserted after is not. No group
/// ever has more entries than [`max_per_group`](crate::ExpiryMapBuilder::max_per_group) allows.
/// When a call has returned that took an entry out, and when a handler is given one, it is not
/// counted any more.
///
/// **What is not, for a moment.** An entry that is replaced by one in another group may count in
/// both while the insertion has not returned; one whose delivery has begun may count until its
/// handler is called; and one of many that a call takes out, while it goes on. An entry that is due
/// and waits for its delivery is in its group, as it is in the map.
///
/// **Locks.** Groups have locks of their own, apart from those of entries. A group's is held during
/// an insertion in it, and by the other calls while they find the group and copy where its entries
/// lie. `Eq` and `to_owned` of a group run under it, and so does a key's `Eq` in `insert_in`: like
/// all [user code under a lock](Self#user-code-under-a-lock) they must not call the map, which
/// panics instead of deadlocking. If they panic, so does the call, and nothing has changed. Drops
/// of groups run without a lock; if one panics, that is caught.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, InsertRefusal};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = ExpiryMap::<u64, &str>::builder()
///     .time_to_idle(Duration::from_secs(30 * 60))
///     .groups::<String>()
///     .max_per_group(2)
///     .build(|_, expired| println!("session {} is over", expired.key))?;
///
/// sessions.insert_in("ada", 1, "phone")?;
/// sessions.insert_in("ada", 2, "laptop")?;
/// let third = sessions.insert_in("ada", 3, "tablet").unwrap_err();
/// assert_eq!(third.refusal, InsertRefusal::GroupFull);
///
/// assert_eq!(sessions.touch_group("ada"), 2);
/// assert_eq!(sessions.group_of(&1).as_deref(), Some("ada"));
/// // Signed out everywhere.
/// assert_eq!(sessions.remove_group("ada").len(), 2);
/// assert_eq!(sessions.group_len("ada"), 0);
/// # Ok(())
/// # }
/// ```
impl<K, V, S, G> ExpiryMap<K, V, S, Groups<G>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Inserts an entry in a group, as [`insert`](Self::insert) does without one. What is there
    /// under this key is replaced, whatever group it is in. Where there is no such group yet,
    /// `group` is cloned.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert), and [`GroupFull`](InsertRefusal::GroupFull), unless what is
    /// there under the key is in the same group.
    ///
    /// # Complexity
    ///
    /// As for [`insert`](Self::insert), with one more hash, lock and probe. Insertions in one group
    /// wait for each other.
    pub fn insert_in<Q>(
        &self,
        group: &Q,
        key: K,
        value: V,
    ) -> Result<Inserted<V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        self.insert_in_with(group, key, value, self.expiry())
    }

    /// Inserts an entry in a group that lives as long as `expiry` says.
    ///
    /// # Errors
    ///
    /// As for [`insert_in`](Self::insert_in).
    pub fn insert_in_with<Q>(
        &self,
        group: &Q,
        key: K,
        value: V,
        expiry: Expiry,
    ) -> Result<Inserted<V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        let (stripe, hash) = self.hash_of(&key);
        let group_hash = self.group_hash(group);
        let now = self.now();
        let session = Session::new(value, expiry, luck(hash, now), now);
        let deadline = session.deadline(now);
        // Out here, so that it outlives the group's lock also if something panics under it: drops
        // of keys and values are user code, and a membership leaves under that lock.
        // The session first: its membership leaves before the key, user code, is dropped.
        let mut given = Some((session, key));
        let no_room = Cell::new(false);
        let answer = self
            .groups()
            .enter(group_hash, group, |membership, is_full| {
                if let Some((session, _)) = &mut given {
                    session.tag = Some(membership);
                }
                let armed = self.engine.arm(
                    stripe,
                    &mut given,
                    |stripe, (session, key)| {
                        if is_full && !replaces_its_like(stripe, hash, key, session) {
                            no_room.set(true);
                            // Nobody else says so here.
                            return Err(Refusal::Occupied);
                        }
                        stripe.admit(hash, key, false)
                    },
                    |stripe, admission, (session, key)| {
                        let arming = stripe.arm(admission, hash, key, session, deadline, now);
                        (arming.id, arming.dropped)
                    },
                );
                match armed {
                    Ok((id, (key, mut old))) => {
                        let left = old.as_mut().and_then(|old| old.tag.take());
                        let member = member(stripe, id);
                        (Entered::Armed(member, left), Ok((key, old)))
                    }
                    Err(refusal) => {
                        let session = given.as_mut().map(|(session, _)| session);
                        let membership = session.and_then(|session| session.tag.take());
                        (Entered::Refused(membership), Err(refusal))
                    }
                }
            });
        let refusal = match answer {
            Some(Ok((_key, None))) => return Ok(Inserted::New),
            Some(Ok((_key, Some(old)))) => return Ok(Inserted::Replaced(old.value)),
            Some(Err(refusal)) if !no_room.get() => InsertRefusal::of(refusal),
            None if is_under_a_lock() => InsertRefusal::UnderLock,
            // Whoever is told to try again should have a chance.
            _ if self.state() != Lifecycle::Running => InsertRefusal::Closed,
            _ => InsertRefusal::GroupFull,
        };
        let Some((session, key)) = given else {
            unreachable!("what is refused is not taken");
        };
        Err(InsertError {
            key,
            value: session.value,
            refusal,
        })
    }

    /// How many entries the group has.
    #[must_use]
    pub fn group_len<Q>(&self, group: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.groups().count(self.group_hash(group), group)
    }

    /// The group that the entry of `key` is in, if there is one and it is in any. The group's
    /// `Clone` runs under a lock.
    #[must_use]
    pub fn group_of<Q>(&self, key: &Q) -> Option<G>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        G: Clone,
    {
        let (number, hash) = self.hash_of(key);
        loop {
            let now = self.now();
            let (id, place) = self.engine.shards().peek(number, |stripe| {
                let slot = stripe.find(hash, key)?;
                let (session, _) = stripe.unclaimed(slot)?;
                let membership = session.tag.as_ref().filter(|_| session.lives(now))?;
                Some((stripe.id_of_unclaimed(slot)?, membership.place()))
            })?;
            if let Some(group) = place.group_of(member(number, id)) {
                return Some(group);
            }
            // It ended or was replaced in between.
        }
    }

    /// Clones of the group's entries, in no order. Portions are cloned under one stripe's lock at a
    /// time; what ends meanwhile may be missing.
    ///
    /// # Complexity
    ///
    /// Linear in the present number of entries of the group, however many it had before. Under the
    /// group's lock 12 bytes are copied for each entry, and at most 48 are read.
    #[must_use]
    pub fn group_entries<Q>(&self, group: &Q) -> Vec<(K, V)>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let now = self.now();
        let members = self.groups().members(self.group_hash(group), group);
        // Apart, and out here: see `iter`.
        let mut keys = Vec::with_capacity(members.len());
        let mut values = Vec::with_capacity(members.len());
        for (number, portion) in portions(&members) {
            self.engine.shards().peek(number, |stripe| {
                for member in portion {
                    if let Some(slot) = stripe.unclaimed_id(member.id)
                        && let Some((session, _)) = stripe.unclaimed(slot)
                        && let Some(key) = stripe.key(slot)
                        && session.lives(now)
                    {
                        keys.push(key.clone());
                        values.push(session.value.clone());
                    }
                }
            });
        }
        keys.into_iter().zip(values).collect()
    }

    /// [`touch`](Self::touch) for all of the group, counted from one reading of the clock. Returns
    /// how many entries live on. One lock serves all entries of a stripe.
    ///
    /// # Complexity
    ///
    /// As for [`group_entries`](Self::group_entries).
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn touch_group<Q>(&self, group: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        let members = self.groups().members(self.group_hash(group), group);
        let mut alive = 0;
        for (stripe, portion) in portions(&members) {
            self.engine.with(stripe, |stripe| {
                for member in portion {
                    if let Some(slot) = stripe.unclaimed_id(member.id) {
                        alive += usize::from(touch_slot(stripe, slot, now).is_alive());
                    }
                }
            });
        }
        alive
    }

    /// [`remove`](Self::remove) for all of the group: keys and values come back, and are not
    /// delivered. An entry that a handler is given just now is not among them. One that was
    /// inserted while the handler ran for its key comes with a clone of the key; if that panics, it
    /// is dropped.
    ///
    /// # Complexity
    ///
    /// As for [`group_entries`](Self::group_entries).
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn remove_group<Q>(&self, group: &Q) -> Vec<(K, V)>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let group_hash = self.group_hash(group);
        let members = self.groups().members(group_hash, group);
        let mut removed = Vec::with_capacity(members.len());
        let mut taken = Vec::with_capacity(MEMBERS_PER_HOLD.min(members.len()));
        for (stripe, portion) in portions(&members) {
            self.engine.with(stripe, |stripe| {
                let all = portion.iter();
                taken.extend(all.filter_map(|member| stripe.take_unclaimed(member.id)));
            });
            let tags = taken
                .iter_mut()
                .filter_map(|(_, session)| session.tag.take());
            self.groups().leave_all(group_hash, tags);
            let pairs = taken.drain(..);
            removed.extend(pairs.filter_map(|(key, session)| Some((key?, session.value))));
        }
        removed
    }

    fn groups(&self) -> &GroupIndex<G> {
        &self.engine.face.groups
    }

    fn group_hash<Q>(&self, group: &Q) -> KeyHash
    where
        Q: Hash + ?Sized,
    {
        let hash = self.engine.face.hasher.hash_one(group);
        self.engine.shards().fold(hash)
    }
}

fn member(stripe: usize, id: EntryId) -> Member {
    Member {
        stripe: stripe as u32,
        id,
    }
}

/// Up to a hold's worth of members of one stripe at a time.
fn portions(members: &[Member]) -> impl Iterator<Item = (usize, &[Member])> {
    let of_one_stripe = members.chunk_by(|a, b| a.stripe == b.stripe);
    let portions = of_one_stripe.flat_map(|same| same.chunks(MEMBERS_PER_HOLD));
    portions.map(|portion| (portion[0].stripe as usize, portion))
}

/// Whether there is an entry under the key that is in the same group.
fn replaces_its_like<K, V, G>(
    stripe: &Stripe<K, Session<V, Option<Membership<G>>>>,
    hash: KeyHash,
    key: &K,
    session: &Session<V, Option<Membership<G>>>,
) -> bool
where
    K: Eq,
{
    let slot = stripe.find(hash, key);
    let there = slot.and_then(|slot| stripe.unclaimed(slot));
    there.is_some_and(|(there, _)| match (&there.tag, &session.tag) {
        (Some(one), Some(other)) => one.is_of_group_of(other),
        _ => false,
    })
}
