//! A stripe and its model. Every step is done to both, and the results are compared.

use super::{Op, SHORT, START};
use crate::shard::Waiter;
use crate::shard::permits::PermitPool;
use crate::shard::stripe::{
    Arming, Cancelling, Claimed, EntryId, KeyHash, Moving, Refusal, RunEvent, Start, Stripe,
};
use crate::sync::{Arc, Parker};
use crate::tick::{TickSize, Time};
use crate::wheel::Budget;

/// An arming of the model. Its payload is its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) number: usize,
    pub(super) id: EntryId,
    pub(super) deadline: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Absent,
    Armed {
        arming: Known,
        queued: bool,
    },
    Running {
        arming: Known,
        told: bool,
        successor: Option<Known>,
        /// The number of the waiter.
        waiter: Option<u64>,
        /// Set while a further round may follow.
        repeats: Option<Repeats>,
    },
}

/// The deadline that calls have set for the next round, and whether the round may be earlier.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Repeats {
    pub(super) next: Option<(u64, bool)>,
}

/// How an arming ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Not,
    Ran,
    Cancelled,
    Replaced,
    HandedBack,
}

pub(super) struct Pair {
    pub(super) stripe: Stripe<usize, usize>,
    limit: Option<usize>,
    pub(super) pool: Option<Arc<PermitPool>>,
    /// Whether the payload repeats, by number of the arming.
    pub(super) repeating: Vec<bool>,
    pub(super) now: u64,
    pub(super) keys: [State; 2],
    /// Id and end, by number of the arming.
    pub(super) ends: Vec<(EntryId, Ended)>,
    /// Slots whose tickets are under way.
    pub(super) tickets: Vec<u32>,
    /// The due moment that the ticker sees.
    pub(super) seen: Time,
}

pub(super) fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// Both keys have the same hash, so the index must tell them apart by `Eq`.
pub(super) const HASH: KeyHash = KeyHash(7);

