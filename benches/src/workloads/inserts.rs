//! W8 and W8x: N keyed timers go in, 60 to 120 minutes out, from one thread or from two with keys
//! of their own: how long all of it takes, and the longest single call, which is where something
//! grows, is moved or is waited for. The keys of W8x look random, those of W8 are counted up.
//!
//! Making a key look random takes about 2 ns, which are in the figures of W8x, for all systems.
//!
//! The clock is read once per call, the end of one being the start of the next; that is in the
//! figures, some 25 ns per call, and so is the random number for the delay. What each call leaves
//! to other threads is in the time of all, not in that of the longest.

use std::io;
use std::time::{Duration, Instant};

use super::kit::{between, filled, minutes, producers};
use crate::child::{Child, Measured};
use crate::system::{Keyed, Tasks};
use crate::workload::{Metric, ONE_AND_TWO_THREADS, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "W8x",
    about: "keyed timers go into an empty system, keys that look random",
    metrics: &[
        Metric::less("all", "s"),
        Metric::longest("longest call", "ms"),
    ],
    cases: ONE_AND_TWO_THREADS,
    keys: [&[10_000_000], &[1_000_000], &[1_000]],
    ..Workload::DEFAULT
};

pub(super) const OF_COUNTED_KEYS: Workload = Workload {
    name: "W8",
    about: "the same with keys that are counted up",
    keys: [&[10_000_000], &[], &[1_000]],
    ..ABOUT
};

/// `key_of` makes the key of a number.
pub(super) fn serve<S: Keyed>(
    child: &mut Child,
    key_of: impl Fn(u64) -> u64 + Copy + Sync,
) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| ())?;
    child.rounds(|request| {
        let threads = request.threads;
        let each = keys / threads as u64;
        let (took, longest) = producers(&system, threads, |number| {
            let mut rng = Random::new(request.seed ^ (number << 32));
            let mut longest = Duration::ZERO;
            let mut before = Instant::now();
            for key in (number * each..(number + 1) * each).map(key_of) {
                system.start(key, between(&mut rng, minutes(60), minutes(120)));
                let after = Instant::now();
                longest = longest.max(after - before);
                before = after;
            }
            longest
        });
        filled(&system, each * threads as u64);
        let longest = longest.into_iter().max().unwrap_or_default();
        Measured::of(
            vec![Some(took.as_secs_f64()), Some(longest.as_secs_f64() * 1e3)],
            took,
        )
    })
}
