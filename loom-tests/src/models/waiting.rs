//! `cancel_and_wait`. The waiting thread registers with the run, and the end of the run wakes it.
//! Until then nothing is armed under the key. `engine/wait` has the protocol.
//!
//! If a waiting thread or task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/waiting-settling-wakes-nobody.patch`
//! - `teeth/waiting-registers-in-a-second-hold.patch`: the key is armed in between.
//! - `teeth/waiting-gives-up-and-stays.patch`: a thread that gave up keeps the key closed.
//! - `teeth/waiting-leaves-no-waker.patch`: a waiting task is not woken.
//! - `teeth/waiting-limit-rings-no-bell.patch`, `teeth/waiting-no-second-look-at-limits.patch`:
//!   LIMIT-1, the ticker sleeps past a limit.
//! - `teeth/waiting-stop-keeps-limits.patch`: LIMIT-2.

use std::pin::Pin;
use std::task::{Context, Waker};

use loom::thread;

use super::check;
use crate::engine::EndOfRun;
use crate::error::WaitError;
use crate::executor::Worker;
use crate::rig::{LEAVING, Rig, RigTicker, START, Size, at, block_on, hash};
use crate::shard::{Cancelling, Refusal};
use crate::tick::Time;
use crate::tickers::TickerStep;

const DUE: u64 = START + 1;
const LIMIT: u64 = START + 20;
const FAR: u64 = START + 1_000;

/// Creates a rig whose task 0 of key 0 is due. Its ticket is on its way to the worker.
fn due(size: &Size) -> (Rig, Worker) {
    let (rig, mut ticker_state) = Rig::new(size);
    rig.arm(0, 0, at(DUE)).unwrap();
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == 1);
    let worker = rig.worker();
    (rig, worker)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cancelled {
    Pending { running: bool },
    Running,
    NotFound,
}

/// Cancels and waits. Returns the answer, and how the wait ended.
fn cancel_and_wait(rig: &Rig, until: Option<Time>) -> (Cancelled, Result<(), WaitError>) {
    let (cancelling, mut end) =
        EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
    let answer = match cancelling {
        Cancelling::Cancelled { run, .. } => Cancelled::Pending {
            running: run.is_some(),
        },
        Cancelling::Running(_) => Cancelled::Running,
        Cancelling::NotFound => Cancelled::NotFound,
    };
    if let Some(until) = until {
        end.set_limit(until.since(rig.hand.now()));
    }
    (answer, end.wait())
}

fn step(rig: &Rig, mut worker: Worker) -> thread::JoinHandle<Worker> {
    let rig = rig.clone();
    thread::spawn(move || {
        worker.step(rig.server.as_ref());
        worker
    })
}

#[test]
fn the_end_of_the_run_wakes_the_waiter() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let (answer, waited) = cancel_and_wait(&rig, None);
        assert_eq!(waited, Ok(()));
        assert_eq!(rig.engine().running(), 0, "it has ended");
        let cancelled = answer == Cancelled::Pending { running: false };
        assert_eq!(rig.ledger().ran(0), usize::from(!cancelled));
        worker.join().unwrap();
        assert_eq!(rig.balance().pending, 0);
    });
}

/// A task awaits the end of the run. A poll in between has another waker, as if the task had moved
/// to another thread.
#[test]
fn the_end_of_the_run_wakes_the_task() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let (_, mut awaiting) =
            EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        let first = Pin::new(&mut awaiting).poll(&mut Context::from_waker(Waker::noop()));
        if first.is_pending() {
            assert_eq!(block_on(awaiting), Ok(()));
        }
        assert_eq!(rig.engine().running(), 0, "it has ended");
        worker.join().unwrap();
        assert_eq!(rig.balance().pending, 0);
    });
}

#[test]
fn a_task_that_gives_up_leaves_the_key_open() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let (_, awaiting) = EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        drop(awaiting);
        assert!(rig.arm(0, 1, at(FAR)).is_ok());
        worker.join().unwrap();
        assert_eq!(rig.balance().pending, 1);
    });
}

#[test]
fn two_waiters_are_woken() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let other = {
            let rig = rig.clone();
            thread::spawn(move || cancel_and_wait(&rig, None))
        };
        let mine = cancel_and_wait(&rig, None);
        let others = other.join().unwrap();
        assert_eq!((mine.1, others.1), (Ok(()), Ok(())));
        let cancelled = Cancelled::Pending { running: false };
        let cancellations = usize::from(mine.0 == cancelled) + usize::from(others.0 == cancelled);
        assert_eq!(rig.ledger().ran(0) + cancellations, 1);
        worker.join().unwrap();
        assert_eq!(rig.balance().pending, 0);
    });
}

