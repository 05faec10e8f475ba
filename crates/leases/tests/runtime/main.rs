//! Leases on a runtime that they share, or on threads of their own.
//!
//! A test crate of its own, because tests look for the names of threads in `/proc/self`.

mod alone;
mod choice;
mod end;

use std::time::Duration;

use tourbillon::{Firing, Runtime, RuntimeBuilder, Scheduler};
use tourbillon_leases::{Leases, LeasesBuilder, MemoryStore};

const TICK: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(60);
/// So long that a busy machine does not end it, and so short that it is renewed soon.
const LEASE: Duration = Duration::from_secs(3);

/// A runtime with one ticker and one worker, beside which no other worker starts for a scheduler
/// that has one.
fn small(name: &str) -> RuntimeBuilder {
    let builder = Runtime::builder().name(name);
    builder.tickers(1).workers(1).max_workers(1)
}

fn leases_on(runtime: &Runtime, store: &MemoryStore) -> LeasesBuilder {
    Leases::builder(store.clone()).lease(LEASE).runtime(runtime)
}

fn scheduler_on(runtime: &Runtime) -> Scheduler<u32> {
    Scheduler::builder().runtime(runtime).build().unwrap()
}

/// Runs `task` on the runtime.
fn run_on(scheduler: &Scheduler<u32>, key: u32, task: impl FnOnce() + Send + 'static) {
    let task = move |_: &Firing<'_, u32>| task();
    scheduler.handle().schedule(key, TICK, task).unwrap();
}

/// The threads of this process whose names begin with `name`.
#[cfg(target_os = "linux")]
fn threads_named(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut names: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|found| found.trim_end().to_owned())
        .filter(|found| found.starts_with(name))
        .collect();
    names.sort();
    names
}
