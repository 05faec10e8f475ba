//! The calls of maps whose entries may belong to groups.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::content::{MadeEntry, MapEntry};
use super::entry::Times;
use super::eviction::Judged;
use super::groups::{Entered, GroupIndex, Membership};
use super::insert::is_over;
use super::members::Member;
use super::tag::GroupTag;
use super::{ExpiryMap, ExpiryMapBuilder, GroupedBy, InsertError, InsertRefusal, Inserted};
use crate::clock::Reading;
use crate::engine::Lifecycle;
use crate::scheduler::{RandomState, hash_of};
use crate::shard::{Arming, EntryId, KeyHash, Refusal, Stripe, is_under_lock};
use crate::tick::Time;

const _: () = assert!(size_of::<MapEntry<u64, ()>>() == 24);
const _: () = assert!(size_of::<MapEntry<u64, GroupTag<String>>>() == 48);

/// An [`ExpiryMap`] whose entries may belong to groups, such as users, tenants or connections.
///
/// A value of type `G` names a group.
/// [`ExpiryMapBuilder::groups`](crate::ExpiryMapBuilder::groups) makes such a map. It has all calls
/// of an [`ExpiryMap`], and calls for groups. An entry is in the group that it was [inserted
/// in](crate::Entry::group), or in none, until it ends or is replaced. Touches and updates do not
/// change that. Groups need not be created or removed: a group exists while it has an entry, and
/// its memory is used again afterwards.
///
/// **Exact.** An insertion in a group and a call for the whole group take effect one before the
/// other: the call reaches all entries inserted before it, and none inserted after it. No group
/// ever has more entries than [`max_per_group`](crate::ExpiryMapBuilder::max_per_group) allows. An
/// insertion beyond that is refused, or evicts another entry of the group, as
/// [`when_group_full`](crate::ExpiryMapBuilder::when_group_full) says. An entry does not count any
/// more when the call that removed it has returned, or when a handler gets it.
///
/// **Inexact for a moment.** In these cases an entry may still count:
///
/// - An entry that is replaced by one in another group may count in both until the insertion has
///   returned.
/// - An entry whose delivery has begun may count until its handler is called.
/// - An entry that a call for many entries removes may count until that call has returned.
///
/// An entry that is due and waits for its delivery is in its group, as it is in the map.
///
/// **Locks.** Groups have locks of their own, apart from those of entries. An insertion holds the
/// lock of its group, and an eviction is a part of it. A [rename](ExpiryMap::rename) holds it, too.
/// Other calls hold it while they find the group and copy where its entries are, and while they act
/// on entries that were renamed since. `Eq` and `to_owned` of a group run under this lock, and so
/// does a key's `Eq` in an insertion in a group.
///
/// Like all [user code under a lock](ExpiryMap#user-code-under-a-lock), they must not call the map;
/// such a call panics instead of deadlocking. If they panic, the call panics and nothing has
/// changed. Groups are dropped without a lock. A panic of such a drop is caught.
///
/// **Memory.** A map with groups needs 24 more bytes per entry than a map without, whether the
/// entry is in a group or not, and 12 to 24 more per member. In a group that has lost most of its
/// members, each remaining member needs up to 64 bytes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, GroupedExpiryMap, InsertRefusal};
///
/// struct Sessions {
///     by_user: GroupedExpiryMap<u64, &'static str, String>,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let by_user = ExpiryMap::builder()
///     .time_to_idle(Duration::from_secs(30 * 60))
///     .groups()
///     .max_per_group(2)
///     .build(|_, expired| println!("session {} is over", expired.key))?;
/// let sessions = Sessions { by_user };
///
/// sessions.by_user.entry(1).group("ada").insert("phone")?;
/// sessions.by_user.entry(2).group("ada").insert("laptop")?;
/// let third = sessions.by_user.entry(3).group("ada").insert("tablet").unwrap_err();
/// assert_eq!(third.refusal, InsertRefusal::GroupFull);
///
/// assert_eq!(sessions.by_user.touch_group("ada"), 2);
/// assert_eq!(sessions.by_user.group_of(&1).as_deref(), Some("ada"));
/// // Signed out everywhere.
/// assert_eq!(sessions.by_user.remove_group("ada").len(), 2);
/// assert_eq!(sessions.by_user.group_len("ada"), 0);
/// # Ok(())
/// # }
/// ```
#[doc(alias("session", "tag"))]
pub type GroupedExpiryMap<K, V, G, S = RandomState> = ExpiryMap<K, V, GroupedBy<G, S>>;

