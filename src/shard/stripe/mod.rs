//! One stripe: an index, the entries and a wheel behind one lock. Everything here is a plain
//! function of its arguments: no clock, no thread, no waiting. User code that runs in here is `Eq`
//! of the key (before anything is changed), `Clone` of the key (guarded), and what looks at
//! payloads in `payload.rs`; values and keys leave through the return values, so that they are
//! dropped outside the lock.

mod answers;
mod arming;
mod due;
mod ending;
mod index;
mod moving;
mod payload;
mod repeating;
mod shrinking;
mod staging;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;

pub(crate) use answers::{
    Arming, Cancelling, Claimed, Moving, Refusal, Settled, Sight, SightPhase, Start, Stays, Taken,
};

use std::borrow::Borrow;

pub(crate) use index::Index;
use repeating::Repeating;
use staging::Staging;
pub(crate) use waiting::RunEvent;

use super::entry::{End, Floors, Phase, Slot, Table};
use super::permits::{LocalPermits, PermitPool};
use super::waiter::Waiter;
use crate::stats::{Counters, Latenesses};
use crate::sync::Arc;
use crate::tick::{TickSize, Time};
use crate::wheel::CoreWheel;

/// A key's hash, folded: the low half goes into the index, the high bits choose the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// What the index keeps.
    pub(crate) fn bits(self) -> u32 {
        self.0 as u32
    }
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
    /// Those of [`RunEvent::End`].
    waiters: Vec<(u64, Waiter)>,
    /// Those of [`RunEvent::Cancellation`].
    #[cfg(feature = "tokio")]
    watchers: Vec<(u64, Waiter)>,
    kept: Option<Kept<V>>,
    /// Of a payload that may run again, until that is decided.
    repeating: Option<Repeating>,
}

struct Kept<V> {
    /// The next round of the payload that runs, not an arming of its own.
    is_round: bool,
    generation: u32,
    deadline: Time,
    value: V,
}
/// How far a stripe is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gate {
    Open,
    /// Nothing new is armed.
    Closed,
    /// It is nobody's: see `under_lock.rs`.
    Inert,
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
    /// Who is to hear that a run was cancelled.
    #[cfg(feature = "tokio")]
    pub(crate) told: Vec<(u64, Waiter)>,
}

/// In the order of use, what every call reads first: between two producers each cache line that one
/// of them writes travels, so few lines mean more than few instructions.
#[repr(C)]
pub(crate) struct Stripe<K, V> {
    index: Index,
    table: Table<K, V>,
    /// What the ticker sees as this stripe's next due moment: never later than the truth.
    published: Time,
    /// Whether there may be something in `after`, or the end of a closed stripe to be told.
    left: bool,
    gate: Gate,
    emptied: bool,
    /// What is due at once is the ticker's, too, which goes by the pace.
    paced: bool,
    bound: Option<Arc<PermitPool>>,
    staging: Staging,
    counters: Counters,
    wheel: CoreWheel,
    runs: Vec<Run<V>>,
    waiters_seen: u64,
    lateness: Option<Box<Latenesses>>,
    after: Aftermath,
    permits: LocalPermits,
    floors: Floors,
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
            index: Index::new(),
            table: Table::new(tick),
            wheel: CoreWheel::new(tick.begun_by(now), origin),
            staging: Staging::new(),
            runs: Vec::new(),
            waiters_seen: 0,
            counters: Counters::default(),
            lateness: None,
            published: Time::MAX,
            after: Aftermath::default(),
            left: false,
            gate: Gate::Open,
            emptied: false,
            paced: false,
            bound,
            permits: LocalPermits::default(),
            floors: Floors::default(),
        }
    }

    /// One that stays empty.
    pub(crate) fn inert(tick: TickSize) -> Self {
        Stripe {
            gate: Gate::Inert,
            ..Stripe::new(tick, Time::ZERO, 0, None)
        }
    }

    /// Every ticket is the ticker's from here on.
    pub(crate) fn paced(self) -> Self {
        Stripe {
            paced: true,
            ..self
        }
    }

    /// Whether there may be something for [`take_aftermath`](Self::take_aftermath).
    #[inline]
    pub(crate) fn has_aftermath(&self) -> bool {
        self.left
    }

    /// What the operations since the last call left to be done.
    pub(crate) fn take_aftermath(&mut self) -> Aftermath {
        // A closed stripe is looked at after every operation, since any may be its last one.
        self.left = self.gate == Gate::Closed;
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

    pub(crate) fn find<Q>(&self, hash: KeyHash, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.index.find(hash.bits(), |slot| {
            self.table
                .key(slot)
                .is_some_and(|stored| stored.borrow() == key)
        })
    }

    /// Reads of the index what [`find`](Self::find) reads first, mostly.
    #[inline]
    pub(crate) fn glance(&self, hash: KeyHash) -> u32 {
        self.index.glance(hash.bits())
    }

    fn run_at(&self, slot: u32) -> Option<usize> {
        match self.table.slot(slot) {
            Some(Slot::Running(busy)) => Some(busy.run as usize),
            _ => None,
        }
    }

    fn run_of(&self, id: EntryId) -> Option<usize> {
        self.run_at(id.slot).filter(|at| self.runs[*at].id == id)
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
        (self.run_of(id)).is_some_and(|at| self.runs[at].cancelled)
    }

    /// Whether the run `id` has not been settled.
    pub(crate) fn is_running(&self, id: EntryId) -> bool {
        self.run_of(id).is_some()
    }
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

/// The unit in which a Queued entry keeps how late it was collected.
fn micros(nanos: u128) -> u32 {
    u32::try_from(nanos / 1_000).unwrap_or(u32::MAX)
}
