//! Which entries belong to which group.
//!
//! ```text
//!  group --hash--> shard (Mutex): index, groups --own number--> member: where the entry lies
//!                    ^                                            |
//!                    '--- entry: shard, number of the group, own number in it
//! ```
//!
//! A shard's index leads to groups as a stripe's leads to entries. A group has a list of its
//! members' ids, and each entry holds a [`Membership`], which leaves the group when it is dropped.
//! So an entry is in its group for as long as it is in the map, however it ends; nobody has to
//! think of it.
//!
//! - **GROUP-1** A shard's lock comes before a stripe's: whoever holds a stripe's takes none of
//!   these. Payloads are never dropped under a stripe's lock, so a membership may take its shard's.
//! - **GROUP-2** Whoever enters a group holds its lock until the entry is armed and its id is
//!   noted. So under the lock every member has its id, and what reads the list sees each entry that
//!   was inserted before, and none that comes after.
//! - **GROUP-3** Whoever acts on all of a group copies the ids under the lock and acts on them
//!   later, stripe by stripe. An id stands for one arming only, and through all its touches; so
//!   what has ended, or was replaced, in between is not found, and nothing else is.
//! - **GROUP-4** Under the lock runs no user code but `Eq` of a group, `to_owned` of what names a
//!   new one, and in the insertion what runs under a stripe's lock. A call of the map from there
//!   panics, as it does from under a stripe's lock (STRIPE-2). Leaving runs none: it goes by
//!   number.
//! - **GROUP-5** A group without a member is gone, and its number is free. What names it is dropped
//!   outside of the lock.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::job::contain;
use crate::shard::{Barrier, Index, KeyHash, NoCalls};
use crate::sync::{Arc, CachePadded, Mutex, MutexGuard};
use crate::wheel::{NO_ENTRY, Slab};

use super::members::{Member, Members};

/// So many locks the groups are spread over. A power of two.
const SHARDS: usize = 64;

/// All groups of a map.
pub struct GroupIndex<G> {
    shards: Box<[Arc<Lock<G>>]>,
    /// Members of a group at most.
    most: usize,
}

type Lock<G> = CachePadded<Mutex<Shard<G>>>;

struct Shard<G> {
    index: Index,
    groups: Slab<Place<G>>,
    /// The first free number.
    free: u32,
}

enum Place<G> {
    Used(Group<G>),
    /// And the next free number.
    Free(u32),
}

struct Group<G> {
    name: G,
    bits: u32,
    members: Members,
}

impl<G> Shard<G> {
    fn new() -> Self {
        Shard {
            index: Index::new(),
            groups: Slab::new(),
            free: NO_ENTRY,
        }
    }

    fn group(&self, number: u32) -> Option<&Group<G>> {
        match self.groups.get(number) {
            Some(Place::Used(group)) => Some(group),
            _ => None,
        }
    }

    fn group_mut(&mut self, number: u32) -> Option<&mut Group<G>> {
        match self.groups.get_mut(number) {
            Some(Place::Used(group)) => Some(group),
            _ => None,
        }
    }

