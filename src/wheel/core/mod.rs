//! The wheel proper: it files entry numbers by due tick and knows nothing else of the entries.
//!
//! ```text
//!            digit of now                       now = ..|5|2|4|1|3|7   six digits to the base 64
//!  level 5   . . . . . 5 . # . . . . # . . .    64^5 ticks per slot, the digit's slot behind it
//!  level 4   . . 2 . . . # # . . . . . . . .         # occupied: not before its start
//!  level 3   . . . . 4 . . . . # . . . . . .
//!  level 2   . 1 . . . . . # . . . . . . . .
//!  level 1   . . . D . . . . # . . . . . . .         D debt: now is inside an occupied slot,
//!  level 0   . . . . . . . 7 # . # # . . . .           whose entries are to be cascaded
//!                          '-- the slot of now: what is due now, or is late already
//!  draining  x x 8 4 9 3 1                           a slot taken out of level 0, half expired
//!  far       6 2 0                                   beyond level 5
//! ```
//!
//! The docs of the [module](super#levels) have a table of the levels.
//!
//! An entry lies in the level of the highest digit in which its due tick differs from `now`, in
//! the slot of that digit (so every slot of a lower level comes before every slot of a higher one,
//! and the next event is found by one look at each bitmap from below). The digits are those of
//! tick plus *origin*, wrapping; wheels of different origins cascade at different ticks.
//!
//! `now` moves from event to event. Arriving at a slot of level 0, the slot is taken whole and
//! drained: entries expire, those pushed out meanwhile are filed again. Arriving at the start of a
//! higher slot, the slot becomes *debt* and its entries are filed again, by their due ticks of
//! that moment, into lower levels. Both stop at a budget and go on with the next call.
//!
//! `now` may go on while there is debt, since what is due on level 0 must not wait for a storm of
//! cascading, but never leaves the slot that the debt is in: the search for the next event goes
//! from level 0 upwards and stops at the first debt it meets. So an entry in debt may become late
//! and is never forgotten.
//!
//! # Invariants
//!
//! - **WHEEL-1** A filed entry lies in exactly one place, the one it says; `len` counts them.
//! - **WHEEL-2** No occupied slot of a level lies before the digit of `now`, and all of a level's
//!   slots agree with `now` in the digits above.
//! - **WHEEL-3** An entry is looked at no later than its due tick, or at `now` if that is past: its
//!   slot does not start after it. It may be looked at earlier (lazy push-out).
//! - **WHEEL-4** An expired entry was due at or before `now` (or was made due) and is filed nowhere
//!   when the sink sees it.
//! - **WHEEL-5** When `now` enters a slot of a level, all levels below it are empty.
//! - **WHEEL-6** What is far is not due before the turn of the top level that `far_min` lies in,
//!   and that turn has not begun.
//! - **WHEEL-7** While a drain is unfinished, `now` does not move.

use super::buffers::{Buffers, FiledBy};
use super::drain::Drain;
use super::filing::{Budget, CoreProgress, EntryStore, LEVELS, WheelPosition};
use super::level::{self, Level, SLOTS};
use super::slab::NO_ENTRY;
use crate::tick::Tick;

/// Bits of a digit.
const DIGIT: u32 = SLOTS.trailing_zeros();
/// Bits of a tick that the levels cover. The rest numbers the turns of the top level.
const TURN: u32 = DIGIT * LEVELS as u32;
/// Entries are read in chunks of this many: first all due ticks, whose cache misses overlap.
const CHUNK: usize = 64;

const _: () = assert!(SLOTS.is_power_of_two() && TURN < u64::BITS);

/// See the head of the module.
pub(crate) struct CoreWheel {
    now: Tick,
    /// Added to ticks for the digits.
    origin: u64,
    len: usize,
    levels: [Level; LEVELS],
    drain: Drain,
    far: Vec<u32>,
    /// What was far when `now` entered the turn it is in and has not been looked at since.
    far_debt: Vec<u32>,
    /// The least due tick that was filed in `far`, or less; meaningless if that is empty.
    far_min: Tick,
    buffers: Buffers,
}

/// What is to be done next, and at which tick if that is not now.
enum Event {
    /// Drain this slot of level 0.
    Due(u32),
    /// Go on cascading this slot of a level above, which `now` is in.
    Debt(usize, u32),
    /// Enter this slot of a level above.
    Enter(usize, u32),
    /// Go on with what was far.
    FarDebt,
    /// See what is still far.
    EnterTurn,
}

