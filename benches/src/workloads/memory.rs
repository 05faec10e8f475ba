//! W7 and S3: what a pending keyed timer or a session weighs in resident memory, allocator and index
//! included, and for a session its key and value of eight bytes each, after N of them went in.
//! Every round is a process of its own.

use std::io;
use std::time::Duration;

use super::kit::{IDLE, between, fill, fill_sessions, minutes};
use crate::child::{Child, Measured};
use crate::system::{Keyed, Sessions, Tasks};
use crate::workload::{By, Case, Metric, Workload};

pub(super) const TIMERS: Workload = Workload {
    name: "W7",
    about: "resident bytes per pending keyed timer",
    metrics: &[Metric::less("", "bytes")],
    cases: &[Case::of("60 - 120 min out", 1)],
    keys: [&[1_000_000, 10_000_000], &[1_000_000], &[10_000]],
    ..Workload::DEFAULT
};

pub(super) const SESSIONS: Workload = Workload {
    name: "S3",
    about: "resident bytes per session, key and value of 8 bytes each included",
    cases: &[Case::of("30 min to idle", 1)],
    by: By::Session,
    ..TIMERS
};

pub(super) fn serve_keyed<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let delay = |rng: &mut _| between(rng, minutes(60), minutes(120));
    serve(child, |keys| fill(&system, 0..keys, delay))
}

pub(super) fn serve_sessions<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let system = S::new(IDLE);
    serve(child, |keys| fill_sessions(&system, keys))
}

fn serve(child: &mut Child, fill: impl FnOnce(u64)) -> io::Result<()> {
    let keys = child.keys;
    let filled = child.filled(|| fill(keys))?;
    let took = Duration::from_secs_f64(filled.seconds);
    let each = filled.bytes.map(|bytes| bytes as f64 / keys as f64);
    child.rounds(|_| Measured::of(vec![each], took))
}
