//! The protocols of the leases, without the schedulers on which they run.

#[path = "../../../leases/src/background.rs"]
pub(crate) mod background;
#[path = "../../../leases/src/fault.rs"]
pub(crate) mod fault;
#[path = "../../../leases/src/handed.rs"]
pub(crate) mod handed;
#[path = "../../../leases/src/holder.rs"]
pub(crate) mod holder;
pub(crate) mod keep_alive;
#[path = "../../../leases/src/memory.rs"]
pub(crate) mod memory;
#[path = "../../../leases/src/oneshot.rs"]
pub(crate) mod oneshot;
#[path = "../../../leases/src/secret.rs"]
pub(crate) mod secret;
#[path = "../../../leases/src/store.rs"]
pub(crate) mod store;
#[path = "../../../leases/src/store_error.rs"]
pub(crate) mod store_error;
#[path = "../../../leases/src/turns.rs"]
pub(crate) mod turns;
#[path = "../../../leases/src/wait_queue.rs"]
pub(crate) mod wait_queue;