impl CoreWheel {
    /// An empty wheel at `start`.
    pub(crate) fn new(start: Tick, origin: u64) -> Self {
        CoreWheel {
            now: start,
            origin,
            len: 0,
            levels: std::array::from_fn(|_| Level::default()),
            drain: Drain::default(),
            far: Vec::new(),
            far_debt: Vec::new(),
            far_min: Tick::MAX,
            buffers: Buffers::default(),
        }
    }

    /// The tick the wheel has come to. What is due before or at it has expired if the last
    /// `advance` reported nothing left; else some of it may still be there.
    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// How many entries are filed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Files an entry. If it is due already it goes to the slot of `now` and expires with the next
    /// round of draining. Returns its [`filed_floor`](Self::filed_floor).
    #[inline]
    pub(crate) fn insert(&mut self, id: u32, due: Tick, entries: &mut impl EntryStore) -> Tick {
        debug_assert_eq!(
            entries.wheel_position(id).0,
            WheelPosition::NONE,
            "WHEEL-1: an entry is filed once"
        );
        self.len += 1;
        let position = self.file(id, due, entries, FiledBy::Call);
        if position == WheelPosition::FAR {
            return self.turn_of(self.far_min);
        }
        let (level, slot) = position.level_and_slot();
        self.start_of(level, slot)
    }

    /// Takes a filed entry out.
    pub(crate) fn remove(&mut self, id: u32, entries: &mut impl EntryStore) {
        let (wheel_position, pos) = entries.wheel_position(id);
        if wheel_position == WheelPosition::NONE {
            debug_assert!(false, "WHEEL-1: only a filed entry can be removed");
            return;
        }
        entries.set_wheel_position(id, WheelPosition::NONE, 0);
        self.unlink(id, wheel_position, pos, entries);
    }

    /// Takes an entry out that lies at this place, and leaves it to the owner that it is not filed
    /// any more: what goes away need not be written once more.
    #[inline]
    pub(crate) fn unlink(
        &mut self,
        id: u32,
        position: WheelPosition,
        pos: u32,
        entries: &mut impl EntryStore,
    ) {
        debug_assert!(position != WheelPosition::NONE, "WHEEL-1: it is filed");
        self.len -= 1;
        let mut emptied = None;
        let moved = if self.drain.holds(id, pos) {
            // An exchange would break the order of the slot, which is first in, first out.
            self.drain.ids[pos as usize] = NO_ENTRY;
            self.drain.live -= 1;
            if self.drain.live == 0 {
                self.finish_drain();
            }
            None
        } else if position == WheelPosition::FAR {
            let in_debt = self.far_debt.get(pos as usize) == Some(&id);
            let ids = if in_debt {
                &mut self.far_debt
            } else {
                &mut self.far
            };
            debug_assert_eq!(ids[pos as usize], id, "WHEEL-1");
            let moved = level::swap_remove(ids, pos);
            if ids.is_empty() {
                emptied = level::take_if_large(ids);
            }
            moved
        } else {
            let (level, slot) = position.level_and_slot();
            debug_assert_eq!(self.levels[level].ids(slot)[pos as usize], id, "WHEEL-1");
            self.levels[level].swap_remove(slot, pos, &mut emptied)
        };
        if let Some(moved) = moved {
            entries.set_wheel_position(moved, position, pos);
        }
        if emptied.is_some() {
            self.buffers.set_aside(emptied);
        }
    }

    /// The earliest tick at which the wheel looks at an entry filed there, or none if it is not
    /// filed. An entry whose new due tick is not earlier need not be moved: the wheel will read it
    /// then. An earlier one must be removed before its due tick changes, and inserted anew.
    #[inline]
    pub(crate) fn filed_floor(&self, wheel_position: WheelPosition) -> Option<Tick> {
        match wheel_position {
            WheelPosition::NONE => None,
            WheelPosition::DRAINING => Some(self.now),
            // It may lie in the debt, which is looked at before; but if it does not, this is it.
            WheelPosition::FAR if self.far.is_empty() => Some(self.now),
            WheelPosition::FAR => Some(self.turn_of(self.far_min)),
            _ => {
                let (level, slot) = wheel_position.level_and_slot();
                Some(self.start_of(level, slot))
            }
        }
    }

