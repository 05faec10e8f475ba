//! The channel at whose end a thread waits, or a task: nothing is lost when it is full, a task that
//! was told to wait is woken, the end is seen, and a loss is reported once. `src/outlet.rs` has the
//! protocol, OUTLET-1 to OUTLET-3.
//!
//! What nobody wakes shows as a deadlock.
//!
//! Teeth:
//! - `teeth/outlet-looks-once.patch`: a task leaves its waker and does not look again.
//! - `teeth/outlet-sends-under-its-lock.patch`: while it is full nobody can end it.
//! - `teeth/outlet-drops-what-has-no-room.patch`
//! - `teeth/outlet-wakes-before-it-is-disconnected.patch`: the task sleeps through the end.
//! - `teeth/outlet-counts-in-two-steps.patch`: two senders both report the first loss.

use std::future::poll_fn;

use loom::thread;

use super::check;
use crate::outlet::{Intake, Unsent, outlet};
use crate::rig::{Rig, START, Size, at, block_on};
use crate::sync::Arc;

fn next(intake: &Intake<usize>) -> Option<usize> {
    block_on(poll_fn(|context| intake.poll(context)))
}

#[test]
fn a_task_is_woken_by_what_is_sent_and_by_the_end() {
    check(3, || {
        let (outlet, intake) = outlet(1);
        let sender = thread::spawn(move || {
            assert!(outlet.send(7).is_ok());
        });
        assert_eq!(next(&intake), Some(7));
        assert_eq!(next(&intake), None);
        sender.join().unwrap();
    });
}

#[test]
fn what_waits_for_room_is_not_lost() {
    check(3, || {
        let (outlet, intake) = outlet(1);
        let sender = thread::spawn(move || {
            for item in 0..3 {
                assert!(outlet.send(item).is_ok());
            }
        });
        for item in 0..3 {
            assert_eq!(next(&intake), Some(item));
        }
        sender.join().unwrap();
        assert_eq!(next(&intake), None);
    });
}

/// A thread sends into a full channel, another one ends it, and the task gets what was sent and
/// sees the end.
#[test]
fn the_end_is_told_while_a_send_waits_for_room() {
    check(2, || {
        let (outlet, intake) = outlet(1);
        assert!(outlet.send(0).is_ok());
        let outlet = Arc::new(outlet);
        let sender = {
            let outlet = Arc::clone(&outlet);
            thread::spawn(move || outlet.send(1))
        };
        outlet.end();
        assert!(outlet.send(2).is_err());
        assert_eq!(next(&intake), Some(0));
        let after = next(&intake);
        let sent = sender.join().unwrap();
        // It was sent before the end, or came back.
        assert_eq!(after, sent.is_ok().then_some(1));
        if after.is_some() {
            assert_eq!(next(&intake), None);
        }
    });
}

#[test]
fn a_send_that_waits_for_room_ends_when_nobody_receives() {
    check(3, || {
        let (outlet, intake) = outlet(1);
        assert!(outlet.send(0).is_ok());
        let sender = thread::spawn(move || outlet.send(1));
        drop(intake);
        let unsent = Unsent {
            item: 1,
            is_first: true,
        };
        assert_eq!(sender.join().unwrap(), Err(unsent));
    });
}

/// Two senders race each other and the end of the receiver. What came back is counted, and one of
/// it is the first.
#[test]
fn the_first_item_that_nobody_receives_is_reported_once() {
    check(3, || {
        let (outlet, intake) = outlet(1);
        let outlet = Arc::new(outlet);
        let sender = {
            let outlet = Arc::clone(&outlet);
            thread::spawn(move || outlet.send(1))
        };
        drop(intake);
        let mine = outlet.send(0).expect_err("nobody receives");
        assert_eq!(mine.item, 0);
        let mut unsent = vec![mine];
        if let Err(other) = sender.join().unwrap() {
            assert_eq!(other.item, 1);
            unsent.push(other);
        }
        assert_eq!(outlet.unsent(), unsent.len() as u64);
        let first = unsent.iter().filter(|unsent| unsent.is_first);
        assert_eq!(first.count(), 1);
    });
}

/// A worker that delivers waits for room; meanwhile what waits behind it can be touched, and is not
/// delivered then.
#[test]
fn what_waits_behind_a_full_channel_can_be_touched() {
    check(2, || {
        let (send, intake) = outlet(1);
        let (rig, mut seat) = Rig::delivering(&Size::default(), send);
        rig.arm(0, 0, at(START + 1)).unwrap();
        rig.arm(1, 1, at(START + 1)).unwrap();
        rig.hand.set(at(START + 1));
        rig.tick(&mut seat, || rig.queued() == 2);
        let mut worker = rig.worker();
        let delivery = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.serve(&mut worker);
                // What is left is received, and then there is an end.
                rig.ledger().end_delivery();
            })
        };
        let touched = rig.touch(1, at(START + 100));
        let mut delivered = Vec::new();
        while let Some(task) = next(&intake) {
            delivered.push(task);
        }
        delivery.join().unwrap();
        let lives = matches!(touched, crate::shard::Moving::Moved { .. });
        assert_eq!(delivered.len(), if lives { 1 } else { 2 });
        assert_eq!(delivered.contains(&1), !lives);
        assert_eq!(rig.get(1).is_some(), lives);
        assert_eq!(rig.balance().pending, u64::from(lives));
    });
}
