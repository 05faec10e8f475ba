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

    let guard = one.lock("report").wait()?;
    writeln!(stdout(), "one holds it, with token {}", guard.token())?;
    writeln!(
        stdout(),
        "other: {}",
        other
            .lock("report")
            .at_once()
            .wait()
            .expect_err("it is held")
    )?;
    guard.release().wait()?;
    let guard = other.lock("report").within(Duration::from_secs(5)).wait()?;
    writeln!(stdout(), "other holds it, with token {}", guard.token())?;
    guard.release().wait()?;
    std::fs::remove_file(file)?;
    Ok(())
}