    /// Moves to `now`, if that is later and there is nothing to do on the way: what is inserted
    /// next is placed against it.
    #[inline]
    pub(crate) fn catch_up(&mut self, now: Tick) {
        if now > self.now && self.drain.live == 0 && self.next_event(now).is_none() {
            self.now = now;
        }
    }

    /// Expires what is due at `target` and moves `now` there, as far as the budget goes.
    ///
    /// The sink is handed entries in the order of their due ticks if the budget suffices, but for
    /// those that were far and are overdue by a turn of the top level. Within a tick the order is
    /// none in particular. The sink must not change the due tick of other entries. It may panic:
    /// the entry it was called with is out of the wheel, all others are where they were.
    ///
    /// Where less is allowed to expire than looked at, what was pushed out is filed again and
    /// higher slots cascade until the first entry that would expire comes up.
    ///
    /// A `target` before `now` does nothing.
    pub(crate) fn advance<E: EntryStore>(
        &mut self,
        target: Tick,
        budget: &mut Budget,
        entries: &mut E,
        sink: &mut impl FnMut(&mut E, u32),
    ) -> CoreProgress {
        if target < self.now {
            return CoreProgress::Done;
        }
        loop {
            while self.drain.live > 0 {
                if budget.expired == 0 {
                    return CoreProgress::Expired;
                }
                if !self.drain_chunk(budget, entries, sink) {
                    return CoreProgress::Held;
                }
            }
            match self.next_event(target) {
                None => break,
                Some(Event::Due(slot)) => {
                    // `now` does not claim a tick before its turn has come.
                    if budget.expired == 0 {
                        return CoreProgress::Expired;
                    }
                    self.start_drain(slot);
                }
                Some(_) if budget.cascaded == 0 => return CoreProgress::Cascade,
                Some(Event::Enter(level, slot)) => {
                    debug_assert!(self.levels[..level].iter().all(Level::is_empty), "WHEEL-5");
                    self.now = self.start_of(level, slot);
                }
                // A debt is paid whole before level 0 is looked at again, unless the budget ends:
                // so what has been overslept still expires in order.
                Some(Event::Debt(level, slot)) => {
                    while budget.cascaded > 0 && self.levels[level].is_occupied(slot) {
                        self.cascade_chunk(level, slot, budget, entries);
                    }
                }
                Some(Event::EnterTurn) => {
                    debug_assert!(self.levels.iter().all(Level::is_empty), "WHEEL-5");
                    // Not the turn of `far_min`: however many turns a jump passes, what is far is
                    // looked at once.
                    self.now = self.turn_of(target);
                    std::mem::swap(&mut self.far, &mut self.far_debt);
                }
                Some(Event::FarDebt) => {
                    while budget.cascaded > 0 && !self.far_debt.is_empty() {
                        self.far_chunk(budget, entries);
                    }
                }
            }
        }
        self.now = target;
        CoreProgress::Done
    }

    /// The earliest tick at which `advance` has something to do: the exact tick of a due slot, the
    /// start of a slot to cascade, or `now` if something is left over. An entry that was pushed
    /// out or removed may make it early; it is never late.
    pub(crate) fn next_wake(&self) -> Option<Tick> {
        if self.is_empty() {
            return None;
        }
        if self.drain.live > 0 {
            return Some(self.now);
        }
        let debts = self
            .levels
            .iter()
            .enumerate()
            .any(|(n, level)| level.is_occupied(self.digit(n)));
        if debts || !self.far_debt.is_empty() {
            return Some(self.now);
        }
        // WHEEL-2: everything on a lower level comes before everything on a higher one.
        for (n, level) in self.levels.iter().enumerate() {
            if let Some(slot) = level.first_from(self.digit(n)) {
                return Some(self.start_of(n, slot));
            }
        }
        debug_assert!(!self.far.is_empty(), "WHEEL-1: it lies here");
        Some(self.turn_of(self.far_min))
    }

