//! Leases: locks that end by themselves, and watchdogs that keep them alive.

// The stores are the ones who use it.
#[allow(dead_code)]
mod hub;
#[cfg(feature = "redis")]
mod redis;
mod store;

#[cfg(feature = "redis")]
pub use self::redis::{RedisBuildError, RedisStore, RedisStoreBuilder};
pub use store::{
    Acquired, Claim, Destination, LeaseStore, Outcome, Released, Renewal, StoreError, Watch,
};
