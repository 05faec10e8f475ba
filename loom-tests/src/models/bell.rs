//! A waker that remembers that it was woken, for a future that waits.
//! `crates/leases/src/store/bell.rs` has it.
//!
//! If a waiting task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/bell-rings-before-it-notes.patch`

use std::future::poll_fn;
use std::task::{Context, Waker};

use loom::thread;

use super::check;
use crate::leases::store::Bell;
use crate::rig::block_on;
use crate::sync::Arc;

/// The bell rings while the task goes to sleep, and once more for the next sleep.
#[test]
fn a_bell_wakes_who_sleeps_and_who_is_about_to() {
    check(3, || {
        let bell = Arc::new(Bell::default());
        let rings = {
            let waker = Waker::from(Arc::clone(&bell));
            thread::spawn(move || waker.wake())
        };
        // The first poll has another waker, as if the future had moved from another task.
        let first = bell.poll(&Context::from_waker(Waker::noop()));
        if first.is_pending() {
            block_on(poll_fn(|context| bell.poll(context)));
        }
        rings.join().unwrap();
        assert!(bell.poll(&Context::from_waker(Waker::noop())).is_pending());
        Waker::from(Arc::clone(&bell)).wake();
        block_on(poll_fn(|context| bell.poll(context)));
    });
}
