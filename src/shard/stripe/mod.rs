//! One stripe: an index, the entries and a wheel behind one lock.
//!
//! Everything here is a plain function of its arguments: there is no clock, no thread and no
//! waiting. Three kinds of user code run in here: a key's `Eq` (before anything is changed), a
//! key's `Clone` (under a guard), and the closures that see payloads in `payload.rs`. Values and
//! keys leave through the return values, so that they are dropped outside the lock.

mod answers;
mod arming;
mod due;
mod ending;
mod index;
mod lookups;
mod moving;
mod payload;
mod renaming;
mod repeating;
mod shrinking;
mod staging;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;

pub(crate) use answers::{
    Admission, Arming, Cancelling, Claimed, Completed, EntryInfo, EntryPhase, JudgedMove, Moving,
    PutOff, Refusal, Start, Taken,
};

use std::borrow::Borrow;

pub(crate) use index::{Index, NotUsual};
pub(crate) use lookups::Lookup;
use lookups::{NarrowCounts, WideCounts};
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

/// The finalized hash of a key. The index uses the low half, and the high bits choose the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Returns the half that the index keeps.
    pub(crate) fn bits(self) -> u32 {
        self.0 as u32
    }
}

/// The id of an arming: a slot and the generation in which the arming got it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl EntryId {
    /// Returns an id that answers NotFound: no arming has generation 0.
    pub(crate) fn gone(slot: u32) -> Self {
        EntryId {
            slot,
            generation: 0,
        }
    }
}

/// The fields that only Running entries need.
struct Run<V> {
    id: EntryId,
    deadline: Time,
    started: Time,
    cancelled: bool,
    /// Waiters of [`RunEvent::End`], by number. While there are any, the key can't be armed.
    waiters: Vec<(u64, Waiter)>,
    /// Waiters of [`RunEvent::Cancellation`], by number.
    #[cfg(feature = "tokio")]
    watchers: Vec<(u64, Waiter)>,
    /// The successor of the run, if there is one.
    successor: Option<Successor<V>>,
    /// State of a payload that may run again, until its next round is decided.
    repeating: Option<Repeating>,
}

/// A run that is not complete, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunInProgress {
    pub(crate) id: EntryId,
    pub(crate) started: Time,
    pub(crate) cancelled: bool,
}

/// An arming that was accepted during a run and starts after it: the successor of that run.
struct Successor<V> {
    /// Whether this is the next round of the payload that runs, and not an arming of its own.
    is_round: bool,
    generation: u32,
    deadline: Time,
    value: V,
}
/// Which armings a stripe accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StripeGate {
    /// Accepts armings.
    Open,
    /// Refuses new armings, since the engine shuts down.
    Closed,
    /// Refuses everything: this is the stripe for calls from under a lock, see `under_lock.rs`.
    UnderLock,
    /// Refuses everything: this is the stripe for calls in a forked copy of the process (FORK-1).
    Forked,
}

/// Deferred actions of an operation. The caller performs them after unlocking.
#[derive(Debug, Default)]
pub(crate) struct DeferredActions {
    /// The new next due moment of the stripe, if it became earlier.
    pub(crate) lowered: Option<Time>,
    /// The slot of an entry that is due at once. Its ticket must be handed to the executor.
    pub(crate) ticket: Option<u32>,
    /// The closed stripe has nothing pending or running any more. Set exactly once.
    pub(crate) emptied: bool,
    /// Tasks to wake because their run was cancelled.
    #[cfg(feature = "tokio")]
    pub(crate) to_notify: Vec<(u64, Waiter)>,
}

