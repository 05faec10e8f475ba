//! All short sequences of what may happen to two keys of one stripe, against a plain model: what one
//! lock covers is enumerated, what no lock covers has its models in `loom-tests`.
//!
//! After every step the states, the answers, the ids, the counters and the invariants E1 to E5 are
//! looked at, and after every sequence the stripe is closed and emptied. What changes nothing is
//! looked at and not gone on from.

use super::super::entry::{End, Phase, Slot};
use super::super::permits::PermitPool;
use super::{
    Aftermath, Arming, Cancelling, Claimed, EntryId, KeyHash, Moving, Refusal, SightPhase, Stripe,
};
use crate::sync::{Arc, Parker};
use crate::tick::{TickSize, Time};
use crate::wheel::Budget;

/// Not zero, where too much is the same.
const START: u64 = 1_000;
const SOON: u64 = 5;
const SHORT: u64 = 10;
/// On a higher level of the wheel.
const LONG: u64 = 5_000;
const LONGER: u64 = 9_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// Key, and the delay.
    Arm(usize, u64),
    Touch(usize, u64),
    Cancel(usize),
    /// Cancels and waits for the run, if there is one.
    Wait(usize),
    GiveUp(usize),
    /// The clock moves so far, and the ticker comes by.
    Collect(u64),
    /// One of the tickets that are out.
    Claim(usize),
    GiveBack(usize),
    Settle(usize),
}

const OPS: [Op; 25] = [
    Op::Arm(0, 0),
    Op::Arm(1, 0),
    Op::Arm(0, SHORT),
    Op::Arm(1, SHORT),
    Op::Arm(0, LONG),
    Op::Arm(1, LONG),
    Op::Touch(0, 0),
    Op::Touch(1, 0),
    Op::Touch(0, SOON),
    Op::Touch(1, SOON),
    Op::Touch(0, LONGER),
    Op::Touch(1, LONGER),
    Op::Cancel(0),
    Op::Cancel(1),
    Op::Wait(0),
    Op::Wait(1),
    Op::GiveUp(0),
    Op::GiveUp(1),
    Op::Collect(SHORT),
    Op::Collect(LONGER),
    Op::Claim(0),
    Op::Claim(1),
    Op::GiveBack(0),
    Op::Settle(0),
    Op::Settle(1),
];

/// An arming, as the model knows it. Its payload is its number.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: usize,
    id: EntryId,
    deadline: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Absent,
    Armed {
        arming: Known,
        queued: bool,
    },
    Running {
        arming: Known,
        told: bool,
        kept: Option<Known>,
        /// The number of who waits.
        waiter: Option<u64>,
    },
}

/// How an arming ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Not,
    Ran,
    Cancelled,
    Replaced,
    HandedBack,
}

struct Pair {
    stripe: Stripe<usize, usize>,
    limit: Option<usize>,
    now: u64,
    keys: [State; 2],
    /// By number of arming.
    ends: Vec<(EntryId, Ended)>,
    /// Slots whose tickets are out.
    tickets: Vec<u32>,
    /// What the ticker sees.
    seen: Time,
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// The same bits for both: the index must tell them apart by `Eq`.
const HASH: KeyHash = KeyHash(7);

impl Pair {
    fn new(limit: Option<usize>) -> Self {
        let pool = limit.map(|limit| Arc::new(PermitPool::new(limit, 1, 1)));
        Pair {
            stripe: Stripe::new(TickSize::from_nanos(1), at(START), 0, pool),
            limit,
            now: START,
            keys: [State::Absent; 2],
            ends: Vec::new(),
            tickets: Vec::new(),
            seen: Time::MAX,
        }
    }

    fn pending(&self) -> usize {
        self.keys
            .iter()
            .filter(|key| match key {
                State::Armed { .. } => true,
                State::Running { kept, .. } => kept.is_some(),
                State::Absent => false,
            })
            .count()
    }

    fn count(&self, ended: Ended) -> u64 {
        self.ends.iter().filter(|(_, how)| *how == ended).count() as u64
    }

    /// Does it and compares the answer. False if that changed nothing.
    fn step(&mut self, op: Op) -> bool {
        match op {
            Op::Arm(key, delay) => self.arm(key, delay),
            Op::Touch(key, delay) => self.touch(key, delay),
            Op::Cancel(key) => self.cancel(key),
            Op::Wait(key) => self.wait(key),
            Op::GiveUp(key) => self.give_up(key),
            Op::Collect(by) => self.collect(by),
            Op::Claim(ticket) => self.claim(ticket),
            Op::GiveBack(ticket) => self.give_back(ticket),
            Op::Settle(key) => self.settle(key),
        }
    }

