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
//!   ended or was replaced in between is not found, and no other entry is found in its place. An
//!   entry that got another key in between has another id, and is found by that (`walks.rs`).
//! - **GROUP-4** Under the lock, this user code runs: `Eq` of a group, `to_owned` of the name of a
//!   new group, and the user code under a stripe's lock during an insertion, a rename, and the end
//!   of a call for a whole group. A call of the map from there panics, as it does from under a
//!   stripe's lock (STRIPE-2). Leaving a group goes by number and runs no user code.
//! - **GROUP-5** A group without a member does not exist, and its number is free. Its name is
//!   dropped without the lock.
//! - **GROUP-6** An insertion that makes a group too large evicts a member before it releases the
//!   group's lock. It first arms the new entry and releases that stripe's lock, and then takes the
//!   stripe's lock of the member. So a refused insertion evicts nothing, and no thread holds two
//!   stripes' locks. The member is taken from its entry, and the entry is made due, under one hold
//!   of the stripe's lock. From there on the entry is delivered like any due entry.
//! - **GROUP-7** A member whose entry has ended may not have left yet: the thread that ended the
//!   entry waits for the group's lock. If it comes first in the order of eviction, it is forgotten,
//!   and nothing is evicted in its place. `eviction.rs` says which member comes first.
//! - **GROUP-8** An entry of a group gets another key under the group's lock, and under that lock
//!   the list, the order of eviction and the calls under way learn the new id. The entry is found
//!   without the lock first. If it has another membership when the stripes' locks are taken, the
//!   call begins anew.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::job::catch_panic;
use crate::shard::{Barrier, Index, KeyHash, ReentrancyGuard};
use crate::sync::fork::Origin;
use crate::sync::{Arc, CachePadded, Mutex, MutexGuard};
use crate::tick::Time;
use crate::wheel::{NO_ENTRY, Slab};

use super::eviction::{EvictionOrder, GroupFull, Judged};
use super::members::{Member, Members};
use super::walks::Walks;

/// The number of locks that the groups are spread over; a power of two.
const SHARDS: usize = 64;

/// An index of all groups of a map.
pub struct GroupIndex<G> {
    shards: Box<[Arc<ShardLock<G>>]>,
    /// The maximum number of members of a group.
    most: usize,
    pub(super) when_full: GroupFull,
}

type ShardLock<G> = CachePadded<Guarded<G>>;

pub(super) struct Guarded<G> {
    /// The lock is not taken in a copy of this process (FORK-1).
    origin: Origin,
    /// A 64th of the groups. Taken before a stripe's lock, never inside of it (GROUP-1).
    lock: Mutex<GroupShard<G>>,
}

struct GroupShard<G> {
    index: Index,
    groups: Slab<GroupSlot<G>>,
    /// The first free number.
    free: u32,
    walks: Walks,
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
    /// The order of eviction, if full groups evict.
    order: Option<Box<EvictionOrder>>,
}

impl<G> Group<G> {
    /// Evicts a member if there are more than `most` (GROUP-6). `judge` gets a candidate and the
    /// latest touch at which it is evicted. Returns the membership, which must leave.
    fn make_room(
        &mut self,
        most: usize,
        judge: &mut impl FnMut(Member, Time) -> Judged<Membership<G>>,
    ) -> Option<Membership<G>> {
        let mut looks = 2 * self.members.present();
        while self.members.present() > most {
            let order = self.order.as_mut()?;
            let candidate = order.take_first(&self.members)?;
            // EVICT-3.
            let latest = match looks {
                0 => Time::MAX,
                _ => order.latest(&candidate),
            };
            looks = looks.saturating_sub(1);
            match judge(candidate.member, latest) {
                Judged::Evicted(membership) => return Some(membership),
                Judged::Touched(touched) => order.rank_again(candidate, touched),
                // GROUP-7.
                Judged::Ended => self.members.forget(candidate.number),
            }
        }
        None
    }
}

