//! Shutdown versus hand-off. Tickers and workers go on while the shutdown takes out all entries.
//! The last empty stripe wakes the waiting thread. All threads end. The models cover steps 2 to 6
//! of `engine/closing.rs`; CLOSE-2, CLOSE-3, CLOSE-4.
//!
//! If a waiting thread is not woken, or a thread does not end, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/shutdown-last-stripe-counts-late.patch`: CLOSE-4, the waiting thread registers in
//!   between.
//! - `teeth/shutdown-waiter-looks-first.patch`: CLOSE-4 from the other side.
//! - `teeth/shutdown-ticker-looks-before-promising.patch`,
//!   `teeth/shutdown-stop-rings-no-bell.patch`: CLOSE-3, the ticker sleeps through the stop.
//! - `teeth/shutdown-sleepers-wait-for-runs.patch`: sleeping tasks are woken after the wait.
//! - `teeth/shutdown-counts-user-code-after-the-lock.patch`: USER-1, the shutdown checks in
//!   between.
//! - `teeth/shutdown-user-code-wakes-nobody.patch`: USER-2, the shutdown sleeps on.
//! - `teeth/shutdown-forgets-wake-ups.patch`: USER-1, the shutdown does not see claimed wake-ups.
//! - `teeth/shutdown-refused-hand-over-leaves.patch`: USER-3, a hand-over that was refused counts
//!   down all the same.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

use loom::thread;

use super::check;
use crate::engine::{EndOfRun, Ending, Engine, ExecutorKind, Shutdown};
use crate::executor::{Executor, Job, Worker, WorkerThread};
use crate::rig::{LEAVING, Ledger, Rig, RigTicker, SLEEPING, START, Size, at, hash};
use crate::shard::UserCodeCounts;
use crate::sync::Arc;
use crate::tick::Time;

const DUE: u64 = START + 1;
const FAR: u64 = START + 1_000;

/// Creates a rig with one task in each stripe, due at `deadline`.
fn armed(stripes: usize, workers: usize, deadline: u64) -> (Rig, RigTicker) {
    let (rig, ticker_state) = Rig::new(&Size {
        stripes,
        workers,
        ..Size::default()
    });
    for task in 0..stripes {
        rig.arm(task as u32, task, at(deadline)).unwrap();
    }
    (rig, ticker_state)
}

/// Creates a rig whose tasks are due. Their tickets are in the queues of the workers.
fn handed_over(stripes: usize, workers: usize) -> (Rig, RigTicker) {
    let (rig, mut ticker_state) = armed(stripes, workers, DUE);
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == stripes);
    (rig, ticker_state)
}

fn wind_down(rig: &Rig, mode: Shutdown) -> Ending<u32, usize> {
    let hands_back = mode == Shutdown::HandBack;
    assert!(rig.engine().closing().begin(hands_back));
    let ending = rig
        .engine()
        .wind_down(mode, rig.engine().now(), &mut |limit| {
            assert_eq!(limit, Time::MAX);
            assert!(rig.engine().wait_until_quiet(limit));
        });
    assert_eq!(ending.still_running, 0);
    ending
}

/// Checks that each task ran or came back.
fn settle_up(rig: &Rig, ending: &Ending<u32, usize>, tasks: usize) {
    for task in 0..tasks {
        let back = ending.taken.iter().filter(|taken| taken.2 == task).count();
        assert_eq!(rig.ledger().ran(task) + back, 1, "task {task}");
    }
    let sum = rig.balance();
    assert_eq!(sum.handed_back, ending.taken.len() as u64);
    assert_eq!(sum.pending, 0);
}

fn serve(rig: &Rig, mut worker: Worker) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || {
        worker.step(rig.server.as_ref());
    })
}

fn work(rig: &Rig, worker: WorkerThread) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || rig.work(worker))
}

fn tick(rig: &Rig, mut ticker_state: RigTicker) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || rig.tick(&mut ticker_state, || false))
}

#[test]
fn a_task_runs_or_comes_back_and_the_worker_ends() {
    check(3, || {
        let (rig, _seat) = handed_over(1, 1);
        let worker = work(&rig, rig.thread());
        let ending = wind_down(&rig, Shutdown::HandBack);
        worker.join().unwrap();
        settle_up(&rig, &ending, 1);
    });
}

/// A run or the hand-back may empty each of the two stripes, in any order.
#[test]
fn the_last_stripe_wakes_who_waits() {
    check(2, || {
        let (rig, _seat) = handed_over(2, 2);
        let workers = [(); 2].map(|()| serve(&rig, rig.worker()));
        let ending = wind_down(&rig, Shutdown::HandBack);
        for worker in workers {
            worker.join().unwrap();
        }
        settle_up(&rig, &ending, 2);
    });
}

#[test]
fn a_ticker_that_collects_meanwhile_ends() {
    check(3, || {
        let (rig, ticker_state) = armed(1, 1, DUE);
        rig.hand.set(at(DUE));
        let mut worker = rig.worker();
        let ticker = tick(&rig, ticker_state);
        let ending = wind_down(&rig, Shutdown::HandBack);
        ticker.join().unwrap();
        rig.serve(&mut worker);
        settle_up(&rig, &ending, 1);
        assert_eq!((ending.taken.len(), rig.unclaimed()), (1, 0));
    });
}