    fn arm(&mut self, key: usize, delay: u64) -> bool {
        let (pending, full) = (
            self.pending(),
            |free: bool, pending, limit: Option<usize>| free && limit == Some(pending),
        );
        let refusal = match &self.keys[key] {
            State::Absent => full(true, pending, self.limit).then_some(Refusal::NoPermit),
            State::Armed { .. } => None,
            State::Running {
                waiter: Some(_), ..
            } => Some(Refusal::Closing),
            State::Running { kept, .. } => {
                full(kept.is_none(), pending, self.limit).then_some(Refusal::NoPermit)
            }
        };
        let admission = match self.stripe.admit(HASH, &key, false) {
            Ok(admission) => admission,
            Err(answer) => {
                assert_eq!(Some(answer), refusal);
                return false;
            }
        };
        assert_eq!(refusal, None, "accepted");
        let number = self.ends.len();
        let deadline = self.now + delay;
        let Arming {
            id,
            replaced,
            after_run,
            dropped: (_, dropped),
        } = self.stripe.arm(
            admission,
            Some(HASH),
            key,
            number,
            at(deadline),
            at(self.now),
        );
        self.ends.push((id, Ended::Not));
        let arming = Known {
            number,
            id,
            deadline,
        };
        let before = match &mut self.keys[key] {
            State::Running { kept, .. } => {
                assert!(after_run);
                kept.replace(arming)
            }
            other => {
                assert!(!after_run);
                let before = match other {
                    State::Armed { arming, .. } => Some(*arming),
                    _ => {
                        assert!(!self.tickets.contains(&id.slot), "E2: a ticket is out");
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
            assert!(before.id.generation < id.generation, "E3");
            self.end(before, Ended::Replaced);
        }
        self.after();
        true
    }

    fn end(&mut self, arming: Known, how: Ended) {
        let (_, end) = &mut self.ends[arming.number];
        assert_eq!(*end, Ended::Not, "an arming ends once");
        *end = how;
    }

    fn touch(&mut self, key: usize, delay: u64) -> bool {
        let deadline = self.now + delay;
        let answer = self
            .stripe
            .reschedule(HASH, &key, at(deadline), at(self.now), false);
        let now = self.now;
        let moved = match &mut self.keys[key] {
            State::Absent => {
                assert_eq!(answer, Moving::NotFound);
                return false;
            }
            State::Running { kept: None, .. } => {
                assert_eq!(answer, Moving::Running);
                return false;
            }
            State::Armed { arming, queued } => {
                *queued = deadline <= now;
                arming
            }
            State::Running {
                kept: Some(arming), ..
            } => arming,
        };
        let before = at(std::mem::replace(&mut moved.deadline, deadline));
        assert_eq!(answer, Moving::Moved { before });
        self.after();
        true
    }

    fn cancel(&mut self, key: usize) -> bool {
        let answer = self.stripe.cancel(HASH, &key);
        let changed = self.cancelled(key, answer);
        self.after();
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
                kept,
                waiter,
            } => {
                self.keys[key] = State::Running {
                    arming,
                    told: true,
                    kept: None,
                    waiter,
                };
                if kept.is_none() {
                    assert!(matches!(answer, Cancelling::Running(id) if id == arming.id));
                    return !told;
                }
                (kept, true)
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
            unreachable!("it was running");
        };
        *waiter = self
            .stripe
            .wait_for(arming.id, Parker::new().unparker().clone());
        assert!(waiter.is_some());
        self.after();
        true
    }

    fn give_up(&mut self, key: usize) -> bool {
        let State::Running { arming, waiter, .. } = &mut self.keys[key] else {
            return false;
        };
        let Some(number) = waiter.take() else {
            return false;
        };
        assert!(self.stripe.give_up_waiting(arming.id, number));
        self.after();
        true
    }

    fn collect(&mut self, by: u64) -> bool {
        self.now += by;
        let mut budget = Budget {
            expired: 1_000,
            cascaded: 1_000,
        };
        let mut tickets = Vec::new();
        let _ = self.stripe.collect(at(self.now), &mut budget, &mut tickets);
        self.seen = self.stripe.republish();
        assert!(self.seen > at(self.now), "nothing is left that is due");
        for key in &mut self.keys {
            if let State::Armed { arming, queued } = key {
                *queued |= arming.deadline <= self.now;
            }
        }
        self.tickets.extend(tickets);
        self.after();
        true
    }

    fn claim(&mut self, ticket: usize) -> bool {
        if ticket >= self.tickets.len() {
            return false;
        }
        let slot = self.tickets.remove(ticket);
        let claimed = self.stripe.claim(slot, at(self.now));
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
                    unreachable!("it is queued");
                };
                assert_eq!((key, value, id), (expected, arming.number, arming.id));
                assert_eq!((deadline, started), (at(arming.deadline), at(self.now)));
                assert!(deadline <= started, "never early");
                self.end(arming, Ended::Ran);
                self.keys[key] = State::Running {
                    arming,
                    told: false,
                    kept: None,
                    waiter: None,
                };
            }
            (claimed, queued) => panic!("{claimed:?} of {queued:?}"),
        }
        self.after();
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
        self.after();
        true
    }

