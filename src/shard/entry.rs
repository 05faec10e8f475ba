//! The entries of a stripe and their state transitions.
//!
//! ```text
//!           arm                       expire                        claim
//!  (free) -------> Pending ---------------------> Queued -----------------> Running -complete-> (free)
//!           touch/   |  ^  cancel -> (free)          | cancel -> (free)        |  successor: Pending,
//!       reschedule '---'  replace: generation+1     | touch -> Pending        '- or Queued if it is due
//! ```
//!
//! | | arm | touch | cancel | expire | claim |
//! |---|---|---|---|---|---|
//! | Free | Pending, or Queued if due | not found | not found | - | the slot goes back to the free list |
//! | Pending | replaced, generation + 1 | moved | Free | Queued | nothing |
//! | Queued | replaced, Pending or Queued | Pending or Queued | Free | - | Running |
//! | Running | successor added | successor moved, else running | successor cancelled, run marked | - | - |
//!
//! Invariants:
//!
//! - **ENTRY-1** A slot has at most one ticket under way, and its `ticket` bit is set meanwhile.
//!   Only the claim clears the bit.
//! - **ENTRY-2** A slot with the bit set is never on the free list: the claim of its ticket puts it
//!   there.
//! - **ENTRY-3** Generations of a slot only grow. A slot whose generations are exhausted is not
//!   used again.
//! - **ENTRY-4** A Running slot has no ticket, and exactly one entry in the stripe's list of runs.
//! - **ENTRY-5** A Pending entry is staged or filed in the wheel, unless its deadline is
//!   `Time::MAX`. No other entry is staged or filed.
//! - **ENTRY-6** No id (slot and generation) is given out twice. `shrink_to_fit` cuts free slots
//!   off the end of the table, and the table may grow again. A slot that comes back begins above
//!   every generation that was cut off in its block ([`Floors`]).

use crate::tick::{Tick, TickSize, Time};
use crate::wheel::{EntryStore, NO_ENTRY, Slab, WheelPosition};

/// A slot of the table. With a `u64` key and a payload of 8 bytes it takes 40 bytes, which the
/// assertion below checks: the layout decides what a touch costs.
pub(super) enum Slot<K, V> {
    /// Pending or Queued.
    Armed(Armed<K, V>),
    /// The payload runs.
    Running(Busy<K>),
    /// Not in use.
    Free(Vacant),
}

const _: () = assert!(size_of::<Slot<u64, u64>>() == 40);
// A boxed task, and a value of a map with its time to idle and the end of its lifetime. DESIGN has
// a table of these bytes.
const _: () = assert!(size_of::<Slot<u64, [u64; 2]>>() == 48);
const _: () = assert!(size_of::<Slot<u64, [u64; 3]>>() == 56);

/// An entry that is Pending or Queued. What a touch reads comes last, so that it is in one cache
/// line rather than in two. A map's payload has its times at its end.
#[repr(C)]
pub(super) struct Armed<K, V> {
    pub(super) hash: u32,
    pub(super) generation: u32,
    pub(super) value: V,
    pub(super) key: K,
    pub(super) deadline: Time,
    /// Position in the slot of the wheel, or among the staged entries. While the entry is Queued:
    /// how late it was collected, in microseconds.
    pub(super) position: u32,
    /// The slot of the wheel that the entry is filed in, or one of the special places.
    pub(super) wheel_position: WheelPosition,
    pub(super) phase: Phase,
    /// Whether a ticket for the slot is under way (ENTRY-1).
    pub(super) ticket: bool,
}

impl<K, V> Armed<K, V> {
    /// Makes a Pending entry that is neither staged nor filed.
    #[inline(always)]
    pub(super) fn new(key: K, value: V, deadline: Time, hash: u32, generation: u32) -> Self {
        Armed {
            key,
            value,
            deadline,
            hash,
            generation,
            position: 0,
            wheel_position: WheelPosition::NONE,
            phase: Phase::Pending,
            ticket: false,
        }
    }

