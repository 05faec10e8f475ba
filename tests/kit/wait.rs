//! Waiting for what other threads do: for a condition, never for a time. The limit only turns a
//! test that would hang into one that fails.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The next message.
#[track_caller]
pub(crate) fn next<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LIMIT).expect("a message in time")
}

/// All messages, until the last sender is gone.
#[track_caller]
pub(crate) fn all<T>(receiver: &Receiver<T>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        match receiver.recv_timeout(LIMIT) {
            Ok(message) => all.push(message),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("the senders live on"),
        }
    }
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
