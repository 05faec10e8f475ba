//! Tokio runtimes of four kinds: on the calling thread or on several threads, with or without
//! tokio's own time driver.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tourbillon::Timer;

const PATIENCE: Duration = Duration::from_secs(60);

fn all() -> [Runtime; 4] {
    let one = Builder::new_current_thread;
    let several = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    };
    [
        one().build(),
        one().enable_time().build(),
        several().build(),
        several().enable_time().build(),
    ]
    .map(|runtime| runtime.expect("a runtime"))
}

/// Runs a future on each kind of runtime, as a spawned task, so that any worker may poll it.
pub fn on_all<F>(make: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    on_all_in_turn(|runtime| {
        let timer = Timer::new().expect("a timer");
        let task = runtime.spawn(timer.timeout(PATIENCE, make()));
        match runtime.block_on(task) {
            Ok(ended) => ended.expect("what is awaited comes"),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    });
}

/// Calls `test` with each kind of runtime, one after the other.
pub fn on_all_in_turn(test: impl Fn(&Runtime)) {
    for runtime in all() {
        test(&runtime);
    }
}

/// Waits until `holds` returns true. Other tasks run in the meantime.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        tokio::task::yield_now().await;
    }
}
