//! Runs that leave their worker. The owner of such a run completes it exactly once. That wakes a
//! thread that waits for its end. The run itself is notified when it is cancelled.
//! `engine/detached.rs` and `engine/wait` have the protocols.
//!
//! If a waiting thread or task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/detached-is-completed-by-its-worker-too.patch`
//! - `teeth/detached-cancel-tells-nobody.patch`
//! - `teeth/detached-watches-what-was-told.patch`: the run misses a cancel before its first check.

use loom::thread;

use super::check;
use crate::engine::{CancellationOfRun, EndOfRun};
use crate::executor::Worker;
use crate::rig::{LEAVING, Rig, START, Size, at, block_on, hash};
use crate::shard::Cancelling;

const DUE: u64 = START + 1;
const FAR: u64 = START + 1_000;

/// Creates a rig whose task of key 0 is due. Its ticket is on its way to the worker.
fn due() -> (Rig, Worker) {
    let (rig, mut ticker_state) = Rig::new(&Size::default());
    rig.arm(0, LEAVING, at(DUE)).unwrap();
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == 1);
    let worker = rig.worker();
    (rig, worker)
}

/// The worker starts the run. Its thread then completes the run as another thread would.
fn run(rig: &Rig, mut worker: Worker, until_it_is_told: bool) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || {
        worker.step(rig.server.as_ref());
        let Some((run, stripe, id)) = rig.ledger().take_left() else {
            return;
        };
        if until_it_is_told {
            block_on(CancellationOfRun::new(rig.engine(), stripe, id));
        }
        drop(run);
    })
}

#[test]
fn the_end_of_a_run_that_left_wakes_who_waits() {
    check(3, || {
        let (rig, worker) = due();
        let runs = run(&rig, worker, false);
        let (answer, end) = EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        assert_eq!(end.wait(), Ok(()));
        assert_eq!(rig.engine().running(), 0, "it has ended");
        let cancelled = matches!(answer, Cancelling::Cancelled { .. });
        assert_eq!(rig.ledger().ran(LEAVING), usize::from(!cancelled));
        runs.join().unwrap();
        assert_eq!(rig.balance().pending, 0);
    });
}

#[test]
fn what_is_armed_meanwhile_waits_for_the_end_of_a_run_that_left() {
    check(3, || {
        let (rig, worker) = due();
        let runs = run(&rig, worker, false);
        let armed = rig.arm(0, 1, at(FAR)).unwrap();
        runs.join().unwrap();
        assert_eq!(rig.engine().running(), 0);
        // The new timer has replaced the first one, or follows its run.
        assert_eq!(
            rig.ledger().ran(LEAVING),
            usize::from(armed.replaced.is_none())
        );
        assert_eq!(
            rig.get(0).map(|entry_info| entry_info.deadline),
            Some(at(FAR))
        );
        assert_eq!(rig.balance().pending, 1);
    });
}

/// The run goes on until it is notified of the cancel.
#[test]
fn a_run_that_is_cancelled_hears_of_it() {
    check(3, || {
        let (rig, worker) = due();
        let runs = run(&rig, worker, true);
        let answer = rig.cancel(0);
        runs.join().unwrap();
        let ran = rig.ledger().ran(LEAVING) == 1;
        assert_eq!(ran, matches!(answer, Cancelling::Running(_)));
        assert_eq!(rig.engine().running(), 0);
        assert_eq!(rig.balance().pending, 0);
    });
}
