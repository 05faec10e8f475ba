//! Schedule versus close. An arming is accepted or refused. An accepted task runs or is handed
//! back, exactly once. The models cover steps 1 to 4 of `engine/closing.rs`; CLOSE-1 and CLOSE-2.
//!
//! Teeth:
//! - `teeth/close-empties-before-it-closes.patch`: a timer that is armed in between stays forever.
//! - `teeth/close-admits-and-arms-in-two-holds.patch`: the gate closes between the two.
//! - `teeth/close-everybody-begins.patch`: two callers both close.

use loom::thread;

use super::check;
use crate::engine::Shutdown;
use crate::rig::{Rig, START, Size, at};
use crate::shard::Refusal;

const FAR: u64 = START + 1_000;

/// Arms a timer. Returns false if the scheduler was closed.
fn arm(rig: &Rig, key: u32, deadline: u64) -> bool {
    match rig.arm(key, key as usize, at(deadline)) {
        Ok(arming) => {
            assert_eq!(arming.replaced, None);
            true
        }
        Err(refusal) => {
            assert_eq!(refusal, Refusal::Closed);
            false
        }
    }
}

/// Closes the engine. Returns the tasks that were handed back, or `None` if another caller closes.
fn close(rig: &Rig) -> Option<Vec<usize>> {
    rig.engine().closing().begin(true).then(|| {
        let ending = rig
            .engine()
            .wind_down(Shutdown::HandBack, rig.engine().now(), &mut |_| {});
        ending.taken.into_iter().map(|(_, _, task)| task).collect()
    })
}

/// Checks that an accepted task ended exactly once, and a refused one never.
fn settle_up(rig: &Rig, accepted: [bool; 2], handed_back: &[usize]) {
    for (task, accepted) in accepted.into_iter().enumerate() {
        let back = handed_back.iter().filter(|back| **back == task).count();
        let ends = rig.ledger().ran(task) + back;
        assert_eq!(ends, usize::from(accepted), "task {task}");
    }
    let sum = rig.balance();
    assert_eq!(sum.handed_back, handed_back.len() as u64);
    assert_eq!((sum.pending, rig.unclaimed()), (0, 0));
    assert!(rig.engine().closing().is_quiet());
}

#[test]
fn what_is_accepted_comes_back() {
    check(3, || {
        let (rig, _seat) = Rig::new(&Size {
            stripes: 2,
            ..Size::default()
        });
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || [arm(&rig, 0, FAR), arm(&rig, 1, FAR)])
        };
        let handed_back = close(&rig).expect("nobody else closes");
        settle_up(&rig, producer.join().unwrap(), &handed_back);
    });
}

/// A task that is due at once has a ticket by then. The ticket finds nothing if the task was handed
/// back.
#[test]
fn what_is_due_at_once_runs_or_comes_back() {
    check(3, || {
        let (rig, _seat) = Rig::new(&Size::default());
        let mut worker = rig.worker();
        let producer = {
            let rig = rig.clone();
            thread::spawn(move || [arm(&rig, 0, START), arm(&rig, 1, FAR)])
        };
        let serving = {
            let rig = rig.clone();
            thread::spawn(move || {
                worker.step(rig.server.as_ref());
                worker
            })
        };
        let handed_back = close(&rig).expect("nobody else closes");
        let accepted = producer.join().unwrap();
        let mut worker = serving.join().unwrap();
        rig.serve(&mut worker);
        settle_up(&rig, accepted, &handed_back);
    });
}

#[test]
fn of_two_who_close_one_gets_everything() {
    check(3, || {
        let (rig, _seat) = Rig::new(&Size::default());
        let first = arm(&rig, 0, FAR);
        let [other, producer] = [true, false].map(|closes| {
            let rig = rig.clone();
            thread::spawn(move || {
                if closes {
                    (close(&rig), false)
                } else {
                    (None, arm(&rig, 1, FAR))
                }
            })
        });
        let mine = close(&rig);
        let (others, _) = other.join().unwrap();
        let (_, second) = producer.join().unwrap();
        assert_ne!(mine.is_some(), others.is_some(), "one closes");
        let handed_back = mine.or(others).unwrap_or_default();
        settle_up(&rig, [first, second], &handed_back);
    });
}
