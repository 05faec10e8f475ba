//! Timers and dead letters as users read them, in the time of the system.

use std::time::SystemTime;

use serde::de::DeserializeOwned;

use crate::store::{DeadLetter, Timer};

/// A timer as it was when it was read.
///
/// One that was scheduled during a run of its key [follows](Self::follows) the run. It is read
/// together with the run: `due`, `planned` and `payload` are its own, and `attempt`, `fails`,
/// `crashes` and `running` are those of the run. The payload of the run is not stored any more.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoredTimer {
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it is due next, by the store's clock.
    pub due: SystemTime,
    /// When it was due first, before retries.
    pub planned: SystemTime,
    /// The number of runs so far.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose process died.
    pub crashes: u32,
    /// Since when a node has been running it.
    pub running: Option<SystemTime>,
    /// Whether it was cancelled during its run.
    pub cancelled: bool,
    /// Whether it was scheduled during this run, and starts after it.
    pub follows: bool,
    /// The payload, as JSON.
    pub payload: String,
}

impl StoredTimer {
    /// Reads the payload as a type.
    ///
    /// # Errors
    ///
    /// The payload does not have this type.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }
}

impl From<Timer> for StoredTimer {
    fn from(timer: Timer) -> Self {
        StoredTimer {
            queue: timer.queue,
            key: timer.key,
            due: timer.due.into(),
            planned: timer.planned.into(),
            attempt: timer.attempt,
            fails: timer.fails,
            crashes: timer.crashes,
            running: timer.running.map(Into::into),
            cancelled: timer.cancelled,
            follows: timer.follows,
            payload: timer.payload,
        }
    }
}

/// A timer that was given up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadTimer {
    /// Its number, by which [`revive`](crate::Durable::revive) finds it.
    pub id: i64,
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it was due first.
    pub planned: SystemTime,
    /// When it was given up.
    pub at: SystemTime,
    /// The number of runs.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose process died.
    pub crashes: u32,
    /// Why it was given up.
    pub error: String,
    /// The payload, as JSON.
    pub payload: String,
}

impl DeadTimer {
    /// Reads the payload as a type.
    ///
    /// # Errors
    ///
    /// The payload does not have this type.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }
}

impl From<DeadLetter> for DeadTimer {
    fn from(letter: DeadLetter) -> Self {
        DeadTimer {
            id: letter.id,
            queue: letter.queue,
            key: letter.key,
            planned: letter.planned.into(),
            at: letter.at.into(),
            attempt: letter.attempt,
            fails: letter.fails,
            crashes: letter.crashes,
            error: letter.error,
            payload: letter.payload,
        }
    }
}

/// Which part of a long list to read.
///
/// A page also ends when its payloads have 8 MiB, so that it holds up no other call for long. Only
/// an empty page says that there are no more timers.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Durable, Memory, Paging};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let mut paging = Paging::first(1_000);
/// loop {
///     let page = timers.list("pay-by", .., &paging).wait()?;
///     let Some(last) = page.last() else { break };
///     paging = Paging::after(last, 1_000);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Paging {
    pub(crate) after: Option<(SystemTime, String)>,
    pub(crate) limit: u32,
}

impl Paging {
    /// The first timers, at most this number, from 1 to 10,000.
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Paging { after: None, limit }
    }

    /// The timers that follow this one, at most this number, from 1 to 10,000.
    #[must_use]
    pub fn after(last: &StoredTimer, limit: u32) -> Self {
        Paging {
            after: Some((last.due, last.key.clone())),
            limit,
        }
    }
}
