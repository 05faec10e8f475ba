//! Records which entries belong to which group.
//!
//! ```text
//!  group --hash--> shard (Mutex): index, groups --own number--> member: where the entry lies
//!                    ^                                            |
//!                    '--- entry: shard, number of the group, own number in it
//! ```
//!
//! A shard's index leads to groups, as a stripe's index leads to entries. A group has a list of its
//! members' ids. Each entry holds a [`Membership`], which leaves the group when it is dropped. So
//! an entry is in its group while it is in the map, however it ends.
//!
//! - **GROUP-1** A shard's lock is taken before a stripe's: a thread that holds a stripe's lock
//!   takes no shard's lock. Payloads are never dropped under a stripe's lock, so the drop of a
//!   membership may take its shard's lock.
//! - **GROUP-2** A thread that adds a member holds the group's lock until the entry is armed and
//!   its id is recorded. So under the lock every member has its id. A reader of the list sees each
//!   entry inserted before, and none inserted after.
//! - **GROUP-3** A call for a whole group copies the ids under the lock and acts on them later,
//!   stripe by stripe. An id belongs to one arming. Touches do not change it. So an entry that has
//!   ended or was replaced in between is not found, and no other entry is found in its place.
//! - **GROUP-4** Under the lock, this user code runs: `Eq` of a group, `to_owned` of the name of a
//!   new group, and during an insertion the user code under a stripe's lock. A call of the map from
//!   there panics, as it does from under a stripe's lock (STRIPE-2). Leaving a group goes by number
//!   and runs no user code.
//! - **GROUP-5** A group without a member does not exist, and its number is free. Its name is
//!   dropped without the lock.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::job::catch_panic;
use crate::shard::{Barrier, Index, KeyHash, ReentrancyGuard};
use crate::sync::{Arc, CachePadded, Mutex, MutexGuard};
use crate::wheel::{NO_ENTRY, Slab};

use super::members::{Member, Members};

/// The number of locks that the groups are spread over; a power of two.
const SHARDS: usize = 64;

/// An index of all groups of a map.
pub struct GroupIndex<G> {
    shards: Box<[Arc<ShardLock<G>>]>,
    /// The maximum number of members of a group.
    most: usize,
}

type ShardLock<G> = CachePadded<Mutex<GroupShard<G>>>;

struct GroupShard<G> {
    index: Index,
    groups: Slab<GroupSlot<G>>,
    /// The first free number.
    free: u32,
}

enum GroupSlot<G> {
    Used(Group<G>),
    /// A free number, with the next one.
    Free(u32),
}

struct Group<G> {
    name: G,
    bits: u32,
    members: Members,
}

impl<G> GroupShard<G> {
    fn new() -> Self {
        GroupShard {
            index: Index::new(),
            groups: Slab::new(),
            free: NO_ENTRY,
        }
    }

    fn group(&self, number: u32) -> Option<&Group<G>> {
        match self.groups.get(number) {
            Some(GroupSlot::Used(group)) => Some(group),
            _ => None,
        }
    }

    fn group_mut(&mut self, number: u32) -> Option<&mut Group<G>> {
        match self.groups.get_mut(number) {
            Some(GroupSlot::Used(group)) => Some(group),
            _ => None,
        }
    }

    /// Finds a group by its name. This runs the user's `Eq` (GROUP-4).
    fn find<Q>(&self, hash: KeyHash, name: &Q) -> Option<u32>
    where
        G: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // A call of the map from `Eq` panics instead of deadlocking.
        let _user_code = ReentrancyGuard::begin();
        self.index.find(hash.bits(), |number| {
            self.group(number)
                .is_some_and(|group| group.name.borrow() == name)
        })
    }

    /// Adds a new group. It must get a member under the same hold of the lock (GROUP-5).
    fn open(&mut self, hash: KeyHash, name: G) -> Result<u32, G> {
        let group = GroupSlot::Used(Group {
            name,
            bits: hash.bits(),
            members: Members::new(),
        });
        let mut number = self.free;
        if number == NO_ENTRY {
            number = match self.groups.push(group) {
                Ok(number) => number,
                Err(GroupSlot::Used(group)) => return Err(group.name),
                Err(GroupSlot::Free(_)) => unreachable!("a refused push returns the group"),
            };
        } else {
            let place = &mut self.groups[number];
            if let GroupSlot::Free(next) = std::mem::replace(place, group) {
                self.free = next;
            }
        }
        self.index.insert(hash.bits(), number);
        Ok(number)
    }

    /// Cuts off the free numbers behind the last group, and releases their memory. A free number is
    /// not in use anywhere (GROUP-5), so it may be given out again later.
    fn shrink_to_fit(&mut self) {
        while let Some(last) = self.groups.len().checked_sub(1)
            && self.group(last).is_none()
        {
            self.groups.pop();
        }
        self.free = NO_ENTRY;
        // Linked from the last to the first, so that the lowest free number is given out first.
        for number in (0..self.groups.len()).rev() {
            if let GroupSlot::Free(next) = &mut self.groups[number] {
                *next = std::mem::replace(&mut self.free, number);
            }
        }
        self.groups.shrink_to_fit();
        self.index.shrink_to_fit();
    }

    /// Removes a member. Returns the group if that was its last member; it must be dropped without
    /// the lock.
    fn leave(&mut self, number: u32, member: u32) -> Option<Group<G>> {
        let Some(group) = self.group_mut(number) else {
            unreachable!("GROUP-5: a group with a member exists");
        };
        group.members.leave(member);
        if group.members.count() > 0 {
            return None;
        }
        let place = &mut self.groups[number];
        let GroupSlot::Used(group) = std::mem::replace(place, GroupSlot::Free(self.free)) else {
            unreachable!("the group was found under the same lock");
        };
        self.free = number;
        self.index.remove(group.bits, number);
        Some(group)
    }
}

