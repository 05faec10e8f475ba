//! Calls that are handed over to the threads of a store. Each is made by a thread, or its future
//! was dropped before. Each answer wakes its future, or is dropped.
//! `crates/leases/src/store/call_threads.rs` has the rules, THREADS-1 and THREADS-2, and
//! `call_answer.rs` in the same folder has ANSWER-1 and ANSWER-2.
//!
//! If a call is forgotten, or a waiting task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/call-threads-idle-in-a-second-hold.patch`: a call is queued in between.
//! - `teeth/call-threads-leave-nothing.patch`: a call is made that nobody wants.
//! - `teeth/call-threads-bound-no-lane.patch`: two calls of a destination run at one time.
//! - `teeth/call-threads-end-among-the-idle.patch`: a call waits for a thread that has ended.
//! - `teeth/call-threads-forget-calls-without-a-start.patch`
//! - `teeth/call-answer-leaves-its-waker-in-a-second-hold.patch`
//! - `teeth/call-answer-keeps-the-first-waker.patch`
//! - `teeth/call-answer-ends-in-silence.patch`: that there is no answer wakes nobody.
//! - `teeth/call-answer-comes-in-silence.patch`: that there is one wakes nobody.
//! - `teeth/call-answer-leaks-what-nobody-takes.patch`

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::Duration;

use loom::thread::{self, JoinHandle};

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::store::Destination;
use crate::leases::store::call_answer::call_answer;
use crate::leases::store::call_threads::{CallBounds, CallThreads, HandedOver, Lane};
use crate::rig::block_on;
use crate::sync::{Arc, Mutex};

