//! The calls for whole groups that are under way, beside entries that get another key.
//!
//! Such a call copies the ids of the members under the group's lock and acts on them later
//! (GROUP-3). An entry that gets another key gets another id, too, so the call would not find it.
//! So the lock also guards a list of the members that have moved while such a call was under way.
//! When the call has acted on its ids, it looks there for those that it did not find, and acts on
//! their new ids under the lock. No member moves meanwhile, so the call ends however often others
//! rename.
//!
//! - **WALK-1** A call begins under the lock, in the step that copies the ids. A member moves under
//!   the lock, in the step that notes it here. So each move of a copied id is in the list.
//! - **WALK-2** A move stays in the list while a call is under way that began before it, and no
//!   longer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::members::Member;

/// The calls that are under way on the groups of one lock, and the moves since the first of them
/// began.
pub(super) struct Walks {
    /// For each call, the number of moves before it.
    under_way: Vec<u64>,
    /// The ids before and after each move.
    moves: VecDeque<(Member, Member)>,
    /// The number of moves that were noted and are not in the list any more.
    past: u64,
}

impl Walks {
    pub(super) fn new() -> Self {
        Walks {
            under_way: Vec::new(),
            moves: VecDeque::new(),
            past: 0,
        }
    }

    /// Begins a call, and returns its name in the calls below.
    pub(super) fn begin(&mut self) -> u64 {
        let before = self.past + self.moves.len() as u64;
        self.under_way.push(before);
        before
    }

    /// Notes that a member has another id.
    pub(super) fn moved(&mut self, from: Member, to: Member) {
        if !self.under_way.is_empty() {
            self.moves.push_back((from, to));
        }
    }

    /// Returns where those members have moved that the call did not find, sorted by stripe and
    /// slot. Those that have not moved have ended.
    pub(super) fn follow(&self, walk: u64, missed: &[Member]) -> Vec<Member> {
        if self.moves.is_empty() {
            return Vec::new();
        }
        let mut left: BTreeSet<_> = missed.iter().map(Member::order).collect();
        let mut found = BTreeMap::new();
        for (from, to) in self.moves.iter().skip((walk - self.past) as usize) {
            let from = from.order();
            if left.remove(&from) || found.remove(&from).is_some() {
                found.insert(to.order(), *to);
            }
        }
        found.into_values().collect()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn noted(&self) -> usize {
        self.moves.len()
    }

    /// Ends a call, and forgets the moves that no other call needs (WALK-2).
    pub(super) fn end(&mut self, walk: u64) {
        if let Some(at) = self.under_way.iter().position(|own| *own == walk) {
            self.under_way.swap_remove(at);
        }
        if self.moves.is_empty() {
            return;
        }
        let end = self.past + self.moves.len() as u64;
        let first = self.under_way.iter().min().copied().unwrap_or(end);
        self.moves.drain(..(first - self.past) as usize);
        self.past = first;
        if self.moves.is_empty() {
            self.moves.shrink_to(16);
        }
    }
}
