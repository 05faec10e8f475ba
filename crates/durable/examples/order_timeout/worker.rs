//! The process of a worker. It runs timers until its parent closes the pipe to it, which the system
//! does when the parent is killed.

use std::io::{self, Read, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use tourbillon_durable::StartError;
use tourbillon_durable::store::StoreError;

use crate::app::Signals;
use crate::database::{Database, Fault};

/// The line that a worker writes when its timers run.
pub(crate) const READY: &str = "ready";

/// How long the runs under way may take when a worker stops.
const GRACE: Duration = Duration::from_secs(2);

/// How long a worker may take to stop.
pub(crate) const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// For how long a worker tries to start while the database is busy or down.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Whether another attempt may succeed.
fn may_pass(fault: &Fault) -> bool {
    let store = match fault.downcast_ref() {
        Some(StartError::Store(error)) => Some(error),
        _ => fault.downcast_ref::<StoreError>(),
    };
    store.is_some_and(StoreError::may_pass)
}

/// Runs the process of a worker, and returns its exit code.
pub(crate) fn run(database: &dyn Database, number: u32, signals: Signals) -> u8 {
    let asked = match signals() {
        Ok(asked) => asked,
        Err(error) => return fail(&error.to_string()),
    };
    let began = Instant::now();
    let timers = loop {
        match database.work(&format!("worker-{number}")) {
            Ok(timers) => break timers,
            // Many processes may be writing just now.
            Err(error) if may_pass(&error) && began.elapsed() < STARTS_WITHIN => {
                if asked.load(Relaxed) {
                    return 0;
                }
                say(&error.to_string());
            }
            Err(error) => return fail(&error.to_string()),
        }
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
