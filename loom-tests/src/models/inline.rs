//! Inline execution: the ticker is the worker, too. A timer that is due at once reaches it through
//! the injector and the doorbell. `inject` in `engine/mod.rs` and `ticker_step` in
//! `engine/drive.rs` have the protocol.
//!
//! The clock stands still. If the ticker misses a ticket, no thread serves it, and loom reports a
//! deadlock.
//!
//! Teeth:
//! - `teeth/inline-no-second-look.patch`: the ticket is pushed while the ticker goes to sleep, and
//!   counted a little earlier.
//! - `teeth/inline-injecting-does-not-ring.patch`: the ticket is pushed when the ticker sleeps
//!   already.

use loom::thread;

use super::check;
use crate::rig::{Rig, START, Size, at};

fn served_by_the_ticker(callers: u32) {
    let (rig, mut ticker_state) = Rig::new(&Size {
        inline: true,
        ..Size::default()
    });
    let callers: Vec<_> = (0..callers)
        .map(|key| {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.arm(key, key as usize, at(START)).unwrap();
            })
        })
        .collect();
    rig.tick(&mut ticker_state, || {
        rig.ledger().ran_in_all() == callers.len()
    });
    for caller in callers {
        caller.join().unwrap();
    }
    let sum = rig.balance();
    assert_eq!((sum.pending, rig.unclaimed()), (0, 0));
}

#[test]
fn what_is_due_at_once_is_served_by_the_ticker() {
    check(3, || served_by_the_ticker(1));
}

#[test]
fn the_ticker_serves_two_callers() {
    check(2, || served_by_the_ticker(2));
}
