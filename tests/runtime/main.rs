//! Schedulers, maps and timers that share the threads of a runtime.
//!
//! A test crate of its own, because tests look for the names of threads in `/proc/self`.

mod alone;
mod end;
mod share;

use std::time::Duration;

use tourbillon::{Runtime, RuntimeBuilder, Scheduler};

const TICK: Duration = Duration::from_millis(1);

fn scheduler_on(runtime: &Runtime) -> Scheduler<u32> {
    Scheduler::builder().runtime(runtime).build().unwrap()
}

/// A runtime with one ticker and one worker, beside which no other worker starts for a scheduler
/// that has one.
fn small(name: &str) -> RuntimeBuilder {
    let builder = Runtime::builder().name(name);
    builder.tickers(1).workers(1).max_workers(1)
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
