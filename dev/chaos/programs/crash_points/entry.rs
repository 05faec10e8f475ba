//! What a process writes into its journal: the answers that it got, and the runs that it began.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One line of a journal. Times are microseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// A timer was accepted, and is due then.
    Accepted { key: String, due: u64 },
    /// A timer is going to be cancelled: whatever comes of it, it need not run.
    Cancelling { key: String },
    /// The answer, which came then, was `Cancelled`.
    Cancelled { key: String, at: u64 },
    /// The answer, which came then, was `Moved`.
    Moved { key: String, at: u64, due: u64 },
    /// The answer to a cancel was `Running`: no run with a greater number starts.
    Ending { key: String, attempt: u32 },
    /// The process died before the commit that would have made the timer.
    Never { key: String },
    /// A run began then, and its claim was certainly live.
    Ran {
        key: String,
        at: u64,
        attempt: u32,
        token: String,
    },
    /// A run began after the lease had ended, and did nothing.
    Unheld { key: String },
    /// Others have declared the node of this process gone.
    Gone,
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn now() -> u64 {
    micros(SystemTime::now())
}
