//! Leases: locks that end by themselves, and watchdogs that keep them alive.

// The stores are the ones who use it.
#[allow(dead_code)]
mod hub;
mod store;

pub use store::{
    Acquired, Claim, Destination, LeaseStore, Outcome, Released, Renewal, StoreError, Watch,
};
