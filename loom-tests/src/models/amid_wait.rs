//! What a future holds while it waits, and the timer that gives it back if nobody polls.
//! `crates/leases/src/manager/amid_wait.rs` has the rules, AMID-1 to AMID-3.
//!
//! Teeth:
//! - `teeth/amid-wait-gives-back-in-the-same-round.patch`
//! - `teeth/amid-wait-disarms-in-a-second-hold.patch`

use std::task::Waker;

use loom::thread;

use super::check;
use crate::leases::manager::amid_wait::{Added, AfterLook, AmidWait};
use crate::sync::Arc;

/// Looks as often as a timer does that is armed again by itself. Returns what it gives back.
fn looks(held: &AmidWait<u32>) -> Vec<u32> {
    loop {
        match held.look() {
            AfterLook::Nothing => return Vec::new(),
            AfterLook::Wake(_) => {}
            AfterLook::GiveBack(given) => return given,
        }
    }
}

#[test]
fn the_future_takes_it_or_the_timer_gives_it_back() {
    check(3, || {
        let held = Arc::new(AmidWait::new());
        let (round, _) = held.begin(|_| true);
        assert!(matches!(held.add(round, vec![7]), Added::Arm));
        let timer = {
            let held = Arc::clone(&held);
            thread::spawn(move || looks(&held))
        };
        held.polled(Waker::noop());
        let taken = held.take(round);
        let given = timer.join().unwrap();
        assert_eq!(taken.unwrap_or_default().len() + given.len(), 1);
        // The round is over for the future if it has nothing.
        assert_eq!(held.take(round).is_none(), given.len() == 1);
    });
}

#[test]
fn what_is_added_later_is_looked_after() {
    check(3, || {
        let held = Arc::new(AmidWait::new());
        let (round, _) = held.begin(|_| true);
        assert!(matches!(held.add(round, vec![1]), Added::Arm));
        let timer = {
            let held = Arc::clone(&held);
            thread::spawn(move || looks(&held))
        };
        // It is dropped, since it is of no use, and another one follows.
        let (round, _) = held.begin(|_| false);
        let added = held.add(round, vec![2]);
        let given = timer.join().unwrap();
        match added {
            // The timer goes on, and gives it back.
            Added::Done => assert_eq!(given, [2]),
            // The timer has found nothing, or has given the first one back before.
            Added::Arm => assert_eq!(looks(&held), [2]),
            Added::Over => panic!("the round begins without anything that is held"),
        }
    });
}