/// The membership of an entry in its group. Dropping it leaves the group, unless the holder of the
/// lock has made it leave before.
pub struct Membership<G> {
    shard: Arc<ShardLock<G>>,
    group: u32,
    /// The member's number in the group; `NO_ENTRY` after it has left.
    number: u32,
}

impl<G> Membership<G> {
    /// Returns whether both are members of the same group.
    pub(super) fn is_of_group_of(&self, other: &Self) -> bool {
        self.group == other.group && Arc::ptr_eq(&self.shard, &other.shard)
    }

    /// Takes the number, so that the caller can make the member leave under the lock that it holds.
    /// The drop then does nothing.
    fn take_number(&mut self) -> u32 {
        std::mem::replace(&mut self.number, NO_ENTRY)
    }

    /// Returns where the member is. Read it under the stripe's lock, use it without (GROUP-1).
    pub(super) fn location(&self) -> MemberLocation<G> {
        MemberLocation {
            shard: Arc::clone(&self.shard),
            group: self.group,
            number: self.number,
        }
    }
}

impl<G> Drop for Membership<G> {
    fn drop(&mut self) {
        if self.number == NO_ENTRY {
            return;
        }
        // No user code runs under the lock (GROUP-4), so the plain lock is enough.
        let emptied = self.shard.lock().leave(self.group, self.number);
        dispose(emptied);
    }
}

/// Drops a group that has no member any more (GROUP-5). A panic of its drop is caught, since this
/// may run in the middle of other drops.
fn dispose<G>(emptied: Option<Group<G>>) {
    if emptied.is_some() {
        let _ = catch_panic(|| drop(emptied));
    }
}

/// The location of a member in its group, to look the group up after the stripe's lock was
/// released.
pub(super) struct MemberLocation<G> {
    shard: Arc<ShardLock<G>>,
    group: u32,
    number: u32,
}

impl<G> MemberLocation<G> {
    /// Returns the group if `member` still belongs to it. GROUP-3: an id never names another
    /// arming.
    pub(super) fn group_of(&self, member: Member) -> Option<G>
    where
        G: Clone,
    {
        let shard = hold(&self.shard)?;
        let group = shard.group(self.group)?;
        if group.members.get(self.number) != Some(&member) {
            return None;
        }
        let _user_code = ReentrancyGuard::begin();
        Some(group.name.clone())
    }
}

/// Takes a shard's lock for a user's call, which must not come from under a lock.
///
/// Returns `None` while the thread panics under a lock.
fn hold<G>(shard: &ShardLock<G>) -> Option<LockedShard<'_, G>> {
    if ReentrancyGuard::begin().is_inert() {
        return None;
    }
    // Begun before the lock is taken, so that it also covers the release.
    let barrier = Barrier::begin();
    Some(LockedShard {
        shard: shard.lock(),
        _barrier: barrier,
    })
}

/// A shard's lock. Work that is put off meanwhile is done after it is released (DEFER-1).
struct LockedShard<'a, G> {
    shard: MutexGuard<'a, GroupShard<G>>,
    /// Dropped after the lock, by the order of the fields.
    _barrier: Barrier,
}

impl<G> Deref for LockedShard<'_, G> {
    type Target = GroupShard<G>;

    fn deref(&self) -> &GroupShard<G> {
        &self.shard
    }
}

impl<G> DerefMut for LockedShard<'_, G> {
    fn deref_mut(&mut self) -> &mut GroupShard<G> {
        &mut self.shard
    }
}

/// The outcome of arming an entry that enters a group.
pub(super) enum Entered<G> {
    /// The entry is armed. It may have replaced a member of any group.
    Armed(Member, Option<Membership<G>>),
    Refused(Option<Membership<G>>),
}

