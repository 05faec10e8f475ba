//! Claim versus cancel versus touch on one entry. All of them happen under one mutex, and
//! `shard/stripe/tests/enumerate` goes through the transitions. These models check that the callers
//! respect them: each answer is true, in any order of the calls.
//!
//! Teeth:
//! - `teeth/claim-touch-leaves-it-queued.patch`: the ticket under way runs a timer that was moved.
//! - `teeth/claim-usual-touch-of-what-is-queued.patch`: a usual call moves a queued timer, and the
//!   ticket still runs it.

use loom::thread;

use super::check;
use crate::executor::Worker;
use crate::rig::{Rig, START, Size, at};
use crate::shard::{Cancelling, Moving};

const DUE: u64 = START + 1;
const FAR: u64 = START + 1_000;

fn due(workers: usize) -> (Rig, Worker) {
    let (rig, mut ticker_state) = Rig::new(&Size {
        workers,
        ..Size::default()
    });
    rig.arm(0, 0, at(DUE)).unwrap();
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
fn an_answer_is_the_truth() {
    check(3, || {
        let (rig, worker) = due(1);
        let worker = step(&rig, worker);
        let toucher = {
            let rig = rig.clone();
            thread::spawn(move || rig.touch(0, at(FAR)))
        };
        let cancelled = rig.cancel(0);
        let touched = toucher.join().unwrap();
        worker.join().unwrap();
        let ran = rig.ledger().ran(0);
        match &cancelled {
            Cancelling::Cancelled { deadline, run, .. } => {
                assert_eq!((ran, *run), (0, None), "cancelled and run");
                let moved = *deadline == at(FAR);
                assert_eq!(moved, touched == Moving::Moved { before: at(DUE) });
            }
            Cancelling::Running(_) | Cancelling::NotFound => {
                assert_eq!(ran, 1);
                assert!(matches!(touched, Moving::Running | Moving::NotFound));
            }
        }
        assert_eq!((rig.balance().pending, rig.unclaimed()), (0, 0));
    });
}

#[test]
fn a_touch_wins_or_the_task_runs() {
    check(3, || {
        let (rig, worker) = due(1);
        let worker = step(&rig, worker);
        let touched = rig.touch(0, at(FAR));
        worker.join().unwrap();
        let moved = touched == Moving::Moved { before: at(DUE) };
        assert_eq!(rig.ledger().ran(0), usize::from(!moved));
        assert_eq!(rig.balance().pending, u64::from(moved));
    });
}

/// A touch that makes the timer due at once leaves the ticket that is under way as the only one.
#[test]
fn what_is_replaced_never_runs_and_what_replaces_runs_once() {
    check(3, || {
        let (rig, worker) = due(2);
        let workers = [worker, rig.worker()].map(|worker| step(&rig, worker));
        let replaced = rig.arm(0, 1, at(START)).unwrap().replaced.is_some();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(rig.ledger().ran(0), usize::from(!replaced));
        let mut worker = rig.worker();
        rig.serve(&mut worker);
        assert_eq!(rig.ledger().ran(1), 1);
        assert_eq!((rig.balance().pending, rig.unclaimed()), (0, 0));
    });
}
