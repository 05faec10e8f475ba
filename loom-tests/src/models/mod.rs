//! The models, one file per protocol. A model has at most three threads with about two operations
//! each.
//!
//! The head of each file lists its teeth: patches in `loom-tests/teeth` that break the crate's
//! source on purpose. The test that a patch names must fail with it. A model that no patch can make
//! fail proves nothing.
//!
//! `cargo run -q -p xtask -- teeth` runs the teeth. After a refactoring,
//! `cargo run -q -p xtask -- teeth --refresh` first adapts the patches to files and identifiers
//! that have moved or been renamed. Patches that it cannot adapt have to be written anew by hand.

mod amid_wait;
mod anchors;
mod background;
mod backlog;
mod batch;
mod bell;
mod bounded_channel;
mod call_threads;
mod claim;
mod close;
mod detached;
mod doorbell;
mod flights;
mod groups;
mod growth;
mod helping;
mod inline;
mod litmus;
mod lost;
mod marks;
mod pace;
mod permits;
mod places;
mod queue;
mod renewal;
mod repeat;
mod reservation;
mod shutdown;
mod sleep;
mod task;
mod threadless;
mod tickers;
mod turn;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Explores every execution of `model` with at most `bound` preemptions.
/// `LOOM_MAX_PREEMPTIONS` overrides the bound.
pub(crate) fn check<F>(bound: usize, model: F)
where
    F: Fn() + Send + Sync + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(bound);
    builder.max_branches = 10_000;
    // No other limits: loom reports success when one of them stops the exploration early.
    builder.max_duration = None;
    builder.max_permutations = None;
    // This counter is std's, since it counts across executions.
    let executions = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "{} executions, at most {:?} preemptions",
        executions.load(Ordering::Relaxed),
        builder.preemption_bound
    );
}