impl Pair {
    /// Creates a stripe with `limit` permits and `places` places for staging.
    pub(super) fn new(limit: Option<usize>, places: u32) -> Self {
        let pool = limit.map(|limit| Arc::new(PermitPool::new(limit, 1, 1)));
        let mut stripe = Stripe::new(TickSize::from_nanos(1), at(START), 0, pool.clone());
        stripe.staging.limit_to(places);
        Pair {
            stripe,
            limit,
            pool,
            repeating: Vec::new(),
            now: START,
            keys: [State::Absent; 2],
            ends: Vec::new(),
            tickets: Vec::new(),
            seen: Time::MAX,
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.keys
            .iter()
            .filter(|key| match key {
                State::Armed { .. } => true,
                State::Running { successor, .. } => successor.is_some(),
                State::Absent => false,
            })
            .count()
    }

    /// Returns the number of permits in use. A run that repeats holds one, unless its successor
    /// does.
    fn held(&self) -> usize {
        let runs = self.keys.iter().filter(|key| {
            matches!(
                key,
                State::Running {
                    repeats: Some(_),
                    successor: None,
                    ..
                }
            )
        });
        self.pending() + runs.count()
    }

    pub(super) fn count(&self, ended: Ended) -> u64 {
        self.ends.iter().filter(|(_, how)| *how == ended).count() as u64
    }

    /// Performs an operation and compares the results. Returns false if it changed nothing.
    pub(super) fn step(&mut self, op: Op) -> bool {
        match op {
            Op::Arm(key, delay) => self.arm(key, delay, false, false),
            Op::IfAbsent(key, delay) => self.arm(key, delay, true, false),
            Op::Repeat(key, delay) => self.arm(key, delay, false, true),
            Op::Touch(key, delay) => self.touch(key, delay),
            Op::PullIn(key, delay) => self.pull_in(key, delay),
            Op::Cancel(key) => self.cancel(key),
            Op::CancelAll => self.cancel_all(),
            Op::Wait(key) => self.wait(key),
            Op::GiveUp(key) => self.give_up(key),
            Op::Collect(by) => self.collect(by),
            Op::Claim(ticket) => self.claim(ticket),
            Op::ClaimLate(ticket) => self.claim_late(ticket),
            Op::GiveBack(ticket) => self.give_back(ticket),
            Op::End(key) => self.end_round(key, Some(self.now + SHORT)),
            Op::Settle(key) => self.settle(key),
            Op::Stop(key) => self.end_round(key, None) && self.settle(key),
            Op::Shrink => self.shrink(),
        }
    }

    fn arm(&mut self, key: usize, delay: u64, if_absent: bool, repeats: bool) -> bool {
        let full = self.limit == Some(self.held());
        let refusal = match &self.keys[key] {
            State::Absent => full.then_some(Refusal::NoPermit),
            State::Armed { .. } => if_absent.then_some(Refusal::Occupied),
            State::Running {
                waiter: Some(_), ..
            } => Some(Refusal::Closing),
            State::Running {
                successor: Some(_), ..
            } => if_absent.then_some(Refusal::Occupied),
            State::Running {
                repeats: Some(_),
                told,
                ..
            } => (if_absent && !told).then_some(Refusal::Occupied),
            State::Running { .. } => full.then_some(Refusal::NoPermit),
        };
        let admission = match self.stripe.admit(HASH, &key, if_absent) {
            Ok(admission) => admission,
            Err(answer) => {
                assert_eq!(Some(answer), refusal);
                return false;
            }
        };
        assert_eq!(refusal, None, "the model expects a refusal");
        let number = self.ends.len();
        let deadline = self.now + delay;
        let Arming {
            id,
            replaced,
            after_run,
            dropped: (_, dropped),
        } = self
            .stripe
            .arm(admission, HASH, key, number, at(deadline), at(self.now));
        let is_new = self.ends.iter().all(|(before, _)| *before != id);
        assert!(is_new, "ENTRY-6: an id comes back");
        self.ends.push((id, Ended::Not));
        self.repeating.push(repeats);
        let arming = Known {
            number,
            id,
            deadline,
        };
        let before = match &mut self.keys[key] {
            State::Running { successor, .. } => {
                assert!(after_run);
                successor.replace(arming)
            }
            other => {
                assert!(!after_run);
                let before = match other {
                    State::Armed { arming, .. } => Some(*arming),
                    _ => {
                        assert!(!self.tickets.contains(&id.slot), "ENTRY-2: a ticket is out");
                        None
                    }
                };
                let queued = delay == 0;
                *other = State::Armed { arming, queued };
                before
            }
        };
        assert_eq!(replaced, before.map(|before| at(before.deadline)));
        assert_eq!(dropped, before.map(|before| before.number));
        if let Some(before) = before {
            assert_eq!(before.id.slot, id.slot);
            assert!(before.id.generation < id.generation, "ENTRY-3");
            self.end(before, Ended::Replaced);
        }
        self.check_deferred();
        true
    }

    pub(super) fn end(&mut self, arming: Known, how: Ended) {
        let (_, end) = &mut self.ends[arming.number];
        assert_eq!(*end, Ended::Not, "an arming ends once");
        *end = how;
    }

    /// Returns unused memory. With two slots, the order of the free list changes only if both are
    /// cut off.
    fn shrink(&mut self) -> bool {
        let before = self.stripe.table.len();
        self.stripe.shrink_to_fit();
        self.check_deferred();
        self.stripe.table.len() != before
    }

    fn touch(&mut self, key: usize, delay: u64) -> bool {
        let deadline = self.now + delay;
        let answer = self
            .stripe
            .reschedule(HASH, &key, || (at(deadline), at(self.now)), false);
        let now = self.now;
        let moved = match &mut self.keys[key] {
            State::Absent => {
                assert_eq!(answer, Moving::NotFound);
                return false;
            }
            State::Running {
                successor: None,
                told: false,
                repeats: Some(repeats),
                arming,
                ..
            } => {
                let before = repeats.next.replace((deadline, false));
                let before = at(before.map_or(arming.deadline, |(before, _)| before));
                assert_eq!(answer, Moving::Moved { before });
                self.check_deferred();
                return true;
            }
            State::Running {
                successor: None, ..
            } => {
                assert_eq!(answer, Moving::Running);
                return false;
            }
            State::Armed { arming, queued } => {
                *queued = deadline <= now;
                arming
            }
            State::Running {
                successor: Some(arming),
                ..
            } => arming,
        };
        let before = at(std::mem::replace(&mut moved.deadline, deadline));
        assert_eq!(answer, Moving::Moved { before });
        self.check_deferred();
        true
    }

    fn cancel(&mut self, key: usize) -> bool {
        let answer = self.stripe.cancel(HASH, &key);
        let changed = self.cancelled(key, answer);
        self.check_deferred();
        changed
    }

    fn cancelled(&mut self, key: usize, answer: Cancelling<usize, usize>) -> bool {
        let (expected, changed) = match self.keys[key] {
            State::Absent => (None, false),
            State::Armed { arming, .. } => {
                self.keys[key] = State::Absent;
                (Some(arming), true)
            }
            State::Running {
                arming,
                told,
                successor,
                waiter,
                repeats,
            } => {
                self.keys[key] = State::Running {
                    arming,
                    told: true,
                    successor: None,
                    waiter,
                    repeats,
                };
                if successor.is_none() {
                    assert!(matches!(answer, Cancelling::Running(id) if id == arming.id));
                    return !told;
                }
                (successor, true)
            }
        };
        match (answer, expected) {
            (
                Cancelling::Cancelled {
                    deadline,
                    run,
                    dropped: (_, value),
                },
                Some(arming),
            ) => {
                assert_eq!(deadline, at(arming.deadline));
                assert_eq!(value, Some(arming.number), "the payload comes out at once");
                let running = match self.keys[key] {
                    State::Running { arming, .. } => Some(arming.id),
                    _ => None,
                };
                assert_eq!(run, running);
                self.end(arming, Ended::Cancelled);
            }
            (Cancelling::NotFound, None) => {}
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
        changed
    }

    fn wait(&mut self, key: usize) -> bool {
        if !matches!(self.keys[key], State::Running { waiter: None, .. }) {
            return false;
        }
        let answer = self.stripe.cancel(HASH, &key);
        self.cancelled(key, answer);
        let State::Running { arming, waiter, .. } = &mut self.keys[key] else {
            unreachable!("the key was running");
        };
        let thread = Waiter::Thread(Parker::new().unparker().clone());
        let registered = self.stripe.register(arming.id, RunEvent::End, thread);
        *waiter = registered.ok();
        assert!(waiter.is_some());
        self.check_deferred();
        true
    }

    fn give_up(&mut self, key: usize) -> bool {
        let State::Running { arming, waiter, .. } = &mut self.keys[key] else {
            return false;
        };
        let Some(number) = waiter.take() else {
            return false;
        };
        let waiter = (self.stripe).unregister(arming.id, RunEvent::End, number);
        assert!(waiter.is_some());
        self.check_deferred();
        true
    }

    fn collect(&mut self, by: u64) -> bool {
        self.now += by;
        let mut budget = Budget {
            expired: 1_000,
            allowed: usize::MAX,
            cascaded: 1_000,
        };
        let mut tickets = Vec::new();
        let _ = self.stripe.collect(at(self.now), &mut budget, &mut tickets);
        self.seen = self.stripe.republish();
        assert!(self.seen > at(self.now), "no due entry remains");
        for key in &mut self.keys {
            if let State::Armed { arming, queued } = key {
                *queued |= arming.deadline <= self.now;
            }
        }
        self.tickets.extend(tickets);
        self.check_deferred();
        true
    }

    fn claim(&mut self, ticket: usize) -> bool {
        if ticket >= self.tickets.len() {
            return false;
        }
        let slot = self.tickets.remove(ticket);
        let repeating = &self.repeating;
        let claimed = self.stripe.claim_at(slot, at(self.now), |value, due| {
            if repeating[*value] {
                Start::Round(due)
            } else {
                Start::Once
            }
        });
        let queued = self.keys.iter().position(
            |key| matches!(key, State::Armed { arming, queued: true } if arming.id.slot == slot),
        );
        match (claimed, queued) {
            (Claimed::Nothing, None) => {}
            (
                Claimed::Run {
                    key,
                    value,
                    id,
                    deadline,
                    started,
                },
                Some(expected),
            ) => {
                let State::Armed { arming, .. } = self.keys[expected] else {
                    unreachable!("the key is queued");
                };
                assert_eq!((key, value, id), (expected, arming.number, arming.id));
                assert_eq!((deadline, started), (at(arming.deadline), at(self.now)));
                assert!(deadline <= started, "never early");
                self.end(arming, Ended::Ran);
                self.keys[key] = State::Running {
                    arming,
                    told: false,
                    successor: None,
                    waiter: None,
                    repeats: self.repeating[value].then(Repeats::default),
                };
            }
            (claimed, queued) => panic!("{claimed:?} of {queued:?}"),
        }
        self.check_deferred();
        true
    }

    fn give_back(&mut self, ticket: usize) -> bool {
        if ticket >= self.tickets.len() {
            return false;
        }
        let slot = self.tickets.remove(ticket);
        self.stripe.give_back(slot, at(self.now));
        for key in &mut self.keys {
            if let State::Armed { arming, queued } = key
                && arming.id.slot == slot
            {
                *queued = false;
            }
        }
        self.check_deferred();
        true
    }

    fn settle(&mut self, key: usize) -> bool {
        self.end_round(key, Some(self.now + SHORT));
        let State::Running {
            arming,
            successor,
            waiter,
            ..
        } = self.keys[key]
        else {
            return false;
        };
        let completed = self.stripe.complete(arming.id, false, || at(self.now));
        assert_eq!(completed.key, successor.is_none().then_some(key));
        let woken: Vec<u64> = completed
            .waiters
            .iter()
            .map(|(number, _)| *number)
            .collect();
        assert_eq!(woken, Vec::from_iter(waiter));
        self.keys[key] = match successor {
            None => State::Absent,
            Some(arming) => State::Armed {
                arming,
                queued: arming.deadline <= self.now,
            },
        };
        self.check_deferred();
        true
    }
}