/// A caller that waits for a running task finds nothing that was armed before the end of the run.
#[test]
fn nothing_is_armed_during_the_wait() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(0, 1, at(FAR))
                    .map(|arming| (arming.replaced.is_some(), arming.after_run))
            })
        };
        let (answer, waited) = cancel_and_wait(&rig, None);
        assert_eq!(waited, Ok(()));
        let armed = producer.join().unwrap();
        worker.join().unwrap();
        let sum = rig.balance();
        let ran = rig.ledger().ran(0) == 1;
        match armed {
            // The arming came during the wait.
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Closing);
                assert_eq!((answer, ran, sum.pending), (Cancelled::Running, true, 0));
            }
            // The arming replaced the first one, before the cancel.
            Ok((true, _)) => {
                assert_eq!(answer, Cancelled::Pending { running: false });
                assert_eq!((ran, sum.pending), (false, 0));
            }
            // The arming came before the cancel, as the successor of the run. The cancel removed
            // it.
            Ok((false, true)) => {
                assert!(matches!(answer, Cancelled::Pending { .. }), "{answer:?}");
                assert_eq!((ran, sum.pending), (true, 0));
            }
            // The arming came after the end of the first run, before or after the cancel.
            Ok((false, false)) => {
                let was_there = answer == Cancelled::Pending { running: false };
                assert_eq!(sum.pending, u64::from(!(was_there && ran)));
            }
        }
    });
}

#[test]
fn who_gives_up_leaves_the_key_open() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let hand = rig.hand.clone();
        let clock = thread::spawn(move || hand.set(at(LIMIT)));
        let (_, waited) = cancel_and_wait(&rig, Some(at(LIMIT)));
        let armed = rig.arm(0, 1, at(FAR));
        match waited {
            Ok(()) => assert!(!armed.unwrap().after_run),
            Err(error) => {
                assert_eq!(error, WaitError::TimedOut);
                assert!(rig.hand.now() >= at(LIMIT));
                assert_eq!(armed.unwrap().replaced, None);
            }
        }
        worker.join().unwrap();
        clock.join().unwrap();
        assert_eq!(rig.balance().pending, 1);
    });
}

/// The run of key 0 has left its worker, and never ends.
fn endless() -> (Rig, RigTicker) {
    let (rig, mut ticker_state) = Rig::new(&Size::default());
    rig.arm(0, LEAVING, at(DUE)).unwrap();
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == 1);
    rig.worker().step(rig.server.as_ref());
    assert_eq!(rig.engine().running(), 1);
    (rig, ticker_state)
}

/// Awaits the end of the run until the limit, on a thread of its own.
fn await_within_limit(rig: &Rig) -> thread::JoinHandle<Result<(), WaitError>> {
    let rig = rig.clone();
    thread::spawn(move || {
        let (_, mut end) = EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        end.set_limit(at(LIMIT).since(at(DUE)));
        let waited = block_on(end);
        rig.engine().stop();
        waited
    })
}

/// The ticker goes to sleep with nothing to do. It moves the clock to the limit once it knows it.
#[test]
fn a_task_is_woken_at_its_limit() {
    check(3, || {
        let (rig, mut ticker_state) = endless();
        let waits = await_within_limit(&rig);
        loop {
            let step = rig
                .engine()
                .ticker_step(&rig.server, &mut ticker_state, &mut |_| true);
            match step {
                TickerStep::Worked => {}
                TickerStep::SleepUntil(until) if until == at(LIMIT) => rig.hand.set(until),
                TickerStep::SleepUntil(_) => ticker_state.park(),
                TickerStep::Stop => break,
            }
        }
        assert_eq!(waits.join().unwrap(), Err(WaitError::TimedOut));
        // Nobody waits any more.
        assert!(rig.arm(0, 1, at(FAR)).is_ok());
    });
}

/// Nobody watches the clock of an engine that has stopped.
#[test]
fn the_stop_of_the_engine_ends_a_limited_wait() {
    check(3, || {
        let (rig, _ticker_state) = endless();
        let waits = await_within_limit(&rig);
        rig.engine().stop();
        assert_eq!(waits.join().unwrap(), Err(WaitError::TimedOut));
    });
}

/// The limit and the end of the run meet.
#[test]
fn a_limited_wait_has_one_answer() {
    check(3, || {
        let (rig, worker) = due(&Size::default());
        let worker = step(&rig, worker);
        let (_, mut end) = EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        end.set_limit(at(LIMIT).since(at(DUE)));
        let clock = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.hand.set(at(LIMIT));
                rig.engine().wake_at_limits(0, at(LIMIT));
            })
        };
        match block_on(end) {
            Ok(()) => assert_eq!(rig.engine().running(), 0),
            Err(error) => {
                assert_eq!(error, WaitError::TimedOut);
                assert!(rig.hand.now() >= at(LIMIT));
            }
        }
        assert!(rig.arm(0, 1, at(FAR)).is_ok());
        worker.join().unwrap();
        clock.join().unwrap();
    });
}
