//! W2: sessions that are touched. N keys have timers of 30 minutes; each of P threads pushes the
//! deadlines of random keys to 30 minutes from now.
//!
//! A system that files a touched timer again only when its old time comes does that work at most
//! once per key and 30 minutes, however many touches there were; it is not in the figure.

use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::{Better, By, Case, Children, Metric, OfRounds, Workload, fill, minutes};
use crate::child::{Child, Measured};
use crate::rng::Rng;
use crate::systems::{Keyed, Tasks};

pub(super) const ABOUT: Workload = Workload {
    name: "W2",
    about: "push the deadlines of random keys 30 min out",
    metrics: &[Metric {
        name: "",
        unit: "Mops/s",
        better: Better::More,
        of_rounds: OfRounds::Median,
    }],
    cases: &[
        Case {
            name: "1 thread",
            threads: 1,
        },
        Case {
            name: "2 threads",
            threads: 2,
        },
    ],
    keys: [
        &[100_000, 1_000_000, 10_000_000],
        &[100_000, 1_000_000],
        &[1_000],
    ],
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
        let threads = ABOUT.cases[request.case].threads;
        let each = request.amount / threads as u64;
        let barrier = Barrier::new(threads);
        let producer = |number: u64| {
            let mut rng = Rng::new(request.seed ^ (number << 32));
            system.on_thread(|| {
                barrier.wait();
                let began = Instant::now();
                let touched: u64 = (0..each)
                    .map(|_| u64::from(system.touch(rng.below(keys), IDLE)))
                    .sum();
                assert_eq!(touched, each, "every key is there");
                (began, Instant::now())
            })
        };
        let times: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads as u64)
                .map(|number| {
                    let producer = &producer;
                    scope.spawn(move || producer(number))
                })
                .collect();
            let ended = running.into_iter().map(|thread| thread.join());
            ended.map(|times| times.expect("no touch fails")).collect()
        });
        let settling = Instant::now();
        system.settle();
        let settled = settling.elapsed();
        let began = times.iter().map(|(began, _)| *began).min();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        let took = began
            .zip(ended)
            .map_or(settled, |(began, ended)| ended - began + settled);
        let operations = each * threads as u64;
        Measured::one(operations as f64 / took.as_secs_f64() / 1e6, took)
    })
}
