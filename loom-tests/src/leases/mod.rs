//! The protocols of the leases, without the schedulers that they run on.

#[path = "../../../src/leases/desk.rs"]
pub(crate) mod desk;
#[path = "../../../src/leases/hub.rs"]
pub(crate) mod hub;
#[path = "../../../src/leases/line.rs"]
pub(crate) mod line;
#[path = "../../../src/leases/memory.rs"]
pub(crate) mod memory;
#[path = "../../../src/leases/store.rs"]
pub(crate) mod store;
#[path = "../../../src/leases/turns.rs"]
pub(crate) mod turns;
pub(crate) mod watchdog;
