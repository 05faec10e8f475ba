//! Leases: locks that end by themselves, and watchdogs that keep things alive.
//!
//! - [`Leases`]: locks by name over a [`LeaseStore`], renewed in the background.
//! - [`Watchdog`]: the same renewals for whatever else ends unless it is renewed.
//! - [`MemoryStore`]: the embedded store.
//! - [`Fence`]: keeps holders that have lost their lease away from a resource.

mod acquire;
#[cfg(feature = "futures")]
mod awaiting;
mod builder;
#[cfg(feature = "futures")]
mod desk;
mod error;
mod fence;
mod guard;
mod hub;
mod locks;
mod memory;
#[cfg(any(test, feature = "test-util"))]
mod steps;
mod store;
mod watchdog;

pub use acquire::Acquisition;
pub use builder::LeasesBuilder;
pub use error::{LockError, ReleaseError};
pub use fence::{Fence, StaleToken};
pub use guard::{LeaseGuard, LeaseId};
pub use locks::Leases;
pub use memory::{Fault, MemoryStore, StoreCall};
#[cfg(any(test, feature = "test-util"))]
pub use steps::Steps;
pub use store::{
    Acquired, Claim, Destination, LeaseStore, Outcome, Released, Renewal, StoreError, Watch,
};
pub use watchdog::{
    Batch, Entry, Event, Keep, KeepError, Kept, Loss, Lost, Watchdog, WatchdogBuilder,
    WatchdogStats, What,
};
