//! A ticker at its ticket bound. It stops collecting and sleeps. The claim that brings the number
//! of tickets down to half of the bound wakes it. `shard/backlog.rs` has the protocol, and
//! `ticker_step` in `engine/drive.rs` the ticker's half of it.
//!
//! The clock stands still, so only the doorbell wakes the ticker. If it sleeps on, the timer that
//! it left in the wheel stays there forever, and loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/backlog-no-second-look.patch`: the claim comes while the ticker goes to sleep.
//! - `teeth/backlog-claim-does-not-ring.patch`: the claim comes when the ticker sleeps already.
//! - `teeth/backlog-rings-before-it-counts.patch`: the claim rings while the number is still above
//!   half.

use loom::thread;

use super::check;
use crate::rig::{Rig, RigTicker, START, Size, at};
use crate::tick::Time;

const DUE: u64 = START + 1;

/// Creates a rig with as many tickets as the bound allows, and one more due timer.
fn at_the_bound(bound: usize, workers: usize) -> (Rig, RigTicker) {
    let (rig, mut ticker_state) = Rig::new(&Size {
        backlog: bound,
        workers,
        ..Size::default()
    });
    for task in 0..=bound {
        rig.arm(task as u32, task, at(DUE)).unwrap();
    }
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == bound);
    (rig, ticker_state)
}

/// Runs the ticker until it has collected the last timer, and checks that it respects the bound.
fn collect_the_rest(rig: &Rig, ticker_state: &mut RigTicker, bound: usize) {
    rig.tick(ticker_state, || {
        assert!(rig.unclaimed() <= bound);
        rig.least_due() == Time::MAX
    });
}

#[test]
fn a_claim_wakes_the_stalled_ticker() {
    check(3, || {
        let (rig, mut ticker_state) = at_the_bound(2, 1);
        let claimer = {
            let (rig, mut worker) = (rig.clone(), rig.worker());
            thread::spawn(move || {
                worker.step(rig.server.as_ref());
                worker
            })
        };
        collect_the_rest(&rig, &mut ticker_state, 2);
        let mut worker = claimer.join().unwrap();
        rig.serve(&mut worker);
        assert_eq!(rig.balance().ran, 3);
        assert_eq!(rig.unclaimed(), 0);
    });
}

/// The claims that bring the number down to half may come from two workers.
#[test]
fn two_workers_claim_and_one_of_them_wakes_the_ticker() {
    check(1, || {
        let (rig, mut ticker_state) = at_the_bound(3, 2);
        let claimers = [(); 2].map(|()| {
            let (rig, mut worker) = (rig.clone(), rig.worker());
            thread::spawn(move || {
                worker.step(rig.server.as_ref());
                worker
            })
        });
        collect_the_rest(&rig, &mut ticker_state, 3);
        for claimer in claimers {
            let mut worker = claimer.join().unwrap();
            rig.serve(&mut worker);
        }
        assert_eq!(rig.balance().ran, 4);
        assert_eq!(rig.unclaimed(), 0);
    });
}
