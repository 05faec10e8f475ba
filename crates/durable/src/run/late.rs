//! The treatment of timers that are far too late.

use std::time::Duration;

/// The treatment of a timer that could not start in time, because all processes were down or its
/// queue was paused.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Late, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .handle("breakfast-offer", |_: &Due<u64>| ())
///     .late(Late::ExpireAfter(Duration::from_secs(3 * 3_600)))
///     .start()?;
/// # drop(timers);
/// # Ok(())
/// # }
/// ```
#[doc(alias("misfire", "expire", "grace"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Late {
    /// It runs, however late.
    #[default]
    Run,
    /// It runs until this span after its planned time. After that it does not start any more, and
    /// becomes a dead letter. That also holds for retries.
    ExpireAfter(Duration),
}
