//! The members of one group, in a list that can shrink again.
//!
//! Each member has a number, by which it leaves in constant time. In most cases the number is the
//! member's position in the list. Free numbers are linked to a list and used again.
//!
//! The list shrinks when less than a quarter of its memory is used. Numbers can't be changed then:
//! they are stored in entries, each under the lock of a stripe. So a member whose number is behind
//! the new end is *displaced*: it moves to a free position, and a sorted list maps its number to
//! that position. When the list has grown up to its number again, the member moves back, and a new
//! member takes its place.
//!
//! - **MEMBER-1** Each position is held by one member, or free.
//! - **MEMBER-2** A member whose number is not in `displaced` is at the position of its number.
//! - **MEMBER-3** The number of a displaced member is behind the end, so it is no position.
//! - **MEMBER-4** There is memory for at most four times as many members as there are, or for
//!   [`LEAST`].
//! - **MEMBER-5** A member is *present* from its naming until it leaves or is forgotten. A
//!   forgotten member holds its position until it leaves.

use crate::shard::EntryId;
use crate::wheel::NO_ENTRY;

/// The number of members for which memory is always kept.
#[cfg(not(test))]
const LEAST: usize = 64;
/// A small number, so that tests with few members cross it often.
#[cfg(test)]
const LEAST: usize = 4;

/// Marks a free position, in the place of the stripe.
const FREE: u32 = u32::MAX;

/// The location of an entry in the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub(super) stripe: u32,
    pub(super) id: EntryId,
}

pub(super) struct Members {
    places: Vec<Member>,
    /// The first free position.
    free: u32,
    /// The number of positions that are held.
    count: usize,
    /// The number of members that are present (MEMBER-5).
    present: usize,
    /// Number and position of each displaced member, sorted by number. The position is `NO_ENTRY`
    /// when the member has left.
    displaced: Vec<(u32, u32)>,
}

impl Member {
    /// Makes a free position that links to the next free one.
    fn free(next: u32) -> Self {
        Member {
            stripe: FREE,
            id: EntryId::gone(next),
        }
    }

    /// Makes the placeholder of an entry that is being armed, or that was forgotten.
    fn coming() -> Self {
        Member {
            stripe: 0,
            id: EntryId::gone(NO_ENTRY),
        }
    }

    /// Returns what lists of members are sorted by: stripe, slot, generation.
    pub(super) fn order(&self) -> (u32, u32, u32) {
        (self.stripe, self.id.slot, self.id.generation)
    }

    /// Returns whether this is an armed entry, neither free nor a placeholder.
    fn is_there(&self) -> bool {
        self.id.generation != 0
    }

    /// Returns whether a member holds this position.
    fn is_held(&self) -> bool {
        self.is_there() || self.stripe != FREE
    }
}

impl Members {
    pub(super) fn new() -> Self {
        Members {
            places: Vec::new(),
            free: NO_ENTRY,
            count: 0,
            present: 0,
            displaced: Vec::new(),
        }
    }

    /// Returns the number of members that have a number, present or not.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of members that are present (MEMBER-5).
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// Adds a member and returns its number, if there is a free number. [`tell`](Self::tell) names
    /// the member later.
    pub(super) fn enter(&mut self) -> Option<u32> {
        let mut number = self.free;
        if number != NO_ENTRY {
            // A free position is used again.
            let place = &mut self.places[number as usize];
            self.free = place.id.slot;
            *place = Member::coming();
        } else {
            let end = u32::try_from(self.places.len()).ok()?;
            if end == NO_ENTRY {
                return None;
            }
            number = end;
            let mut comes = Member::coming();
            if let Some(at) = self.displaced_at(end) {
                // MEMBER-3: the list has grown up to the number of a displaced member, which moves
                // back. The new member gets the position that it leaves.
                number = std::mem::replace(&mut self.displaced[at].1, NO_ENTRY);
                std::mem::swap(&mut self.places[number as usize], &mut comes);
            }
            self.places.push(comes);
        }
        self.count += 1;
        Some(number)
    }

    /// Names the member that got `number`.
    pub(super) fn tell(&mut self, number: u32, member: Member) {
        let position = self.position(number);
        self.places[position as usize] = member;
        self.present += 1;
    }

    /// Names a member anew, whose entry has another id now.
    pub(super) fn renamed(&mut self, number: u32, member: Member) {
        let position = self.position(number);
        self.places[position as usize] = member;
    }

