//! Helping: all workers are blocked, and the ticker wakes sleeping tasks itself. `ticker_step` in
//! `engine/drive.rs` has the protocol; HELP-1, HELP-2, HELP-3.
//!
//! As in the models of growth, the clock is moved by the ticker where it has to check again within
//! the growth limit. Only the bell wakes it from a longer sleep. So a wake-up that waits for a
//! blocked worker shows as a deadlock.
//!
//! Teeth:
//! - `teeth/helping-no-second-look.patch`: HELP-2, the ticker goes to sleep while a caller makes a
//!   sleep due.
//! - `teeth/helping-forgets-the-deques.patch`: HELP-2, the wake-up is in the deque of a worker.
//! - `teeth/helping-stalls-at-the-bound.patch`: HELP-1, the wake-up is due behind the bound.
//! - `teeth/helping-wakes-nobody.patch`: HELP-3, the worker went to sleep while the ticker had its
//!   ticket.

use loom::thread;

use super::check;
use crate::engine::GROWTH_LIMIT;
use crate::executor::Worker;
use crate::job::{AtLock, Claim, Ticket};
use crate::rig::{Rig, RigTicker, SLEEPING, START, Size, at};
use crate::tick::Time;
use crate::tickers::TickerStep;

/// Creates a rig with one worker, which no other one can help, and whose task 0 is due.
fn rig(size: &Size) -> (Rig, RigTicker, Worker) {
    let (rig, ticker_state) = Rig::new(size);
    let worker = rig.worker();
    rig.arm(0, 0, at(START)).unwrap();
    (rig, ticker_state, worker)
}

fn helped() -> Size {
    Size {
        helped: true,
        ..Size::default()
    }
}

/// Lets time pass until `moment`, in the steps in which the ticker checks the pool.
fn pass(rig: &Rig, ticker_state: &mut RigTicker, moment: Time) {
    while rig.hand.now() < moment {
        let step = rig
            .engine()
            .ticker_step(&rig.server, ticker_state, &mut |_| true);
        if let TickerStep::SleepUntil(until) = step {
            rig.hand.set(until.min(moment));
        }
    }
}

/// Runs the ticker until `done`, or until the engine stops. It moves the clock itself where it
/// sleeps for a short while.
fn tick(rig: &Rig, ticker_state: &mut RigTicker, done: impl Fn() -> bool) {
    while !done() {
        let step = rig
            .engine()
            .ticker_step(&rig.server, ticker_state, &mut |_| true);
        match step {
            TickerStep::Worked => {}
            TickerStep::SleepUntil(until) if until <= rig.hand.now() + GROWTH_LIMIT => {
                rig.hand.set(until);
            }
            TickerStep::SleepUntil(_) => ticker_state.park(),
            TickerStep::Stop => return,
        }
    }
}

/// A caller makes a sleep due while the ticker helps or goes to sleep.
#[test]
fn a_sleep_that_is_made_due_is_woken_while_the_worker_is_blocked() {
    check(3, || {
        let (rig, mut ticker_state, _blocked) = rig(&helped());
        // The ticker helps, and checks the pool rarely.
        pass(&rig, &mut ticker_state, at(START) + 16 * GROWTH_LIMIT);
        let caller = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(1, SLEEPING, at(START)).unwrap();
            })
        };
        tick(&rig, &mut ticker_state, || rig.ledger().ran(SLEEPING) == 1);
        caller.join().unwrap();
        assert_eq!((rig.ledger().ran(0), rig.balance().queued), (0, 1));
    });
}

/// A worker that never comes back from the first task that it takes.
struct Blocked;

impl Claim for Blocked {
    fn serve(&self, _: Ticket, _: &AtLock, _: &mut dyn FnMut() -> Option<Ticket>) {}

    fn give_back(&self, _: &[Ticket]) {}
}

/// The worker has taken the wake-up along, and blocks in the task before it.
#[test]
fn what_a_blocked_worker_took_along_is_woken() {
    check(2, || {
        let (rig, mut ticker_state, mut worker) = rig(&helped());
        rig.arm(1, SLEEPING, at(START)).unwrap();
        worker.step(&Blocked);
        pass(&rig, &mut ticker_state, at(START) + 2 * GROWTH_LIMIT);
        assert_eq!(rig.ledger().ran(SLEEPING), 1);
    });
}

/// More tasks are due than the backlog takes, and the sleep comes after them.
#[test]
fn a_sleep_behind_the_bound_is_woken() {
    check(2, || {
        let (rig, mut ticker_state, _blocked) = rig(&Size {
            backlog: 2,
            ..helped()
        });
        rig.arm(1, 1, at(START + 1)).unwrap();
        rig.arm(2, 1, at(START + 2)).unwrap();
        rig.arm(3, SLEEPING, at(START + 3)).unwrap();
        pass(&rig, &mut ticker_state, at(START) + 2 * GROWTH_LIMIT);
        assert_eq!((rig.ledger().ran(1), rig.ledger().ran(SLEEPING)), (0, 1));
    });
}

/// The ticker has the ticket of a task in its hand while the worker looks for one.
#[test]
fn a_sifted_ticket_is_found_by_a_worker_that_goes_to_sleep() {
    check(1, || {
        let (rig, mut ticker_state, worker) = rig(&Size {
            stop_after: Some(1),
            ..helped()
        });
        drop(worker);
        let worker = rig.thread();
        pass(&rig, &mut ticker_state, at(START) + GROWTH_LIMIT);
        let working = {
            let rig = rig.clone();
            thread::spawn(move || rig.work(worker))
        };
        tick(&rig, &mut ticker_state, || false);
        working.join().unwrap();
        assert_eq!((rig.ledger().ran(0), rig.unclaimed()), (1, 0));
    });
}
