//! Warnings for the crate `tracing`, which only this file names. Feature `tracing`.
//!
//! A subscriber is code of the user, so it is treated like a callback: it is called on a worker for
//! callbacks, without a lock, and renewals never wait for it.

use std::fmt::Display;

use tracing::{Level, warn};

/// Whether somebody listens to warnings.
#[inline]
pub(super) fn hears() -> bool {
    tracing::level_enabled!(Level::WARN)
}

/// Warns about a key that is not shown, since it may be a secret.
pub(super) fn unnamed(what: &dyn Display) {
    warn!(target: "tourbillon_leases", "{what}");
}

/// Warns about a lock.
pub(crate) fn named(name: &str, token: u64, what: &dyn Display) {
    warn!(target: "tourbillon_leases", name, token, "{what}");
}
