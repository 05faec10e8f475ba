//! A pace: the ticker sleeps although entries are due, and is still woken for the rest of its
//! shard. `ticker_step` in `engine/drive.rs` explains why it may sleep.
//!
//! The clock never reaches the share that the ticker has reserved. A ticker that sleeps until then
//! sleeps forever, and loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/pace-no-second-look.patch`: another stripe is published while the ticker goes to sleep.
//! - `teeth/pace-sleeps-for-all.patch`: the time of the held stripe is used for all stripes.
//! - `teeth/pace-files-without-publishing.patch`: a timer that is due at once is filed, and the
//!   ticker is not notified.

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
/// that is pushed out. The ticker must file it anew in time, which no pace may delay.
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

/// With a pace such a timer goes through the wheel, so the ticker has to be notified.
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
