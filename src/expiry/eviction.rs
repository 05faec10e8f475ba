//! Which member of a full group is evicted.
//!
//! ```text
//!  EvictionOrder: (last touch, arrival) -> member      an entry, under its stripe's lock
//!    first: candidate (10:00, 4)  --------------------> last touch 10:00: evicted
//!                                                       last touch 10:07: ranked again as (10:07, 4)
//! ```
//!
//! The order is a heap with lazy updates, beside the list of a group's members and under the
//! group's lock. A touch does not take that lock, so the order may know an older touch than the
//! entry does. The candidate's entry is asked before it is evicted.
//!
//! - **EVICT-1** The last touch of an entry never moves back. So the touch that the order knows is
//!   never later than the last one.
//! - **EVICT-2** The first member of the order is evicted if its real last touch is not later than
//!   the recorded touch of the second. By EVICT-1 every other member was then touched later.
//!   Comparison and eviction take one hold of the candidate's stripe's lock, so this holds at the
//!   moment of the eviction.
//! - **EVICT-3** A candidate that was touched since is ranked again. Without racing touches this
//!   happens once for each member at most. After two looks for each member the next candidate is
//!   evicted without a comparison. So racing touches do not keep an insertion from its end.
//! - **EVICT-4** A member that has left stays in the order until it comes first, or until the order
//!   is more than twice as long as the list of members.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::tick::Time;

use super::members::{Member, Members};

/// What a map does when an entry is inserted in a group that has as many entries as
/// [`max_per_group`](crate::ExpiryMapBuilder::max_per_group) allows.
///
/// Set it by [`when_group_full`](crate::ExpiryMapBuilder::when_group_full), which says what happens
/// to an evicted entry.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, GroupFull};
///
/// let sessions = ExpiryMap::<u64, &str>::builder()
///     .groups::<String>()
///     .max_per_group(1)
///     .when_group_full(GroupFull::EvictOldest)
///     .build(|_, expired| println!("session {} was signed out", expired.key))?;
/// sessions.entry(1).group("ada").insert("phone")?;
/// sessions.entry(2).group("ada").insert("laptop")?;
/// assert!(!sessions.contains(&1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum GroupFull {
    /// The insertion is refused with [`InsertRefusal::GroupFull`](crate::InsertRefusal::GroupFull).
    /// This is the default.
    #[default]
    Refuse,
    /// The entry that was inserted first is evicted. An entry that has replaced another one counts
    /// from its own insertion.
    EvictOldest,
    /// The entry whose last touch is longest ago is evicted. An insertion counts as a touch, and so
    /// does a call that moves the time to idle, such as `set_expiry`. A touch counts even if it
    /// can't move the deadline any more. Among entries that were touched at the same time, the one
    /// that was inserted first is evicted.
    EvictLeastRecentlyTouched,
}

/// The outcome of a look at a candidate, under its stripe's lock.
pub(super) enum Judged<M> {
    /// The entry was made to leave, with this membership.
    Evicted(M),
    /// The entry was touched later than allowed, at this time. It was not changed.
    Touched(Time),
    /// The entry has ended. Its membership will leave the group, or waits for the group's lock to
    /// do so.
    Ended,
}

/// The members of one group in the order in which they are evicted.
pub(super) struct EvictionOrder {
    ranked: BinaryHeap<Candidate>,
    /// The number of members that were added.
    arrivals: u64,
    by_touch: bool,
}

/// One member in the order. The greatest one comes first.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) member: Member,
    pub(super) number: u32,
    /// The last touch that is known; `Time::ZERO` if touches do not matter.
    touched: Time,
    /// The later an entry was inserted, the greater is its arrival.
    arrival: u64,
}

/// The size up to which the order keeps members that have left.
const FEW: usize = 4;

