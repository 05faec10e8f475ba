//! What may pass, and what will be refused again.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerError};

use crate::leases::StoreError;

/// Codes of answers that pass by themselves:
///
/// - `LOADING`: it reads its data after a start. `BUSY`: a script of somebody keeps it.
/// - `READONLY`, `MASTERDOWN`, `NOREPLICAS`: a failover, or too few replicas just now.
/// - `CLUSTERDOWN`, `TRYAGAIN`, `ASK`: the cluster elects, or moves the slot of this key.
/// - `NOSCRIPT`: forgotten again between two sendings.
/// - `OOM`, `MISCONF`: it takes no writes, as long as memory or disk are full.
///
/// What is not among them will be refused again: `NOAUTH`, `WRONGPASS` and `NOPERM` until somebody
/// changes the rights, `WRONGTYPE` until somebody removes the key, `CROSSSLOT` and `MOVED` since
/// this server is not the one to ask.
const PASSING: [&str; 11] = [
    "LOADING",
    "BUSY",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "ASK",
    "NOSCRIPT",
    "OOM",
    "MISCONF",
];

/// Why there is no answer.
pub(super) enum Fault {
    /// The connection is gone, perhaps since long ago.
    Lost(String),
    /// Anything else.
    Other(StoreError),
}

impl Fault {
    pub(super) fn of(error: &RedisError, address: &impl fmt::Display) -> Self {
        if error.is_timeout() {
            return Fault::late(address);
        }
        if error.is_connection_dropped() && !error.is_connection_refusal() {
            return Fault::Lost(format!("{address}: {error}"));
        }
        let why = format!("{address}: {error}");
        Fault::Other(match error.kind() {
            // A name that is not to be found may be found later.
            ErrorKind::Io | ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                StoreError::Unavailable(why)
            }
            _ => StoreError::Refused(why),
        })
    }

    pub(super) fn late(address: &impl fmt::Display) -> Self {
        Fault::Other(StoreError::Unavailable(format!(
            "{address}: no answer in time"
        )))
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Lost(why) => StoreError::Unavailable(why),
            Fault::Other(error) => error,
        }
    }
}

/// What an error that the server answered means.
pub(super) fn answered(error: &ServerError) -> StoreError {
    let details = error.details().unwrap_or_default();
    let why = format!("{} {details}", error.code());
    if passes(error.code(), details) {
        StoreError::Unavailable(why)
    } else {
        StoreError::Refused(why)
    }
}

fn passes(code: &str, details: &str) -> bool {
    if PASSING.contains(&code) {
        return true;
    }
    // Servers before version 7 wrap what a script met into an `ERR` of their own; proxies tell of
    // their own troubles in words.
    code == "ERR"
        && (details.contains("max number of clients reached")
            || details.contains("timed out")
            || details
                .split(|c: char| !c.is_ascii_uppercase())
                .any(|word| PASSING.contains(&word)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_passes_and_what_does_not() {
        for code in PASSING {
            assert!(passes(code, ""), "{code}");
        }
        for code in [
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "WRONGTYPE",
            "CROSSSLOT",
            "MOVED",
            "ERR",
        ] {
            assert!(!passes(code, "the rest of the line"), "{code}");
        }
        assert!(passes("ERR", "max number of clients reached"));
        assert!(passes(
            "ERR",
            "Error running script (call to f_1): @user_script:9: -READONLY You can't write"
        ));
        assert!(!passes(
            "ERR",
            "Error running script: WRONGTYPE Operation against a key"
        ));
    }
}
