//! The doorbell: the ticker never sleeps through an earlier deadline. `shard/doorbell.rs` has the
//! protocol and the argument; the ticker's half is `ticker_step` in `engine/drive.rs`.
//!
//! A producer moves the clock to its own deadline and no further. So a ticker that waits for a
//! later time sleeps forever, and loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/doorbell-ring-without-fence.patch`, `teeth/doorbell-promise-without-fence.patch`,
//!   `teeth/doorbell-no-second-look.patch`: the timer is published while the ticker goes to sleep.
//! - `teeth/doorbell-ring-before-publishing.patch`: the bell rings before the timer is published.

use loom::thread;

use super::check;
use crate::rig::{Rig, START, Size, at};
use crate::sync::{Arc, Mutex};

const SOON: u64 = START + 10;
const LATER: u64 = START + 20;
const LAST: u64 = START + 30;

#[test]
fn a_timer_in_an_empty_wheel_is_not_slept_through() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&Size::default());
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(0, 0, at(SOON)).unwrap();
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        producer.join().unwrap();
        assert_eq!(rig.balance().queued, 1);
    });
}

#[test]
fn an_earlier_timer_is_not_slept_through() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&Size::default());
        rig.arm(0, 0, at(LAST)).unwrap();
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(1, 1, at(SOON)).unwrap();
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        producer.join().unwrap();
        let sum = rig.balance();
        assert_eq!((sum.queued, sum.pending), (1, 2));
    });
}

#[test]
fn a_timer_that_is_pulled_in_is_not_slept_through() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&Size::default());
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(0, 0, at(LATER)).unwrap();
                rig.touch(0, at(SOON));
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        producer.join().unwrap();
        assert_eq!(rig.balance().queued, 1);
    });
}

/// Both producers ring one bell, in any order. The one that finds the promise taken does not ring
/// again.
#[test]
fn two_producers_and_one_bell() {
    check(2, || {
        let (rig, mut ticker_state) = Rig::new(&Size {
            stripes: 2,
            ..Size::default()
        });
        // Two threads must not move one clock at the same time.
        let hand = Arc::new(Mutex::new(rig.hand.clone()));
        let producers = [(0, LATER), (1, SOON)].map(|(key, deadline)| {
            let (rig, hand) = (rig.clone(), Arc::clone(&hand));
            thread::spawn(move || {
                // The time was read before, so the timer of a producer that was overtaken is filed,
                // too.
                rig.arm_as_of(at(START), key, key as usize, at(deadline))
                    .unwrap();
                let hand = hand.lock();
                if hand.now() < at(deadline) {
                    hand.set(at(deadline));
                }
            })
        });
        rig.tick(&mut ticker_state, || rig.queued() == 2);
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!(rig.balance().queued, 2);
    });
}