impl EvictionOrder {
    /// Makes the order of a new group, if full groups evict.
    pub(super) fn of(when_full: GroupFull) -> Option<Box<Self>> {
        let by_touch = match when_full {
            GroupFull::Refuse => return None,
            GroupFull::EvictOldest => false,
            GroupFull::EvictLeastRecentlyTouched => true,
        };
        Some(Box::new(EvictionOrder {
            ranked: BinaryHeap::new(),
            arrivals: 0,
            by_touch,
        }))
    }

    /// Adds the newest member.
    pub(super) fn add(&mut self, number: u32, member: Member, touched: Time) {
        if self.ranked.len() == self.ranked.capacity() {
            // Most groups have one or two members, and a heap would begin with memory for four.
            self.ranked.reserve_exact(self.ranked.len().max(1));
        }
        self.ranked.push(Candidate {
            member,
            number,
            touched: if self.by_touch { touched } else { Time::ZERO },
            arrival: self.arrivals,
        });
        self.arrivals += 1;
    }

    /// Takes the first member out, and drops those before it that have left.
    pub(super) fn take_first(&mut self, members: &Members) -> Option<Candidate> {
        loop {
            let first = self.ranked.pop()?;
            if first.is_current(members) {
                return Some(first);
            }
        }
    }

    /// Returns the latest touch at which the candidate, which was taken out, is evicted (EVICT-2).
    pub(super) fn latest(&self, candidate: &Candidate) -> Time {
        match self.ranked.peek() {
            Some(second) if self.by_touch => {
                // At the same time, the one that arrived first comes first. If that is the second,
                // it ranks behind the candidate by its touch, so there is a moment before that.
                let is_later = u64::from(candidate.arrival > second.arrival);
                Time::from_nanos(second.touched.as_nanos().saturating_sub(is_later))
            }
            _ => Time::MAX,
        }
    }

    /// Puts a candidate back, with the touch that was found.
    pub(super) fn rank_again(&mut self, candidate: Candidate, touched: Time) {
        self.ranked.push(Candidate {
            touched,
            ..candidate
        });
    }

    /// Notes the new place of a member whose entry has another key now. It keeps its rank. This
    /// takes linear time.
    pub(super) fn moved(&mut self, number: u32, from: Member, to: Member) {
        let mut ranked = std::mem::take(&mut self.ranked).into_vec();
        for candidate in &mut ranked {
            if candidate.number == number && candidate.member == from {
                candidate.member = to;
            }
        }
        self.ranked = ranked.into();
    }

    /// Removes members that have left, if there are many (EVICT-4). This takes amortized
    /// constant time for each member that has left.
    pub(super) fn tidy(&mut self, members: &Members) {
        if self.ranked.len() > 2 * members.count() + FEW {
            self.ranked
                .retain(|candidate| candidate.is_current(members));
            self.ranked.shrink_to(2 * self.ranked.len());
        }
    }
}