    /// Makes everything filed due now, whatever the due ticks say, in the order of the slots.
    ///
    /// It writes every entry's place: the cost is that of the whole wheel.
    pub(crate) fn make_all_due(&mut self, entries: &mut impl EntryStore) {
        let mut all = Vec::with_capacity(self.len);
        all.extend(
            self.drain.ids[self.drain.next..]
                .iter()
                .filter(|&&id| id != NO_ENTRY),
        );
        self.drain.live = 0;
        self.finish_drain();
        let mut chunk = Vec::new();
        for n in 0..LEVELS {
            while let Some(slot) = self.levels[n].first_from(0) {
                self.levels[n].swap_out(slot, &mut chunk);
                all.append(&mut chunk);
                self.set_aside_large(&mut chunk);
            }
        }
        for mut ids in [
            std::mem::take(&mut self.far_debt),
            std::mem::take(&mut self.far),
        ] {
            all.append(&mut ids);
            self.set_aside_large(&mut ids);
        }
        debug_assert_eq!(all.len(), self.len, "WHEEL-1");
        for (pos, &id) in all.iter().enumerate() {
            entries.set_wheel_position(id, WheelPosition::DRAINING, pos as u32);
        }
        self.drain = Drain {
            next: 0,
            live: all.len(),
            forced: true,
            ids: all,
        };
    }

    /// Large buffers that have been emptied: freeing them may take long, so the owner does it when
    /// it has left its lock. To be called after `advance` and `make_all_due`.
    #[must_use]
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<u32>> {
        std::mem::take(&mut self.buffers.spare)
    }

    // === Events ===

    /// What comes first and not after `target`. From below: WHEEL-2 makes that the order of time,
    /// and nothing on a level with debt, or above, is entered before the debt is paid.
    fn next_event(&self, target: Tick) -> Option<Event> {
        for (n, level) in self.levels.iter().enumerate() {
            let digit = self.digit(n);
            let Some(slot) = level.first_from(digit) else {
                continue;
            };
            if n > 0 && slot == digit {
                return Some(Event::Debt(n, slot));
            }
            if self.start_of(n, slot) <= target {
                return Some(if n == 0 {
                    Event::Due(slot)
                } else {
                    Event::Enter(n, slot)
                });
            }
        }
        if !self.far_debt.is_empty() {
            return Some(Event::FarDebt);
        }
        (!self.far.is_empty() && self.turn_of(self.far_min) <= target).then_some(Event::EnterTurn)
    }

    fn start_drain(&mut self, slot: u32) {
        self.finish_drain();
        self.now = self.start_of(0, slot);
        // The slot gets the buffer of the drain before: what is added to it meanwhile is the next
        // round's.
        self.levels[0].swap_out(slot, &mut self.drain.ids);
        self.drain.live = self.drain.ids.len();
    }

    fn finish_drain(&mut self) {
        debug_assert_eq!(self.drain.live, 0, "WHEEL-7");
        self.drain.ids.clear();
        self.drain.next = 0;
        self.drain.forced = false;
        let mut ids = std::mem::take(&mut self.drain.ids);
        self.set_aside_large(&mut ids);
        self.drain.ids = ids;
    }

    /// Looks at up to a chunk of the slot. False: the next one is not allowed to expire.
    fn drain_chunk<E: EntryStore>(
        &mut self,
        budget: &mut Budget,
        entries: &mut E,
        sink: &mut impl FnMut(&mut E, u32),
    ) -> bool {
        let mut due = [Tick::ZERO; CHUNK];
        let count = self.drain.read(&mut due, self.now, budget, entries);
        if count == 0 {
            return false;
        }
        let filed = self.len;
        for &due in &due[..count] {
            let id = self.drain.ids[self.drain.next];
            self.drain.next += 1;
            if id == NO_ENTRY {
                continue;
            }
            self.drain.live -= 1;
            budget.expired -= 1;
            // Not compared with the target of a jump: an entry pushed out comes after those due
            // before it.
            if due > self.now && !self.drain.forced {
                self.file(id, due, entries, FiledBy::Advance);
            } else {
                // All of this before the sink is called, which may panic (WHEEL-4).
                self.len -= 1;
                entries.set_wheel_position(id, WheelPosition::NONE, 0);
                sink(entries, id);
            }
        }
        // What was pushed out is filed again, so only what expired has left.
        budget.allowed -= filed - self.len;
        if self.drain.live == 0 {
            self.finish_drain();
        }
        true
    }

