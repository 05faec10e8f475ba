//! The protocols of the leases, without the schedulers on which they run.

pub(crate) mod keep_alive;
pub(crate) mod manager;
pub(crate) mod remote;
#[path = "../../../crates/leases/src/store/mod.rs"]
pub(crate) mod store;
