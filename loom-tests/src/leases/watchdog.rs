#[path = "../../../leases/src/watchdog/lane.rs"]
pub(crate) mod lane;
#[path = "../../../leases/src/watchdog/lost.rs"]
pub(crate) mod lost;
#[path = "../../../leases/src/watchdog/term.rs"]
pub(crate) mod term;

pub(crate) use lane::{Lane, Route};
