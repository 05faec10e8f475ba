//! The growth watch: a ticket is injected while all workers are blocked and the ticker sleeps, and
//! a worker is started all the same. `inject` in `engine/mod.rs` rings for a look at the growth
//! limit; `ticker_step` in `engine/drive.rs` looks whether tickets wait after it promised.
//!
//! Short sleeps are taken for slept: the ticker moves the clock itself when it is to look again at
//! the growth limit. From a longer one only the bell wakes it, so a ticket that it does not learn
//! of shows as a deadlock, and one that it learns of late shows on the clock.
//!
//! Teeth:
//! - `teeth/growth-injecting-does-not-ring.patch`: the ticker sleeps already.
//! - `teeth/growth-no-second-look.patch`: it goes to sleep meanwhile.

use loom::thread;

use super::check;
use crate::engine::{GROWTH_LIMIT, Step};
use crate::rig::{Rig, START, Size, at};
use crate::tick::Time;

/// A ticker with a timer in an hour at most, a worker that never comes back from its task, and a
/// caller who schedules something that is due at once.
fn growth(far: Option<Time>) {
    let (rig, mut seat) = Rig::new(&Size {
        extra: 1,
        ..Size::default()
    });
    let _blocked = rig.worker();
    if let Some(far) = far {
        rig.arm(1, 1, far).unwrap();
    }
    let caller = {
        let rig = rig.clone();
        thread::spawn(move || {
            rig.arm(0, 0, at(START)).unwrap();
        })
    };
    let mut started = 0;
    while started == 0 {
        let step = rig
            .engine()
            .ticker_step(&rig.server, &mut seat, &mut |count| started += count);
        match step {
            _ if started > 0 => {}
            Step::Worked => {}
            Step::SleepUntil(until) if until <= rig.hand.now() + GROWTH_LIMIT => {
                rig.hand.set(until);
            }
            Step::SleepUntil(_) => seat.parker().park(),
            Step::Stop => unreachable!("nobody stops it"),
        }
    }
    assert_eq!(rig.hand.now(), at(START) + GROWTH_LIMIT);
    caller.join().unwrap();
    assert_eq!(rig.balance().queued, 1);
}

#[test]
fn a_worker_is_started_though_no_timer_is_due() {
    check(3, || growth(None));
}

#[test]
fn a_worker_is_started_though_the_next_timer_is_far() {
    check(3, || growth(Some(Time::from_nanos(1 << 50))));
}
