//! W1k: request timeouts, nearly all of which are cancelled. N timers are pending, 60 to 120
//! minutes out; one thread starts the timer of a new key and stops it at once.
//!
//! In the first case the new timer is due in 1 ms to 60 s, so it is often the earliest of all and
//! somebody has to be woken. In the second one a timer is pending that is due in 30 minutes, and
//! the new ones are due after 60 to 120: nobody ever needs to be woken.

use std::io;
use std::time::{Duration, Instant};

use super::{Better, Case, Workload, between, fill, minutes};
use crate::child::Child;
use crate::rng::Rng;
use crate::systems::{System, fired_so_far};

pub(super) const ABOUT: Workload = Workload {
    name: "W1k",
    about: "start a keyed timer and stop it at once, one thread",
    unit: "ns/pair",
    better: Better::Less,
    cases: &[
        Case {
            name: "1 ms - 60 s",
            threads: 1,
        },
        Case {
            name: "never the earliest",
            threads: 1,
        },
    ],
    operations: [1_000_000, 200_000],
    fresh: false,
};

pub(super) fn serve<S: System>(child: &mut Child) -> io::Result<()> {
    let system = S::new();
    let keys = child.keys;
    child.filled(|| {
        fill(&system, keys, |rng| between(rng, minutes(60), minutes(120)));
    })?;
    child.rounds(|request| {
        let guard = u64::MAX;
        let (from, to) = match request.case {
            0 => (Duration::from_millis(1), Duration::from_secs(60)),
            _ => (minutes(60), minutes(120)),
        };
        let mut rng = Rng::new(request.seed);
        let fired_before = fired_so_far();
        let (took, stopped) = system.on_thread(|| {
            if request.case == 1 {
                system.start(guard, minutes(30));
                system.settle();
            }
            let began = Instant::now();
            let mut stopped = 0;
            for pair in 0..request.operations {
                let key = keys + pair;
                system.start(key, between(&mut rng, from, to));
                stopped += u64::from(system.stop(key));
            }
            system.settle();
            let took = began.elapsed();
            if request.case == 1 {
                system.stop(guard);
            }
            (took, stopped)
        });
        // A timer of a millisecond can fire when the thread is held up in between.
        let fired = fired_so_far() - fired_before;
        assert!(
            stopped + fired >= request.operations,
            "{stopped} stopped and {fired} fired of {}",
            request.operations
        );
        (took.as_nanos() as f64 / request.operations as f64, took)
    })
}