    /// GROUP-4: `Eq` of the user's.
    fn find<Q>(&self, hash: KeyHash, name: &Q) -> Option<u32>
    where
        G: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let _user_code = NoCalls::begin();
        self.index.find(hash.bits(), |number| {
            self.group(number)
                .is_some_and(|group| group.name.borrow() == name)
        })
    }

    /// A group that there was not. It is to get a member under the same hold of the lock (GROUP-5).
    fn open(&mut self, hash: KeyHash, name: G) -> Result<u32, G> {
        let group = Place::Used(Group {
            name,
            bits: hash.bits(),
            members: Members::new(),
        });
        let mut number = self.free;
        if number == NO_ENTRY {
            number = match self.groups.push(group) {
                Ok(number) => number,
                Err(Place::Used(group)) => return Err(group.name),
                Err(Place::Free(_)) => unreachable!("a group comes back"),
            };
        } else {
            let place = &mut self.groups[number];
            if let Place::Free(next) = std::mem::replace(place, group) {
                self.free = next;
            }
        }
        self.index.insert(hash.bits(), number);
        Ok(number)
    }

    /// Cuts off the free numbers behind the last group, and gives their memory back. A number that
    /// is free is known to nobody (GROUP-5), so it may come back.
    fn shrink_to_fit(&mut self) {
        while let Some(last) = self.groups.len().checked_sub(1)
            && self.group(last).is_none()
        {
            self.groups.pop();
        }
        self.free = NO_ENTRY;
        for number in (0..self.groups.len()).rev() {
            if let Place::Free(next) = &mut self.groups[number] {
                *next = std::mem::replace(&mut self.free, number);
            }
        }
        self.groups.shrink_to_fit();
        self.index.shrink_to_fit();
    }

    /// The group, if that was its last member: to be dropped outside of the lock.
    fn leave(&mut self, number: u32, member: u32) -> Option<Group<G>> {
        let Some(group) = self.group_mut(number) else {
            unreachable!("GROUP-5: a group with a member is there");
        };
        group.members.leave(member);
        if group.members.count() > 0 {
            return None;
        }
        let place = &mut self.groups[number];
        let Place::Used(group) = std::mem::replace(place, Place::Free(self.free)) else {
            unreachable!("it was there a moment ago");
        };
        self.free = number;
        self.index.remove(group.bits, number);
        Some(group)
    }
}

/// An entry's place in its group. It leaves it when it is dropped, unless somebody who holds the
/// lock let it leave before.
pub struct Membership<G> {
    shard: Arc<Lock<G>>,
    group: u32,
    /// Its own number in the group. `NO_ENTRY`: it has left.
    number: u32,
}

impl<G> Membership<G> {
    /// Whether both are members of the same group.
    pub(super) fn is_of_group_of(&self, other: &Self) -> bool {
        self.group == other.group && Arc::ptr_eq(&self.shard, &other.shard)
    }

    /// It leaves under the lock that the caller holds, not by its drop.
    fn take_number(&mut self) -> u32 {
        std::mem::replace(&mut self.number, NO_ENTRY)
    }

    /// To be asked without the stripe's lock, under which this is (GROUP-1).
    pub(super) fn place(&self) -> MemberPlace<G> {
        MemberPlace {
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
        let emptied = self.shard.lock().leave(self.group, self.number);
        dispose(emptied);
    }
}

/// GROUP-5. Nobody could do anything about a panic of this drop, which may come in the middle of
/// others.
fn dispose<G>(emptied: Option<Group<G>>) {
    if emptied.is_some() {
        let _ = contain(|| drop(emptied));
    }
}

/// Where a member was found, for a look when the stripe's lock is released.
pub(super) struct MemberPlace<G> {
    shard: Arc<Lock<G>>,
    group: u32,
    number: u32,
}

impl<G> MemberPlace<G> {
    /// The group, if `member` is still there. GROUP-3: an id does not come back.
    pub(super) fn group_of(&self, member: Member) -> Option<G>
    where
        G: Clone,
    {
        let shard = hold(&self.shard)?;
        let group = shard.group(self.group)?;
        if group.members.get(self.number) != Some(&member) {
            return None;
        }
        let _user_code = NoCalls::begin();
        Some(group.name.clone())
    }
}

/// For a call of the user's, which must not come from under a lock.
///
/// `None` while the thread panics under a lock.
fn hold<G>(shard: &Lock<G>) -> Option<Held<'_, G>> {
    if NoCalls::begin().is_inert() {
        return None;
    }
    let barrier = Barrier::begin();
    Some(Held {
        shard: shard.lock(),
        _barrier: barrier,
    })
}

