//! A child process that is stopped, and goes on.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Killed at the end, also while it is stopped.
pub(crate) struct Paused(pub(crate) Child);

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Paused {
    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Stops it, and lets it go on after at least so long.
    pub(crate) fn pause(&self, pause: Duration) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.0.id());
        let is_stopped = || {
            let stat = fs::read_to_string(&stat).unwrap();
            let (_, state) = stat.rsplit_once(") ").unwrap();
            state.starts_with('T')
        };
        while !is_stopped() {
            thread::yield_now();
        }
        // It stands still for at least this long: the pause is what is tested.
        let begun = Instant::now();
        while begun.elapsed() < pause {
            thread::park_timeout(pause);
        }
        self.signal("CONT");
    }
}
