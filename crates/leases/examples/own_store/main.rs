//! A store of one's own, of some hundred lines, for a database whose client blocks. Its database is
//! SQLite. Programs that want locks in SQLite use the `SqliteStore` of the crate.
//!
//! ```text
//! cargo run -p tourbillon-leases --example own_store
//! ```

mod store;

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use store::TableStore;
use tourbillon_leases::{BlockingStore, Leases};

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("leases-{}.sqlite", std::process::id()));
    // Two processes would do the same.
    let open = || TableStore::open(&file).map(BlockingStore::new);
    let one = Leases::new(open()?)?;
    let other = Leases::new(open()?)?;

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
    // Awaited, it blocks a thread of the `BlockingStore`, and not the task.
    let lock = other.lock("report").within(Duration::from_secs(5));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let guard = runtime.block_on(lock.into_future())?;
    writeln!(stdout(), "other holds it, with token {}", guard.token())?;
    guard.release().wait()?;
    std::fs::remove_file(file)?;
    Ok(())
}
