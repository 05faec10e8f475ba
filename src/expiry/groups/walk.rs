//! A call for a whole group: first without the group's lock, and then, for those that have moved,
//! under it.

use std::borrow::Borrow;

use super::super::members::Member;
use super::{GroupIndex, ShardLock, hold};
use crate::shard::KeyHash;

/// The number of entries that are handled under one hold of a lock.
const PER_HOLD: usize = 64;

/// A call for a whole group.
pub(in super::super) struct Walk<'a, G> {
    shard: &'a ShardLock<G>,
    name: u64,
    /// The members at the beginning, sorted by stripe and slot (GROUP-3).
    members: Vec<Member>,
}

impl<G> Walk<'_, G> {
    /// Calls `act` with the members in portions of one stripe, each small enough for one hold of
    /// its lock, and `finish` after each of them, without a lock. `act` returns those that it did
    /// not find.
    ///
    /// Then calls `act` under the group's lock with those that have moved before they were found,
    /// and `finish` again without the lock.
    #[inline]
    pub(in super::super) fn run(
        self,
        mut act: impl FnMut(usize, &[Member], &mut Vec<Member>),
        mut finish: impl FnMut(),
    ) {
        let mut missed = Vec::new();
        for (stripe, portion) in portions(&self.members) {
            act(stripe, portion, &mut missed);
            finish();
        }
        if missed.is_empty() {
            return;
        }
        let Some(held) = hold(self.shard) else {
            return;
        };
        let moved = held.walks.follow(self.name, &missed);
        for (stripe, portion) in portions(&moved) {
            // Whoever is missed now has ended.
            act(stripe, portion, &mut missed);
        }
        drop(held);
        finish();
    }
}

/// Splits `members` into portions, each of one stripe and small enough for one hold of its lock.
fn portions(members: &[Member]) -> impl Iterator<Item = (usize, &[Member])> {
    let of_one_stripe = members.chunk_by(|a, b| a.stripe == b.stripe);
    let portions = of_one_stripe.flat_map(|same| same.chunks(PER_HOLD));
    portions.map(|portion| (portion[0].stripe as usize, portion))
}

impl<G> Drop for Walk<'_, G> {
    fn drop(&mut self) {
        // No user code runs under the lock (GROUP-4), so the plain lock is enough.
        if !self.shard.origin.is_elsewhere() {
            self.shard.lock.lock().walks.end(self.name);
        }
    }
}

impl<G> GroupIndex<G> {
    /// Begins a call for all members of a group, if it has any.
    pub(in super::super) fn walk<Q>(&self, hash: KeyHash, name: &Q) -> Option<Walk<'_, G>>
    where
        G: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = self.shard(hash);
        let mut held = hold(shard)?;
        let number = held.find(hash, name)?;
        let mut members = held.group(number)?.members.to_vec();
        let name = held.walks.begin();
        drop(held);
        members.sort_unstable_by_key(Member::order);
        Some(Walk {
            shard,
            name,
            members,
        })
    }
}
