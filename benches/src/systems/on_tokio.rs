//! What the systems on tokio share: a runtime of one thread that lives as long as the process.

use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::recorder::fired;
use crate::system::Tasks;

/// Runs what `task` returns on the thread of a new runtime.
pub(super) fn run<F: Future<Output = ()>>(task: impl FnOnce() -> F + Send + 'static) -> Handle {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without I/O needs nothing");
    let handle = runtime.handle().clone();
    thread::spawn(move || runtime.block_on(task()));
    handle
}

/// Waits for what was spawned or woken before. The queue is first in, first out, so that has its
/// turn before a task that is spawned now; the second one covers what the first turn only woke.
pub(super) fn settle(runtime: &Handle) {
    for _ in 0..2 {
        let (done, wait) = mpsc::channel();
        runtime.spawn(async move { done.send(()) });
        wait.recv().expect("the runtime's thread runs");
    }
}

/// Tasks that may block go to the blocking pool.
pub(super) fn fire(value: u64, tasks: Tasks) {
    match tasks {
        Tasks::Short => fired(value),
        Tasks::MayBlock => drop(tokio::task::spawn_blocking(move || fired(value))),
    }
}
