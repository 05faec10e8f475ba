//! Waiting for a condition or a message. The time limit is so long that only a broken scheduler
//! reaches it.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true, or panics with `what`. The pause between two calls leaves the
/// processor to other threads.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        thread::park_timeout(Duration::from_micros(100));
    }
}

/// Waits for the next message.
#[track_caller]
pub fn next<T>(from: &Receiver<T>) -> T {
    match from.recv_timeout(PATIENCE) {
        Ok(message) => message,
        Err(error) => panic!("no message came: {error}"),
    }
}

/// Waits for all messages, until the last sender has been dropped.
#[track_caller]
pub fn all<T>(from: &Receiver<T>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        match from.recv_timeout(PATIENCE) {
            Ok(message) => all.push(message),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("the senders live on"),
        }
    }
}
