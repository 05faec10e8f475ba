//! W1, W1k and W1x: request timeouts, nearly all of which are cancelled. N timers are pending, 60
//! to 120 minutes out; one thread starts another one and stops it at once, by handle (W1) or by a
//! key that is new. The keys of W1x look random. Those of W1k are counted up: some maps put keys that
//! follow each other side by side.
//!
//! In the first case the new timer is due in 1 ms to 60 s, so it is often the earliest of all and
//! somebody has to be woken. In the second one (W1b) a timer is pending that is due in 30 minutes,
//! and the new ones are due after 60 to 120: nobody ever needs to be woken.
//!
//! With `--threads` several threads do so, each with keys of its own; a figure is the time that one
//! thread takes for a pair.

use std::io;
use std::time::{Duration, Instant};

use super::kit::{between, fill, filled, minutes, producers};
use crate::child::{Child, Measured};
use crate::recorder::{fired_so_far, wait_until_fired};
use crate::system::{Handles, Keyed, System, Tasks};
use crate::wire::Request;
use crate::workload::{By, Case, Children, Metric, Workload};
use chaos::random::Random;

pub(super) const BY_HANDLE: Workload = Workload {
    name: "W1",
    about: "start a timer and stop it by its handle, one thread",
    by: By::Handle,
    ..BY_KEY
};

pub(super) const BY_KEY: Workload = Workload {
    name: "W1x",
    about: "start a timer and stop it by its key, which looks random, one thread",
    metrics: &[Metric::less("", "ns/pair")],
    cases: &[
        Case::of("1 ms - 60 s", 1),
        Case::of("never the earliest", 1),
    ],
    keys: [&[0, 1_000_000, 10_000_000], &[0, 1_000_000], &[0, 1_000]],
    amount: [1_000_000, 200_000, 1_000],
    children: Children::Kept,
    warm_up: true,
    ..Workload::DEFAULT
};

pub(super) const BY_COUNTED_KEY: Workload = Workload {
    name: "W1k",
    about: "the same with keys that are counted up",
    keys: [&[0, 1_000_000, 10_000_000], &[], &[1_000]],
    ..BY_KEY
};

/// `key_of` makes the key of a number.
pub(super) fn serve_keyed<S: Keyed>(
    child: &mut Child,
    key_of: impl Fn(u64) -> u64 + Copy + Sync,
) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    let delay = |rng: &mut _| between(rng, minutes(60), minutes(120));
    child.filled(|| fill(&system, (0..keys).map(key_of), delay))?;
    let guard = u64::MAX;
    child.rounds(|request| {
        let guarded = |on| match on {
            true => system.start(guard, minutes(30)),
            false => drop(system.stop(guard)),
        };
        pairs(&system, request, guarded, |pair, delay| {
            // The pairs of a thread have numbers of their own.
            let key = key_of(keys + pair);
            system.start(key, delay);
            system.stop(key)
        })
    })
}

pub(super) fn serve_handles<S: Handles>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| {
        let mut rng = Random::new(0xf111);
        system.on_thread(|| {
            for value in 0..keys {
                let delay = between(&mut rng, minutes(60), minutes(120));
                drop(system.start(value, delay));
            }
        });
        filled(&system, keys);
    })?;
    child.rounds(|request| {
        let mut guard = None;
        let guarded = |on| {
            if on {
                guard = Some(system.start(0, minutes(30)));
            } else if let Some(guard) = guard.take() {
                system.stop(guard);
            }
        };
        pairs(&system, request, guarded, |pair, delay| {
            system.stop(system.start(pair, delay))
        })
    })
}

fn pairs<S: System>(
    system: &S,
    request: &Request,
    mut guarded: impl FnMut(bool),
    start_and_stop: impl Fn(u64, Duration) -> bool + Sync,
) -> Measured {
    let (from, to) = match request.case {
        0 => (Duration::from_millis(1), Duration::from_secs(60)),
        _ => (minutes(60), minutes(120)),
    };
    let each = request.amount / request.threads as u64;
    let fired_before = fired_so_far();
    let never_the_earliest = request.case == 1;
    if never_the_earliest {
        system.on_thread(|| guarded(true));
        system.settle();
    }
    let work = |number: u64| {
        let mut rng = Random::new(request.seed ^ (number << 32));
        let first = number << 40;
        let mut stopped = 0;
        for pair in first..first + each {
            stopped += u64::from(start_and_stop(pair, between(&mut rng, from, to)));
        }
        stopped
    };
    let (took, stopped) = if request.threads == 1 {
        // On the thread that filled it: some systems keep a place for each thread.
        system.on_thread(|| {
            let began = Instant::now();
            let stopped = work(0);
            system.settle();
            (began.elapsed(), vec![stopped])
        })
    } else {
        producers(system, request.threads, work)
    };
    if never_the_earliest {
        system.on_thread(|| guarded(false));
    }
    let stopped: u64 = stopped.into_iter().sum();
    // A timer of a millisecond can fire when the thread is held up in between.
    wait_until_fired(
        fired_before + (each * request.threads as u64).saturating_sub(stopped),
        Duration::from_secs(60),
    );
    Measured::one(took.as_nanos() as f64 / each as f64, took)
}
