//! Tests of timers without waiting: virtual time.
//!
//! The timers are those of production, with their store, their handlers and their transactions. But
//! time passes only when the test says so, and then at once: [`DurableSteps::advance`]. A handler
//! alone is called with a run that a [`DueBuilder`] makes. The guide
//! [`testing`](crate::guide::testing) has a page of recipes.
//!
//! # Examples
//!
//! Fifteen minutes later the order is cancelled:
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::{Duration, UNIX_EPOCH};
//! use tourbillon_durable::{Due, Durable, Memory, WallClock};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (cancel, cancelled) = mpsc::channel();
//! let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
//! let (timers, steps) = Durable::builder(store)
//!     .handle("pay-by", move |due: &Due<u64>| drop(cancel.send(*due.payload())))
//!     .start_stepped()?;
//!
//! let quarter = Duration::from_secs(15 * 60);
//! timers.schedule("pay-by", "order:7", quarter, &7_u64).wait()?;
//! steps.advance(quarter - Duration::from_micros(1)).wait()?;
//! assert!(cancelled.try_recv().is_err()); // not a microsecond early
//! steps.advance(Duration::from_micros(1)).wait()?;
//! assert_eq!(cancelled.try_recv()?, 7);
//! # Ok(())
//! # }
//! ```

mod drive;
mod due;
mod steps;

pub use due::{CompletionRecord, DueBuilder};
pub use steps::DurableSteps;