impl Candidate {
    /// Returns whether the member is still present.
    fn is_current(&self, members: &Members) -> bool {
        members.get(self.number) == Some(&self.member)
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |candidate: &Candidate| (candidate.touched, candidate.arrival);
        rank(other).cmp(&rank(self))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shard::EntryId;

    /// Members with the numbers from 0 on, whose arrival is their number.
    struct Crowd {
        members: Members,
        order: Box<EvictionOrder>,
        /// The real last touch of each.
        touched: Vec<Time>,
    }

    fn time(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    impl Crowd {
        fn new(policy: GroupFull, touched: &[u64]) -> Self {
            let mut crowd = Crowd {
                members: Members::new(),
                order: EvictionOrder::of(policy).expect("it evicts"),
                touched: Vec::new(),
            };
            for &touched in touched {
                crowd.add(touched);
            }
            crowd
        }

        fn add(&mut self, touched: u64) -> u32 {
            let number = self.members.enter().expect("there are numbers");
            let slot = self.touched.len() as u32;
            let id = EntryId {
                slot,
                generation: 1,
            };
            let member = Member { stripe: 0, id };
            self.members.tell(number, member);
            self.order.add(number, member, time(touched));
            self.touched.push(time(touched));
            number
        }

        /// Returns the slot of the member that is evicted, and the number of looks.
        fn evict(&mut self) -> Option<(u32, usize)> {
            for looks in 1.. {
                let first = self.order.take_first(&self.members)?;
                let touched = self.touched[first.member.id.slot as usize];
                if touched <= self.order.latest(&first) {
                    self.members.leave(first.number);
                    self.order.tidy(&self.members);
                    return Some((first.member.id.slot, looks));
                }
                self.order.rank_again(first, touched);
            }
            unreachable!("nobody touches")
        }
    }

    #[test]
    fn the_oldest_is_the_one_that_arrived_first_whatever_was_touched() {
        let mut crowd = Crowd::new(GroupFull::EvictOldest, &[9, 5, 7]);
        crowd.touched[0] = time(100);
        for slot in 0..3 {
            assert_eq!(crowd.evict(), Some((slot, 1)));
        }
        assert_eq!(crowd.evict(), None);
    }

    #[test]
    fn the_least_recently_touched_is_found_by_looks_at_those_that_were_touched() {
        let policy = GroupFull::EvictLeastRecentlyTouched;
        let mut crowd = Crowd::new(policy, &[1, 2, 3, 4, 5]);
        for (slot, touched) in [(0, 10), (1, 7), (2, 7)] {
            crowd.touched[slot] = time(touched);
        }
        // 0 to 2 were touched, and no others are looked at.
        assert_eq!(crowd.evict(), Some((3, 4)));
        assert_eq!(crowd.evict(), Some((4, 1)));
        // At the same time: by arrival. Nothing has to be looked at twice.
        assert_eq!(crowd.evict(), Some((1, 1)));
        assert_eq!(crowd.evict(), Some((2, 1)));
        // The only one is evicted whenever it was touched.
        crowd.touched[0] = time(99);
        assert_eq!(crowd.evict(), Some((0, 1)));
    }

    /// A candidate that was touched at the time of the second one comes before it only if it
    /// arrived before it.
    #[test]
    fn a_tie_is_decided_by_arrival_even_if_it_shows_only_at_a_look() {
        let policy = GroupFull::EvictLeastRecentlyTouched;
        let mut crowd = Crowd::new(policy, &[1, 8]);
        crowd.touched[0] = time(8);
        assert_eq!(crowd.evict(), Some((0, 1)));
        let mut crowd = Crowd::new(policy, &[8, 1]);
        crowd.touched[1] = time(8);
        assert_eq!(crowd.evict(), Some((0, 2)));
        assert_eq!(crowd.evict(), Some((1, 1)));
    }

    #[test]
    fn members_that_have_left_are_skipped_and_do_not_pile_up() {
        for policy in [GroupFull::EvictOldest, GroupFull::EvictLeastRecentlyTouched] {
            let mut crowd = Crowd::new(policy, &[1, 2]);
            for n in 0..1_000 {
                // The number is used again.
                let number = crowd.add(3 + n);
                crowd.members.leave(number);
                crowd.order.tidy(&crowd.members);
                assert!(crowd.order.ranked.len() <= 2 * 2 + FEW);
            }
            assert!(crowd.order.ranked.capacity() <= 4 * (2 + FEW));
            crowd.add(5_000);
            let evicted = [0; 3].map(|_| crowd.evict().map(|(slot, _)| slot));
            assert_eq!(evicted, [Some(0), Some(1), Some(1_002)]);
        }
    }

    #[test]
    fn a_group_that_refuses_has_no_order() {
        assert!(EvictionOrder::of(GroupFull::Refuse).is_none());
        let mut crowd = Crowd::new(GroupFull::EvictOldest, &[1]);
        assert_eq!(crowd.order.ranked.capacity(), 1);
        crowd.members.forget(0);
        assert_eq!(crowd.evict(), None, "who was forgotten is not evicted");
    }
}
