//! A future that awaits the answer of a worker. It is woken by the answer, or when there will be
//! none. The drop of the future leaves no answer behind. `crates/leases/src/manager/oneshot.rs` has
//! the rules, ONESHOT-1 to ONESHOT-3.
//!
//! If a waiting task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/oneshot-bell-rings-before-it-notes.patch`

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Waker};

use loom::thread;

use super::check;
use crate::leases::manager::oneshot::{OneshotReceiver, OneshotWaker, oneshot};
use crate::rig::block_on;
use crate::sync::Arc;

/// Counts its drop, with a counter of std: it must not order anything.
struct Answer(Arc<Count>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn wait<T>(end: &OneshotReceiver<T>) -> Option<T> {
    // The first poll has another waker, as if the future had moved from another task.
    let _ = end.poll(&Context::from_waker(Waker::noop())).is_ready();
    block_on(poll_fn(|context| end.poll(context)))
}

#[test]
fn the_answer_wakes_who_awaits_it() {
    check(3, || {
        let (answers, end) = oneshot();
        let worker = thread::spawn(move || answers.leave(7));
        assert_eq!(block_on(poll_fn(|context| end.poll(context))), Some(7));
        worker.join().unwrap();
    });
}

#[test]
fn that_there_is_no_answer_wakes_who_awaits_it() {
    check(3, || {
        let (answers, end) = oneshot::<u32>();
        let worker = thread::spawn(move || drop(answers));
        assert_eq!(wait(&end), None);
        worker.join().unwrap();
    });
}

#[test]
fn an_answer_that_nobody_takes_is_dropped() {
    check(3, || {
        let (answers, end) = oneshot();
        let drops = Arc::new(Count::new(0));
        let answer = Answer(Arc::clone(&drops));
        let worker = thread::spawn(move || {
            answers.leave(answer);
            answers
        });
        let taken = end.poll(&Context::from_waker(Waker::noop()));
        assert_eq!(drops.load(Relaxed), 0);
        drop((taken, end));
        // The sender still exists.
        let answers = worker.join().unwrap();
        assert_eq!(drops.load(Relaxed), 1);
        drop(answers);
    });
}

#[test]
fn an_answer_is_taken_or_withdrawn() {
    check(3, || {
        let (answers, end) = oneshot();
        let drops = Arc::new(Count::new(0));
        let late = answers.withdrawal();
        answers.leave(Answer(Arc::clone(&drops)));
        drop(answers);
        let timer = thread::spawn(move || late.withdraw());
        let taken = block_on(poll_fn(|context| end.poll(context)));
        timer.join().unwrap();
        assert_eq!(end.is_withdrawn(), taken.is_none());
        drop((taken, end));
        assert_eq!(drops.load(Relaxed), 1);
    });
}

/// The bell rings while the task goes to sleep, and once more for the next sleep.
#[test]
fn a_bell_wakes_who_sleeps_and_who_is_about_to() {
    check(3, || {
        let bell = Arc::new(OneshotWaker::default());
        let rings = {
            let waker = Waker::from(Arc::clone(&bell));
            thread::spawn(move || waker.wake())
        };
        block_on(poll_fn(|context| bell.poll(context)));
        rings.join().unwrap();
        assert!(bell.poll(&Context::from_waker(Waker::noop())).is_pending());
        Waker::from(Arc::clone(&bell)).wake();
        block_on(poll_fn(|context| bell.poll(context)));
    });
}
