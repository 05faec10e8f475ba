//! The entries of a stripe and what may happen to them.
//!
//! ```text
//!           arm                       expire                        claim
//!  (free) -------> Pending ---------------------> Queued -----------------> Running --settle--> (free)
//!          touch/   |  ^  cancel -> (free)          | cancel -> (free)        |  a kept arming: Pending,
//!       reschedule '---'  replace: generation+1     | touch -> Pending        '- or Queued if it is due
//! ```
//!
//! | | arm | touch | cancel | expire | claim |
//! |---|---|---|---|---|---|
//! | Free | Pending, or Queued if due | not found | not found | - | the slot goes back to the free list |
//! | Pending | replaced, generation + 1 | moved | Free | Queued | nothing |
//! | Queued | replaced, Pending or Queued | Pending or Queued | Free | - | Running |
//! | Running | kept (or the kept one replaced) | the kept one moved, else running | the kept one cancelled; the run is told | - | - |
//!
//! Invariants:
//!
//! - **ENTRY-1** A slot has at most one ticket under way; its `ticket` bit says so. Only the claim
//!   clears it.
//! - **ENTRY-2** A slot with the bit set is never on the free list: the claim of its ticket puts it
//!   there.
//! - **ENTRY-3** Generations of a slot only grow; a slot whose generations are used up is not used
//!   again.
//! - **ENTRY-4** A Running slot has no ticket and one line in the stripe's list of runs.
//! - **ENTRY-5** Pending entries are staged, or filed in the wheel, unless their deadline is
//!   `Time::MAX`; others never are.
//! - **ENTRY-6** No id, slot and generation, is given out twice. A slot that was cut off may come
//!   back: it then begins above every generation that was cut off in its block ([`Floors`]).

use crate::tick::{Tick, TickSize, Time};
use crate::wheel::{Entries, NO_ENTRY, Place, Slab};

/// One slot. With a `u64` key and a payload of 8 bytes it takes 40 bytes, which the assertion below
/// holds: the layout decides what a touch costs.
pub(super) enum Slot<K, V> {
    Armed(Armed<K, V>),
    Running(Busy<K>),
    Free(Vacant),
}

const _: () = assert!(size_of::<Slot<u64, u64>>() == 40);

/// Pending or Queued.
pub(super) struct Armed<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) deadline: Time,
    pub(super) hash: u32,
    pub(super) generation: u32,
    /// Where in its slot of the wheel, or among the staged; while Queued: how late it was
    /// collected, in microseconds.
    pub(super) position: u32,
    pub(super) place: Place,
    pub(super) phase: Phase,
    pub(super) ticket: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Pending,
    Queued,
}

/// Running: the payload is out, the key stays for lookups, the rest is in the list of runs.
pub(super) struct Busy<K> {
    pub(super) key: K,
    pub(super) hash: u32,
    /// The newest generation given out: the kept arming's, or the running one's.
    pub(super) newest: u32,
    /// Its line in the stripe's list of runs.
    pub(super) run: u32,
}

pub(super) struct Vacant {
    next: u32,
    /// The last generation that was used.
    pub(super) generation: u32,
    pub(super) end: End,
    ticket: bool,
}

/// How the last arming of a free slot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Ran,
    Cancelled,
    HandedBack,
}

const NIL: u32 = NO_ENTRY;

/// A slot of this generation or a later one is not cut off. All slots of its block would begin
/// there when they come back, and be worn soon.
const OLD: u32 = 1 << 30;

/// Slots in a row with one entry in [`Floors`]: one slot that was used very often must not make all
/// others begin there.
const BLOCK: u32 = 1 << 12;

/// ENTRY-6: the greatest generation that was cut off, by block of slot numbers. Kept outside of the
/// table, so that what every call reads stays together.
#[derive(Default)]
pub(super) struct Floors(Vec<u32>);

impl Floors {
    /// The generation that a new slot with this number begins with.
    fn first(&self, slot: u32) -> u32 {
        self.0
            .get((slot / BLOCK) as usize)
            .map_or(1, |floor| floor + 1)
    }

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
    free: u32,
    /// Shutdown by running everything at once: whatever would be filed is due.
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

    /// How many slots there are, used and free.
    pub(super) fn len(&self) -> u32 {
        self.slots.len()
    }

    pub(super) fn slot(&self, slot: u32) -> Option<&Slot<K, V>> {
        self.slots.get(slot)
    }

    pub(super) fn armed(&self, slot: u32) -> Option<&Armed<K, V>> {
        match self.slots.get(slot) {
            Some(Slot::Armed(armed)) => Some(armed),
            _ => None,
        }
    }

    pub(super) fn armed_mut(&mut self, slot: u32) -> Option<&mut Armed<K, V>> {
        match self.slots.get_mut(slot) {
            Some(Slot::Armed(armed)) => Some(armed),
            _ => None,
        }
    }

    pub(super) fn busy_mut(&mut self, slot: u32) -> Option<&mut Busy<K>> {
        match self.slots.get_mut(slot) {
            Some(Slot::Running(busy)) => Some(busy),
            _ => None,
        }
    }

    /// The key in a used slot.
    pub(super) fn key(&self, slot: u32) -> Option<&K> {
        match self.slots.get(slot) {
            Some(Slot::Armed(armed)) => Some(&armed.key),
            Some(Slot::Running(busy)) => Some(&busy.key),
            Some(Slot::Free(_)) | None => None,
        }
    }

