//! Waiting for what other threads do: for a condition, never for a time. The limit only turns a
//! test that would hang into one that fails.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The next message.
#[track_caller]
pub(crate) fn next<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LIMIT).expect("a message in time")
}

/// Until `condition` holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what} did not happen in time");
        std::thread::yield_now();
    }
}
