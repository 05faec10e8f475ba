//! Leases in a file of SQLite, by a store of some hundred lines.
//!
//! ```text
//! cargo run -p tourbillon-leases --example sqlite_store
//! ```

mod store;

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use store::SqliteStore;
use tourbillon_leases::Leases;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("leases-{}.sqlite", std::process::id()));
    // Two processes would do the same.
    let one = Leases::new(SqliteStore::open(&file)?)?;
    let other = Leases::new(SqliteStore::open(&file)?)?;

    let guard = one.lock("report")?;
    writeln!(
        stdout(),
        "one holds it, with token {}",
        guard.fencing_token()
    )?;
    writeln!(
        stdout(),
        "other: {}",
        other.try_lock("report").expect_err("it is held")
    )?;
    guard.release()?;
    let guard = other.try_lock_for("report", Duration::from_secs(5))?;
    writeln!(
        stdout(),
        "other holds it, with token {}",
        guard.fencing_token()
    )?;
    guard.release()?;
    std::fs::remove_file(file)?;
    Ok(())
}
