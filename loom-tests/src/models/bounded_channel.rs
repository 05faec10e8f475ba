//! The bounded channel, with a thread or a task as its receiver. No item is lost when the channel
//! is full. A waiting task is woken. The receiver sees the end. The first loss is reported once.
//! `src/bounded_channel.rs` has the protocol, CHANNEL-1 to CHANNEL-3.
//!
//! If a waiting thread or task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/bounded-channel-looks-once.patch`: a task leaves its waker and does not check again.
//! - `teeth/bounded-channel-sends-under-its-lock.patch`: a full channel can't be ended.
//! - `teeth/bounded-channel-drops-what-has-no-room.patch`
//! - `teeth/bounded-channel-wakes-before-it-is-disconnected.patch`: the task sleeps through the
//!   end.
//! - `teeth/bounded-channel-counts-in-two-steps.patch`: two senders both report the first loss.

use std::future::poll_fn;

use loom::thread;

use super::check;
use crate::bounded_channel::{BoundedReceiver, Unsent, bounded_channel};
use crate::rig::{Rig, START, Size, at, block_on};
use crate::sync::Arc;

fn next(receiver: &BoundedReceiver<usize>) -> Option<usize> {
    block_on(poll_fn(|context| receiver.poll(context)))
}

#[test]
fn a_task_is_woken_by_what_is_sent_and_by_the_end() {
    check(3, || {
        let (channel, receiver) = bounded_channel(1);
        let sender = thread::spawn(move || {
            assert!(channel.send(7).is_ok());
        });
        assert_eq!(next(&receiver), Some(7));
        assert_eq!(next(&receiver), None);
        sender.join().unwrap();
    });
}

#[test]
fn what_waits_for_room_is_not_lost() {
    check(3, || {
        let (channel, receiver) = bounded_channel(1);
        let sender = thread::spawn(move || {
            for item in 0..3 {
                assert!(channel.send(item).is_ok());
            }
        });
        for item in 0..3 {
            assert_eq!(next(&receiver), Some(item));
        }
        sender.join().unwrap();
        assert_eq!(next(&receiver), None);
    });
}

/// A thread sends into a full channel and another thread ends it. The task gets every item that was
/// sent, and then sees the end.
#[test]
fn the_end_is_told_while_a_send_waits_for_room() {
    check(2, || {
        let (channel, receiver) = bounded_channel(1);
        assert!(channel.send(0).is_ok());
        let channel = Arc::new(channel);
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || channel.send(1))
        };
        channel.end();
        assert!(channel.send(2).is_err());
        assert_eq!(next(&receiver), Some(0));
        let after = next(&receiver);
        let sent = sender.join().unwrap();
        // The item was sent before the end, or came back.
        assert_eq!(after, sent.is_ok().then_some(1));
        if after.is_some() {
            assert_eq!(next(&receiver), None);
        }
    });
}

#[test]
fn a_send_that_waits_for_room_ends_when_nobody_receives() {
    check(3, || {
        let (channel, receiver) = bounded_channel(1);
        assert!(channel.send(0).is_ok());
        let sender = thread::spawn(move || channel.send(1));
        drop(receiver);
        let unsent = Unsent {
            item: 1,
            is_first: true,
        };
        assert_eq!(sender.join().unwrap(), Err(unsent));
    });
}

/// Two senders race with each other and with the drop of the receiver. Each item that came back is
/// counted, and exactly one of them is the first.
#[test]
fn the_first_item_that_nobody_receives_is_reported_once() {
    check(3, || {
        let (channel, receiver) = bounded_channel(1);
        let channel = Arc::new(channel);
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || channel.send(1))
        };
        drop(receiver);
        let mine = channel.send(0).expect_err("nobody receives");
        assert_eq!(mine.item, 0);
        let mut unsent = vec![mine];
        if let Err(other) = sender.join().unwrap() {
            assert_eq!(other.item, 1);
            unsent.push(other);
        }
        assert_eq!(channel.unsent(), unsent.len() as u64);
        let first = unsent.iter().filter(|unsent| unsent.is_first);
        assert_eq!(first.count(), 1);
    });
}

/// A worker waits for room in the channel. Meanwhile the next due entry can be touched, and is not
/// delivered then.
#[test]
fn what_waits_behind_a_full_channel_can_be_touched() {
    check(2, || {
        let (send, receiver) = bounded_channel(1);
        let (rig, mut ticker_state) = Rig::delivering(&Size::default(), send);
        rig.arm(0, 0, at(START + 1)).unwrap();
        rig.arm(1, 1, at(START + 1)).unwrap();
        rig.hand.set(at(START + 1));
        rig.tick(&mut ticker_state, || rig.queued() == 2);
        let mut worker = rig.worker();
        let delivery = {
            let rig = rig.clone();
            thread::spawn(move || {
                rig.serve(&mut worker);
                // The receiver gets the remaining items, and then the end.
                rig.ledger().end_delivery();
            })
        };
        let touched = rig.touch(1, at(START + 100));
        let mut delivered = Vec::new();
        while let Some(task) = next(&receiver) {
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
