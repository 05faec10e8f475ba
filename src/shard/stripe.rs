//! One stripe: an index, the entries and a wheel behind one lock. Everything here is a plain
//! function of its arguments: no clock, no thread, no waiting. User code that runs in here is `Eq`
//! of the key (before anything is changed) and `Clone` of the key (guarded); values and keys leave
//! through the return values, so that they are dropped outside the lock.

use std::any::Any;
use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hashbrown::HashTable;

use super::entry::{Armed, End, Phase, Slot, Table};
use super::permits::{LocalPermits, PermitPool};
use crate::stats::{Counters, Latenesses};
use crate::sync::{Arc, Unparker};
use crate::tick::{TickSize, Time};
use crate::wheel::{Budget, CoreWheel, Place, Progress};

/// A key's hash, folded: the low half goes into the index, the high bits choose the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// What the index keeps.
    fn bits(self) -> u32 {
        self.0 as u32
    }
}

/// The table takes its tag from the top bits and its position from the low ones: with 32 bits
/// doubled both vary.
fn spread(bits: u32) -> u64 {
    (u64::from(bits) << 32) | u64::from(bits)
}

/// A line of the index: hash bits and slot number, so that a rehash never reads an entry.
#[derive(Clone, Copy)]
struct Line {
    bits: u32,
    slot: u32,
}

/// A slot and the generation that somebody knows it by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl EntryId {
    /// An id that answers NotFound: no arming has generation 0.
    pub(crate) fn gone(slot: u32) -> Self {
        EntryId {
            slot,
            generation: 0,
        }
    }
}

/// What only Running entries need.
struct Run<V> {
    id: EntryId,
    deadline: Time,
    cancelled: bool,
    /// Threads in `cancel_and_wait`; while there are any, the key can't be armed.
    waiters: Vec<(u64, Unparker)>,
    kept: Option<Kept<V>>,
}

struct Kept<V> {
    generation: u32,
    deadline: Time,
    value: V,
}

/// Why an arming is refused, before the task was even looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Closed,
    Closing,
    Occupied,
    /// No permit at hand: unlock, collect, try again.
    NoPermit,
    /// The stripe has no slot number left.
    NoSlot,
}

/// The answer to "may this key be armed", good while the lock is held.
#[derive(Debug)]
pub(crate) struct Admission(Target);

#[derive(Debug)]
enum Target {
    Vacant,
    Armed(u32),
    Running(usize),
}

/// An accepted arming.
#[derive(Debug)]
pub(crate) struct Arming<K, V> {
    pub(crate) id: EntryId,
    pub(crate) replaced: Option<Time>,
    pub(crate) after_run: bool,
    /// To be dropped outside the lock.
    pub(crate) dropped: (Option<K>, Option<V>),
}

/// What a move did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moving {
    Moved { before: Time },
    Unchanged { deadline: Time },
    Running,
    NotFound,
}

/// What a cancel did.
#[derive(Debug)]
pub(crate) enum Cancelling<K, V> {
    /// `run`: a run of the key is in progress, this was the arming kept for after it.
    Cancelled {
        deadline: Time,
        run: Option<EntryId>,
        dropped: (Option<K>, Option<V>),
    },
    Running(EntryId),
    NotFound,
}

/// What is known of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    pub(crate) id: EntryId,
    pub(crate) deadline: Time,
    pub(crate) phase: SightPhase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SightPhase {
    Pending,
    Queued,
    Running { kept: Option<(EntryId, Time)> },
}

/// A claim's outcome.
#[derive(Debug)]
pub(crate) enum Claimed<K, V> {
    /// Cancelled or moved meanwhile.
    Nothing,
    Run {
        key: K,
        value: V,
        id: EntryId,
        deadline: Time,
        started: Time,
    },
    /// The key's `Clone` panicked: the arming counts as ran and panicked.
    KeyPanicked {
        panic: Box<dyn Any + Send>,
        key: K,
        value: V,
    },
}