/// Counts its drop, with a counter of std: it must not order anything.
struct Answer(Arc<Count>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The destination of most calls.
const TO: Lane = Lane::To(Destination::new(0));

/// So many threads, of which one destination gets one. Their idle time ends only by the hand.
struct Rig {
    threads: Arc<CallThreads>,
    started: RefCell<Vec<JoinHandle<()>>>,
    hand: ManualClock,
}

impl Rig {
    fn new(all: usize) -> Self {
        let bounds = CallBounds {
            all,
            of_one: 1,
            lists: 1,
        };
        let hand = ManualClock::new();
        Rig {
            threads: Arc::new(CallThreads::new(Clock::manual(&hand), bounds)),
            started: RefCell::default(),
            hand,
        }
    }

    fn hand_over<T: Send + 'static>(
        &self,
        lane: Lane,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> HandedOver<T> {
        self.threads.hand_over(lane, call, |threads| {
            let served = thread::spawn(move || threads.serve());
            self.started.borrow_mut().push(served);
            true
        })
    }

    /// Ends the threads, as the drop of the store does.
    fn end(self) {
        self.threads.close();
        for thread in self.started.into_inner() {
            thread.join().unwrap();
        }
    }
}

/// The second call comes while the thread makes the first one, goes to sleep, or sleeps.
#[test]
fn each_call_is_made_and_wakes_who_awaits_it() {
    check(3, || {
        let rig = Rig::new(1);
        assert_eq!(block_on(rig.hand_over(TO, || 1)), Ok(1));
        assert_eq!(block_on(rig.hand_over(TO, || 2)), Ok(2));
        rig.end();
    });
}

/// Two callers want the only thread.
#[test]
fn a_call_that_waits_for_another_one_is_not_forgotten() {
    check(2, || {
        let rig = Rig::new(1);
        let (first, second) = (rig.hand_over(TO, || 1), rig.hand_over(TO, || 2));
        assert_eq!(block_on(second), Ok(2));
        assert_eq!(block_on(first), Ok(1));
        rig.end();
    });
}

/// The first one is taken back when its thread is on its way.
#[test]
fn a_call_that_is_taken_back_leaves_its_thread_to_the_next_one() {
    check(2, || {
        let rig = Rig::new(1);
        assert_eq!(block_on(rig.hand_over(TO, || 0)), Ok(0));
        let (first, second) = (rig.hand_over(TO, || 1), rig.hand_over(TO, || 2));
        drop(first);
        assert_eq!(block_on(second), Ok(2));
        rig.end();
    });
}

#[test]
fn calls_of_one_destination_follow_each_other() {
    check(1, || {
        let rig = Rig::new(2);
        let (running, switch) = (Arc::new(Count::new(0)), Arc::new(Mutex::new(())));
        let calls = [(); 2].map(|()| {
            let (running, switch) = (Arc::clone(&running), Arc::clone(&switch));
            rig.hand_over(TO, move || {
                assert_eq!(running.fetch_add(1, Relaxed), 0);
                // The checker may switch to another thread here.
                drop(switch.lock());
                running.fetch_sub(1, Relaxed);
            })
        });
        for call in calls {
            assert_eq!(block_on(call), Ok(()));
        }
        rig.end();
    });
}

/// Of the first destination one call hangs, and another one waits.
#[test]
fn a_destination_that_hangs_leaves_a_thread_to_another_one() {
    check(1, || {
        let rig = Rig::new(2);
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let own = Arc::clone(&gate);
        let hangs = rig.hand_over(TO, move || drop(own.lock()));
        let waits = rig.hand_over(TO, || 2);
        let other = rig.hand_over(Lane::Lists, || 3);
        assert_eq!(block_on(other), Ok(3));
        drop(shut);
        assert_eq!(block_on(hangs), Ok(()));
        assert_eq!(block_on(waits), Ok(2));
        rig.end();
    });
}

/// The thread ends since it has idled, or makes the call.
#[test]
fn a_call_at_the_end_of_the_idle_time_is_made() {
    check(2, || {
        let rig = Rig::new(1);
        assert_eq!(block_on(rig.hand_over(TO, || 1)), Ok(1));
        rig.hand.advance(Duration::from_secs(10));
        assert_eq!(block_on(rig.hand_over(TO, || 2)), Ok(2));
        rig.end();
    });
}

#[test]
fn a_call_without_a_thread_of_its_own_waits_for_another_one() {
    check(2, || {
        let rig = Rig::new(2);
        let first = rig.hand_over(Lane::Lists, || 1);
        let second = rig.threads.hand_over(TO, || 2, |_| false);
        assert_eq!(block_on(second), Ok(2));
        assert_eq!(block_on(first), Ok(1));
        rig.end();
    });
}

#[test]
fn the_task_that_polled_last_is_woken() {
    check(2, || {
        let rig = Rig::new(1);
        let mut handed = rig.hand_over(TO, || 1);
        let mut context = Context::from_waker(Waker::noop());
        let polled = Future::poll(Pin::new(&mut handed), &mut context);
        if polled.is_pending() {
            assert_eq!(block_on(handed), Ok(1));
        }
        rig.end();
    });
}

/// The future is dropped before a thread has taken the call, while it is made, or after that.
#[test]
fn a_future_that_is_dropped_leaves_nothing() {
    check(3, || {
        let rig = Rig::new(1);
        let [made, drops] = [(); 2].map(|()| Arc::new(Count::new(0)));
        let (count, answer) = (Arc::clone(&made), Answer(Arc::clone(&drops)));
        let handed = rig.hand_over(TO, move || {
            count.fetch_add(1, Relaxed);
            answer
        });
        drop(handed);
        rig.end();
        assert!(made.load(Relaxed) <= 1);
        // With the call, if that was not made.
        assert_eq!(drops.load(Relaxed), 1);
    });
}

#[test]
fn a_call_that_nobody_wants_before_its_turn_is_not_made() {
    check(3, || {
        let rig = Rig::new(1);
        let gate = Arc::new(Mutex::new(()));
        let made = Arc::new(Count::new(0));
        let shut = gate.lock();
        let own = Arc::clone(&gate);
        let first = rig.hand_over(TO, move || drop(own.lock()));
        let count = Arc::clone(&made);
        let second = rig.hand_over(TO, move || count.fetch_add(1, Relaxed));
        drop(second);
        drop(shut);
        assert_eq!(block_on(first), Ok(()));
        rig.end();
        assert_eq!(made.load(Relaxed), 0);
    });
}

#[test]
fn that_there_is_no_answer_wakes_who_awaits_it() {
    check(3, || {
        let (answers, end) = call_answer::<u32>();
        let thread = thread::spawn(move || drop(answers));
        let answer = block_on(std::future::poll_fn(|context| end.poll(context)));
        assert_eq!(answer, None);
        thread.join().unwrap();
    });
}