impl<G> GroupShard<G> {
    fn new() -> Self {
        GroupShard {
            index: Index::new(),
            groups: Slab::new(),
            free: NO_ENTRY,
            walks: Walks::new(),
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
    fn open(&mut self, hash: KeyHash, name: G, when_full: GroupFull) -> Result<u32, G> {
        let group = GroupSlot::Used(Group {
            name,
            bits: hash.bits(),
            members: Members::new(),
            order: EvictionOrder::of(when_full),
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
            if let Some(order) = &mut group.order {
                order.tidy(&group.members);
            }
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
pub(super) struct Membership<G> {
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
        if self.shard.origin.is_elsewhere() {
            return;
        }
        let emptied = self.shard.lock.lock().leave(self.group, self.number);
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
pub struct MemberLocation<G> {
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

impl<G> MemberLocation<G> {
    /// Returns whether `membership` is that of this member.
    pub(super) fn is_of(&self, membership: &Membership<G>) -> bool {
        self.number == membership.number
            && self.group == membership.group
            && Arc::ptr_eq(&self.shard, &membership.shard)
    }

    /// Calls `rename` under the group's lock, and notes the ids of the member before and after it
    /// (GROUP-8). If the thread must not take the lock, `rename` finds nothing to rename.
    pub(super) fn rename<R>(&self, rename: impl FnOnce() -> (R, Option<[Member; 2]>)) -> R {
        let held = hold(&self.shard);
        let (answer, moved) = rename();
        if let Some(mut held) = held
            && let Some([from, to]) = moved
        {
            held.walks.moved(from, to);
            let Some(group) = held.group_mut(self.group) else {
                unreachable!("GROUP-5: a group with a member exists");
            };
            group.members.renamed(self.number, to);
            if let Some(order) = &mut group.order {
                order.moved(self.number, from, to);
            }
        }
        answer
    }
}

impl<G> fmt::Debug for MemberLocation<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberLocation")
            .field("group", &self.group)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Takes a shard's lock for a user's call, which must not come from under a lock.
///
/// Returns `None` while the thread panics under a lock.
fn hold<G>(shard: &ShardLock<G>) -> Option<LockedShard<'_, G>> {
    if shard.origin.is_elsewhere() || ReentrancyGuard::begin().is_inert() {
        return None;
    }
    // Begun before the lock is taken, so that it also covers the release.
    let barrier = Barrier::begin();
    Some(LockedShard {
        shard: shard.lock.lock(),
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
    pub(super) fn new(most: Option<usize>, when_full: GroupFull) -> Self {
        GroupIndex::with_shards(SHARDS, most, when_full)
    }

    /// Makes an index with this number of locks, a power of two.
    pub(super) fn with_shards(shards: usize, most: Option<usize>, when_full: GroupFull) -> Self {
        let shard = || {
            Arc::new(CachePadded::new(Guarded {
                origin: Origin::here(),
                lock: Mutex::new(GroupShard::new()),
            }))
        };
        GroupIndex {
            shards: (0..shards).map(|_| shard()).collect(),
            most: most.unwrap_or(usize::MAX),
            // A group without a bound is never full, so it needs no order.
            when_full: most.map_or(GroupFull::Refuse, |_| when_full),
        }
    }

    /// Returns the shard of a group. It is chosen by bits that the shard's index does not use.
    fn shard(&self, hash: KeyHash) -> &Arc<ShardLock<G>> {
        &self.shards[(hash.0 >> 48) as usize & (self.shards.len() - 1)]
    }

    /// Adds a member to a group, which is created if needed (GROUP-2).
    ///
    /// `arm` is called under the group's lock. It gets a membership, and whether the group is full
    /// and refuses, so that the entry must replace another member of the same group. Returns `None`
    /// if there is no free number, or if the thread must not take the lock ([`hold`]).
    ///
    /// If full groups evict, `judge` is called as [`Group::make_room`] says after the entry was
    /// armed. `now` is not after the present; the member was last touched then.
    ///
    /// If `arm` panics, the membership must not be dropped before this call has ended.
    pub(super) fn enter<Q, R>(
        &self,
        hash: KeyHash,
        name: &Q,
        now: Time,
        arm: impl FnOnce(Membership<G>, bool) -> (Entered<G>, R),
        mut judge: impl FnMut(Member, Time) -> Judged<Membership<G>>,
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
                match held.open(hash, name, self.when_full) {
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
        let is_full = self.when_full == GroupFull::Refuse && group.members.present() >= self.most;
        let own = group.members.enter()?;
        let (entered, answer) = arm(
            Membership {
                shard: Arc::clone(shard),
                group: number,
                number: own,
            },
            is_full,
        );
        let (armed, mut left) = match entered {
            Entered::Armed(member, replaced) => (Some(member), replaced),
            Entered::Refused(membership) => (None, membership),
        };
        if let Some(member) = armed
            && let Some(group) = held.group_mut(number)
        {
            group.members.tell(own, member);
        }
        // A replaced or refused member of this group leaves here, since its drop would take the
        // lock that is held. The group itself may be empty again after a refusal.
        let mut emptied = None;
        if let Some(left) = &mut left
            && left.group == number
            && Arc::ptr_eq(&left.shard, shard)
        {
            emptied = held.leave(number, left.take_number());
        }
        // The new member joins the order last, so it is never the one that is evicted.
        if let Some(member) = armed
            && let Some(group) = held.group_mut(number)
        {
            let evicted = group.make_room(self.most, &mut judge);
            if let Some(order) = &mut group.order {
                order.add(own, member, now);
            }
            if let Some(mut evicted) = evicted {
                // The new member is in the group, so this does not empty it.
                held.leave(number, evicted.take_number());
            }
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

    /// Returns the number of members of a group that are present.
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
        group.map_or(0, |group| group.members.present())
    }

    /// Makes members of one group leave it under one hold of its lock.
    pub(super) fn leave_all(
        &self,
        hash: KeyHash,
        memberships: impl Iterator<Item = Membership<G>>,
    ) {
        let mut emptied = Vec::new();
        let shard = self.shard(hash);
        if shard.origin.is_elsewhere() {
            return;
        }
        let mut held = shard.lock.lock();
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

mod walk;

#[cfg(all(test, not(loom)))]
mod tests;
