#[path = "../../../crates/leases/src/keep_alive/lease_state/mod.rs"]
pub(crate) mod lease_state;
#[path = "../../../crates/leases/src/keep_alive/lost.rs"]
pub(crate) mod lost;
#[path = "../../../crates/leases/src/keep_alive/queue.rs"]
pub(crate) mod queue;
#[path = "../../../crates/leases/src/keep_alive/task.rs"]
pub(crate) mod task;

pub(crate) use queue::{DestinationQueue, Flush, QueueKey};