    fn settle(&mut self, key: usize) -> bool {
        let State::Running {
            arming,
            kept,
            waiter,
            ..
        } = self.keys[key]
        else {
            return false;
        };
        let settled = self.stripe.settle(arming.id, false, at(self.now));
        assert_eq!(settled.key, kept.is_none().then_some(key));
        let woken: Vec<u64> = settled.waiters.iter().map(|(number, _)| *number).collect();
        assert_eq!(woken, Vec::from_iter(waiter));
        self.keys[key] = match kept {
            None => State::Absent,
            Some(arming) => State::Armed {
                arming,
                queued: arming.deadline <= self.now,
            },
        };
        self.after();
        true
    }

    /// What follows every hold of the lock, and a look at everything.
    fn after(&mut self) {
        let Aftermath {
            lowered,
            ticket,
            emptied,
        } = self.stripe.take_aftermath();
        assert!(!emptied, "it is open");
        if let Some(lowered) = lowered {
            assert!(lowered < self.seen);
            self.seen = lowered;
        }
        self.tickets.extend(ticket);
        for (number, slot) in self.tickets.iter().enumerate() {
            assert!(!self.tickets[..number].contains(slot), "E1: two tickets");
        }
        self.look_at_slots();
        self.look_at_keys();
        self.look_at_ids();
        let counters = self.stripe.counters();
        assert_eq!(counters.scheduled, self.ends.len() as u64);
        assert_eq!(counters.ran, self.count(Ended::Ran));
        assert_eq!(counters.cancelled, self.count(Ended::Cancelled));
        assert_eq!(counters.replaced, self.count(Ended::Replaced));
        assert_eq!(counters.pending, self.pending() as u64);
        let queued = self
            .keys
            .iter()
            .filter(|key| matches!(key, State::Armed { queued: true, .. }));
        assert_eq!(counters.queued, queued.count() as u64);
    }

    /// E1, E2, E4, E5 from the inside.
    fn look_at_slots(&self) {
        let mut running = 0;
        let mut filed = 0;
        for slot in 0..self.stripe.table.len() {
            let ticket = match self.stripe.table.slot(slot) {
                Some(Slot::Armed(armed)) => {
                    let pending = armed.phase == Phase::Pending;
                    filed += usize::from(pending);
                    let nowhere = armed.place == crate::wheel::Place::NONE;
                    assert_eq!(pending, !nowhere, "E5");
                    // Queued means that a ticket is out.
                    assert!(pending || armed.ticket, "E1");
                    armed.ticket
                }
                Some(Slot::Running(_)) => {
                    running += 1;
                    assert!(self.stripe.run_at(slot).is_some(), "E4");
                    false
                }
                Some(Slot::Free(_)) => {
                    let out = self.tickets.contains(&slot);
                    assert_eq!(self.stripe.table.is_listed_free(slot), !out, "E2");
                    out
                }
                None => unreachable!("below the length"),
            };
            assert_eq!(ticket, self.tickets.contains(&slot), "E1: the bit says so");
        }
        assert_eq!(self.stripe.running(), running, "E4");
        assert_eq!(self.stripe.wheel.len(), filed, "E5");
    }

    fn look_at_keys(&self) {
        for (key, state) in self.keys.iter().enumerate() {
            let sight = self.stripe.get(HASH, &key);
            let (arming, phase) = match *state {
                State::Absent => {
                    assert!(sight.is_none(), "{sight:?}");
                    continue;
                }
                State::Armed {
                    arming,
                    queued: true,
                } => (arming, SightPhase::Queued),
                State::Armed { arming, .. } => {
                    // What was given back comes with the next tick.
                    let due = arming.deadline.max(self.now + 1);
                    assert!(self.seen <= at(due), "it is published");
                    (arming, SightPhase::Pending)
                }
                State::Running {
                    arming, told, kept, ..
                } => {
                    assert_eq!(self.stripe.is_cancelled(arming.id), told);
                    assert!(self.stripe.is_running(arming.id));
                    let kept = kept.map(|kept| (kept.id, at(kept.deadline)));
                    (arming, SightPhase::Running { kept })
                }
            };
            let sight = sight.expect("it is there");
            assert_eq!((sight.id, sight.phase), (arming.id, phase));
            assert_eq!(sight.deadline, at(arming.deadline));
        }
    }

