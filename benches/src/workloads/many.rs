//! W10 and S5: calls for 1,024 keys that look random, by one thread or by two with keys of their
//! own. All timers go in (W10: 60 to 120 minutes out), then random ones are moved or touched, and
//! then new ones go in that are taken out at once. Each round is a process of its own.
//!
//! The figures are the time of all over the number of all keys, with two threads too. Drawing and
//! mixing a key, and its delay, take some nanoseconds of that. A system without calls for many is
//! called for one key after the other.

use std::io;
use std::time::Duration;

use super::kit::{IDLE, between, filled, minutes, producers};
use crate::child::{Child, Measured};
use crate::system::{Keyed, Sessions, System, Tasks};
use crate::workload::{By, Metric, ONE_AND_TWO_THREADS, Workload};
use chaos::random::{Random, mixed};

pub(super) const TIMERS: Workload = Workload {
    name: "W10",
    about: "keyed timers, 1,024 in a call, keys that look random",
    metrics: &[
        Metric::less("inserts", "ns/key"),
        Metric::less("moves", "ns/key"),
        Metric::less("pairs", "ns/pair"),
    ],
    cases: ONE_AND_TWO_THREADS,
    keys: [&[10_000_000], &[1_000_000], &[3_000]],
    // Keys that are moved, and that go in and out.
    amount: [3_000_000, 300_000, 3_000],
    ..Workload::DEFAULT
};

pub(super) const SESSIONS: Workload = Workload {
    name: "S5",
    about: "sessions, 1,024 in a call, keys that look random",
    metrics: &[
        Metric::less("inserts", "ns/key"),
        Metric::less("touches", "ns/key"),
        Metric::less("pairs", "ns/pair"),
    ],
    by: By::Session,
    ..TIMERS
};

const IN_A_CALL: usize = 1_024;

pub(super) fn serve_keyed<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let insert = |system: &S, keys: &[u64], rng: &mut Random| {
        let timer = |key: &u64| (*key, between(rng, minutes(60), minutes(120)));
        let timers: Vec<_> = keys.iter().map(timer).collect();
        system.start_many(&timers);
    };
    let touch = |system: &S, keys: &[u64]| system.touch_many(keys, minutes(120));
    serve(child, &S::new(Tasks::Short), insert, touch, S::stop_many)
}

pub(super) fn serve_sessions<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let insert = |system: &S, keys: &[u64], _: &mut Random| system.insert_many(keys);
    serve(child, &S::new(IDLE), insert, S::touch_many, S::remove_many)
}

fn serve<S: System>(
    child: &mut Child,
    system: &S,
    insert: impl Fn(&S, &[u64], &mut Random) + Sync,
    touch: impl Fn(&S, &[u64]) -> usize + Sync,
    remove: impl Fn(&S, &[u64]) -> usize + Sync,
) -> io::Result<()> {
    let keys = child.keys;
    child.filled(|| ())?;
    child.rounds(|request| {
        let threads = request.threads as u64;
        // Makes calls for `count` keys together: the numbers from `first` on, or random ones.
        let mut took = Vec::new();
        let mut phase = |count: u64, first: Option<u64>, call: &Call<'_, S>| {
            let each = count / threads;
            let (time, done) = producers(system, request.threads, |thread| {
                let mut rng = Random::new(request.seed ^ (thread << 32));
                let mut drawn = Vec::with_capacity(IN_A_CALL);
                let mut done = 0;
                for at in 0..each {
                    let number = match first {
                        Some(first) => first + thread * each + at,
                        None => rng.below(keys / threads * threads),
                    };
                    drawn.push(mixed(number));
                    if drawn.len() == IN_A_CALL || at + 1 == each {
                        done += call(system, &drawn, &mut rng);
                        drawn.clear();
                    }
                }
                done as u64
            });
            let count = each * threads;
            assert_eq!(done.iter().sum::<u64>(), count, "every key is there");
            took.push((time, count));
        };
        phase(keys, Some(0), &|system, keys, rng| {
            insert(system, keys, rng);
            keys.len()
        });
        filled(system, keys / threads * threads);
        phase(request.amount, None, &|system, keys, _| touch(system, keys));
        phase(request.amount, Some(keys), &|system, keys, rng| {
            insert(system, keys, rng);
            remove(system, keys)
        });
        let each = |(time, count): &(Duration, u64)| Some(time.as_nanos() as f64 / *count as f64);
        Measured::of(
            took.iter().map(each).collect(),
            took.iter().map(|(time, _)| *time).sum(),
        )
    })
}

/// Calls the system with these keys; for how many it did something.
type Call<'a, S> = dyn Fn(&S, &[u64], &mut Random) -> usize + Sync + 'a;
