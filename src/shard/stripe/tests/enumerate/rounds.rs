//! Operations on payloads that repeat: rounds that end, and calls that move or cancel the next one.

use super::SHORT;
use super::pair::{Ended, HASH, Known, Pair, Repeats, State, at};
use crate::shard::stripe::{Claimed, EntryPhase, Moving, Start};

impl Pair {
    pub(super) fn pull_in(&mut self, key: usize, delay: u64) -> bool {
        let deadline = self.now + delay;
        let answer = self
            .stripe
            .reschedule(HASH, &key, || (at(deadline), at(self.now)), true);
        let (before, pulled) = match &mut self.keys[key] {
            State::Absent => {
                assert_eq!(answer, Moving::NotFound);
                return false;
            }
            State::Armed { arming, .. }
            | State::Running {
                successor: Some(arming),
                ..
            } => (arming.deadline, &mut arming.deadline),
            State::Running {
                successor: None,
                told: false,
                repeats: Some(repeats),
                arming,
                ..
            } => match &mut repeats.next {
                Some((next, _)) => (*next, next),
                next => {
                    *next = Some((deadline, true));
                    let before = at(arming.deadline);
                    assert_eq!(answer, Moving::Moved { before });
                    self.check_deferred();
                    return true;
                }
            },
            State::Running {
                successor: None, ..
            } => {
                assert_eq!(answer, Moving::Running);
                return false;
            }
        };
        if deadline >= before {
            let deadline = at(before);
            assert_eq!(answer, Moving::Unchanged { deadline });
            return false;
        }
        *pulled = deadline;
        let before = at(before);
        assert_eq!(answer, Moving::Moved { before });
        self.check_deferred();
        true
    }

    pub(super) fn cancel_all(&mut self) -> bool {
        let mut taken = Vec::new();
        assert_eq!(self.stripe.take_pending(0, 10, false, &mut taken), None);
        let mut changed = false;
        for key in 0..2 {
            let pending = match &mut self.keys[key] {
                State::Absent => None,
                State::Armed { arming, .. } => Some(*arming),
                State::Running {
                    successor,
                    told,
                    repeats,
                    ..
                } => {
                    changed |= repeats.is_some() && !*told;
                    *told |= repeats.is_some();
                    successor.take()
                }
            };
            if let State::Armed { .. } = self.keys[key] {
                self.keys[key] = State::Absent;
            }
            let Some(arming) = pending else {
                continue;
            };
            changed = true;
            let found = taken.iter().position(|taken| taken.2 == arming.number);
            let found = taken.swap_remove(found.expect("it comes out"));
            assert_eq!(found.1, at(arming.deadline));
            self.end(arming, Ended::Cancelled);
        }
        assert!(taken.is_empty());
        self.check_deferred();
        changed
    }

    pub(super) fn claim_late(&mut self, ticket: usize) -> bool {
        if ticket >= self.tickets.len() {
            return false;
        }
        let slot = self.tickets.remove(ticket);
        let later = self.now + SHORT;
        let claimed = self
            .stripe
            .claim_at(slot, at(self.now), |_, _| Start::PutOff(at(later)));
        assert!(matches!(claimed, Claimed::Nothing));
        for key in &mut self.keys {
            if let State::Armed { arming, queued } = key
                && *queued
                && arming.id.slot == slot
            {
                *queued = false;
                arming.deadline = later;
            }
        }
        self.check_deferred();
        true
    }

    /// Ends a round. Returns false if there is none.
    pub(super) fn end_round(&mut self, key: usize, asked: Option<u64>) -> bool {
        let State::Running {
            arming,
            told,
            successor,
            repeats,
            ..
        } = &mut self.keys[key]
        else {
            return false;
        };
        let Some(Repeats { next }) = repeats.take() else {
            return false;
        };
        let wanted = match (next, asked) {
            (None, asked) => asked,
            (Some((next, true)), Some(asked)) => Some(next.min(asked)),
            (Some((next, _)), _) => Some(next),
        };
        let number = self.ends.len();
        let next = asked.map(at);
        let left = self.stripe.arm_next_round(arming.id, number, next);
        match wanted.filter(|_| !*told && successor.is_none()) {
            None => assert_eq!(left, Some(number), "it comes out"),
            Some(deadline) => {
                assert_eq!(left, None);
                let entry_info = self
                    .stripe
                    .get(HASH, &key)
                    .map(|entry_info| entry_info.phase);
                let Some(EntryPhase::Running {
                    successor: Some((id, _)),
                }) = entry_info
                else {
                    panic!("it is kept, not {entry_info:?}");
                };
                assert!(id.slot == arming.id.slot && id.generation > arming.id.generation);
                *successor = Some(Known {
                    number,
                    id,
                    deadline,
                });
                self.ends.push((id, Ended::Not));
                self.repeating.push(true);
            }
        }
        self.check_deferred();
        true
    }
}
