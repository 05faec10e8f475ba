//! A child process that a test stops and continues.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// A child process. It is killed when this value is dropped, even while it is stopped.
#[derive(Debug)]
pub struct Paused(pub Child);

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

    /// Stops the process, and waits until it stands still.
    pub fn stop(&self) {
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
    }

    /// Continues the process.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    /// Stops the process, and continues it after at least `pause`.
    pub fn pause(&self, pause: Duration) {
        self.stop();
        // The pause is what the test is about: it must not be shorter than asked.
        let begun = Instant::now();
        while begun.elapsed() < pause {
            thread::park_timeout(pause);
        }
        self.go_on();
    }
}