impl<G> GroupIndex<G> {
    pub(super) fn new(most: Option<usize>) -> Self {
        GroupIndex::with_shards(SHARDS, most)
    }

    /// Makes an index with this number of locks, a power of two.
    pub(super) fn with_shards(shards: usize, most: Option<usize>) -> Self {
        let shard = || Arc::new(CachePadded::new(Mutex::new(GroupShard::new())));
        GroupIndex {
            shards: (0..shards).map(|_| shard()).collect(),
            most: most.unwrap_or(usize::MAX),
        }
    }

    /// Returns the shard of a group. It is chosen by bits that the shard's index does not use.
    fn shard(&self, hash: KeyHash) -> &Arc<ShardLock<G>> {
        &self.shards[(hash.0 >> 48) as usize & (self.shards.len() - 1)]
    }

    /// Adds a member to a group, which is created if needed (GROUP-2).
    ///
    /// `arm` is called under the group's lock. It gets a membership, and whether the group is full,
    /// so that the entry must replace another member of the same group. Returns `None` if there is
    /// no free number, or if the thread must not take the lock ([`hold`]).
    ///
    /// If `arm` panics, the membership must not be dropped before this call has ended.
    pub(super) fn enter<Q, R>(
        &self,
        hash: KeyHash,
        name: &Q,
        arm: impl FnOnce(Membership<G>, bool) -> (Entered<G>, R),
    ) -> Option<R>
    where
        G: Borrow<Q>,
        Q: Eq + ToOwned<Owned = G> + ?Sized,
    {
        let shard = self.shard(hash);
        let mut held = hold(shard)?;
        let number = match held.find(hash, name) {
            Some(number) => number,
            None => {
                // The caller's name is copied only now, since most groups exist already.
                let name = {
                    let _user_code = ReentrancyGuard::begin();
                    name.to_owned()
                };
                match held.open(hash, name) {
                    Ok(number) => number,
                    Err(name) => {
                        // The name is user code, so it is dropped without the lock.
                        drop(held);
                        drop(name);
                        return None;
                    }
                }
            }
        };
        let Some(group) = held.group_mut(number) else {
            unreachable!("the group was found or added under this lock");
        };
        // Counted before the new member enters.
        let is_full = group.members.count() >= self.most;
        let own = group.members.enter()?;
        let (entered, answer) = arm(
            Membership {
                shard: Arc::clone(shard),
                group: number,
                number: own,
            },
            is_full,
        );
        let mut left = match entered {
            Entered::Armed(member, replaced) => {
                if let Some(group) = held.group_mut(number) {
                    group.members.tell(own, member);
                }
                replaced
            }
            Entered::Refused(membership) => membership,
        };
        // A replaced or refused member of this group leaves here, since its drop would take the
        // lock that is held. The group itself may be empty again after a refusal.
        let mut emptied = None;
        if let Some(left) = &mut left
            && left.group == number
            && Arc::ptr_eq(&left.shard, shard)
        {
            emptied = held.leave(number, left.take_number());
        }
        drop(held);
        // A replaced member of another group leaves that group by its drop, which takes another
        // lock.
        drop(left);
        dispose(emptied);
        Some(answer)
    }

    /// Releases memory that the groups do not need, one lock after the other.
    pub(super) fn shrink_to_fit(&self) {
        for shard in &self.shards {
            if let Some(mut held) = hold(shard) {
                held.shrink_to_fit();
            }
        }
    }

    /// Returns the number of members of a group.
    pub(super) fn count<Q>(&self, hash: KeyHash, name: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some(held) = hold(self.shard(hash)) else {
            return 0;
        };
        let number = held.find(hash, name);
        let group = number.and_then(|number| held.group(number));
        group.map_or(0, |group| group.members.count())
    }

    /// Returns all members, sorted by stripe and slot (GROUP-3).
    pub(super) fn members<Q>(&self, hash: KeyHash, name: &Q) -> Vec<Member>
    where
        G: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut members = {
            let Some(held) = hold(self.shard(hash)) else {
                return Vec::new();
            };
            let number = held.find(hash, name);
            let Some(group) = number.and_then(|number| held.group(number)) else {
                return Vec::new();
            };
            group.members.to_vec()
        };
        members.sort_unstable_by_key(|member| (member.stripe, member.id.slot));
        members
    }

    /// Makes members of one group leave it under one hold of its lock.
    pub(super) fn leave_all(
        &self,
        hash: KeyHash,
        memberships: impl Iterator<Item = Membership<G>>,
    ) {
        let mut emptied = Vec::new();
        let mut held = self.shard(hash).lock();
        for mut membership in memberships {
            let number = membership.take_number();
            emptied.extend(held.leave(membership.group, number));
        }
        drop(held);
        for group in emptied {
            dispose(Some(group));
        }
    }
}

