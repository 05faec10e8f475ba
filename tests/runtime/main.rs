//! Schedulers, maps and timers that share the threads of a runtime.
//!
//! A test crate of its own, because tests look for the names of threads in `/proc/self`.

mod alone;
mod end;
mod load;
mod share;
mod storms;

use std::time::Duration;

#[cfg(target_os = "linux")]
use kit::naps::named as threads_named;
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