#[test]
fn ticker_and_worker_go_on_while_all_is_handed_back() {
    check(2, || {
        let (rig, ticker_state) = armed(1, 1, DUE);
        rig.hand.set(at(DUE));
        let worker = work(&rig, rig.thread());
        let ticker = tick(&rig, ticker_state);
        let ending = wind_down(&rig, Shutdown::HandBack);
        ticker.join().unwrap();
        worker.join().unwrap();
        settle_up(&rig, &ending, 1);
    });
}

/// The shutdown wakes sleeping tasks before it waits for the running task.
#[test]
fn sleepers_do_not_wait_for_what_runs() {
    check(3, || {
        let (rig, _seat) = handed_over(1, 1);
        rig.arm(SLEEPING as u32, SLEEPING, at(FAR)).unwrap();
        let worker = work(&rig, rig.thread());
        assert!(rig.engine().closing().begin(true));
        let ending = rig
            .engine()
            .wind_down(Shutdown::HandBack, rig.engine().now(), &mut |limit| {
                assert_eq!(rig.ledger().woken(), 1);
                assert!(rig.engine().wait_until_quiet(limit));
            });
        worker.join().unwrap();
        assert_eq!(ending.taken.len() + rig.ledger().ran(0), 1);
        assert_eq!(rig.balance().handed_back, ending.taken.len() as u64 + 1);
    });
}

/// A worker claims two sleeps of one stripe under one hold, and their entries are gone before their
/// tasks are woken. The shutdown waits for these wake-ups.
#[test]
fn claimed_wake_ups_are_waited_for() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&Size::default());
        for key in 0..2 {
            rig.arm(key, SLEEPING, at(DUE)).unwrap();
        }
        rig.hand.set(at(DUE));
        rig.tick(&mut ticker_state, || rig.queued() == 2);
        let worker = serve(&rig, rig.worker());
        let ending = wind_down(&rig, Shutdown::HandBack);
        // Read before the worker is joined.
        let woken = rig.ledger().ran(SLEEPING) + rig.ledger().woken();
        assert_eq!((woken, ending.taken.len()), (2, 0));
        worker.join().unwrap();
        assert_eq!(rig.counters().pending, 0);
        assert_eq!(rig.unclaimed(), 0);
    });
}

/// The ticker sleeps until a far deadline. A timer that is made due at once wakes it.
#[test]
fn run_now_runs_everything_at_once() {
    check(2, || {
        let (rig, ticker_state) = armed(1, 1, FAR);
        let worker = work(&rig, rig.thread());
        let ticker = tick(&rig, ticker_state);
        assert!(rig.engine().closing().begin(true));
        let ending = rig
            .engine()
            .wind_down(Shutdown::RunNow, rig.engine().now(), &mut |limit| {
                assert!(rig.engine().wait_until_quiet(limit));
            });
        ticker.join().unwrap();
        worker.join().unwrap();
        assert!(ending.taken.is_empty());
        assert_eq!((rig.ledger().ran(0), rig.counters().pending), (1, 0));
    });
}

/// A task that waits for a run is woken after the run is completed. Its waker is user code.
#[test]
fn user_code_behind_the_last_run_is_waited_for() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&Size::default());
        rig.arm(0, LEAVING, at(DUE)).unwrap();
        rig.hand.set(at(DUE));
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        rig.worker().step(rig.server.as_ref());
        let (run, _, _) = rig.ledger().take_left().expect("it has left its worker");
        let (_, mut waiting) =
            EndOfRun::cancel(rig.engine(), 0, |stripe| stripe.cancel(hash(0), &0));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let settling = thread::spawn(move || drop(run));
        let ending = wind_down(&rig, Shutdown::HandBack);
        assert!(woken.0.load(Relaxed), "its waker has been called");
        settling.join().unwrap();
        settle_up(&rig, &ending, 0);
    });
}

/// The executor of a user, which runs each batch inside the call.
struct AtOnce;

impl Executor for AtOnce {
    fn execute(&self, job: Job) -> Result<(), Job> {
        job.run();
        Ok(())
    }
}

/// A worker hands over a ticket that was due at once while the shutdown takes its timer out. The
/// hand-over comes before the bit of USER-3, or it is refused and leaves no trace.
#[test]
fn a_hand_over_is_waited_for_or_refused() {
    check(3, || {
        let (mut parts, hand) = Size::default().parts();
        parts.executor_kind = ExecutorKind::Foreign(Box::new(AtOnce));
        let (server, _ticker_states) = Engine::assemble(parts, Ledger::default());
        let rig = Rig { server, hand };
        rig.arm(0, 0, at(START)).unwrap();
        let worker = work(&rig, rig.thread());
        let ending = wind_down(&rig, Shutdown::HandBack);
        worker.join().unwrap();
        settle_up(&rig, &ending, 1);
        let outside = rig.engine().shards().shard(0).user_code.counts();
        assert_eq!(outside, UserCodeCounts::default());
    });
}

/// A flag of std, not of the checker: it must not order anything.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}
