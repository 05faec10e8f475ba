//! Calls for many keys, which hold the locks of several stripes. Each item has its answer, nothing is
//! lost, and the ticker learns of each stripe. `shard/batch.rs` and `engine/batch.rs` have the
//! protocol; STRIPE-1 and STRIPE-4.
//!
//! Teeth:
//! - `teeth/batch-arms-after-the-close.patch`: an engine that has closed accepts a batch.
//! - `teeth/batch-rings-nobody.patch`: the ticker sleeps through a deadline.
//! - `teeth/batch-tells-of-one-stripe.patch`: a ticket of the second stripe is not handed over.
//! - `teeth/batch-refuses-without-a-look.patch`: a timer is refused, although another stripe has an
//!   unused permit. An engine as small as a model's has none, so a test of the library notices it.
//! - `teeth/batch-waits-while-it-holds.patch`: two calls wait for each other's stripe.

use loom::thread;

use super::check;
use crate::engine::Shutdown;
use crate::rig::{Rig, START, Size, at};
use crate::shard::Refusal;

const SOON: u64 = START + 10;
const FAR: u64 = START + 1_000;

fn two_stripes() -> Size {
    Size {
        stripes: 2,
        ..Size::default()
    }
}

/// The clock moves to the deadline of the batch and no further.
#[test]
fn a_batch_that_is_pulled_in_is_not_slept_through() {
    check(2, || {
        let (rig, mut ticker_state) = Rig::new(&two_stripes());
        rig.arm(1, 1, at(FAR)).unwrap();
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                assert_eq!(rig.move_many(&[1, 0], at(SOON)), 1);
                rig.arm_many(&[0], at(FAR))[0].unwrap();
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 1);
        producer.join().unwrap();
        assert_eq!(rig.balance().queued, 1);
    });
}

/// Both items are in other stripes, and the stripe of the second one is the one that sleeps.
#[test]
fn a_batch_that_is_armed_is_not_slept_through() {
    check(2, || {
        let (rig, mut ticker_state) = Rig::new(&two_stripes());
        rig.arm(0, 0, at(SOON)).unwrap();
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || {
                assert_eq!(rig.arm_many(&[1, 2], at(SOON)), [Ok(()), Ok(())]);
                rig.hand.set(at(SOON));
            })
        };
        rig.tick(&mut ticker_state, || rig.queued() == 3);
        producer.join().unwrap();
        assert_eq!(rig.balance().queued, 3);
    });
}

/// Each stripe hands its ticket over.
#[test]
fn a_batch_that_is_due_at_once_runs() {
    check(2, || {
        let (rig, _seat) = Rig::new(&two_stripes());
        let mut worker = rig.worker();
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || rig.arm_many(&[0, 1], at(START)))
        };
        rig.serve(&mut worker);
        assert_eq!(producer.join().unwrap(), [Ok(()), Ok(())]);
        rig.serve(&mut worker);
        assert_eq!(rig.balance().ran, 2);
    });
}

/// The engine closes between two stripes, or before, or after.
#[test]
fn of_a_batch_what_is_accepted_comes_back() {
    check(3, || {
        let (rig, _seat) = Rig::new(&two_stripes());
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || rig.arm_many(&[0, 1], at(FAR)))
        };
        assert!(rig.engine().closing().begin(true));
        let now = rig.engine().now();
        let ending = rig.engine().wind_down(Shutdown::HandBack, now, &mut |_| {});
        let answers = producer.join().unwrap();
        for (task, answer) in answers.into_iter().enumerate() {
            let back = ending.taken.iter().filter(|(.., back)| *back == task);
            assert_eq!(back.count(), usize::from(answer.is_ok()), "task {task}");
            assert!(matches!(answer, Ok(()) | Err(Refusal::Closed)));
        }
        assert_eq!(rig.balance().pending, 0);
        assert!(rig.engine().closing().is_quiet());
    });
}

/// Two keys want the room that one more caller leaves.
#[test]
fn a_batch_gets_the_room_that_there_is() {
    check(3, || {
        let (rig, _seat) = Rig::new(&Size {
            max_pending: Some(2),
            ..two_stripes()
        });
        rig.arm(0, 0, at(FAR)).unwrap();
        let other = {
            let rig = rig.clone();
            thread::spawn(move || rig.cancel(0))
        };
        let answers = rig.arm_many(&[1, 3], at(FAR));
        other.join().unwrap();
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(accepted >= 1, "one permit is unused all the time");
        let full = |answer: &Result<(), Refusal>| *answer != Err(Refusal::Closed);
        assert!(answers.iter().all(full));
        assert_eq!(rig.balance().pending, accepted as u64);
        let more = rig.arm_many(&[2, 4], at(FAR));
        let more = more.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(accepted + more, 2, "no permit is lost");
    });
}

/// A call for two keys that takes the locks in the other order, as a move to another key does.
#[test]
fn a_batch_and_a_pair_do_not_wait_for_each_other() {
    check(3, || {
        let (rig, _seat) = Rig::new(&two_stripes());
        rig.arm_many(&[0, 1], at(FAR));
        let batch = {
            let rig = rig.clone();
            thread::spawn(move || rig.move_many(&[0, 1], at(SOON)))
        };
        rig.engine().with_pair([1, 0], |_, other| {
            assert!(other.is_some(), "two stripes");
        });
        assert_eq!(batch.join().unwrap(), 2);
    });
}