    /// An id means its arming and no other, whatever its slot is used for by now.
    fn look_at_ids(&self) {
        for (id, how) in &self.ends {
            let sight = self.stripe.get_id(*id);
            let running = self.stripe.is_running(*id);
            let there = match how {
                Ended::Not => true,
                Ended::Ran => running,
                _ => false,
            };
            assert_eq!(sight.map(|sight| sight.id), there.then_some(*id));
            let ended = match how {
                Ended::Ran if !running => Some(End::Ran),
                Ended::Cancelled => Some(End::Cancelled),
                _ => None,
            };
            if let Some(told) = self.stripe.end_of(*id) {
                assert_eq!(Some(told), ended);
            }
        }
    }

    /// Stale ids change nothing; then the stripe is closed and emptied.
    fn finish(mut self) {
        for (id, how) in self.ends.clone() {
            if how != Ended::Not && !self.stripe.is_running(id) {
                let moved = self
                    .stripe
                    .reschedule_id(id, at(self.now + SOON), at(self.now), false);
                assert_eq!(moved, Moving::NotFound);
                assert!(matches!(self.stripe.cancel_id(id), Cancelling::NotFound));
            }
        }
        self.after();
        assert!(self.stripe.close());
        assert_eq!(
            self.stripe.admit(HASH, &0, false).err(),
            Some(Refusal::Closed)
        );
        let mut taken = Vec::new();
        assert_eq!(self.stripe.take_pending(0, 10, true, &mut taken), None);
        for key in 0..2 {
            let pending = match &mut self.keys[key] {
                State::Absent => None,
                State::Armed { arming, .. } => Some(*arming),
                State::Running { kept, .. } => kept.take(),
            };
            let number = pending.map(|arming| arming.number);
            let found = taken.iter().position(|taken| taken.0 == Some(key));
            let found = found.map(|place| taken.swap_remove(place));
            assert_eq!(found.map(|(_, _, value)| value), number);
            if let Some(arming) = pending {
                self.end(arming, Ended::HandedBack);
            }
            if let State::Armed { .. } = self.keys[key] {
                self.keys[key] = State::Absent;
            }
        }
        assert!(taken.is_empty());
        let mut reports = u32::from(self.stripe.take_aftermath().emptied);
        for slot in std::mem::take(&mut self.tickets) {
            let claimed = self.stripe.claim(slot, at(self.now));
            assert!(matches!(claimed, Claimed::Nothing));
        }
        for key in self.keys {
            if let State::Running { arming, .. } = key {
                assert_eq!(reports, 0, "something runs");
                self.stripe.settle(arming.id, false, at(self.now));
            }
        }
        reports += u32::from(self.stripe.take_aftermath().emptied);
        reports += u32::from(self.stripe.take_aftermath().emptied);
        assert_eq!(reports, 1, "said once");
        let all = (0..self.stripe.table.len()).all(|slot| self.stripe.table.is_listed_free(slot));
        assert!(all, "E2: every slot can be used again");
        let counters = self.stripe.counters();
        assert_eq!(counters.handed_back, self.count(Ended::HandedBack));
        assert_eq!((counters.pending, counters.queued), (0, 0));
        assert!(self.stripe.index.is_empty() && self.stripe.wheel.is_empty());
        assert!(self.ends.iter().all(|(_, how)| *how != Ended::Not));
    }
}

/// Goes through all sequences that begin with `done`, and counts them.
fn go_on(done: &mut Vec<Op>, length: usize, limit: Option<usize>) -> u64 {
    let mut sequences = 0;
    for op in OPS {
        // Nothing distinguishes the keys before the first step.
        if done.is_empty() && matches!(op, Op::Arm(1, _)) {
            continue;
        }
        let mut pair = Pair::new(limit);
        done.push(op);
        let changed = said_where(done, || {
            let (last, before) = done.split_last()?;
            for op in before {
                pair.step(*op);
            }
            let changed = pair.step(*last);
            if changed && done.len() == length {
                pair.finish();
            }
            Some(changed)
        });
        sequences += 1;
        if changed == Some(true) && done.len() < length {
            sequences += go_on(done, length, limit);
        }
        done.pop();
    }
    sequences
}

/// A failure says which sequence it was.
fn said_where<R>(done: &[Op], run: impl FnOnce() -> R) -> R {
    struct Say<'a>(&'a [Op]);
    impl Drop for Say<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("in the sequence {:?}", self.0);
            }
        }
    }
    let say = Say(done);
    let answer = run();
    std::mem::forget(say);
    answer
}

#[test]
fn all_sequences_of_five_operations_on_two_keys() {
    let sequences = go_on(&mut Vec::new(), 5, None);
    assert!(sequences > 100_000, "{sequences}");
}

#[test]
fn all_sequences_of_four_operations_with_one_permit() {
    let sequences = go_on(&mut Vec::new(), 4, Some(1));
    assert!(sequences > 5_000, "{sequences}");
}
