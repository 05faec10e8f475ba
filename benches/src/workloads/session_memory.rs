//! S3: what a session weighs in resident memory, with a key and a value of eight bytes each,
//! allocator and index included. Every round is a process of its own.

use std::io;
use std::time::Duration;

use super::kit::{IDLE, fill_sessions};
use crate::child::{Child, Measured};
use crate::system::Sessions;
use crate::workload::{By, Case, Children, Metric, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "S3",
    about: "resident bytes per session, key and value of 8 bytes each included",
    metrics: &[Metric::less("", "bytes")],
    cases: &[Case::of("30 min to idle", 1)],
    keys: [&[1_000_000, 10_000_000], &[1_000_000], &[10_000]],
    amount: [0; 3],
    children: Children::Fresh,
    warm_up: false,
    by: By::Session,
};

pub(super) fn serve<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let system = S::new(IDLE);
    let keys = child.keys;
    let filled = child.filled(|| fill_sessions(&system, keys))?;
    let took = Duration::from_secs_f64(filled.seconds);
    let each = filled.bytes.map(|bytes| bytes as f64 / keys as f64);
    child.rounds(|_| Measured {
        figures: vec![each],
        took,
    })
}