impl<G> fmt::Debug for GroupIndex<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupIndex")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl<G> fmt::Debug for Membership<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("group", &self.group)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shard::EntryId;

    /// Uses the group as its own hash.
    const fn hash(group: u32) -> KeyHash {
        KeyHash(group as u64)
    }

    fn member(number: u32) -> Member {
        Member {
            stripe: number % 3,
            id: EntryId {
                slot: number,
                generation: 1,
            },
        }
    }

    fn enter(groups: &GroupIndex<u32>, group: u32, number: u32) -> Option<Membership<u32>> {
        let entered = groups.enter(hash(group), &group, |membership, is_full| {
            if is_full {
                (Entered::Refused(Some(membership)), None)
            } else {
                (Entered::Armed(member(number), None), Some(membership))
            }
        });
        entered.expect("there is a free number")
    }

    /// Counts the numbers that are or were in use, in all shards.
    fn numbers(groups: &GroupIndex<u32>) -> u32 {
        let shards = groups.shards.iter();
        shards.map(|shard| shard.lock().groups.len()).sum()
    }

    #[test]
    fn a_group_without_a_member_takes_no_memory() {
        let groups = GroupIndex::with_shards(1, None);
        for group in 0..10_000 {
            let stays = enter(&groups, group, 0);
            assert_eq!(groups.count(hash(group), &group), 1);
            drop(stays);
            assert_eq!(groups.count(hash(group), &group), 0);
        }
        assert_eq!(numbers(&groups), 1);
        // A refused member, or one whose arming panicked, leaves no group behind.
        let groups = GroupIndex::with_shards(1, Some(0));
        assert!(enter(&groups, 1, 0).is_none());
        let mut outlives = None;
        let panicked = catch_panic(|| {
            groups.enter(hash(2), &2, |membership, _| -> (Entered<u32>, ()) {
                outlives = Some(membership);
                panic!("on purpose");
            })
        });
        assert!(panicked.is_err() && outlives.is_some());
        assert!(groups.members(hash(2), &2).is_empty());
        drop(outlives);
        assert_eq!(groups.count(hash(2), &2), 0);
        assert_eq!(numbers(&groups), 1);
    }

    #[test]
    fn after_a_peak_there_is_memory_up_to_the_last_group() {
        let groups = GroupIndex::with_shards(1, None);
        for stays in [0, 5_000, 9_999] {
            let mut all: Vec<_> = (0..10_000).map(|n| enter(&groups, n, n)).collect();
            let left = all[stays].take();
            let place = left.as_ref().map(Membership::location).unwrap();
            let gone = all[0]
                .as_ref()
                .or(all[1].as_ref())
                .map(Membership::location);
            let gone_number = member(u32::from(stays == 0));
            drop(all);
            assert_eq!(numbers(&groups), 10_000);
            groups.shrink_to_fit();
            assert_eq!(numbers(&groups), stays as u32 + 1);
            assert_eq!(place.group_of(member(stays as u32)), Some(stays as u32));
            assert_eq!(gone.unwrap().group_of(gone_number), None);
            // The lowest free number is given out first.
            let next = [20_000, 20_001].map(|group| enter(&groups, group, group));
            let expected = [0, 1, 2].into_iter().filter(|n| *n != stays as u32);
            assert!(
                expected
                    .take(2)
                    .eq(next.iter().flatten().map(|own| own.group))
            );
            for group in [20_000, 20_001, stays as u32] {
                assert_eq!(groups.count(hash(group), &group), 1);
            }
            drop((left, next));
            groups.shrink_to_fit();
            let shard = groups.shards[0].lock();
            assert_eq!((shard.groups.room(), shard.index.rows()), (0, 0));
        }
    }

    #[test]
    fn places_are_used_again_and_members_are_sorted_by_stripe() {
        let groups = GroupIndex::new(None);
        let mut all: Vec<_> = (0..100).map(|n| enter(&groups, 7, n)).collect();
        for round in 0..10 {
            for n in (round..100).step_by(7) {
                all[n] = None;
            }
            for n in (round..100).step_by(7) {
                all[n] = enter(&groups, 7, n as u32);
            }
        }
        let shard = groups.shard(hash(7)).lock();
        let number = shard.find(hash(7), &7).unwrap();
        assert!(shard.group(number).unwrap().members.room() <= 256);
        drop(shard);
        let members = groups.members(hash(7), &7);
        let mut expected: Vec<_> = (0..100).map(member).collect();
        expected.sort_unstable_by_key(|member| (member.stripe, member.id.slot));
        assert_eq!(members, expected);
        let memberships = all.into_iter().flatten();
        groups.leave_all(hash(7), memberships);
        assert_eq!(groups.count(hash(7), &7), 0);
    }
}