/// What a settled run leaves to be done outside the lock.
#[derive(Debug)]
pub(crate) struct Settled<K> {
    pub(crate) key: Option<K>,
    pub(crate) waiters: Vec<(u64, Unparker)>,
}

/// A pending arming that was taken out at the end: key, deadline, payload.
pub(crate) type Taken<K, V> = (Option<K>, Time, V);

/// How far a stripe is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gate {
    Open,
    /// Nothing new is armed.
    Closed,
}

/// What an operation leaves for its caller, who acts on it after unlocking.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// The stripe's next due moment came down to this.
    pub(crate) lowered: Option<Time>,
    /// Due at once: to be handed to the executor.
    pub(crate) ticket: Option<u32>,
    /// A closed stripe has nothing pending and nothing running any more. Said once.
    pub(crate) emptied: bool,
}

pub(crate) struct Stripe<K, V> {
    index: HashTable<Line>,
    table: Table<K, V>,
    wheel: CoreWheel,
    runs: Vec<Run<V>>,
    waiters_seen: u64,
    counters: Counters,
    lateness: Option<Box<Latenesses>>,
    /// What the ticker sees as this stripe's next due moment: never later than the truth.
    published: Time,
    after: Aftermath,
    gate: Gate,
    emptied: bool,
    bound: Option<Arc<PermitPool>>,
    permits: LocalPermits,
}

/// From this generation on a slot is exchanged at the next claim.
const WORN: u32 = 1 << 31;

impl<K, V> Stripe<K, V> {
    pub(crate) fn new(
        tick: TickSize,
        now: Time,
        origin: u64,
        bound: Option<Arc<PermitPool>>,
    ) -> Self {
        Stripe {
            index: HashTable::new(),
            table: Table::new(tick),
            wheel: CoreWheel::new(tick.begun_by(now), origin),
            runs: Vec::new(),
            waiters_seen: 0,
            counters: Counters::default(),
            lateness: None,
            published: Time::MAX,
            after: Aftermath::default(),
            gate: Gate::Open,
            emptied: false,
            bound,
            permits: LocalPermits::default(),
        }
    }