/// One stripe. The fields that every call reads come first, in the order of their use. Each cache
/// line that one producer writes must travel to the next one, so few lines matter more than few
/// instructions.
#[repr(C)]
pub(crate) struct Stripe<K, V> {
    /// Whether there may be deferred actions in `deferred`, or an emptied stripe to report.
    has_deferred: bool,
    gate: StripeGate,
    /// Whether it was reported that the closed stripe is empty.
    emptied: bool,
    /// Whether the closed stripe keeps what follows a run, in `kept`.
    keeps: bool,
    /// Entries that are due at once go through the ticker as well, which keeps the pace.
    paced: bool,
    narrow: NarrowCounts,
    index: Index,
    // Up to the first chunk of the table, which comes first in it, all is in the line of the lock.
    // A touch reads no other line of a stripe with at most one chunk.
    table: Table<K, V>,
    /// The next due moment that the ticker sees for this stripe. It is never later than the real
    /// one.
    published: Time,
    /// The pool of permits, if `max_pending` is set.
    bound: Option<Arc<PermitPool>>,
    staging: Staging,
    counters: Counters,
    wheel: CoreWheel,
    runs: Vec<Run<V>>,
    /// The last number that was given to a waiting thread or task.
    waiters_seen: u64,
    lateness: Option<Box<Latenesses>>,
    /// The armings that followed runs of a closed stripe, until the report takes them (CLOSE-5).
    kept: Vec<Taken<K, V>>,
    deferred: DeferredActions,
    permits: LocalPermits,
    floors: Floors,
    wide: WideCounts,
}

/// The generation from which on a slot is exchanged at the next claim.
const EXHAUSTED: u32 = 1 << 31;

