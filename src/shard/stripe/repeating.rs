//! Runs whose payload may run again.
//!
//! While such a run lasts, calls may say when the next round is due, or that there is none. At its
//! end the payload becomes an arming that is kept for after the run, under the rules of any kept
//! arming, unless there is a reason against it. From then on the run is like any other.
//!
//! - **ROUND-1** The run keeps the permit of its arming, for the next one; an arming that is kept
//!   takes it over, and gives it back to the run if it is cancelled. So nobody's arming can make
//!   the next round be refused.
//! - **ROUND-2** A move that was answered holds, whatever the payload asks for.

use super::answers::{Moving, Stays};
use super::{EntryId, Gate, Kept, Run, Stripe};
use crate::tick::Time;

/// What a run has whose payload may run again. Small, since every run has the place for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeating {
    /// When somebody wants the next round to be due.
    at: Time,
    wish: Wish,
    permit: bool,
}

const _: () = assert!(size_of::<Option<Repeating>>() == 16);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Nobody has said anything.
    None,
    /// Then, or earlier if the payload says so.
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

    /// When the next round is due, if the payload asks for `asked`. ROUND-2.
    fn next(&self, asked: Option<Time>) -> Option<Time> {
        match self.wish {
            Wish::None => asked,
            Wish::AtTheLatest => Some(asked.map_or(self.at, |asked| asked.min(self.at))),
            Wish::Then => Some(self.at),
        }
    }
}

impl<V> Run<V> {
    /// ROUND-1.
    pub(super) fn holds_permit(&self) -> bool {
        self.repeating.is_some_and(|repeating| repeating.permit)
    }

    /// ROUND-1: there is a kept arming, which needs one.
    pub(super) fn pass_permit_on(&mut self) {
        if let Some(repeating) = &mut self.repeating {
            repeating.permit = false;
        }
    }

    /// Whether a further round may follow.
    pub(super) fn goes_on(&self) -> bool {
        self.repeating.is_some() && !self.cancelled && self.kept.is_none()
    }

    /// Of a repeating payload this is the last round.
    pub(super) fn end_repetition(&mut self) {
        self.cancelled |= self.repeating.is_some();
    }
}

impl<K, V> Stripe<K, V> {
    /// The run `id` is over, but not settled, and this is its payload: armed for its next round, or
    /// given back to be dropped outside the lock.
    pub(crate) fn arm_next_round(&mut self, id: EntryId, stays: Stays<V>) -> Option<V> {
        let open = self.gate == Gate::Open;
        let newest = self.newest(id.slot);
        let Some(at) = self.run_at(id.slot) else {
            unreachable!("ENTRY-4: a run is settled once, and after this");
        };
        let run = &mut self.runs[at];
        let goes_on = run.goes_on() && open && newest < u32::MAX;
        let repeating = run.repeating.take();
        let next = repeating.and_then(|repeating| repeating.next(stays.next));
        let Some(deadline) = next.filter(|_| goes_on) else {
            if repeating.is_some_and(|repeating| repeating.permit) {
                self.put_permit_back();
            }
            return Some(stays.value);
        };
        // The permit stays with it.
        run.kept = Some(Kept {
            is_round: true,
            generation: newest + 1,
            deadline,
            value: stays.value,
        });
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        let Some(busy) = self.table.busy_mut(id.slot) else {
            unreachable!("ENTRY-4: a run has a Running slot");
        };
        busy.newest += 1;
        None
    }

    /// Whether the run in this slot is over but for its settling, and its next round is kept.
    pub(super) fn keeps_a_round(&self, slot: u32) -> bool {
        let kept = self.run_at(slot).and_then(|at| self.runs[at].kept.as_ref());
        kept.is_some_and(|kept| kept.is_round)
    }

    /// A run without a kept arming is asked to move: of a repeating payload, its next round.
    #[inline(never)]
    pub(super) fn move_next_round(
        &mut self,
        at: usize,
        deadline: Time,
        only_earlier: bool,
    ) -> Moving {
        let open = self.gate == Gate::Open;
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
        // Pulling in what was moved leaves no choice either.
        repeating.wish = if only_earlier && repeating.wish != Wish::Then {
            Wish::AtTheLatest
        } else {
            Wish::Then
        };
        Moving::Moved { before }
    }

    /// The arming that was kept for after the run `at` has ended.
    pub(super) fn kept_is_gone(&mut self, at: usize) {
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
