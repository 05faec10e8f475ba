//! W2, W2t and S1: sessions that are touched. N keys have timers of 30 minutes; each of P threads
//! pushes the deadlines of random keys to 30 minutes from now. W2 asks how many calls there are in
//! a second, W2t how long single calls take. S1 asks for the calls a second of a map whose entries
//! may be idle for 30 minutes.
//!
//! W2t reads the clock once per call, the end of one being the start of the next. Such a reading
//! waits for all earlier reads from memory, so no call overlaps with the next one, and all figures
//! contain it and the random number: some 30 ns. With more threads than cores, the longest calls
//! are those that were preempted, or that waited for one that was.
//!
//! A system that files a touched timer again only when its old time comes does that work at most
//! once per key and 30 minutes, however many touches there were; it is not in the figure.

use std::io;
use std::time::Instant;

use super::kit::{IDLE, fill, fill_sessions, producers};
use crate::child::{Child, Measured};
use crate::system::{Keyed, Sessions, System, Tasks};
use crate::workload::{By, Children, Metric, ONE_AND_TWO_THREADS, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "W2",
    about: "push the deadlines of random keys 30 min out",
    metrics: &[Metric::more("", "Mops/s")],
    cases: ONE_AND_TWO_THREADS,
    keys: [&[100_000, 1_000_000, 10_000_000], &[1_000_000], &[1_000]],
    amount: [2_000_000, 500_000, 1_000],
    children: Children::Kept,
    warm_up: true,
    ..Workload::DEFAULT
};

pub(super) const SINGLE: Workload = Workload {
    name: "W2t",
    about: "how long single calls of W2 take",
    metrics: &[
        Metric::less("p50", "ns"),
        Metric::less("p99", "ns"),
        Metric::less("p99.9", "ns"),
        Metric::longest("longest", "us"),
    ],
    keys: [&[1_000_000], &[], &[1_000]],
    ..ABOUT
};

pub(super) const SESSIONS: Workload = Workload {
    name: "S1",
    about: "touch random sessions of a map with 30 min to idle",
    keys: [&[1_000_000, 10_000_000], &[1_000_000], &[1_000]],
    by: By::Session,
    ..ABOUT
};

pub(super) fn serve_keyed<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| fill(&system, 0..keys, |_| IDLE))?;
    serve(child, &system, |key| system.touch(key, IDLE))
}

pub(super) fn serve_sessions<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let system = S::new(IDLE);
    let keys = child.keys;
    child.filled(|| fill_sessions(&system, keys))?;
    serve(child, &system, |key| system.touch(key))
}

fn serve<S: System>(
    child: &mut Child,
    system: &S,
    touch: impl Fn(u64) -> bool + Sync,
) -> io::Result<()> {
    let keys = child.keys;
    child.rounds(|request| {
        let threads = request.threads;
        let each = request.amount / threads as u64;
        let (took, touched) = producers(system, threads, |number| {
            let mut rng = Random::new(request.seed ^ (number << 32));
            let touch = |_| u64::from(touch(rng.below(keys)));
            (0..each).map(touch).sum::<u64>()
        });
        let operations: u64 = touched.into_iter().sum();
        assert_eq!(operations, each * threads as u64, "every key is there");
        Measured::one(operations as f64 / took.as_secs_f64() / 1e6, took)
    })
}

pub(super) fn serve_single<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| fill(&system, 0..keys, |_| IDLE))?;
    child.rounds(|request| {
        let each = (request.amount / request.threads as u64).max(1);
        let (took, of_threads) = producers(&system, request.threads, |number| {
            let mut rng = Random::new(request.seed ^ (number << 32));
            // Written once before, so that no page is touched for the first time between two
            // readings.
            let mut calls = vec![u32::MAX; each as usize];
            calls.clear();
            let mut before = Instant::now();
            for _ in 0..each {
                assert!(system.touch(rng.below(keys), IDLE), "every key is there");
                let after = Instant::now();
                calls.push(u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX));
                before = after;
            }
            calls
        });
        let mut calls = of_threads.concat();
        calls.sort_unstable();
        let at = |per_mille: usize| f64::from(calls[(calls.len() - 1) * per_mille / 1_000]);
        let figures = [at(500), at(990), at(999), at(1_000) / 1e3];
        Measured::of(figures.map(Some).to_vec(), took)
    })
}
