//! S1: sessions that are touched. A map has N entries that may be idle for 30 minutes; each of P
//! threads touches random ones.
//!
//! What a system puts off until the time of an entry comes, as in W2, is not in the figure.

use std::io;

use super::kit::{IDLE, fill_sessions, producers};
use crate::child::{Child, Measured};
use crate::system::Sessions;
use crate::workload::{By, Children, Metric, ONE_AND_TWO_THREADS, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "S1",
    about: "touch random sessions of a map with 30 min to idle",
    metrics: &[Metric::more("", "Mops/s")],
    cases: ONE_AND_TWO_THREADS,
    keys: [&[1_000_000, 10_000_000], &[1_000_000], &[1_000]],
    amount: [2_000_000, 500_000, 1_000],
    children: Children::Kept,
    warm_up: true,
    by: By::Session,
};

pub(super) fn serve<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let system = S::new(IDLE);
    let keys = child.keys;
    child.filled(|| fill_sessions(&system, keys))?;
    child.rounds(|request| {
        let threads = request.threads;
        let each = request.amount / threads as u64;
        let (took, touched) = producers(&system, threads, |number| {
            let mut rng = Random::new(request.seed ^ (number << 32));
            let touch = |_| u64::from(system.touch(rng.below(keys)));
            (0..each).map(touch).sum::<u64>()
        });
        let operations: u64 = touched.into_iter().sum();
        assert_eq!(operations, each * threads as u64, "every key is there");
        Measured::one(operations as f64 / took.as_secs_f64() / 1e6, took)
    })
}