    /// Makes a member that was named count no more. Its number stays in use until it leaves.
    pub(super) fn forget(&mut self, number: u32) {
        let position = self.position(number);
        self.places[position as usize] = Member::coming();
        self.present -= 1;
    }

    pub(super) fn get(&self, number: u32) -> Option<&Member> {
        self.places.get(self.position(number) as usize)
    }

    /// Removes a member. This takes amortized constant time; a displaced member adds a binary
    /// search.
    pub(super) fn leave(&mut self, number: u32) {
        let position = match self.displaced_at(number) {
            Some(at) => std::mem::replace(&mut self.displaced[at].1, NO_ENTRY),
            None => number,
        };
        let place = &mut self.places[position as usize];
        self.present -= usize::from(place.is_there());
        *place = Member::free(self.free);
        self.free = position;
        self.count -= 1;
        let room = self.places.capacity();
        // MEMBER-4.
        if room > LEAST && 4 * self.count < room {
            self.shrink();
        }
    }

    /// Returns a copy of all members that were named.
    pub(super) fn to_vec(&self) -> Vec<Member> {
        let mut all = Vec::with_capacity(self.present);
        all.extend(self.places.iter().filter(|member| member.is_there()));
        all
    }

    /// Returns the position of the member `number` (MEMBER-2).
    fn position(&self, number: u32) -> u32 {
        match self.displaced_at(number) {
            Some(at) => self.displaced[at].1,
            None => number,
        }
    }

    /// Returns the index of a displaced member in `displaced`.
    fn displaced_at(&self, number: u32) -> Option<usize> {
        if self.displaced.is_empty() {
            return None;
        }
        let found = self
            .displaced
            .binary_search_by_key(&number, |(own, _)| *own);
        found.ok().filter(|at| self.displaced[*at].1 != NO_ENTRY)
    }

