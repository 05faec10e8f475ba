//! Runs whose payload may run again.
//!
//! During such a run, calls may set the deadline of the next round, or cancel it. At the end of the
//! run, the payload becomes the successor of the run, unless no next round was asked for, the
//! engine is closed and hands nothing back, the run was cancelled, another successor was armed, or
//! no generation is left. From then on the run is like any other.
//!
//! - **ROUND-1** The run keeps the permit of its arming for the next round. A successor that is
//!   armed during the run takes this permit over, and returns it to the run if it is cancelled. So
//!   no other arming can cause the next round to be refused.
//! - **ROUND-2** A move that succeeded is final, whatever next round the payload asks for.

use std::borrow::Borrow;

use super::answers::Moving;
use super::{EntryId, KeyHash, Run, Stripe, StripeGate, Successor};
use crate::tick::Time;

/// State of a run whose payload may run again. It is small, because every run has room for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeating {
    /// The deadline that calls have set for the next round.
    at: Time,
    /// How binding that deadline is.
    wish: Wish,
    /// Whether the run holds the permit (ROUND-1).
    permit: bool,
}

const _: () = assert!(size_of::<Option<Repeating>>() == 16);

/// How binding the deadline is that calls have set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// No call has set a deadline.
    None,
    /// The next round is due then, or earlier if the payload asks for that.
    AtTheLatest,
    Then,
}

impl Repeating {
    pub(super) fn new() -> Self {
        Repeating {
            at: Time::MAX,
            wish: Wish::None,
            permit: true,
        }
    }

    /// Returns the deadline of the next round, if the payload asks for `asked` (ROUND-2).
    fn next(&self, asked: Option<Time>) -> Option<Time> {
        match self.wish {
            Wish::None => asked,
            Wish::AtTheLatest => Some(asked.map_or(self.at, |asked| asked.min(self.at))),
            Wish::Then => Some(self.at),
        }
    }
}

impl<V> Run<V> {
    /// Returns whether the run holds a permit (ROUND-1).
    pub(super) fn holds_permit(&self) -> bool {
        self.repeating.is_some_and(|repeating| repeating.permit)
    }

    /// Passes the permit on to the successor, which needs one (ROUND-1).
    pub(super) fn pass_permit_on(&mut self) {
        if let Some(repeating) = &mut self.repeating {
            repeating.permit = false;
        }
    }

    /// Returns whether a further round may follow.
    pub(super) fn goes_on(&self) -> bool {
        self.repeating.is_some() && !self.cancelled && self.successor.is_none()
    }

    /// Makes this the last round of a payload that repeats.
    pub(super) fn end_repetition(&mut self) {
        self.cancelled |= self.repeating.is_some();
    }
}

impl<K, V> Stripe<K, V> {
    /// Arms the next round of the run `id`, whose task has ended and which is not complete. The
    /// payload asks for the deadline `asked`, or for no further round. If there is no next round,
    /// returns the payload, which the caller drops after unlocking.
    pub(crate) fn arm_next_round(
        &mut self,
        id: EntryId,
        value: V,
        asked: Option<Time>,
    ) -> Option<V> {
        let open = self.has_rounds();
        let newest = self.newest(id.slot);
        let Some(at) = self.run_at(id.slot) else {
            unreachable!("ENTRY-4: a run is completed exactly once, and after this call");
        };
        let run = &mut self.runs[at];
        // Decided under this lock: a cancellation, a shutdown or an arming that came before it ends
        // the repetition, and a later one finds the successor.
        let goes_on = run.goes_on() && open && newest < u32::MAX;
        // From here on the run is an ordinary one: later calls see the successor, or none.
        let repeating = run.repeating.take();
        let next = repeating.and_then(|repeating| repeating.next(asked));
        let Some(deadline) = next.filter(|_| goes_on) else {
            if repeating.is_some_and(|repeating| repeating.permit) {
                self.put_permit_back();
            }
            return Some(value);
        };
        // The successor keeps the permit.
        run.successor = Some(Successor {
            is_round: true,
            generation: newest + 1,
            deadline,
            value,
        });
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        let Some(busy) = self.table.busy_mut(id.slot) else {
            unreachable!("ENTRY-4: a run has a Running slot");
        };
        busy.newest += 1;
        None
    }

    /// Returns whether a round can be followed by another one, be it for the report of a shutdown
    /// (CLOSE-5).
    fn has_rounds(&self) -> bool {
        self.gate == StripeGate::Open || self.keeps
    }

    /// Returns whether the next round of the run in `slot` is armed already, so that only the
    /// completion of the run is missing.
    pub(super) fn keeps_a_round(&self, slot: u32) -> bool {
        let successor = self
            .run_at(slot)
            .and_then(|at| self.runs[at].successor.as_ref());
        successor.is_some_and(|successor| successor.is_round)
    }

    /// Moves the next round of a run that has no successor. A run that does not repeat can't be
    /// moved.
    #[inline(never)]
    pub(super) fn move_next_round(
        &mut self,
        at: usize,
        deadline: Time,
        only_earlier: bool,
    ) -> Moving {
        let open = self.has_rounds();
        let run = &mut self.runs[at];
        let goes_on = run.goes_on() && open;
        let Some(repeating) = run.repeating.as_mut().filter(|_| goes_on) else {
            return Moving::Running;
        };
        let before = match repeating.wish {
            Wish::None => run.deadline,
            Wish::AtTheLatest | Wish::Then => repeating.at,
        };
        let is_set = repeating.wish != Wish::None;
        if only_earlier && is_set && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        repeating.at = deadline;
        // A call that only moves to an earlier deadline does not weaken an earlier move (ROUND-2).
        repeating.wish = if only_earlier && repeating.wish != Wish::Then {
            Wish::AtTheLatest
        } else {
            Wish::Then
        };
        Moving::Moved { before }
    }

    /// Makes the pending arming of `key` due at `now`, unless it is due no later. `keep` gets its
    /// payload and its deadline before that. It runs under the lock, so it must not be user code.
    pub(crate) fn run_now<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        now: Time,
        keep: impl FnOnce(&mut V, Time),
    ) -> Moving
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some(slot) = self.find(hash, key) else {
            return Moving::NotFound;
        };
        match self.pending_payload_mut(slot) {
            None => Moving::Running,
            Some((_, deadline)) if deadline <= now => Moving::Unchanged { deadline },
            Some((payload, deadline)) => {
                keep(payload, deadline);
                self.reschedule_slot(slot, now, now, true)
            }
        }
    }

    /// Counts the successor of the run `at` as no longer pending.
    pub(super) fn successor_removed(&mut self, at: usize) {
        match &mut self.runs[at].repeating {
            // ROUND-1.
            Some(repeating) => {
                self.counters.pending -= 1;
                repeating.permit = true;
            }
            None => self.no_longer_pending(),
        }
    }
}
