//! A job that only one of several workers may do at a time. A worker that hangs loses the lock, the
//! next one gets a higher token, and the resource refuses what the first one writes late.
//!
//! ```sh
//! cargo run --release -p tourbillon-leases --example lock
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use tourbillon_leases::{Leases, LockError, MemoryStore};

/// What the lock protects. It keeps the highest token it has seen, and refuses older ones.
#[derive(Default)]
struct Ledger {
    token: u64,
    lines: Vec<String>,
}

impl Ledger {
    fn write(&mut self, token: u64, line: &str) -> Result<(), String> {
        if token < self.token {
            return Err(format!(
                "refused: token {token} is older than {}",
                self.token
            ));
        }
        self.token = token;
        self.lines.push(format!("{token}: {line}"));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    // For workers in other processes: `RedisStore::open("redis://127.0.0.1/")?`, with the feature
    // `redis`.
    let store = MemoryStore::new();
    let lease = Duration::from_secs(2);
    // Each worker is a process of its own, and has leases of its own.
    let ours = Leases::builder(store.clone()).lease(lease).build()?;
    let theirs = Leases::builder(store).lease(lease).build()?;
    let ledger = Mutex::new(Ledger::default());

    // It has to call `feed` more often than this, or it loses the lock.
    let patience = Duration::from_millis(300);
    let first = ours.lock("invoices").fed_every(patience).at_once().wait()?;
    assert!(first.feed());
    ledger
        .lock()
        .expect("no panic")
        .write(first.token(), "invoice 1")?;
    writeln!(
        out,
        "the first worker holds the lock with token {}",
        first.token()
    )?;

    // Somebody else is refused, or waits.
    match theirs.lock("invoices").at_once().wait() {
        Err(LockError::Held { .. }) => writeln!(out, "the second worker is refused")?,
        other => return Err(format!("expected a refusal, not {other:?}").into()),
    }
    let second = thread::scope(|scope| {
        let waits = scope.spawn(|| theirs.lock("invoices").wait());
        // The first worker hangs here, and calls `feed` no more.
        waits.join().expect("no panic")
    })?;
    writeln!(
        out,
        "the second worker holds the lock with token {}",
        second.token()
    )?;
    ledger
        .lock()
        .expect("no panic")
        .write(second.token(), "invoice 2")?;

    // It wakes. `is_held` asks nobody; the ledger would refuse it in any case.
    assert!(!first.is_held());
    match ledger
        .lock()
        .expect("no panic")
        .write(first.token(), "invoice 1, again")
    {
        Err(refused) => writeln!(out, "{refused}")?,
        Ok(()) => return Err("a late write went through".into()),
    }
    assert!(first.release().wait().is_err(), "it was lost");
    second.release().wait()?;
    let lines = &ledger.lock().expect("no panic").lines;
    writeln!(out, "{} lines are written", lines.len())?;
    Ok(())
}