    /// Moves the entry to `deadline` if writing it down is enough, and returns whether it was. The
    /// ticker then files the entry again when it gets there.
    #[inline(always)]
    pub(super) fn put_off(&mut self, deadline: Time, now: Time) -> bool {
        deadline > now && deadline != Time::MAX && self.put_off_to_future(deadline)
    }

    /// Moves the entry to `deadline` if writing it down is enough. The caller knows that the
    /// deadline is not `Time::MAX`, and that it lies in the future or that a later look at an
    /// overdue entry is soon enough.
    ///
    /// WHEEL-3: a filed or staged entry is looked at no later than at its old deadline, or at the
    /// wheel's present. So a deadline that is not earlier, as in most touches, needs no look at the
    /// wheel.
    #[inline(always)]
    pub(super) fn put_off_to_future(&mut self, deadline: Time) -> bool {
        // ENTRY-5: no Queued entry is staged or filed.
        let is_filed = self.wheel_position != WheelPosition::NONE;
        debug_assert!(!is_filed || self.phase == Phase::Pending, "ENTRY-5");
        let is_enough = is_filed && deadline >= self.deadline;
        if is_enough {
            self.deadline = deadline;
        }
        is_enough
    }
}

/// Phase of an entry whose payload does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Pending,
    Queued,
}

/// An entry whose payload runs. The payload is out, the key stays for lookups, and everything else
/// is in the stripe's list of runs.
pub(super) struct Busy<K> {
    pub(super) key: K,
    pub(super) hash: u32,
    /// The newest generation given out: that of the successor, or that of the run.
    pub(super) newest: u32,
    /// Index of the run in the stripe's list of runs.
    pub(super) run: u32,
}

/// A slot that is not in use.
pub(super) struct Vacant {
    next: u32,
    /// The last generation that was used.
    pub(super) generation: u32,
    /// How the arming of that generation ended.
    pub(super) end: End,
    ticket: bool,
}

/// The way in which the last arming of a free slot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Ran,
    Cancelled,
    HandedBack,
}

const NIL: u32 = NO_ENTRY;

/// A slot of this generation or a later one is never cut off. Otherwise, all slots of its block
/// would later begin that high, and be exhausted soon.
const OLD: u32 = 1 << 30;

/// Number of consecutive slots that share one value in [`Floors`]. A slot that was used very often
/// must not make all other slots begin at its generation.
const BLOCK: u32 = 1 << 12;

/// The greatest generation that was cut off, for each block of slot numbers (ENTRY-6). It is kept
/// outside of the table, so that the fields that every call reads stay together.
#[derive(Default)]
pub(super) struct Floors(Vec<u32>);

impl Floors {
    /// Returns the first generation of a new slot with this number.
    fn first(&self, slot: u32) -> u32 {
        self.0
            .get((slot / BLOCK) as usize)
            .map_or(1, |floor| floor + 1)
    }

    /// Notes that `slot` was cut off after `generation`.
    fn raise(&mut self, slot: u32, generation: u32) {
        let block = (slot / BLOCK) as usize;
        if self.0.len() <= block {
            self.0.resize(block + 1, 0);
        }
        self.0[block] = self.0[block].max(generation);
    }
}

/// All entries of a stripe, with their free list.
#[repr(C)]
pub(super) struct Table<K, V> {
    slots: Slab<Slot<K, V>>,
    /// First slot of the free list, or `NIL`.
    free: u32,
    /// Whether a shutdown runs everything at once: then every entry that would be filed is due.
    pub(super) all_due: bool,
    tick: TickSize,
}

impl<K, V> Table<K, V> {
    pub(super) fn new(tick: TickSize) -> Self {
        Table {
            slots: Slab::new(),
            free: NIL,
            tick,
            all_due: false,
        }
    }

    pub(super) fn tick(&self) -> TickSize {
        self.tick
    }