/// The builder of a [`GroupedExpiryMap`], as [`ExpiryMapBuilder::groups`] makes it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, GroupedExpiryMapBuilder};
///
/// fn sessions() -> GroupedExpiryMapBuilder<u64, String, u32> {
///     ExpiryMap::builder().time_to_idle(Duration::from_secs(1800)).groups().max_per_group(5)
/// }
/// let sessions = sessions().build(|_, expired| println!("{} has left", expired.value))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type GroupedExpiryMapBuilder<K, V, G, S = RandomState> =
    ExpiryMapBuilder<K, V, GroupedBy<G, S>>;

/// # Groups
///
/// These calls exist on a [`GroupedExpiryMap`].
impl<K, V, G, S> ExpiryMap<K, V, GroupedBy<G, S>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Inserts an entry in a group; `if_absent` refuses to replace one that lives.
    pub(super) fn put_in<Q>(
        &self,
        group: &Q,
        key: K,
        value: V,
        times: Times,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        let (number, hash) = self.hash_of(&key);
        let group_hash = self.group_hash(group);
        let clock = self.engine.clock();
        let expiry = times.expiry.unwrap_or_else(|| self.expiry());
        let made = match times.now {
            None => MapEntry::new(value, expiry, hash, self.engine.reading(), clock),
            Some(now) => {
                let given = Reading::given(now);
                let (session, deadline, _) = MapEntry::new(value, expiry, hash, given, clock);
                // The group's order of touches must not be ahead of the clock.
                (session, deadline, Reading::given(now.min(clock.now())))
            }
        };
        self.put_entry_in((group_hash, group), (number, hash), key, made, if_absent)
    }

    /// Inserts an entry that has been made in a group.
    pub(super) fn put_entry_in<Q>(
        &self,
        (group_hash, group): (KeyHash, &Q),
        (number, hash): (usize, KeyHash),
        key: K,
        (session, deadline, reading): MadeEntry<V, GroupTag<G>>,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        let clock = self.engine.clock();
        let now = reading.low();
        // Declared outside the group's lock, so that it outlives the lock even after a panic: its
        // drop is user code and takes that lock. The session comes first, so that its membership
        // leaves the group before the drop of the key, which is user code.
        let mut given = Some((session, key));
        let mut no_room = false;
        let answer = self.groups().enter(
            group_hash,
            group,
            now,
            |membership, is_full| {
                let Some((session, key)) = &mut given else {
                    unreachable!("only an accepted arming takes the session");
                };
                session.tag = GroupTag::new(membership, now);
                let admitted = self.engine.admit(number, |stripe| {
                    let if_absent = if_absent && !is_over(stripe, hash, key, clock);
                    // The group does not matter to an entry that is refused for its key.
                    let is_occupied = if_absent && is_pending(stripe, hash, key);
                    // A full group takes an entry only in place of one of its own members. Whether
                    // this one is such a replacement is known only under the stripe's lock.
                    if is_full && !is_occupied && !replaces_its_like(stripe, hash, key, session) {
                        no_room = true;
                        // `no_room` tells this apart from a key that is occupied.
                        return Err(Refusal::Occupied);
                    }
                    stripe.admit(hash, key, if_absent)
                });
                let (mut stripe, admission) = match admitted {
                    Ok(admitted) => admitted,
                    Err(refusal) => {
                        return (
                            Entered::Refused(session.tag.membership.take()),
                            Err(refusal),
                        );
                    }
                };
                let Some((session, key)) = given.take() else {
                    unreachable!("the session was there when it was admitted");
                };
                let Arming { id, dropped, .. } =
                    stripe.arm(admission, hash, key, session, deadline, now);
                drop(stripe);
                let (key, mut old) = dropped;
                let left = old.as_mut().and_then(|old| old.tag.membership.take());
                (Entered::Armed(member(number, id), left), Ok((key, old)))
            },
            |member, latest| self.evict(member, latest),
        );
        let refusal = match answer {
            Some(Ok(dropped)) => {
                let (key, old) = dropped;
                let replaced = self.replaced(key.as_ref(), old);
                return Ok(Inserted { deadline, replaced });
            }
            Some(Err(refusal)) if !no_room => InsertRefusal::of(refusal),
            None if self.engine.is_forked() => InsertRefusal::Forked,
            None if is_under_lock() => InsertRefusal::UnderLock,
            // A closed map must not answer `GroupFull`, which invites the caller to try again.
            _ if self.state() != Lifecycle::Running => InsertRefusal::Closed,
            _ => InsertRefusal::GroupFull,
        };
        let Some((session, key)) = given else {
            unreachable!("a refused call takes nothing");
        };
        Err(InsertError {
            key,
            value: session.value,
            refusal,
        })
    }

    /// Returns the number of entries in the group.
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
    /// assert_eq!(map.group_len("ada"), 1);
    /// assert_eq!(map.group_len("grace"), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group_len<Q>(&self, group: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.groups().count(self.group_hash(group), group)
    }

    /// Returns the group of the entry of `key`, if there is an entry and it is in a group. The
    /// group's `Clone` runs under a lock.
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
    /// assert_eq!(map.group_of(&1).as_deref(), Some("ada"));
    /// assert_eq!(map.group_of(&2), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group_of<Q>(&self, key: &Q) -> Option<G>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        G: Clone,
    {
        let (number, hash) = self.hash_of(key);
        loop {
            // The stripe's lock must be released before the group's lock is taken (GROUP-1), so
            // this looks twice and compares the ids.
            let (clock, reading) = self.engine.clock_and_reading();
            let (id, place) = self.engine.shards().peek(number, |stripe| {
                let slot = stripe.find(hash, key)?;
                let (session, _) = stripe.pending_payload(slot)?;
                let membership = session
                    .tag
                    .membership
                    .as_ref()
                    .filter(|_| session.lives(reading, clock))?;
                Some((stripe.pending_id(slot)?, membership.location()))
            })?;
            if let Some(group) = place.group_of(member(number, id)) {
                return Some(group);
            }
            // The entry ended or was replaced in between.
        }
    }

    /// Evicts a member if it was not touched after `latest` (GROUP-6). Called under the group's
    /// lock.
    fn evict(&self, member: Member, latest: Time) -> Judged<Membership<G>> {
        let (clock, now) = (self.engine.clock(), self.engine.now());
        self.engine.with(member.stripe as usize, |stripe| {
            let Some(slot) = stripe.pending_slot(member.id) else {
                return Judged::Ended;
            };
            let Some((session, _)) = stripe.pending_payload_mut(slot) else {
                unreachable!("a pending slot has a payload");
            };
            // Nothing could save an entry whose lifetime is over, so the eviction does not end it.
            let ends = session.lives(Reading::given(now), clock);
            let judged = session.tag.evict(latest, ends);
            if ends && matches!(judged, Judged::Evicted(_)) {
                session.end_now();
                // An entry that is due already keeps its deadline and its ticket.
                let _ = stripe.reschedule_slot(slot, now, now, true);
            }
            judged
        })
    }

    pub(super) fn groups(&self) -> &GroupIndex<G> {
        &self.engine.frontend.groups
    }

    pub(super) fn group_hash<Q>(&self, group: &Q) -> KeyHash
    where
        Q: Hash + ?Sized,
    {
        hash_of(
            self.engine.shards(),
            &self.engine.frontend.hasher.hasher,
            group,
        )
    }
}

pub(super) fn member(stripe: usize, id: EntryId) -> Member {
    Member {
        stripe: stripe as u32,
        id,
    }
}

/// Returns whether the key has an entry, whether its lifetime is over or not.
fn is_pending<K: Eq, V>(stripe: &Stripe<K, V>, hash: KeyHash, key: &K) -> bool {
    let slot = stripe.find(hash, key);
    slot.is_some_and(|slot| stripe.pending_payload(slot).is_some())
}

/// Returns whether the key has an entry in the same group.
fn replaces_its_like<K, V, G>(
    stripe: &Stripe<K, MapEntry<V, GroupTag<G>>>,
    hash: KeyHash,
    key: &K,
    session: &MapEntry<V, GroupTag<G>>,
) -> bool
where
    K: Eq,
{
    let slot = stripe.find(hash, key);
    let there = slot.and_then(|slot| stripe.pending_payload(slot));
    there.is_some_and(
        |(there, _)| match (&there.tag.membership, &session.tag.membership) {
            (Some(one), Some(other)) => one.is_of_group_of(other),
            _ => false,
        },
    )
}
