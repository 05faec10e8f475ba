//! Processes that stand still.

use std::process::Command;

/// A process that stands still until this is dropped.
pub(crate) struct Stopped<'a>(&'a str);

impl<'a> Stopped<'a> {
    pub(crate) fn new(process: &'a str) -> Self {
        signal("-STOP", process);
        Stopped(process)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(signal: &str, process: &str) {
    let sent = Command::new("kill").args([signal, process]).status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "kill {signal} {process}"
    );
}