    /// Files up to a chunk from the end of a slot again.
    fn cascade_chunk(
        &mut self,
        level: usize,
        slot: u32,
        budget: &mut Budget,
        entries: &mut impl EntryStore,
    ) {
        let mut chunk = [0; CHUNK];
        let mut emptied = None;
        let limit = CHUNK.min(budget.cascaded);
        let count = self.levels[level].pop_chunk(slot, &mut chunk[..limit], &mut emptied);
        self.buffers.set_aside(emptied);
        budget.cascaded -= count;
        self.file_chunk(&chunk[..count], entries);
    }

    /// Files up to a chunk of what was far again.
    fn far_chunk(&mut self, budget: &mut Budget, entries: &mut impl EntryStore) {
        let mut chunk = [0; CHUNK];
        let limit = CHUNK.min(budget.cascaded);
        let count = level::pop_chunk(&mut self.far_debt, &mut chunk[..limit]);
        if self.far_debt.is_empty() {
            let emptied = level::take_if_large(&mut self.far_debt);
            self.buffers.set_aside(emptied);
        }
        budget.cascaded -= count;
        self.file_chunk(&chunk[..count], entries);
    }

    fn file_chunk(&mut self, ids: &[u32], entries: &mut impl EntryStore) {
        let mut due = [Tick::ZERO; CHUNK];
        for (due, &id) in due.iter_mut().zip(ids) {
            *due = entries.due(id);
        }
        for (&id, &due) in ids.iter().zip(&due) {
            self.file(id, due, entries, FiledBy::Advance);
        }
    }

    // === Places ===

    /// Puts an entry that lies nowhere where its due tick belongs.
    #[inline]
    fn file(
        &mut self,
        id: u32,
        due: Tick,
        entries: &mut impl EntryStore,
        by: FiledBy,
    ) -> WheelPosition {
        let wheel_position = self.position_for(due);
        let pos = if wheel_position == WheelPosition::FAR {
            self.far_min = if self.far.is_empty() {
                due
            } else {
                self.far_min.min(due)
            };
            self.buffers.push(&mut self.far, id, by)
        } else {
            let (level, slot) = wheel_position.level_and_slot();
            self.levels[level].push(slot, id, &mut self.buffers, by)
        };
        entries.set_wheel_position(id, wheel_position, pos);
        wheel_position
    }

    #[inline]
    fn position_for(&self, due: Tick) -> WheelPosition {
        let ahead = due.get().saturating_sub(self.now.get());
        if ahead == 0 {
            return WheelPosition::slot(0, self.digit(0));
        }
        let (due, now) = (self.shifted(due), self.shifted(self.now));
        let differing = due ^ now;
        // The distance counts too: with an origin, the last ticks there are may lie in the same
        // turn as the first ones, before them.
        if differing >> TURN != 0 || ahead >> TURN != 0 {
            return WheelPosition::FAR;
        }
        let level = differing.ilog2() / DIGIT;
        WheelPosition::slot(level as usize, digit(due, level as usize))
    }

    /// A tick as its digits are taken.
    fn shifted(&self, tick: Tick) -> u64 {
        tick.get().wrapping_add(self.origin)
    }

    /// The digit of `now` at this level.
    fn digit(&self, level: usize) -> u32 {
        digit(self.shifted(self.now), level)
    }

    /// When `now` enters this slot, or `now` if it is in it.
    #[inline]
    fn start_of(&self, level: usize, slot: u32) -> Tick {
        let now = self.shifted(self.now);
        debug_assert!(slot >= digit(now, level), "WHEEL-2");
        let shift = DIGIT * level as u32;
        let above = now >> (shift + DIGIT) << (shift + DIGIT);
        let start = above | u64::from(slot) << shift;
        // Nothing wraps: an occupied slot starts no later than some tick there is.
        Tick::new(self.now.get().saturating_add(start.saturating_sub(now)))
    }

    /// When the turn of the top level that `tick` is in begins. The first one began before tick
    /// zero, if there is an origin.
    fn turn_of(&self, tick: Tick) -> Tick {
        let into_turn = self.shifted(tick) & ((1 << TURN) - 1);
        Tick::new(tick.get().saturating_sub(into_turn))
    }

    // === Buffers ===

    fn set_aside_large(&mut self, ids: &mut Vec<u32>) {
        let large = level::take_if_large(ids);
        self.buffers.set_aside(large);
    }
}

fn digit(shifted: u64, level: usize) -> u32 {
    (shifted >> (DIGIT * level as u32)) as u32 % SLOTS as u32
}

mod shrinking;
#[cfg(all(test, not(loom)))]
mod tests;
