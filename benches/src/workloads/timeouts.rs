//! W3: request timeouts as a service has them. Each operation starts a keyed timer of 30 s under a
//! new key and stops the one of 1,000 operations before, so at any time 1,000 are pending per
//! thread.
//!
//! A round lasts a given time rather than a given number of operations: a system that keeps what
//! was stopped until its deadline grows with every one of them, and how much is the second figure.
//! Each round needs a new process, whose memory nothing has grown before.
//!
//! With several threads a round is done in batches of a second, so that each of them is in one mode
//! of the machine. A batch goes on in the process of the one before, under new keys.

use std::io;
use std::time::{Duration, Instant};

use super::kit::producers;
use crate::child::{Child, Measured};
use crate::machine::{grown_since, resident_bytes};
use crate::recorder::{fired_so_far, wait_until_fired};
use crate::system::{Keyed, Tasks};
use crate::workload::{Metric, ONE_AND_TWO_THREADS, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "W3",
    about: "start a timer of 30 s, stop the one of 1,000 before",
    metrics: &[
        Metric::more("operations", "Mops/s"),
        Metric::less("resident memory at the end", "MB"),
    ],
    cases: ONE_AND_TWO_THREADS,
    // Milliseconds.
    amount: [10_000, 600, 20],
    ..Workload::DEFAULT
};

/// The milliseconds of a request, if a round is done in several.
pub(super) const BATCH: u64 = 1_000;

const TIMEOUT: Duration = Duration::from_secs(30);
/// So many requests of a thread are on their way.
const WINDOW: u64 = 1_000;
/// So many operations come between two looks at the clock.
const STRIDE: u64 = 128;

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let before = resident_bytes();
    let system = S::new(Tasks::Short);
    child.filled(|| ())?;
    child.rounds(|request| {
        let time = Duration::from_millis(request.amount);
        let fired_before = fired_so_far();
        let threads = request.threads;
        let (took, operations) = producers(&system, threads, |number| {
            // The batches of a round have seeds that differ in their upper bits.
            let first = (number << 40) | (request.seed >> 48 << 32);
            let began = Instant::now();
            let mut next = first;
            let mut stopped = 0;
            while began.elapsed() < time {
                for _ in 0..STRIDE {
                    system.start(next, TIMEOUT);
                    if next - first >= WINDOW {
                        stopped += u64::from(system.stop(next - WINDOW));
                    }
                    next += 1;
                }
            }
            (next - first, stopped)
        });
        let grown = grown_since(before).map(|bytes| bytes as f64 / 1e6);
        let started: u64 = operations.iter().map(|(started, _)| started).sum();
        let stopped: u64 = operations.iter().map(|(_, stopped)| stopped).sum();
        // What was neither stopped nor is left has fired, or is about to.
        let gone = started.saturating_sub(stopped + threads as u64 * WINDOW);
        wait_until_fired(fired_before + gone, Duration::from_secs(60));
        Measured::of(
            vec![Some(started as f64 / took.as_secs_f64() / 1e6), grown],
            took,
        )
    })
}
