//! A pace: the ticker sleeps although something is due, and is woken for the rest of its shard all
//! the same. `ticker_step` in `engine/drive.rs` says why it may.
//!
//! The clock never comes to the share that the ticker has reserved: who sleeps until then sleeps
//! for ever, which shows as a deadlock.
//!
//! Teeth:
//! - `teeth/pace-no-second-look.patch`: another stripe is published while the ticker goes to sleep.
//! - `teeth/pace-sleeps-for-all.patch`: the held stripe's moment is taken for that of all.
//! - `teeth/pace-files-without-publishing.patch`: what is due at once is filed for a ticker that
//!   does not know.

use std::num::NonZeroU32;

use loom::thread;

use super::check;
use crate::rig::{Rig, START, Size, at};

const DUE: u64 = START + 1;
const SOON: u64 = START + 10;
const LATER: u64 = START + 20;

fn one_a_second() -> Size {
    Size {
        stripes: 2,
        pace: Some(NonZeroU32::MIN),
        ..Size::default()
    }
}

/// The second of two timers of one stripe is held back. Meanwhile the other stripe gets a timer
/// that is pushed out: a look at it in time files it anew, which no pace may put off.
#[test]
fn another_stripe_is_not_slept_through_while_one_is_held() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&one_a_second());
        for key in [0, 2] {
            rig.arm(key, key as usize, at(DUE)).unwrap();
        }
        rig.hand.set(at(DUE));
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(1, 1, at(SOON)).unwrap();
                rig.touch(1, at(LATER));
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.next_due_of(1) == at(LATER));
        producer.join().unwrap();
        let sum = rig.balance();
        assert_eq!((sum.queued, sum.pending), (1, 3));
    });
}

/// It goes through the wheel, so its ticker has to hear of it.
#[test]
fn what_is_due_at_once_is_not_slept_through() {
    check(3, || {
        let (rig, mut ticker_state) = Rig::new(&one_a_second());
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(0, 0, at(START)).unwrap();
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        producer.join().unwrap();
        assert_eq!(rig.balance().queued, 1);
    });
}
