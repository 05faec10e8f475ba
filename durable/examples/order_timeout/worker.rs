//! The process of a worker. It runs timers until its parent closes the pipe to it, which the system
//! does when the parent is killed.

use std::io::{self, Read, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use crate::app::Signals;
use crate::database::Database;

/// The line that a worker writes when its timers run.
pub(crate) const READY: &str = "ready";

/// How long the runs under way may take when a worker stops.
const GRACE: Duration = Duration::from_secs(2);

/// How long a worker may take to stop.
pub(crate) const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// Runs the process of a worker, and returns its exit code.
pub(crate) fn run(database: &dyn Database, number: u32, signals: Signals) -> u8 {
    let asked = match signals() {
        Ok(asked) => asked,
        Err(error) => return fail(&error.to_string()),
    };
    let timers = match database.work(&format!("worker-{number}")) {
        Ok(timers) => timers,
        Err(error) => return fail(&error.to_string()),
    };
    say(READY);
    let closed = Arc::clone(&asked);
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        closed.store(true, Relaxed);
    });
    while !asked.load(Relaxed) {
        thread::sleep(Duration::from_millis(20));
    }
    // Nobody may be left to end a worker that hangs.
    thread::spawn(|| {
        thread::sleep(STOPS_WITHIN);
        process::exit(1);
    });
    timers.stop(GRACE);
    0
}

fn fail(why: &str) -> u8 {
    say(why);
    1
}

/// Writes a line to the parent, or to nobody if the parent has ended.
pub(crate) fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
