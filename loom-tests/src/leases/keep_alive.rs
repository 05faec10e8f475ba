#[path = "../../../leases/src/keep_alive/lane.rs"]
pub(crate) mod lane;
#[path = "../../../leases/src/keep_alive/lost.rs"]
pub(crate) mod lost;
#[path = "../../../leases/src/keep_alive/term.rs"]
pub(crate) mod term;

pub(crate) use lane::{Lane, Route};
