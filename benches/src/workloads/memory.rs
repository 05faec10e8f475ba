//! W7: what a pending keyed timer weighs in resident memory, allocator and index included, after N
//! of them were armed. Every round is a process of its own.

use std::io;
use std::time::Duration;

use super::kit::{between, fill, minutes};
use crate::child::{Child, Measured};
use crate::system::{Keyed, Tasks};
use crate::workload::{By, Case, Children, Metric, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "W7",
    about: "resident bytes per pending keyed timer",
    metrics: &[Metric::less("", "bytes")],
    cases: &[Case::of("60 - 120 min out", 1)],
    keys: [&[1_000_000, 10_000_000], &[1_000_000], &[10_000]],
    amount: [0; 3],
    children: Children::Fresh,
    warm_up: false,
    by: By::Key,
};

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    let filled = child.filled(|| {
        fill(&system, 0..keys, |rng| {
            between(rng, minutes(60), minutes(120))
        });
    })?;
    let took = Duration::from_secs_f64(filled.seconds);
    let each = filled.bytes.map(|bytes| bytes as f64 / keys as f64);
    child.rounds(|_| Measured {
        figures: vec![each],
        took,
    })
}