    /// Returns the number of slots, used and free.
    pub(super) fn len(&self) -> u32 {
        self.slots.len()
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> Option<&Slot<K, V>> {
        self.slots.get(slot)
    }

    /// Returns the entry in `slot` if it is Pending or Queued.
    #[inline]
    pub(super) fn armed(&self, slot: u32) -> Option<&Armed<K, V>> {
        match self.slots.get(slot) {
            Some(Slot::Armed(armed)) => Some(armed),
            _ => None,
        }
    }

    /// Returns the entry in `slot` for changes if it is Pending or Queued.
    #[inline]
    pub(super) fn armed_mut(&mut self, slot: u32) -> Option<&mut Armed<K, V>> {
        match self.slots.get_mut(slot) {
            Some(Slot::Armed(armed)) => Some(armed),
            _ => None,
        }
    }

    /// Returns the entry in `slot` for changes if it is Running.
    pub(super) fn busy_mut(&mut self, slot: u32) -> Option<&mut Busy<K>> {
        match self.slots.get_mut(slot) {
            Some(Slot::Running(busy)) => Some(busy),
            _ => None,
        }
    }

    /// Returns the key in a slot that is in use.
    #[inline]
    pub(super) fn key(&self, slot: u32) -> Option<&K> {
        match self.slots.get(slot) {
            Some(Slot::Armed(armed)) => Some(&armed.key),
            Some(Slot::Running(busy)) => Some(&busy.key),
            Some(Slot::Free(_)) | None => None,
        }
    }

    /// Returns whether there is a free slot. Callers ask before they change anything.
    pub(super) fn has_room(&self) -> bool {
        self.free != NIL || self.slots.has_room()
    }

    /// Takes a free slot and fills it with the entry that `make` builds for the new generation.
    /// Returns the slot and the generation. There is a free slot, since
    /// [`has_room`](Self::has_room) was asked under the same lock.
    #[inline(always)]
    pub(super) fn occupy(
        &mut self,
        floors: &Floors,
        make: impl FnOnce(u32) -> Armed<K, V>,
    ) -> (u32, u32) {
        if self.free == NIL {
            self.add_slot(floors);
        }
        let slot = self.free;
        let entry = &mut self.slots[slot];
        let Slot::Free(vacant) = entry else {
            unreachable!("ENTRY-2: only free slots are on the free list");
        };
        let (generation, next) = (vacant.generation + 1, vacant.next);
        *entry = Slot::Armed(make(generation));
        self.free = next;
        (slot, generation)
    }

    /// Adds a slot to the empty free list.
    #[inline(never)]
    fn add_slot(&mut self, floors: &Floors) {
        let vacant = Vacant {
            next: NIL,
            generation: floors.first(self.slots.len()) - 1,
            end: End::Ran,
            ticket: false,
        };
        match self.slots.push(Slot::Free(vacant)) {
            Ok(slot) => self.free = slot,
            Err(_) => unreachable!("`has_room` returned true under this lock"),
        }
    }

    /// Frees a slot in use and returns its content, which the caller drops after unlocking.
    #[inline(always)]
    pub(super) fn vacate(&mut self, slot: u32, end: End) -> Slot<K, V> {
        let entry = &mut self.slots[slot];
        let (generation, ticket) = match entry {
            Slot::Armed(armed) => (armed.generation, armed.ticket),
            Slot::Running(busy) => (busy.newest, false),
            Slot::Free(_) => unreachable!("only a slot in use is vacated"),
        };
        Self::free(entry, &mut self.free, slot, generation, ticket, end)
    }

    /// Frees a slot if its entry is Pending or Queued and `is_it` returns true for that. Returns
    /// the entry.
    #[inline(always)]
    pub(super) fn vacate_armed(
        &mut self,
        slot: u32,
        end: End,
        is_it: impl FnOnce(&Armed<K, V>) -> bool,
    ) -> Option<Armed<K, V>> {
        let entry = self.slots.get_mut(slot)?;
        let Slot::Armed(armed) = entry else {
            return None;
        };
        if !is_it(armed) {
            return None;
        }
        let (generation, ticket) = (armed.generation, armed.ticket);
        match Self::free(entry, &mut self.free, slot, generation, ticket, end) {
            Slot::Armed(armed) => Some(armed),
            // Forgotten: the code of a drop would keep the entry above in memory.
            other => {
                std::mem::forget(other);
                unreachable!("it was armed")
            }
        }
    }

    /// Writes a vacant slot over `entry`, and returns what was in it.
    #[inline(always)]
    fn free(
        entry: &mut Slot<K, V>,
        first_free: &mut u32,
        slot: u32,
        generation: u32,
        ticket: bool,
        end: End,
    ) -> Slot<K, V> {
        // Otherwise the claim of the ticket lists the slot (ENTRY-2), or it is retired (ENTRY-3).
        let is_listed = Self::may_be_listed(generation, ticket);
        let vacant = Vacant {
            next: if is_listed { *first_free } else { NIL },
            generation,
            end,
            ticket,
        };
        let content = std::mem::replace(entry, Slot::Free(vacant));
        if is_listed {
            *first_free = slot;
        }
        content
    }

    /// Returns whether a slot belongs on the free list: no ticket is under way for it (ENTRY-2),
    /// and it has a generation left (ENTRY-3).
    fn may_be_listed(generation: u32, ticket: bool) -> bool {
        !ticket && generation < u32::MAX
    }

    /// Notes that the ticket of a slot came back. If the slot is free, it joins the free list.
    pub(super) fn ticket_back(&mut self, slot: u32) {
        if let Slot::Free(vacant) = &mut self.slots[slot] {
            debug_assert!(vacant.ticket, "ENTRY-1: one ticket per slot");
            vacant.ticket = false;
            if Self::may_be_listed(vacant.generation, vacant.ticket) {
                vacant.next = self.free;
                self.free = slot;
            }
        }
    }

    /// Turns an armed entry into a Running one, whose index in the list of runs is `run`. Returns
    /// the payload, the deadline, the generation and the position.
    pub(super) fn start(&mut self, slot: u32, run: u32) -> Option<(V, Time, u32, u32)> {
        // The key moves from one variant into another, so the slot is empty for a moment. Nothing
        // in between can panic.
        let hole = Slot::Free(Vacant {
            next: NIL,
            generation: 0,
            end: End::Ran,
            ticket: false,
        });
        match std::mem::replace(&mut self.slots[slot], hole) {
            Slot::Armed(armed) => {
                self.slots[slot] = Slot::Running(Busy {
                    key: armed.key,
                    hash: armed.hash,
                    newest: armed.generation,
                    run,
                });
                Some((
                    armed.value,
                    armed.deadline,
                    armed.generation,
                    armed.position,
                ))
            }
            other => {
                self.slots[slot] = other;
                None
            }
        }
    }

    /// Turns a Running entry into a Pending one with the fields of its successor.
    pub(super) fn resume(&mut self, slot: u32, value: V, deadline: Time, generation: u32) {
        let hole = Slot::Free(Vacant {
            next: NIL,
            generation: 0,
            end: End::Ran,
            ticket: false,
        });
        let Slot::Running(busy) = std::mem::replace(&mut self.slots[slot], hole) else {
            unreachable!("only a Running slot is resumed");
        };
        self.slots[slot] = Slot::Armed(Armed {
            key: busy.key,
            value,
            deadline,
            hash: busy.hash,
            generation,
            position: 0,
            wheel_position: WheelPosition::NONE,
            phase: Phase::Pending,
            ticket: false,
        });
    }

    /// Moves a Running entry to a fresh slot and returns that slot's number. It is called when half
    /// of the generations of its slot are used, so that arming the key during the run finds
    /// generations left.
    ///
    /// The old slot is retired. Ids of the run in progress then answer NotFound. Returns `None` if
    /// there is no fresh slot, and then changes nothing.
    pub(super) fn move_to_fresh_slot(&mut self, slot: u32, floors: &Floors) -> Option<u32> {
        let Slot::Running(busy) = &self.slots[slot] else {
            return None;
        };
        if !self.has_room() {
            return None;
        }
        // ENTRY-3: the old slot never joins the free list again. It would be first in the list, and
        // be taken at once.
        let retired = Slot::Free(Vacant {
            next: NIL,
            generation: busy.newest,
            end: End::Ran,
            ticket: false,
        });
        let Slot::Running(mut busy) = std::mem::replace(&mut self.slots[slot], retired) else {
            unreachable!("the slot was Running when it was checked above");
        };
        if self.slots.has_room() {
            // A new slot is better than a free one, whose generations may be used up as far.
            busy.newest = floors.first(self.slots.len());
            return self.slots.push(Slot::Running(busy)).ok();
        }
        let fresh = self.free;
        let Slot::Free(vacant) = &self.slots[fresh] else {
            unreachable!("ENTRY-2: only free slots are on the free list");
        };
        busy.newest = vacant.generation + 1;
        self.free = vacant.next;
        self.slots[fresh] = Slot::Running(busy);
        Some(fresh)
    }

    /// Removes the free slots behind the last slot in use and returns their memory. Afterwards the
    /// lowest free slots are taken first, so that later calls can cut off more.
    ///
    /// Only slots on the free list are cut off: they have no ticket under way (ENTRY-2) and are not
    /// retired (ENTRY-3).
    pub(super) fn shrink_to_fit(&mut self, floors: &mut Floors) {
        // A retired slot is stored like a free one, so only the list itself shows which slots are
        // on it.
        let mut listed = vec![0_u64; self.slots.len().div_ceil(u64::BITS) as usize];
        let mut next = self.free;
        while let Some(Slot::Free(vacant)) = self.slots.get(next) {
            listed[(next / u64::BITS) as usize] |= 1 << (next % u64::BITS);
            next = vacant.next;
        }
        let is_listed =
            |slot: u32| listed[(slot / u64::BITS) as usize] >> (slot % u64::BITS) & 1 != 0;
        while let Some(last) = self.slots.len().checked_sub(1)
            && let Slot::Free(Vacant { generation, .. }) = self.slots[last]
            && generation < OLD
            && is_listed(last)
        {
            // ENTRY-6: a slot that comes back with this number must not repeat an id.
            floors.raise(last, generation);
            self.slots.pop();
        }
        // The list is rebuilt from the highest slot down, so that the lowest slots come first.
        self.free = NIL;
        for slot in (0..self.slots.len()).rev().filter(|slot| is_listed(*slot)) {
            if let Slot::Free(vacant) = &mut self.slots[slot] {
                vacant.next = std::mem::replace(&mut self.free, slot);
            }
        }
        self.slots.shrink_to_fit();
    }

    /// Returns the number of slots that there is memory for.
    #[cfg(all(test, not(loom)))]
    pub(super) fn room(&self) -> usize {
        self.slots.room()
    }

    /// Returns whether the slot is on the free list, by walking the list.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_listed_free(&self, slot: u32) -> bool {
        let mut next = self.free;
        while next != slot {
            match self.slots.get(next) {
                Some(Slot::Free(vacant)) => next = vacant.next,
                _ => return false,
            }
        }
        true
    }

