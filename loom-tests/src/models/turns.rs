//! Turns: a limited number of calls to one destination run at one time, and no call that waits for
//! its turn is forgotten. `crates/leases/src/manager/turns.rs` has the rule, TURN-1.
//!
//! Teeth:
//! - `teeth/turns-stop-in-a-second-hold.patch`

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::leases::manager::turns::Turns;
use crate::sync::{Arc, Mutex};

#[test]
fn none_that_waits_for_its_turn_is_forgotten() {
    check(3, || {
        let turns = Arc::new(Turns::new(1));
        let [running, ran] = [(); 2].map(|()| Arc::new(Count::new(0)));
        let store = Arc::new(Mutex::new(()));
        let call = |number: u64| {
            let (turns, running, ran, store) = (
                Arc::clone(&turns),
                Arc::clone(&running),
                Arc::clone(&ran),
                Arc::clone(&store),
            );
            move || {
                let task = Box::new(move || {
                    assert_eq!(running.fetch_add(1, Relaxed), 0, "two at one time");
                    drop(store.lock());
                    running.fetch_sub(1, Relaxed);
                    ran.fetch_add(1, Relaxed);
                });
                turns.run(7_u64, number, task);
            }
        };
        let others = [1, 2].map(|number| thread::spawn(call(number)));
        call(0)();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(ran.load(Relaxed), 3);
    });
}

/// A call that gives up its turn has either run by then, or will run, or never runs.
#[test]
fn who_leaves_its_place_lets_the_others_pass() {
    check(3, || {
        let turns = Arc::new(Turns::new(1));
        let ran = [(); 2].map(|()| Arc::new(Count::new(0)));
        let others = [0, 1].map(|number| {
            let (turns, ran) = (Arc::clone(&turns), Arc::clone(&ran[number]));
            thread::spawn(move || {
                let task = Box::new(move || {
                    ran.fetch_add(1, Relaxed);
                });
                turns.run(7_u64, number as u64, task);
            })
        });
        turns.leave(7, 1);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(ran[0].load(Relaxed), 1);
        assert!(ran[1].load(Relaxed) <= 1);
    });
}
