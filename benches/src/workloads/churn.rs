//! Churn: sessions that are touched again and again must not grow. Resident bytes per session after
//! one touch of each, and after many.
//!
//! Every touch pushes a deadline to 30 minutes from a *now* that has moved on: by a second with
//! each pass, so that old and new deadlines lie in different places of whatever the system files
//! them in. A handful of sessions come and go before the first look at the memory, so that stacks
//! of threads and the like are there by then. What the system allocates for the places that it
//! files in does count: it is there for the sessions.

use std::io;
use std::time::{Duration, Instant};

use super::kit::{between, minutes};
use crate::child::{Child, Measured};
use crate::machine::{grown_since, resident_bytes};
use crate::system::{Keyed, Tasks};
use crate::workload::{Case, Metric, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "churn",
    about: "resident bytes per session that is touched again and again",
    metrics: &[
        Metric::less("after 1 touch", "bytes"),
        Metric::less("after all", "bytes"),
    ],
    cases: &[Case::of("30 min, touched", 1)],
    keys: [&[10_000], &[10_000], &[1_000]],
    // Touches of each session.
    amount: [50, 50, 5],
    ..Workload::DEFAULT
};

const IDLE: Duration = minutes(30);
/// Time that passes between two touches of a session.
const BETWEEN: Duration = Duration::from_secs(1);
/// Sessions that come and go before.
const FIRST: u64 = 16;

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| ())?;
    child.rounds(|request| {
        let began = Instant::now();
        let mut rng = Random::new(request.seed);
        let touch_all = |rng: &mut Random, first: u64, count: u64, pass: u64| {
            let idle = IDLE + BETWEEN * pass as u32;
            for key in first..first + count {
                let touched = system.touch(key, between(rng, idle, idle + BETWEEN));
                assert!(touched, "every key is there");
            }
            system.settle();
        };
        let figures = system.on_thread(|| {
            for key in keys..keys + FIRST {
                system.start(key, IDLE);
            }
            touch_all(&mut rng, keys, FIRST, 1);
            for key in keys..keys + FIRST {
                system.stop(key);
            }
            system.settle();
            let before = resident_bytes();
            let each = || grown_since(before).map(|grown| grown as f64 / keys as f64);
            for key in 0..keys {
                system.start(key, IDLE);
            }
            touch_all(&mut rng, 0, keys, 1);
            let after_one = each();
            for pass in 2..=request.amount {
                touch_all(&mut rng, 0, keys, pass);
            }
            vec![after_one, each()]
        });
        assert_eq!(system.pending() as u64, keys, "as many as there are keys");
        Measured::since(began, figures)
    })
}