    /// Limits the number of slots of an empty table.
    #[cfg(all(test, not(loom)))]
    pub(super) fn limit_slots(&mut self, most: u32) {
        assert_eq!(self.len(), 0);
        self.slots = Slab::with_capacity_limit(most);
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn set_generation(&mut self, slot: u32, generation: u32) {
        match &mut self.slots[slot] {
            Slot::Armed(armed) => armed.generation = generation,
            Slot::Running(busy) => busy.newest = generation,
            Slot::Free(vacant) => vacant.generation = generation,
        }
    }
}

impl<K, V> EntryStore for Table<K, V> {
    fn due(&self, id: u32) -> Tick {
        if self.all_due {
            // A shutdown has made all entries due. An entry that is filed after that must not wait
            // for its deadline.
            return Tick::ZERO;
        }
        self.armed(id)
            .map_or(Tick::ZERO, |armed| self.tick.at_or_after(armed.deadline))
    }

    fn wheel_position(&self, id: u32) -> (WheelPosition, u32) {
        self.armed(id).map_or((WheelPosition::NONE, 0), |armed| {
            (armed.wheel_position, armed.position)
        })
    }

    fn set_wheel_position(&mut self, id: u32, wheel_position: WheelPosition, position: u32) {
        if let Some(armed) = self.armed_mut(id) {
            armed.wheel_position = wheel_position;
            armed.position = position;
        }
    }
}
