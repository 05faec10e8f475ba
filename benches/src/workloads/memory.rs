//! W7: what a pending keyed timer weighs in resident memory, allocator and index included, after N
//! of them were armed. Every round is a process of its own.

use std::io;
use std::time::Duration;

use super::{Better, Case, Workload, between, fill, minutes};
use crate::child::Child;
use crate::systems::System;

pub(super) const ABOUT: Workload = Workload {
    name: "W7",
    about: "resident bytes per pending keyed timer",
    unit: "bytes",
    better: Better::Less,
    cases: &[Case {
        name: "60 - 120 min out",
        threads: 1,
    }],
    operations: [0, 0],
    fresh: true,
};

pub(super) fn serve<S: System>(child: &mut Child) -> io::Result<()> {
    let system = S::new();
    let keys = child.keys;
    let filled = child.filled(|| {
        fill(&system, keys, |rng| between(rng, minutes(60), minutes(120)));
    })?;
    let bytes = filled
        .bytes
        .ok_or_else(|| io::Error::other("this platform does not tell resident memory"))?;
    let took = Duration::from_secs_f64(filled.seconds);
    child.rounds(|_| (bytes as f64 / keys as f64, took))
}
