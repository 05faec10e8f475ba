//! Waiting for a condition or a message, with a patience that only a broken scheduler uses up.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds`. The pause between two looks decides nothing; it leaves the processor to the
/// threads that are waited for.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        thread::park_timeout(Duration::from_micros(100));
    }
}

/// The next message.
#[track_caller]
pub(crate) fn next<T>(from: &Receiver<T>) -> T {
    match from.recv_timeout(PATIENCE) {
        Ok(message) => message,
        Err(error) => panic!("no message came: {error}"),
    }
}

/// All messages, until the last sender is gone.
#[track_caller]
pub(crate) fn all<T>(from: &Receiver<T>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        match from.recv_timeout(PATIENCE) {
            Ok(message) => all.push(message),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("the senders live on"),
        }
    }
}
