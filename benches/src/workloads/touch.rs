//! W2: sessions that are touched. N keys have timers of 30 minutes; each of P threads pushes the
//! deadlines of random keys to 30 minutes from now.
//!
//! A system that files a touched timer again only when its old time comes does that work at most
//! once per key and 30 minutes, however many touches there were; it is not in the figure.

use std::io;
use std::time::Duration;

use super::{By, Children, Metric, ONE_AND_TWO_THREADS, Workload, fill, minutes, producers};
use crate::child::{Child, Measured};
use crate::rng::Rng;
use crate::systems::{Keyed, Tasks};

pub(super) const ABOUT: Workload = Workload {
    name: "W2",
    about: "push the deadlines of random keys 30 min out",
    metrics: &[Metric::more("", "Mops/s")],
    cases: ONE_AND_TWO_THREADS,
    keys: [&[100_000, 1_000_000, 10_000_000], &[1_000_000], &[1_000]],
    amount: [2_000_000, 500_000, 1_000],
    children: Children::Kept,
    warm_up: true,
    by: By::Key,
};

const IDLE: Duration = minutes(30);

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| fill(&system, keys, |_| IDLE))?;
    child.rounds(|request| {
        let threads = request.threads;
        let each = request.amount / threads as u64;
        let (took, touched) = producers(&system, threads, |number| {
            let mut rng = Rng::new(request.seed ^ (number << 32));
            let touch = |_| u64::from(system.touch(rng.below(keys), IDLE));
            (0..each).map(touch).sum::<u64>()
        });
        let operations: u64 = touched.into_iter().sum();
        assert_eq!(operations, each * threads as u64, "every key is there");
        Measured::one(operations as f64 / took.as_secs_f64() / 1e6, took)
    })
}
