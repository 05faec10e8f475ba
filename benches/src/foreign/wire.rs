//! What our child and a driver say to each other: one JSON object a line. A driver says
//! [`Filled`](crate::wire::Filled) once, then answers each [`Request`](crate::wire::Request) with a
//! [`Driven`].

use serde::Deserialize;
#[cfg(test)]
use serde::Serialize;

/// The driver: a round is done.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Driven {
    /// One for each of the workload's metrics; `None` where the platform does not tell.
    pub(super) figures: Vec<Option<f64>>,
    pub(super) seconds: f64,
    /// Timers that fired during the work.
    pub(super) fired: u64,
}

/// The tests: a single call.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Call {
    /// Calls of one lane are made one after the other, those of different lanes at the same time.
    pub(super) lane: u64,
    #[serde(rename = "do")]
    pub(super) what: &'static str,
    /// The key of the timer. For a handle, the number that the answer to its start contained.
    pub(super) key: u64,
    pub(super) delay_ns: u64,
}

/// The driver to the tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Told {
    /// A number; 1 stands for yes.
    Answer { lane: u64, answer: u64 },
    Fired {
        fired: u64,
        /// When, by the system's monotonic clock.
        at_ns: u64,
    },
}
