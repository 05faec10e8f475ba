#[path = "../../../leases/src/keep_alive/lane.rs"]
pub(crate) mod lane;
#[path = "../../../leases/src/keep_alive/lease_state.rs"]
pub(crate) mod lease_state;
#[path = "../../../leases/src/keep_alive/lost.rs"]
pub(crate) mod lost;

pub(crate) use lane::{Lane, Route};