/// A shard's lock. What is put off meanwhile is done when it is released (DEFER-1).
struct Held<'a, G> {
    shard: MutexGuard<'a, Shard<G>>,
    /// After the lock, in the order of fields.
    _barrier: Barrier,
}

impl<G> Deref for Held<'_, G> {
    type Target = Shard<G>;

    fn deref(&self) -> &Shard<G> {
        &self.shard
    }
}

impl<G> DerefMut for Held<'_, G> {
    fn deref_mut(&mut self) -> &mut Shard<G> {
        &mut self.shard
    }
}

/// What became of somebody who enters a group.
pub(super) enum Entered<G> {
    /// Armed, in the place of this member of any group.
    Armed(Member, Option<Membership<G>>),
    Refused(Option<Membership<G>>),
}

impl<G> GroupIndex<G> {
    pub(super) fn new(most: Option<usize>) -> Self {
        GroupIndex::with_shards(SHARDS, most)
    }

    /// With so many locks, a power of two.
    pub(super) fn with_shards(shards: usize, most: Option<usize>) -> Self {
        let shard = || Arc::new(CachePadded::new(Mutex::new(Shard::new())));
        GroupIndex {
            shards: (0..shards).map(|_| shard()).collect(),
            most: most.unwrap_or(usize::MAX),
        }
    }

    /// By bits that the shard's index does not go by.
    fn shard(&self, hash: KeyHash) -> &Arc<Lock<G>> {
        &self.shards[(hash.0 >> 48) as usize & (self.shards.len() - 1)]
    }

    /// GROUP-2: `arm` is called under the group's lock, with a membership and whether there is only
    /// room for it in the place of another member of the same group. `None`: there is no number
    /// left, or no lock to be had ([`hold`]).
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
                let name = {
                    let _user_code = NoCalls::begin();
                    name.to_owned()
                };
                match held.open(hash, name) {
                    Ok(number) => number,
                    Err(name) => {
                        drop(held);
                        drop(name);
                        return None;
                    }
                }
            }
        };
        let Some(group) = held.group_mut(number) else {
            unreachable!("it was found, or opened, under this lock");
        };
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
        let mut emptied = None;
        if let Some(left) = &mut left
            && left.group == number
            && Arc::ptr_eq(&left.shard, shard)
        {
            emptied = held.leave(number, left.take_number());
        }
        drop(held);
        // A member of another group leaves that one.
        drop(left);
        dispose(emptied);
        Some(answer)
    }

    /// Gives memory back that the groups do not need, one lock after the other.
    pub(super) fn shrink_to_fit(&self) {
        for shard in &self.shards {
            if let Some(mut held) = hold(shard) {
                held.shrink_to_fit();
            }
        }
    }

    /// How many members the group has.
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

    /// GROUP-3: all members, by stripe and slot.
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

    /// Members of one group leave it, under one hold of its lock.
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

    /// By itself a hash is as good as any.
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
        entered.expect("there are numbers")
    }

    /// Numbers that are, or were, in use: of groups in all shards.
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
        // One that was refused, or whose arming panicked, leaves none behind.
        let groups = GroupIndex::with_shards(1, Some(0));
        assert!(enter(&groups, 1, 0).is_none());
        let mut outlives = None;
        let panicked = contain(|| {
            groups.enter(hash(2), &2, |membership, _| -> (Entered<u32>, ()) {
                outlives = Some(membership);
                panic!("in the arming");
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
            let place = left.as_ref().map(Membership::place).unwrap();
            let gone = all[0].as_ref().or(all[1].as_ref()).map(Membership::place);
            let gone_number = member(u32::from(stays == 0));
            drop(all);
            assert_eq!(numbers(&groups), 10_000);
            groups.shrink_to_fit();
            assert_eq!(numbers(&groups), stays as u32 + 1);
            assert_eq!(place.group_of(member(stays as u32)), Some(stays as u32));
            assert_eq!(gone.unwrap().group_of(gone_number), None);
            // The lowest free number comes first.
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