    /// Halves the memory at least. Half of the new memory is free. So half of the members must
    /// leave before it shrinks again, or as many must come before it grows.
    #[cold]
    #[inline(never)]
    fn shrink(&mut self) {
        // Fewer than there are positions now, since those take more than half of their memory.
        let end = (2 * self.count).max(LEAST / 2);
        let mut free = 0;
        let mut moved_to = |places: &mut Vec<Member>, from: usize| {
            while places[free].is_held() {
                free += 1;
            }
            places.swap(from, free);
            free as u32
        };
        // Displaced members that are behind the new end as well move once more.
        self.displaced.retain(|(_, position)| *position != NO_ENTRY);
        for (_, position) in &mut self.displaced {
            if *position as usize >= end {
                *position = moved_to(&mut self.places, *position as usize);
            }
        }
        // MEMBER-3: these numbers are less than those that were displaced earlier, so the list
        // stays sorted.
        let mut displaced = Vec::with_capacity(self.count);
        for number in end..self.places.len() {
            if self.places[number].is_held() {
                displaced.push((number as u32, moved_to(&mut self.places, number)));
            }
        }
        displaced.append(&mut self.displaced);
        self.displaced = displaced;
        self.places.truncate(end);
        self.places.shrink_to(end);
        // The free list is built anew: it may contain positions that were cut off or taken.
        self.free = NO_ENTRY;
        for (position, place) in (0..).zip(&mut self.places) {
            if !place.is_held() {
                *place = Member::free(std::mem::replace(&mut self.free, position));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn member(number: u32) -> Member {
        Member {
            stripe: number % 3,
            id: EntryId {
                slot: number,
                generation: 1,
            },
        }
    }

    impl Members {
        /// Returns the number of members that fit into the memory.
        pub(in crate::expiry) fn room(&self) -> usize {
            self.places.capacity() + self.displaced.capacity()
        }

        fn check(&self) {
            let held = self.places.iter().filter(|place| place.is_held());
            assert_eq!(
                held.count(),
                self.count,
                "MEMBER-1: every held position counts"
            );
            assert_eq!(
                self.to_vec().len(),
                self.present,
                "MEMBER-5: every member that is present is named"
            );
            let mut free = 0;
            let mut next = self.free;
            while next != NO_ENTRY {
                assert!(
                    !self.places[next as usize].is_held(),
                    "MEMBER-1: a free position is not held"
                );
                next = self.places[next as usize].id.slot;
                free += 1;
            }
            assert_eq!(
                self.count + free,
                self.places.len(),
                "MEMBER-1: every position is held or free"
            );
            for &(number, position) in &self.displaced {
                if position != NO_ENTRY {
                    assert!(
                        self.places[position as usize].is_held(),
                        "MEMBER-2: a displaced member holds its position"
                    );
                    assert!(
                        number as usize >= self.places.len(),
                        "MEMBER-3: its number is no position"
                    );
                }
            }
            let room = self.places.capacity();
            assert!(room <= LEAST.max(4 * self.count), "MEMBER-4: {room}");
        }
    }

    struct Sequence(u64);

    impl Sequence {
        fn below(&mut self, end: usize) -> usize {
            self.0 = crate::shard::splitmix64(self.0);
            (self.0 >> 32) as usize % end
        }
    }

    /// Fills and nearly empties the list in waves, each to another size.
    #[test]
    fn it_does_what_a_map_does_while_it_grows_and_shrinks() {
        for seed in 0..200 {
            let mut rng = Sequence(seed);
            let mut members = Members::new();
            let mut model = BTreeMap::new();
            let mut next = 0;
            for wave in 0..12 {
                let size = if wave % 2 == 0 {
                    1 + rng.below(200)
                } else {
                    rng.below(12)
                };
                while model.len() != size {
                    let grows = (model.len() < size) ^ (rng.below(4) == 0);
                    if grows || model.is_empty() {
                        let number = members.enter().unwrap();
                        assert_eq!(members.to_vec().len(), model.len());
                        members.check();
                        members.tell(number, member(next));
                        assert_eq!(
                            model.insert(number, member(next)),
                            None,
                            "no two members share a number"
                        );
                        next += 1;
                    } else {
                        let at = rng.below(model.len());
                        let number = *model.keys().nth(at).unwrap();
                        model.remove(&number);
                        if rng.below(3) == 0 {
                            members.forget(number);
                            members.check();
                            assert_eq!(members.present(), model.len());
                            assert_eq!(members.count(), model.len() + 1);
                        }
                        members.leave(number);
                    }
                    members.check();
                    assert_eq!(members.count(), model.len());
                    assert_eq!(members.present(), model.len());
                }
                for (number, member) in &model {
                    assert_eq!(members.get(*number), Some(member));
                }
                let mut all = members.to_vec();
                all.sort_unstable_by_key(|member| member.id.slot);
                let mut expected: Vec<_> = model.values().copied().collect();
                expected.sort_unstable_by_key(|member| member.id.slot);
                assert_eq!(all, expected);
            }
        }
    }

    /// Two members with the highest numbers are left; one of them is still being armed.
    #[test]
    fn who_is_left_is_found_by_the_number_it_had() {
        let mut members = Members::new();
        let numbers: Vec<_> = (0..100_000).map(|_| members.enter().unwrap()).collect();
        for &number in &numbers[..99_999] {
            members.tell(number, member(number));
        }
        for &number in &numbers[..99_998] {
            members.leave(number);
        }
        assert!(members.room() <= 16, "{}", members.room());
        assert_eq!(members.to_vec(), [member(99_998)]);
        members.tell(99_999, member(7));
        assert_eq!(members.get(99_998), Some(&member(99_998)));
        assert_eq!(members.get(99_999), Some(&member(7)));
        members.leave(99_998);
        members.leave(99_999);
        assert_eq!((members.count(), members.to_vec()), (0, Vec::new()));
    }

    /// Repeated growing and shrinking between a tenth and all of a size costs only a few moves per
    /// change.
    #[test]
    fn coming_and_going_pays_for_a_smaller_list_once_in_a_while() {
        let mut members = Members::new();
        let mut numbers = Vec::new();
        let mut changes = 0;
        let mut moved = 0;
        for _ in 0..50 {
            for size in [1_000, 100] {
                while numbers.len() < size {
                    numbers.push(members.enter().unwrap());
                    changes += 1;
                }
                while numbers.len() > size {
                    let before = members.places.capacity();
                    members.leave(numbers.pop().unwrap());
                    changes += 1;
                    if members.places.capacity() != before {
                        moved += before;
                    }
                }
            }
        }
        assert!(moved > 0 && moved <= 4 * changes, "{moved} of {changes}");
    }
}