    /// Whether a slot can be had; asked before anything is changed.
    pub(super) fn has_room(&self) -> bool {
        self.free != NIL || self.slots.has_room()
    }

    /// Takes a free slot and returns it with its new generation, which `make` stamps. There is one:
    /// [`has_room`](Self::has_room) was asked under the same lock.
    #[inline]
    pub(super) fn occupy(
        &mut self,
        floors: &Floors,
        make: impl FnOnce(u32) -> Armed<K, V>,
    ) -> (u32, u32) {
        if self.free == NIL {
            let generation = floors.first(self.slots.len());
            return match self.slots.push(Slot::Armed(make(generation))) {
                Ok(slot) => (slot, generation),
                Err(_) => unreachable!("has_room said so"),
            };
        }
        let slot = self.free;
        let entry = &mut self.slots[slot];
        let Slot::Free(vacant) = entry else {
            unreachable!("ENTRY-2: only free slots are on the free list");
        };
        let generation = vacant.generation + 1;
        self.free = vacant.next;
        *entry = Slot::Armed(make(generation));
        (slot, generation)
    }

    /// Frees a used slot and returns what was in it, to be dropped outside the lock.
    #[inline]
    pub(super) fn vacate(&mut self, slot: u32, end: End) -> Slot<K, V> {
        let entry = &mut self.slots[slot];
        let (generation, ticket) = match entry {
            Slot::Armed(armed) => (armed.generation, armed.ticket),
            Slot::Running(busy) => (busy.newest, false),
            Slot::Free(_) => unreachable!("a used slot is vacated"),
        };
        let mut next = NIL;
        if Self::may_be_listed(generation, ticket) {
            next = self.free;
            self.free = slot;
        }
        let vacant = Vacant {
            next,
            generation,
            end,
            ticket,
        };
        std::mem::replace(entry, Slot::Free(vacant))
    }

    /// ENTRY-2, ENTRY-3: on the free list is what has no ticket under way and a generation left.
    fn may_be_listed(generation: u32, ticket: bool) -> bool {
        !ticket && generation < u32::MAX
    }

    /// The ticket of a free slot is back.
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

    /// Armed -> Running, with this line in the list of runs. Returns the payload and the armed
    /// part's plain fields.
    pub(super) fn start(&mut self, slot: u32, run: u32) -> Option<(V, Time, u32, u32)> {
        // The slot is empty for a moment; nothing in between can panic.
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

    /// Running -> Armed, with the arming that was kept.
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
            place: Place::NONE,
            phase: Phase::Pending,
            ticket: false,
        });
    }

    /// Moves a Running slot whose generations run out to a fresh one, so that arming the key during
    /// the run finds generations left. The worn slot is retired. Ids of the run in progress then
    /// answer NotFound.
    pub(super) fn move_to_fresh_slot(&mut self, slot: u32, floors: &Floors) -> Option<u32> {
        let Slot::Running(busy) = &self.slots[slot] else {
            return None;
        };
        if !self.has_room() {
            return None;
        }
        // ENTRY-3: never on the free list again. It would be the first one there, and be taken at
        // once.
        let retired = Slot::Free(Vacant {
            next: NIL,
            generation: busy.newest,
            end: End::Ran,
            ticket: false,
        });
        let Slot::Running(mut busy) = std::mem::replace(&mut self.slots[slot], retired) else {
            unreachable!("it was Running a moment ago");
        };
        if self.slots.has_room() {
            // A new one rather than a free one, which may be as worn.
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

    /// Cuts off the free slots behind the last one that is in use, and gives their memory back.
    /// Afterwards the lowest free slots are taken first, so that later calls can cut off more.
    ///
    /// Only what is on the free list is cut off: no ticket stands for it (ENTRY-2), and it is not
    /// retired (ENTRY-3).
    pub(super) fn shrink_to_fit(&mut self, floors: &mut Floors) {
        // A retired slot looks like one on the list, so the list says which ones are on it.
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
            floors.raise(last, generation);
            self.slots.pop();
        }
        self.free = NIL;
        for slot in (0..self.slots.len()).rev().filter(|slot| is_listed(*slot)) {
            if let Slot::Free(vacant) = &mut self.slots[slot] {
                vacant.next = std::mem::replace(&mut self.free, slot);
            }
        }
        self.slots.shrink_to_fit();
    }

    /// For how many slots there is memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn room(&self) -> usize {
        self.slots.room()
    }

    /// Whether the slot can be had again; walks the free list.
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

    #[cfg(all(test, not(loom)))]
    pub(super) fn set_generation(&mut self, slot: u32, generation: u32) {
        match &mut self.slots[slot] {
            Slot::Armed(armed) => armed.generation = generation,
            Slot::Running(busy) => busy.newest = generation,
            Slot::Free(vacant) => vacant.generation = generation,
        }
    }
}

impl<K, V> Entries for Table<K, V> {
    fn due(&self, id: u32) -> Tick {
        if self.all_due {
            // Else what is filed after everything was made due would wait for its deadline.
            return Tick::ZERO;
        }
        self.armed(id)
            .map_or(Tick::ZERO, |armed| self.tick.at_or_after(armed.deadline))
    }

    fn place(&self, id: u32) -> (Place, u32) {
        self.armed(id)
            .map_or((Place::NONE, 0), |armed| (armed.place, armed.position))
    }

    fn set_place(&mut self, id: u32, place: Place, position: u32) {
        if let Some(armed) = self.armed_mut(id) {
            armed.place = place;
            armed.position = position;
        }
    }
}
