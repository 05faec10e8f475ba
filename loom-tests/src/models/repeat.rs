//! A round of a repeating timer, versus cancelling it, moving it, and arming others. The key is
//! never unknown. An answer holds for the next round. The permit is never given to another timer.
//! `shard/stripe/repeating.rs` has the rules.
//!
//! Teeth:
//! - `teeth/repeat-forgets-that-it-was-cancelled.patch`
//! - `teeth/repeat-forgets-that-it-was-moved.patch`
//! - `teeth/repeat-lets-its-permit-go.patch`: another timer takes the permit, and there is one
//!   timer too many.
//! - `teeth/repeat-report-comes-before-the-count.patch`: CLOSE-5, the round ends in between.
//! - `teeth/repeat-report-forgets-armed-rounds.patch`: CLOSE-5, the run is completed afterwards.

use loom::thread;

use super::check;
use crate::engine::Shutdown;
use crate::executor::Worker;
use crate::rig::{PERIOD, REPEATING, Rig, START, Size, at};
use crate::shard::{Cancelling, Moving, Refusal};
use crate::tick::Time;

const DUE: u64 = START + 1;
const FAR: u64 = START + 1_000;

fn next() -> Time {
    at(DUE) + PERIOD
}

/// Creates a rig in which the ticket of the first round is on its way to the worker.
fn due(size: &Size) -> (Rig, Worker) {
    let (rig, mut ticker_state) = Rig::new(size);
    rig.arm(0, REPEATING, at(DUE)).unwrap();
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == 1);
    let worker = rig.worker();
    (rig, worker)
}

fn step(rig: &Rig, mut worker: Worker) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || {
        worker.step(rig.server.as_ref());
    })
}

#[test]
fn after_a_cancel_no_round_follows() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let cancelled = rig.cancel(0);
        worker.join().unwrap();
        let ran = rig.ledger().ran(REPEATING);
        match cancelled {
            // The cancel came before the round, or after it.
            Cancelling::Cancelled { deadline, .. } => {
                assert_eq!(deadline, if ran == 0 { at(DUE) } else { next() });
            }
            Cancelling::Running(_) => assert_eq!(ran, 1),
            Cancelling::NotFound => panic!("it repeats, so it is always there"),
        }
        assert_eq!(rig.get(0), None);
        assert_eq!((rig.balance().pending, rig.unclaimed()), (0, 0));
    });
}

#[test]
fn what_is_moved_is_due_then() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let moved = rig.touch(0, at(FAR));
        worker.join().unwrap();
        let Moving::Moved { before } = moved else {
            panic!("it repeats, so it can always be moved: {moved:?}");
        };
        assert!(before == at(DUE) || before == next());
        assert_eq!(
            rig.get(0).map(|entry_info| entry_info.deadline),
            Some(at(FAR))
        );
        assert_eq!((rig.balance().pending, rig.unclaimed()), (1, 0));
    });
}

#[test]
fn nobody_takes_its_permit() {
    check(3, || {
        let (rig, worker) = due(&Size {
            max_pending: Some(1),
            ..Size::default()
        });
        let worker = step(&rig, worker);
        let other = rig.arm(1, 1, at(FAR)).err();
        worker.join().unwrap();
        assert_eq!(other, Some(Refusal::NoPermit));
        assert_eq!(
            rig.get(0).map(|entry_info| entry_info.deadline),
            Some(next())
        );
        assert_eq!(rig.balance().pending, 1);
        // The permit is free when the repetition ends.
        assert!(matches!(rig.cancel(0), Cancelling::Cancelled { .. }));
        assert!(rig.arm(1, 1, at(FAR)).is_ok());
        assert_eq!(rig.balance().pending, 1);
    });
}

/// CLOSE-5: the task comes back with its next round, whether its round is before, in or after the
/// shutdown.
#[test]
fn a_shutdown_hands_the_task_back() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        assert!(rig.engine().closing().begin(true));
        let ending = rig
            .engine()
            .wind_down(Shutdown::HandBack, rig.engine().now(), &mut |limit| {
                assert!(rig.engine().wait_until_quiet(limit));
            });
        worker.join().unwrap();
        let ran = rig.ledger().ran(REPEATING);
        let deadline = if ran == 0 { at(DUE) } else { next() };
        assert_eq!(ending.taken, [(Some(0), deadline, REPEATING)]);
        assert_eq!(ending.still_running, 0);
        assert_eq!(rig.get(0), None);
        let sum = rig.balance();
        assert_eq!((sum.pending, sum.handed_back, rig.unclaimed()), (0, 1, 0));
    });
}

/// CLOSE-5: a round that outlasts the limit comes back if it ends before the report takes what the
/// stripes keep. Otherwise it counts as running. It is never forgotten.
#[test]
fn a_round_that_outlasts_the_limit_is_counted_or_comes_back() {
    check(4, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        assert!(rig.engine().closing().begin(true));
        let ending = rig
            .engine()
            .wind_down(Shutdown::HandBack, rig.engine().now(), &mut |_| {});
        worker.join().unwrap();
        assert!(ending.taken.len() <= 1);
        assert!(ending.taken.len() + ending.still_running >= 1);
        let sum = rig.balance();
        assert_eq!((sum.pending, rig.unclaimed()), (0, 0));
        assert_eq!(sum.handed_back, ending.taken.len() as u64);
        assert!(rig.engine().closing().is_quiet());
    });
}
