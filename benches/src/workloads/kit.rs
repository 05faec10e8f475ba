//! What several workloads do.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::recorder::{Lateness, take_lateness};
use crate::system::{Keyed, Sessions, System};
use chaos::random::Random;

/// Arms the keys from one thread, each `delay` from now.
pub(super) fn fill<S: Keyed>(
    system: &S,
    keys: impl IntoIterator<Item = u64>,
    mut delay: impl FnMut(&mut Random) -> Duration,
) {
    let mut rng = Random::new(0xf111);
    let mut count = 0;
    system.on_thread(|| {
        for key in keys {
            system.start(key, delay(&mut rng));
            count += 1;
        }
    });
    filled(system, count);
}

/// How long a session may be idle: none expires while it is measured.
pub(super) const IDLE: Duration = minutes(30);
/// So many of the sessions are looked at after a fill.
const LOOKS: u64 = 16;

/// Inserts sessions with keys below `keys` from one thread; their values are the keys.
pub(super) fn fill_sessions<S: Sessions>(system: &S, keys: u64) {
    system.on_thread(|| {
        for key in 0..keys {
            system.insert(key, key);
        }
        for key in 0..LOOKS.min(keys) {
            assert_eq!(system.get(key), Some(key), "it was inserted");
            assert_eq!(system.remove(key), Some(key), "it was there a moment ago");
            assert_eq!(system.get(key), None, "it was taken out");
            system.insert(key, key);
        }
    });
    filled(system, keys);
}

/// Waits for the end of a fill, and looks at it.
pub(super) fn filled<S: System>(system: &S, keys: u64) {
    system.settle();
    let pending = system.pending() as u64;
    assert_eq!(pending, keys, "nothing fires while it fills");
}

/// Evenly from `from` to `to`.
pub(super) fn between(rng: &mut Random, from: Duration, to: Duration) -> Duration {
    from + Duration::from_nanos(rng.below((to - from).as_nanos() as u64))
}

pub(super) const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Runs `work` on so many threads, which begin together; each gets its number. Says how long all of
/// it took, what was left to others included.
pub(super) fn producers<S: System, R: Send>(
    system: &S,
    threads: usize,
    work: impl Fn(u64) -> R + Sync,
) -> (Duration, Vec<R>) {
    let barrier = Barrier::new(threads);
    let timed = |number| {
        system.on_thread(|| {
            barrier.wait();
            let began = Instant::now();
            let result = work(number);
            (began, Instant::now(), result)
        })
    };
    let results: Vec<_> = thread::scope(|scope| {
        let timed = &timed;
        let start = |number| scope.spawn(move || timed(number));
        let running: Vec<_> = (0..threads as u64).map(start).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|result| result.expect("no call fails")).collect()
    });
    let settling = Instant::now();
    system.settle();
    let settled = settling.elapsed();
    let began = results.iter().map(|(began, ..)| *began).min();
    let ended = results.iter().map(|(_, ended, _)| *ended).max();
    let ran = began.zip(ended).map(|(began, ended)| ended - began);
    let took = ran.unwrap_or_default() + settled;
    let results = results.into_iter().map(|(.., result)| result);
    (took, results.collect())
}

/// What was recorded of `count` timers with stamps, all of which have fired.
pub(super) fn lateness_of<S: System>(count: u64) -> Lateness {
    let lateness = take_lateness();
    assert_eq!(lateness.count(), count, "each of them fires once");
    let (name, early) = (S::NAME, lateness.early());
    let right = S::MAY_BE_EARLY || early.is_zero();
    assert!(right, "{name} ran a timer {early:?} before it was due");
    lateness
}