    /// What the operations since the last call left to be done.
    pub(crate) fn take_aftermath(&mut self) -> Aftermath {
        if self.gate == Gate::Closed
            && !self.emptied
            && self.counters.pending == 0
            && self.runs.is_empty()
        {
            self.emptied = true;
            self.after.emptied = true;
        }
        std::mem::take(&mut self.after)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn running(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn lateness(&self) -> Option<&Latenesses> {
        self.lateness.as_deref()
    }

    pub(crate) fn permits(&mut self) -> &mut LocalPermits {
        &mut self.permits
    }

    // === lookups ===

    fn find<Q>(&self, hash: KeyHash, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let bits = hash.bits();
        self.index
            .find(spread(bits), |line| {
                line.bits == bits
                    && self
                        .table
                        .key(line.slot)
                        .is_some_and(|stored| stored.borrow() == key)
            })
            .map(|line| line.slot)
    }

    /// Finds by number, so that no `Eq` runs.
    fn remove_line(&mut self, bits: u32, slot: u32) {
        if let Ok(line) = self
            .index
            .find_entry(spread(bits), |line| line.slot == slot)
        {
            line.remove();
        }
    }

    fn run_at(&self, slot: u32) -> Option<usize> {
        self.runs.iter().position(|run| run.id.slot == slot)
    }

    pub(crate) fn get<Q>(&self, hash: KeyHash, key: &Q) -> Option<Sight>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(hash, key).and_then(|slot| self.sight(slot))
    }

    /// By id: a kept arming is seen as Pending, the running one as Running.
    pub(crate) fn get_id(&self, id: EntryId) -> Option<Sight> {
        let sight = self.sight(id.slot)?;
        if sight.id == id {
            return Some(sight);
        }
        match sight.phase {
            SightPhase::Running {
                kept: Some((kept, deadline)),
            } if kept == id => Some(Sight {
                id,
                deadline,
                phase: SightPhase::Pending,
            }),
            _ => None,
        }
    }

    fn sight(&self, slot: u32) -> Option<Sight> {
        match self.table.slot(slot)? {
            Slot::Armed(armed) => Some(Sight {
                id: EntryId {
                    slot,
                    generation: armed.generation,
                },
                deadline: armed.deadline,
                phase: match armed.phase {
                    Phase::Pending => SightPhase::Pending,
                    Phase::Queued => SightPhase::Queued,
                },
            }),
            Slot::Running(_) => {
                let run = &self.runs[self.run_at(slot)?];
                Some(Sight {
                    id: run.id,
                    deadline: run.deadline,
                    phase: SightPhase::Running {
                        kept: run.kept.as_ref().map(|kept| {
                            let id = EntryId {
                                slot,
                                generation: kept.generation,
                            };
                            (id, kept.deadline)
                        }),
                    },
                })
            }
            Slot::Free(_) => None,
        }
    }

    /// How the arming `id` ended, if its slot still knows.
    pub(crate) fn end_of(&self, id: EntryId) -> Option<End> {
        match self.table.slot(id.slot)? {
            Slot::Free(vacant) if vacant.generation == id.generation => Some(vacant.end),
            _ => None,
        }
    }

    /// Whether the run `id` was asked to stop.
    pub(crate) fn is_cancelled(&self, id: EntryId) -> bool {
        self.runs.iter().any(|run| run.id == id && run.cancelled)
    }

    /// Whether the run `id` has not been settled.
    pub(crate) fn is_running(&self, id: EntryId) -> bool {
        self.runs.iter().any(|run| run.id == id)
    }

    // === arming ===

    /// Whether `key` may be armed. Takes a permit where one is needed, so an admission must be used.
    pub(crate) fn admit<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        if_absent: bool,
    ) -> Result<Admission, Refusal>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if self.gate != Gate::Open {
            return Err(Refusal::Closed);
        }
        let target = match self.find(hash, key) {
            None => Target::Vacant,
            Some(slot) => match self.run_at(slot) {
                None => Target::Armed(slot),
                Some(run) => Target::Running(run),
            },
        };
        let needs_permit = match &target {
            Target::Vacant => {
                if !self.table.has_room() {
                    return Err(Refusal::NoSlot);
                }
                true
            }
            Target::Armed(_) if if_absent => return Err(Refusal::Occupied),
            Target::Armed(slot) => {
                let worn = self
                    .table
                    .armed(*slot)
                    .is_some_and(|armed| armed.generation == u32::MAX);
                if worn && !self.table.has_room() {
                    return Err(Refusal::NoSlot);
                }
                false
            }
            Target::Running(at) => {
                let run = &self.runs[*at];
                if !run.waiters.is_empty() {
                    return Err(Refusal::Closing);
                }
                if if_absent && run.kept.is_some() {
                    return Err(Refusal::Occupied);
                }
                if self.newest(run.id.slot) == u32::MAX {
                    return Err(Refusal::NoSlot);
                }
                run.kept.is_none()
            }
        };
        if needs_permit
            && let Some(pool) = &self.bound
            && !pool.take(&mut self.permits)
        {
            return Err(Refusal::NoPermit);
        }
        Ok(Admission(target))
    }

    /// A keyless arming's admission.
    pub(crate) fn admit_new(&mut self) -> Result<Admission, Refusal> {
        if self.gate != Gate::Open {
            return Err(Refusal::Closed);
        }
        if !self.table.has_room() {
            return Err(Refusal::NoSlot);
        }
        if let Some(pool) = &self.bound
            && !pool.take(&mut self.permits)
        {
            return Err(Refusal::NoPermit);
        }
        Ok(Admission(Target::Vacant))
    }

    /// Arms `key` as admitted. `hash` is `None` for what has no key: it is not put into the index.
    pub(crate) fn arm(
        &mut self,
        admission: Admission,
        hash: Option<KeyHash>,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        self.counters.scheduled += 1;
        match admission.0 {
            Target::Vacant => {
                self.counters.pending += 1;
                let id = self.arm_new(hash, key, value, deadline, now);
                Arming {
                    id,
                    replaced: None,
                    after_run: false,
                    dropped: (None, None),
                }
            }
            Target::Armed(slot) => {
                self.counters.replaced += 1;
                self.replace(slot, hash, key, value, deadline, now)
            }
            Target::Running(at) => self.keep(at, key, value, deadline),
        }
    }

    fn arm_new(
        &mut self,
        hash: Option<KeyHash>,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        let bits = hash.map_or(0, KeyHash::bits);
        let (slot, generation) = self.table.occupy(|generation| Armed {
            key,
            value,
            deadline,
            hash: bits,
            generation,
            position: 0,
            place: Place::NONE,
            phase: Phase::Pending,
            ticket: false,
        });
        if hash.is_some() {
            self.index
                .insert_unique(spread(bits), Line { bits, slot }, |line| spread(line.bits));
        }
        self.file(slot, deadline, now);
        EntryId { slot, generation }
    }

    fn replace(
        &mut self,
        slot: u32,
        hash: Option<KeyHash>,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("the admission names an armed slot");
        };
        let replaced = Some(armed.deadline);
        if armed.generation == u32::MAX {
            // E3: the slot is used up, the key moves to another one.
            let (_, old_key, old_value) = self.take_out(slot, End::Cancelled);
            let id = self.arm_new(hash, key, value, deadline, now);
            return Arming {
                id,
                replaced,
                after_run: false,
                dropped: (Some(old_key), Some(old_value)),
            };
        }
        armed.generation += 1;
        let generation = armed.generation;
        let old = std::mem::replace(&mut armed.value, value);
        self.refile(slot, deadline, now);
        Arming {
            id: EntryId { slot, generation },
            replaced,
            after_run: false,
            dropped: (Some(key), Some(old)),
        }
    }

    fn keep(&mut self, at: usize, key: K, value: V, deadline: Time) -> Arming<K, V> {
        let slot = self.runs[at].id.slot;
        let Some(busy) = self.table.busy_mut(slot) else {
            unreachable!("E4: a run has a Running slot");
        };
        busy.newest += 1;
        let generation = busy.newest;
        let before = self.runs[at].kept.replace(Kept {
            generation,
            deadline,
            value,
        });
        match &before {
            Some(_) => self.counters.replaced += 1,
            None => self.counters.pending += 1,
        }
        Arming {
            id: EntryId { slot, generation },
            replaced: before.as_ref().map(|kept| kept.deadline),
            after_run: true,
            dropped: (Some(key), before.map(|kept| kept.value)),
        }
    }

    fn newest(&self, slot: u32) -> u32 {
        match self.table.slot(slot) {
            Some(Slot::Running(busy)) => busy.newest,
            Some(Slot::Armed(armed)) => armed.generation,
            _ => 0,
        }
    }

    // === filing ===

    /// Files an entry that is nowhere, or queues it if it is due.
    fn file(&mut self, slot: u32, deadline: Time, now: Time) {
        if deadline <= now || self.table.all_due {
            self.queue(slot, now);
            return;
        }
        if deadline == Time::MAX {
            return;
        }
        let tick = self.table.tick();
        if self.wheel.is_empty() {
            // An idle wheel meets its first entry at the present, not where it stopped.
            self.wheel.skip_to(tick.begun_by(now));
        }
        self.wheel
            .insert(slot, tick.at_or_after(deadline), &mut self.table);
        self.publish();
    }

    /// The deadline of an armed entry changes. Later than where it is filed: one write, the ticker
    /// files it again when it comes by. Earlier: it is moved now.
    fn refile(&mut self, slot: u32, deadline: Time, now: Time) {
        let tick = self.table.tick();
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is moved");
        };
        armed.deadline = deadline;
        let was_queued = armed.phase == Phase::Queued;
        let place = armed.place;
        if was_queued {
            // E1: the ticket bit stays; the ticket finds nothing, or what is queued again by then.
            armed.phase = Phase::Pending;
            armed.position = 0;
            self.counters.queued -= 1;
            self.file(slot, deadline, now);
            return;
        }
        match self.wheel.filed_floor(place) {
            Some(floor)
                if deadline > now && deadline != Time::MAX && deadline >= tick.start_of(floor) => {}
            Some(_) => {
                self.wheel.remove(slot, &mut self.table);
                self.file(slot, deadline, now);
            }
            None => self.file(slot, deadline, now),
        }
    }

    /// Pending -> Queued, at once: the ticket goes through the injector, not through a tick.
    fn queue(&mut self, slot: u32, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is queued");
        };
        armed.phase = Phase::Queued;
        armed.position = micros(now.since(armed.deadline).as_nanos());
        self.counters.queued += 1;
        if !armed.ticket {
            armed.ticket = true;
            debug_assert!(self.after.ticket.is_none(), "one operation, one ticket");
            self.after.ticket = Some(slot);
        }
    }

    /// Lowers what the ticker sees, if the wheel now wants to be looked at earlier.
    fn publish(&mut self) {
        let next = self.next_wake();
        if next < self.published {
            self.published = next;
            self.after.lowered = Some(next);
        }
    }

    fn next_wake(&self) -> Time {
        self.wheel
            .next_wake()
            .map_or(Time::MAX, |tick| self.table.tick().start_of(tick))
    }

    /// For the ticker alone: the truth, which may be later than what was published.
    pub(crate) fn republish(&mut self) -> Time {
        self.published = self.next_wake();
        self.published
    }

    /// The exact next moment at which this stripe has something to do.
    pub(crate) fn next_due(&self) -> Time {
        self.next_wake()
    }

    // === moving and cancelling ===

    pub(crate) fn reschedule<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.find(hash, key) {
            Some(slot) => self.reschedule_slot(slot, deadline, now, only_earlier),
            None => Moving::NotFound,
        }
    }

    pub(crate) fn reschedule_id(
        &mut self,
        id: EntryId,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        match self.get_id(id) {
            None => Moving::NotFound,
            Some(Sight {
                phase: SightPhase::Running { .. },
                ..
            }) => Moving::Running,
            Some(_) => self.reschedule_slot(id.slot, deadline, now, only_earlier),
        }
    }

    fn reschedule_slot(
        &mut self,
        slot: u32,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        if let Some(armed) = self.table.armed(slot) {
            let before = armed.deadline;
            if only_earlier && deadline >= before {
                return Moving::Unchanged { deadline: before };
            }
            self.refile(slot, deadline, now);
            return Moving::Moved { before };
        }
        let Some(at) = self.run_at(slot) else {
            return Moving::NotFound;
        };
        let Some(kept) = &mut self.runs[at].kept else {
            return Moving::Running;
        };
        let before = kept.deadline;
        if only_earlier && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        kept.deadline = deadline;
        Moving::Moved { before }
    }

    pub(crate) fn cancel<Q>(&mut self, hash: KeyHash, key: &Q) -> Cancelling<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.find(hash, key) {
            Some(slot) => self.cancel_slot(slot),
            None => Cancelling::NotFound,
        }
    }

    pub(crate) fn cancel_id(&mut self, id: EntryId) -> Cancelling<K, V> {
        match self.get_id(id) {
            None => Cancelling::NotFound,
            Some(Sight {
                phase: SightPhase::Running { .. },
                ..
            }) => {
                if let Some(at) = self.run_at(id.slot) {
                    self.runs[at].cancelled = true;
                }
                Cancelling::Running(id)
            }
            Some(_) if self.table.armed(id.slot).is_some() => self.cancel_slot(id.slot),
            // The id of a kept arming means that one alone; the run in progress is not told.
            Some(_) => self.cancel_kept(id.slot, false),
        }
    }

    /// Cancels whatever the slot holds.
    pub(crate) fn cancel_slot(&mut self, slot: u32) -> Cancelling<K, V> {
        if self.table.armed(slot).is_some() {
            let (deadline, key, value) = self.take_out(slot, End::Cancelled);
            self.counters.cancelled += 1;
            self.no_longer_pending();
            return Cancelling::Cancelled {
                deadline,
                run: None,
                dropped: (Some(key), Some(value)),
            };
        }
        self.cancel_kept(slot, true)
    }

    fn cancel_kept(&mut self, slot: u32, tell_the_run: bool) -> Cancelling<K, V> {
        let Some(at) = self.run_at(slot) else {
            return Cancelling::NotFound;
        };
        let run = &mut self.runs[at];
        run.cancelled |= tell_the_run;
        let id = run.id;
        match run.kept.take() {
            Some(kept) => {
                self.counters.cancelled += 1;
                self.no_longer_pending();
                Cancelling::Cancelled {
                    deadline: kept.deadline,
                    run: Some(id),
                    dropped: (None, Some(kept.value)),
                }
            }
            None => Cancelling::Running(id),
        }
    }

    /// Unlinks an armed entry from the wheel and the index and frees its slot.
    fn take_out(&mut self, slot: u32, end: End) -> (Time, K, V) {
        let Some(armed) = self.table.armed(slot) else {
            unreachable!("only an armed entry is taken out");
        };
        if armed.phase == Phase::Queued {
            self.counters.queued -= 1;
        }
        let (bits, filed) = (armed.hash, armed.place != Place::NONE);
        if filed {
            self.wheel.remove(slot, &mut self.table);
        }
        self.remove_line(bits, slot);
        let Slot::Armed(armed) = self.table.vacate(slot, end) else {
            unreachable!("it was armed");
        };
        (armed.deadline, armed.key, armed.value)
    }

    fn no_longer_pending(&mut self) {
        self.counters.pending -= 1;
        if let Some(pool) = &self.bound {
            pool.put_back(&mut self.permits);
        }
    }

    // === waiting for a run ===

    /// Registers a thread that waits for the run `id`, under a number. `None`: it has ended.
    pub(crate) fn wait_for(&mut self, id: EntryId, waiter: Unparker) -> Option<u64> {
        let run = self.runs.iter_mut().find(|run| run.id == id)?;
        self.waiters_seen += 1;
        run.waiters.push((self.waiters_seen, waiter));
        Some(self.waiters_seen)
    }

    /// A waiting thread gave up: without any left, the key can be armed again. False: the run has
    /// ended meanwhile.
    pub(crate) fn give_up_waiting(&mut self, id: EntryId, number: u64) -> bool {
        match self.runs.iter_mut().find(|run| run.id == id) {
            Some(run) => {
                run.waiters.retain(|(waiter, _)| *waiter != number);
                true
            }
            None => false,
        }
    }

    // === expiry, claim, settle: the way of a due timer ===

    /// Collects what is due at `now` as tickets (slot numbers), within the budget. Then
    /// [`republish`](Self::republish) is called under the same lock.
    pub(crate) fn collect(
        &mut self,
        now: Time,
        budget: &mut Budget,
        out: &mut Vec<u32>,
    ) -> Progress {
        let target = self.table.tick().begun_by(now);
        let Stripe {
            wheel,
            table,
            counters,
            lateness,
            ..
        } = self;
        wheel.advance(
            target,
            budget,
            table,
            &mut |table: &mut Table<K, V>, slot| {
                let Some(armed) = table.armed_mut(slot) else {
                    return;
                };
                let late = now.since(armed.deadline).as_nanos();
                armed.phase = Phase::Queued;
                armed.position = micros(late);
                counters.queued += 1;
                lateness
                    .get_or_insert_with(|| Box::new(Latenesses::new()))
                    .tick
                    .record(u64::try_from(late).unwrap_or(u64::MAX));
                if !armed.ticket {
                    armed.ticket = true;
                    out.push(slot);
                }
            },
        )
    }

    /// Buffers to be freed outside the lock.
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<u32>> {
        self.wheel.take_spare()
    }

    /// Turns a ticket into a run, if it still stands for something.
    pub(crate) fn claim(&mut self, slot: u32, now: Time) -> Claimed<K, V>
    where
        K: Clone,
    {
        let Some(armed) = self.table.armed_mut(slot) else {
            self.table.ticket_back(slot);
            return Claimed::Nothing;
        };
        debug_assert!(armed.ticket, "E1: a ticket has its bit");
        armed.ticket = false;
        if armed.phase != Phase::Queued {
            return Claimed::Nothing;
        }
        let key = match catch_unwind(AssertUnwindSafe(|| armed.key.clone())) {
            Ok(key) => key,
            Err(panic) => {
                let (_, key, value) = self.take_out(slot, End::Ran);
                self.counters.ran += 1;
                self.counters.panicked += 1;
                self.no_longer_pending();
                return Claimed::KeyPanicked { panic, key, value };
            }
        };
        self.counters.queued -= 1;
        self.counters.ran += 1;
        self.no_longer_pending();
        let Some((value, deadline, generation, tick_lag)) = self.table.start(slot) else {
            unreachable!("it was armed a moment ago");
        };
        self.record(now, deadline, tick_lag);
        let slot = self.spare_a_worn_slot(slot, generation);
        let id = EntryId {
            slot,
            generation: self.newest(slot),
        };
        self.runs.push(Run {
            id,
            deadline,
            cancelled: false,
            waiters: Vec::new(),
            kept: None,
        });
        Claimed::Run {
            key,
            value,
            id,
            deadline,
            started: now,
        }
    }

    fn record(&mut self, now: Time, deadline: Time, tick_lag: u32) {
        let late = u64::try_from(now.since(deadline).as_nanos()).unwrap_or(u64::MAX);
        let lateness = self
            .lateness
            .get_or_insert_with(|| Box::new(Latenesses::new()));
        lateness.total.record(late);
        lateness
            .queue
            .record(late.saturating_sub(u64::from(tick_lag) * 1_000));
    }

    /// E3: a key that arms itself in every run would use its slot's generations up without the slot
    /// ever being free, so a worn slot is exchanged while no ticket refers to it.
    fn spare_a_worn_slot(&mut self, slot: u32, generation: u32) -> u32 {
        if generation < WORN {
            return slot;
        }
        let Some(Slot::Running(busy)) = self.table.slot(slot) else {
            return slot;
        };
        let bits = busy.hash;
        let Some(fresh) = self.table.move_to_fresh_slot(slot) else {
            return slot;
        };
        if let Some(line) = self.index.find_mut(spread(bits), |line| line.slot == slot) {
            line.slot = fresh;
        }
        fresh
    }

    /// The run `id` has ended.
    pub(crate) fn settle(&mut self, id: EntryId, panicked: bool, now: Time) -> Settled<K> {
        self.counters.panicked += u64::from(panicked);
        let Some(at) = self.run_at(id.slot) else {
            unreachable!("E4: a run is settled once");
        };
        let run = self.runs.swap_remove(at);
        let key = match run.kept {
            Some(kept) => {
                self.table
                    .resume(id.slot, kept.value, kept.deadline, kept.generation);
                self.file(id.slot, kept.deadline, now);
                None
            }
            None => {
                let bits = match self.table.slot(id.slot) {
                    Some(Slot::Running(busy)) => busy.hash,
                    _ => unreachable!("E4: a run has a Running slot"),
                };
                self.remove_line(bits, id.slot);
                match self.table.vacate(id.slot, End::Ran) {
                    Slot::Running(busy) => Some(busy.key),
                    _ => None,
                }
            }
        };
        Settled {
            key,
            waiters: run.waiters,
        }
    }

    /// A ticket that nobody will claim: its timer is filed again and comes with the next tick.
    pub(crate) fn give_back(&mut self, slot: u32, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            self.table.ticket_back(slot);
            return;
        };
        armed.ticket = false;
        if armed.phase != Phase::Queued {
            return;
        }
        armed.phase = Phase::Pending;
        armed.position = 0;
        self.counters.queued -= 1;
        let tick = self.table.tick();
        if self.wheel.is_empty() {
            self.wheel.skip_to(tick.begun_by(now));
        }
        let next = crate::tick::Tick::new(tick.begun_by(now).get().saturating_add(1));
        self.wheel.insert(slot, next, &mut self.table);
        self.publish();
    }

    // === closing ===

    /// Nothing new is armed from here on. Returns whether it was open.
    pub(crate) fn close(&mut self) -> bool {
        let was_open = self.gate == Gate::Open;
        self.gate = Gate::Closed;
        was_open
    }

    /// Everything pending becomes due now, whatever its deadline; kept armings when their run ends.
    pub(crate) fn make_all_due(&mut self, now: Time) {
        self.table.all_due = true;
        let tick = self.table.tick();
        if self.wheel.is_empty() {
            self.wheel.skip_to(tick.begun_by(now));
        }
        for slot in 0..self.table.len() {
            if self
                .table
                .armed(slot)
                .is_some_and(|armed| armed.phase == Phase::Pending && armed.place == Place::NONE)
            {
                // `Time::MAX`: never filed until now.
                self.wheel
                    .insert(slot, crate::tick::Tick::ZERO, &mut self.table);
            }
        }
        self.wheel.make_all_due(&mut self.table);
        self.publish();
    }

    /// Takes up to `limit` pending armings out, from slot `from` on, as (key or what stands for it,
    /// deadline, value). Returns where to go on; `None` when through. Kept armings come with a clone
    /// of the key, since the run in progress needs it too; without one if that panicked, and then
    /// count as cancelled.
    pub(crate) fn take_pending(
        &mut self,
        from: u32,
        limit: usize,
        handed_back: bool,
        out: &mut Vec<Taken<K, V>>,
    ) -> Option<u32>
    where
        K: Clone,
    {
        let mut left = limit;
        for slot in from..self.table.len() {
            if left == 0 {
                return Some(slot);
            }
            left -= 1;
            let taken = if self.table.armed(slot).is_some() {
                let end = if handed_back {
                    End::HandedBack
                } else {
                    End::Cancelled
                };
                let (deadline, key, value) = self.take_out(slot, end);
                (Some(key), deadline, value)
            } else if let Some(at) = self.run_at(slot)
                && let Some(kept) = self.runs[at].kept.take()
            {
                let key = self
                    .table
                    .key(slot)
                    .and_then(|key| catch_unwind(AssertUnwindSafe(|| key.clone())).ok());
                (key, kept.deadline, kept.value)
            } else {
                continue;
            };
            if handed_back && taken.0.is_some() {
                self.counters.handed_back += 1;
            } else {
                self.counters.cancelled += 1;
            }
            self.no_longer_pending();
            out.push(taken);
        }
        None
    }

    /// Looks at up to `limit` slots from `from` on. Returns where to go on; `None` when through.
    pub(crate) fn look(&self, from: u32, limit: usize, out: &mut Vec<(K, Sight)>) -> Option<u32>
    where
        K: Clone,
    {
        let end = from.saturating_add(u32::try_from(limit).unwrap_or(u32::MAX));
        for slot in from..end.min(self.table.len()) {
            if let Some(sight) = self.sight(slot)
                && let Some(key) = self.table.key(slot)
            {
                out.push((key.clone(), sight));
            }
        }
        (end < self.table.len()).then_some(end)
    }

    /// How many slots there are, for walks in portions.
    pub(crate) fn slots(&self) -> u32 {
        self.table.len()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn wear_out(&mut self, slot: u32, generation: u32) {
        self.table.set_generation(slot, generation);
    }
}

fn micros(nanos: u128) -> u32 {
    u32::try_from(nanos / 1_000).unwrap_or(u32::MAX)
}

impl<K, V> std::fmt::Debug for Stripe<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stripe")
            .field("counters", &self.counters)
            .field("running", &self.runs.len())
            .field("published", &self.published)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
