//! What the anchors of the threads share: the rate of the counter, the number of disagreements, and
//! that the counter was given up. All of it is relaxed, and ANCHOR-4 and ANCHOR-5 hold all the
//! same.
//!
//! Each thread of a model has a machine of its own, because the models are about the numbers that
//! threads share. What passes on one machine stands for what a thread finds on the only one.
//!
//! Teeth:
//! - `teeth/anchors-each-thread-counts-a-suspension.patch`: one suspension counts once for each
//!   thread.
//! - `teeth/anchors-late-rate-revives-the-counter.patch`: a counter that was given up is used
//!   again.

use std::cell::Cell;

use loom::thread;

use super::check;
use crate::clock::anchors::{Anchors, ThreadAnchor, TimeSource};
use crate::sync::Arc;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// A counter and a clock that both count nanoseconds.
struct Machine {
    counter: Cell<u64>,
    clock: Cell<u64>,
}

impl TimeSource for Machine {
    fn counter(&self) -> u64 {
        self.counter.get()
    }

    fn nanos(&self) -> u64 {
        self.clock.get()
    }
}

/// A thread of the process, with its anchor.
struct User {
    machine: Machine,
    anchor: ThreadAnchor,
    anchors: Arc<Anchors>,
}

impl User {
    fn new(anchors: &Arc<Anchors>) -> Self {
        let machine = Machine {
            counter: Cell::new(7 * SECOND),
            clock: Cell::new(3 * SECOND),
        };
        let (anchor, anchors) = (ThreadAnchor::new(), Arc::clone(anchors));
        User {
            machine,
            anchor,
            anchors,
        }
    }

    /// Lets time pass, and returns the margin of the reading after it.
    fn read_after(&self, nanos: u64) -> u64 {
        let Machine { counter, clock } = &self.machine;
        counter.set(counter.get() + nanos);
        clock.set(clock.get() + nanos);
        let (low, margin) = self.anchors.low(&self.anchor, &self.machine);
        assert!(low <= clock.get(), "a reading is ahead");
        assert!(low + 100_000 > clock.get(), "a reading is far behind");
        margin
    }

    /// Reads until the next reading but one gives a rate.
    fn nearly_measured(self) -> Self {
        self.read_after(MILLI);
        self.read_after(21 * MILLI);
        self
    }

    /// The counter goes on while the clock stands still. The next reading finds out.
    fn is_suspended(&self) {
        let counter = &self.machine.counter;
        counter.set(counter.get() + 3_600 * SECOND);
    }
}

/// A process with a measured counter, of so many threads. Each of them has an anchor.
fn measured(threads: usize) -> (Arc<Anchors>, Vec<User>) {
    let anchors = Arc::new(Anchors::new());
    User::new(&anchors).nearly_measured().read_after(21 * MILLI);
    assert!(anchors.is_measured());
    let users: Vec<_> = (0..threads).map(|_| User::new(&anchors)).collect();
    for user in &users {
        user.read_after(MILLI);
    }
    (anchors, users)
}

/// Runs `step` for both users at once, and returns them. One of them is this thread's: loom has few
/// threads.
fn both(mut users: Vec<User>, step: fn(&User)) -> Vec<User> {
    let other = users.pop().unwrap();
    let thread = thread::spawn(move || {
        step(&other);
        other
    });
    users.iter().for_each(step);
    users.push(thread.join().unwrap());
    users
}

/// Two threads find one suspension at the same moment. It counts once, so a third one within the
/// second is needed before the counter is given up.
#[test]
fn a_suspension_that_two_threads_find_counts_once() {
    check(3, || {
        let (anchors, mut users) = measured(2);
        for suspension in 1..=3 {
            users = both(users, |user| {
                user.is_suspended();
                user.read_after(MILLI);
            });
            assert_eq!(anchors.is_given_up(), suspension == 3, "{suspension}");
            // Both use the counter again, and have something to compare the next anchor with.
            for user in &users {
                user.read_after(MILLI);
            }
        }
    });
}

/// One thread completes its measurement while the other one gives the counter up.
#[test]
fn a_rate_that_comes_late_does_not_revive_the_counter() {
    check(3, || {
        let anchors = Arc::new(Anchors::new());
        let user = User::new(&anchors).nearly_measured();
        let measuring = thread::spawn(move || {
            user.read_after(21 * MILLI);
            user
        });
        anchors.give_up();
        let user = measuring.join().unwrap();
        assert!(anchors.is_given_up());
        assert_eq!(user.read_after(21 * MILLI), 0);
        assert!(anchors.is_given_up());
    });
}

/// Two threads complete their measurements at the same moment. One rate is the process's.
#[test]
fn two_threads_measure_at_once() {
    check(3, || {
        let anchors = Arc::new(Anchors::new());
        let users = (0..2).map(|_| User::new(&anchors).nearly_measured());
        let users = both(users.collect(), |user| {
            user.read_after(21 * MILLI);
            user.read_after(MILLI);
            user.read_after(50_000);
        });
        assert!(anchors.is_measured());
        drop(users);
    });
}

/// A thread that was in its window when another one gave the counter up is exact after the window.
#[test]
fn after_its_window_a_thread_knows_that_the_counter_was_given_up() {
    check(3, || {
        let (anchors, mut users) = measured(1);
        let user = users.remove(0);
        let reader = thread::spawn(move || {
            // The first of them is in the window, the second one may find the counter given up.
            user.read_after(50_000);
            user.read_after(100_000);
            user
        });
        anchors.give_up();
        let user = reader.join().unwrap();
        // At most one more window, from an anchor that was taken meanwhile.
        assert_eq!(user.read_after(100_000), 0);
        assert_eq!(user.read_after(1), 0);
    });
}
