//! The protocols of the leases, without the schedulers on which they run.

#[path = "../../../crates/leases/src/background.rs"]
pub(crate) mod background;
#[path = "../../../crates/leases/src/fault.rs"]
pub(crate) mod fault;
#[path = "../../../crates/leases/src/handed.rs"]
pub(crate) mod handed;
#[path = "../../../crates/leases/src/holder.rs"]
pub(crate) mod holder;
pub(crate) mod keep_alive;
#[path = "../../../crates/leases/src/memory.rs"]
pub(crate) mod memory;
#[path = "../../../crates/leases/src/oneshot.rs"]
pub(crate) mod oneshot;
#[path = "../../../crates/leases/src/secret.rs"]
pub(crate) mod secret;
#[path = "../../../crates/leases/src/store.rs"]
pub(crate) mod store;
#[path = "../../../crates/leases/src/store_error.rs"]
pub(crate) mod store_error;
#[path = "../../../crates/leases/src/turns.rs"]
pub(crate) mod turns;
#[path = "../../../crates/leases/src/wait_queue.rs"]
pub(crate) mod wait_queue;
