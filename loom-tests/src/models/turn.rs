//! Who drives the runtime of a store: its keeper, or a thread that waits for the only call.
//! `crates/leases/src/remote/turn.rs` has the protocol.
//!
//! The runtime here is a lock and a bell: who drives has the lock, and runs a task when the bell
//! rings. A nap has no end here, except in one model, where it ends at once. If a task has nobody who
//! drives it, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/turn-gives-back-to-nobody.patch`
//! - `teeth/turn-lets-the-keeper-sleep.patch`
//! - `teeth/turn-stops-amid-a-task.patch`
//! - `teeth/turn-stops-without-a-word.patch`

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use loom::thread;

use super::check;
use crate::leases::remote::turn::{Counted, Next, Turn};
use crate::leases::store::Bell;
use crate::rig::block_on;
use crate::sync::{Arc, Mutex, Parker};
use crate::{Clock, ClockParker, Time};

/// A task: while it counts, if it does, and whom its answer wakes.
type Task = (Option<Counted>, Arc<Bell>);

struct Runtime {
    turn: Arc<Turn>,
    core: Mutex<()>,
    tasks: Mutex<Vec<Task>>,
    comes: Arc<Bell>,
    naps_end: bool,
}

impl Runtime {
    /// Starts a task, whose end rings the bell.
    fn spawn(&self, answer: &Arc<Bell>) {
        self.push(Some(self.turn.begins()), answer);
    }

    fn push(&self, counted: Option<Counted>, answer: &Arc<Bell>) {
        self.tasks.lock().push((counted, Arc::clone(answer)));
        Waker::from(Arc::clone(&self.comes)).wake();
    }

    /// Drives until `main` is ready.
    fn drive(&self, main: impl Fn(&Context<'_>) -> Poll<()>) {
        let _core = self.core.lock();
        block_on(poll_fn(|context| {
            while self.comes.poll(context).is_ready() {
                let tasks = std::mem::take(&mut *self.tasks.lock());
                for (counted, answer) in tasks {
                    drop(counted);
                    Waker::from(answer).wake();
                }
            }
            main(context)
        }));
    }

    fn keep(&self, parker: &ClockParker) {
        loop {
            self.drive(|context| self.turn.poll_stops(context));
            loop {
                match self.turn.next() {
                    Next::Drive => break,
                    Next::Nap if self.naps_end => {}
                    Next::Nap | Next::Sleep => parker.park_until(Time::MAX),
                    Next::End => return,
                }
            }
        }
    }

    /// A thread makes a call, and waits for it.
    fn wait(&self) {
        let answer = Arc::new(Bell::default());
        self.spawn(&answer);
        match self.turn.lend() {
            Some(_lent) => self.drive(|context| answer.poll(context)),
            None => {
                self.turn.wants();
                block_on(poll_fn(|context| answer.poll(context)));
            }
        }
    }

    /// A task comes that can wait until the keeper drives again.
    fn rests(&self) {
        let answer = Arc::new(Bell::default());
        self.push(None, &answer);
        block_on(poll_fn(|context| answer.poll(context)));
    }

    /// A task of another runtime makes a call, and awaits it.
    fn awaits(&self) {
        let answer = Arc::new(Bell::default());
        self.spawn(&answer);
        self.turn.wants();
        block_on(poll_fn(|context| answer.poll(context)));
    }
}

fn with_keeper(naps_end: bool, callers: Vec<fn(&Runtime)>) {
    let parker = ClockParker::new(&Clock::manual(&crate::clock::ManualClock::new()));
    let runtime = Arc::new(Runtime {
        turn: Arc::new(Turn::new(parker.unparker())),
        core: Mutex::new(()),
        tasks: Mutex::new(Vec::new()),
        comes: Arc::new(Bell::default()),
        naps_end,
    });
    let keeper = {
        let runtime = Arc::clone(&runtime);
        thread::spawn(move || runtime.keep(&parker))
    };
    let mut callers = callers.into_iter();
    let here = callers.next();
    let others: Vec<_> = callers
        .map(|call| {
            let runtime = Arc::clone(&runtime);
            thread::spawn(move || call(&runtime))
        })
        .collect();
    if let Some(call) = here {
        call(&runtime);
    }
    for other in others {
        other.join().unwrap();
    }
    runtime.turn.end();
    keeper.join().unwrap();
}

/// The first call of a thread, which the keeper makes, and two that it may make itself.
fn series(runtime: &Runtime) {
    for _ in 0..3 {
        runtime.wait();
    }
}

/// The keeper steps aside for a thread, which drives its own calls.
#[test]
fn a_thread_drives_one_call_after_the_other() {
    check(3, || {
        with_keeper(false, vec![series]);
    });
}

/// A task comes while the keeper steps aside, while a thread drives, or gives back, or is refused.
#[test]
fn somebody_drives_whatever_is_awaited() {
    check(2, || {
        with_keeper(false, vec![series, Runtime::awaits]);
    });
}

/// Two threads come at one time.
#[test]
fn one_of_two_threads_drives_or_the_keeper_does() {
    check(2, || {
        with_keeper(false, vec![series, Runtime::wait]);
    });
}

/// The keeper drives again when the last call is over.
#[test]
fn the_keeper_drives_again_after_its_nap() {
    check(3, || {
        with_keeper(
            true,
            vec![|runtime| {
                series(runtime);
                runtime.rests();
            }],
        );
    });
}