impl<K, V> Stripe<K, V> {
    /// Creates an empty stripe. `origin` shifts the moments at which its wheel cascades.
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
            kept: Vec::new(),
            published: Time::MAX,
            deferred: DeferredActions::default(),
            has_deferred: false,
            gate: StripeGate::Open,
            emptied: false,
            keeps: false,
            paced: false,
            narrow: NarrowCounts::default(),
            wide: WideCounts::default(),
            bound,
            permits: LocalPermits::default(),
            floors: Floors::default(),
        }
    }

    /// Creates a stripe that stays empty. `why` says why it refuses everything.
    pub(crate) fn inert(tick: TickSize, why: StripeGate) -> Self {
        Stripe {
            gate: why,
            ..Stripe::new(tick, Time::ZERO, 0, None)
        }
    }

    /// Makes all tickets go through the ticker.
    pub(crate) fn paced(self) -> Self {
        Stripe {
            paced: true,
            ..self
        }
    }

    /// Returns whether there may be deferred actions to take with
    /// [`take_deferred`](Self::take_deferred).
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred
    }

    /// Returns whether an operation has left deferred actions.
    pub(crate) fn has_actions(&self) -> bool {
        self.deferred.ticket.is_some() || self.deferred.lowered.is_some()
    }

    /// Takes the deferred actions of all operations since the last call.
    pub(crate) fn take_deferred(&mut self) -> DeferredActions {
        // Any operation on a closed stripe may be the last one, so it is checked after each.
        self.has_deferred = self.gate == StripeGate::Closed;
        if self.gate == StripeGate::Closed
            && !self.emptied
            && self.counters.pending == 0
            && self.runs.is_empty()
        {
            self.emptied = true;
            self.deferred.emptied = true;
        }
        std::mem::take(&mut self.deferred)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Iterates over the runs that are not complete.
    pub(crate) fn runs_in_progress(&self) -> impl Iterator<Item = RunInProgress> {
        self.runs.iter().map(|run| RunInProgress {
            id: run.id,
            started: run.started,
            cancelled: run.cancelled,
        })
    }

    /// Returns the key of a run, if it is in progress.
    pub(crate) fn key_of_run(&self, id: EntryId) -> Option<&K> {
        self.run_of(id).and_then(|_| self.table.key(id.slot))
    }

    /// Returns the number of runs that are not complete.
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

    /// Returns the slot of `key`.
    #[inline(always)]
    pub(crate) fn find<Q>(&self, hash: KeyHash, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.index.find(hash.bits(), |slot| self.is_at(slot, key))
    }

    /// Returns the slot of a key whose entry is not the [usual](Self::usual) one, or that has none.
    #[inline(always)]
    pub(crate) fn find_other<Q>(&self, reason: NotUsual, hash: KeyHash, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match reason {
            NotUsual::Absent => None,
            NotUsual::Unknown => self.find_by_search(hash, key),
        }
    }

    /// Returns the slot of `key`, for what the usual way did not find.
    #[inline(never)]
    pub(super) fn find_by_search<Q>(&self, hash: KeyHash, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(hash, key)
    }

    /// Reads the row of the index that [`find`](Self::find) usually reads first, to bring it into
    /// the cache.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) -> u32 {
        self.index.prefetch(hash.bits())
    }

    /// Returns the slot in which a key with this hash may be, by the row of the index that
    /// [`find`](Self::find) reads first, or `NO_ENTRY`.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: KeyHash) -> u32 {
        self.index.candidate(hash.bits())
    }

    /// Returns the slot in which a key with this hash may be, by the rows behind that one.
    #[inline]
    pub(crate) fn candidate_behind(&self, hash: KeyHash) -> u32 {
        self.index.candidate_behind(hash.bits())
    }

    /// Reads the entry in a slot, to bring it into the cache.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&self, slot: u32) -> u32 {
        self.table.armed(slot).map_or(0, |armed| armed.generation)
    }

    /// Returns whether `slot` is the slot of `key`. A key in use is in one slot only, so this is
    /// what [`find`](Self::find) returns. The key's `Eq` may panic.
    #[inline(always)]
    pub(crate) fn is_at<Q>(&self, slot: u32, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.table
            .key(slot)
            .is_some_and(|stored| stored.borrow() == key)
    }

    /// Returns the index of the run in `slot`, if the slot is Running.
    fn run_at(&self, slot: u32) -> Option<usize> {
        match self.table.slot(slot) {
            Some(Slot::Running(busy)) => Some(busy.run as usize),
            _ => None,
        }
    }

    /// Returns the index of the run `id`, if it is in progress.
    fn run_of(&self, id: EntryId) -> Option<usize> {
        self.run_at(id.slot).filter(|at| self.runs[*at].id == id)
    }

    /// Returns the entry info of `key`.
    pub(crate) fn get<Q>(&self, hash: KeyHash, key: &Q) -> Option<EntryInfo>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find(hash, key).and_then(|slot| self.entry_info(slot))
    }

    /// Returns the entry info of an id. A successor is shown as Pending, and the run itself as
    /// Running.
    pub(crate) fn get_id(&self, id: EntryId) -> Option<EntryInfo> {
        let entry_info = self.entry_info(id.slot)?;
        if entry_info.id == id {
            return Some(entry_info);
        }
        match entry_info.phase {
            EntryPhase::Running {
                successor: Some((successor, deadline)),
            } if successor == id => Some(EntryInfo {
                id,
                deadline,
                phase: EntryPhase::Pending,
            }),
            _ => None,
        }
    }

    /// Returns the entry info of a slot in use.
    fn entry_info(&self, slot: u32) -> Option<EntryInfo> {
        match self.table.slot(slot)? {
            Slot::Armed(armed) => Some(EntryInfo {
                id: EntryId {
                    slot,
                    generation: armed.generation,
                },
                deadline: armed.deadline,
                phase: match armed.phase {
                    Phase::Pending => EntryPhase::Pending,
                    Phase::Queued => EntryPhase::Queued,
                },
            }),
            Slot::Running(_) => {
                // The slot keeps only the key of a Running entry; the rest is in the list of runs.
                let run = &self.runs[self.run_at(slot)?];
                Some(EntryInfo {
                    id: run.id,
                    deadline: run.deadline,
                    phase: EntryPhase::Running {
                        successor: run.successor.as_ref().map(|successor| {
                            let id = EntryId {
                                slot,
                                generation: successor.generation,
                            };
                            (id, successor.deadline)
                        }),
                    },
                })
            }
            Slot::Free(_) => None,
        }
    }

    /// Returns how the arming `id` ended, if its slot was not used again since.
    pub(crate) fn end_of(&self, id: EntryId) -> Option<End> {
        match self.table.slot(id.slot)? {
            Slot::Free(vacant) if vacant.generation == id.generation => Some(vacant.end),
            _ => None,
        }
    }

    /// Returns whether the run `id` was cancelled.
    pub(crate) fn is_cancelled(&self, id: EntryId) -> bool {
        (self.run_of(id)).is_some_and(|at| self.runs[at].cancelled)
    }

    /// Returns whether the run `id` is in progress.
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

/// Returns a lateness in the unit in which a Queued entry keeps it.
fn micros_between(deadline: Time, now: Time) -> u32 {
    let nanos = now.as_nanos().saturating_sub(deadline.as_nanos());
    u32::try_from(nanos / 1_000).unwrap_or(u32::MAX)
}
