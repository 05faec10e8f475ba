//! All short sequences of operations on two keys of one stripe, compared with a plain model. These
//! tests enumerate the operations that one lock covers; the protocols between locks have models in
//! `loom-tests`.
//!
//! After every step, the states, the results, the ids, the counters and the invariants ENTRY-1 to
//! ENTRY-6 are checked. After every sequence, the stripe is closed and emptied. A step that changes
//! nothing is checked, but the sequence is not continued from it.

mod look;
mod pair;
mod rounds;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pair::Pair;

/// Not zero, where too many values would be equal.
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
    IfAbsent(usize, u64),
    /// Arms a payload that repeats.
    Repeat(usize, u64),
    Touch(usize, u64),
    PullIn(usize, u64),
    Cancel(usize),
    CancelAll,
    /// Cancels and waits for the run, if there is one.
    Wait(usize),
    GiveUp(usize),
    /// The clock moves on, and the ticker collects.
    Collect(u64),
    /// Claims one of the tickets that are under way.
    Claim(usize),
    /// Claims one of them, and its payload asks to run later.
    ClaimLate(usize),
    GiveBack(usize),
    /// A round of a payload that repeats ends, and asks for another one.
    End(usize),
    /// The same unless `End` came before, and then the run is completed.
    Settle(usize),
    /// The round ends, asks for no other one, and the run is completed.
    Stop(usize),
    /// Returns unused memory.
    Shrink,
}

const OPS: [Op; 26] = [
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
    Op::Shrink,
];

/// The first key repeats. The second one is there to compete for its permit.
const REPEATING: [Op; 22] = [
    Op::Repeat(0, 0),
    Op::Repeat(0, SHORT),
    Op::Arm(0, SHORT),
    Op::Arm(1, 0),
    Op::IfAbsent(0, SOON),
    Op::Touch(0, 0),
    Op::Touch(0, LONGER),
    Op::PullIn(0, SOON),
    Op::PullIn(0, LONG),
    Op::Cancel(0),
    Op::Cancel(1),
    Op::CancelAll,
    Op::Wait(0),
    Op::GiveUp(0),
    Op::Collect(SHORT),
    Op::Claim(0),
    Op::Claim(1),
    Op::ClaimLate(0),
    Op::End(0),
    Op::Settle(0),
    Op::Stop(0),
    Op::Shrink,
];

/// Runs all sequences of `ops` that begin with `done`, and counts them.
fn go_on(ops: &[Op], done: &mut Vec<Op>, length: usize, limit: Option<usize>, places: u32) -> u64 {
    let mut sequences = 0;
    for &op in ops {
        // The keys are interchangeable before the first step.
        if done.is_empty() && matches!(op, Op::Arm(1, _)) {
            continue;
        }
        done.push(op);
        let play = || {
            let mut pair = Pair::new(limit, places);
            let changed = done.iter().map(|op| pair.step(*op)).last();
            (pair, changed)
        };
        let changed = said_where(done, || {
            let (pair, changed) = play();
            if changed == Some(true) && done.len() == length {
                let has_run = pair.has_run();
                pair.finish(false);
                if has_run {
                    play().0.finish(true);
                }
            }
            changed
        });
        sequences += 1;
        if changed == Some(true) && done.len() < length {
            sequences += go_on(ops, done, length, limit, places);
        }
        done.pop();
    }
    sequences
}

/// Reports the sequence if it fails.
fn said_where<R>(done: &[Op], run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        eprintln!("in the sequence {done:?}");
        resume_unwind(panic)
    })
}

#[test]
fn all_sequences_of_five_operations_on_two_keys() {
    let sequences = go_on(&OPS, &mut Vec::new(), 5, None, 2);
    assert!(sequences > 100_000, "{sequences}");
}

#[test]
fn all_sequences_of_four_operations_with_one_permit() {
    let sequences = go_on(&OPS, &mut Vec::new(), 4, Some(1), 2);
    assert!(sequences > 5_000, "{sequences}");
}

/// Two keys never use up two places; with one place, the second timer files the first one.
#[test]
fn all_sequences_of_five_operations_with_one_place_to_stage() {
    let sequences = go_on(&OPS, &mut Vec::new(), 5, None, 1);
    assert!(sequences > 100_000, "{sequences}");
}

#[test]
fn all_sequences_of_five_operations_with_a_key_that_repeats() {
    let sequences = go_on(&REPEATING, &mut Vec::new(), 5, None, 2);
    assert!(sequences > 100_000, "{sequences}");
}

#[test]
fn all_sequences_of_six_operations_with_a_key_that_repeats_and_one_permit() {
    let sequences = go_on(&REPEATING, &mut Vec::new(), 6, Some(1), 2);
    assert!(sequences > 50_000, "{sequences}");
}
