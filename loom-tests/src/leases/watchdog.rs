#[path = "../../../src/leases/watchdog/lane.rs"]
pub(crate) mod lane;
#[path = "../../../src/leases/watchdog/lost.rs"]
pub(crate) mod lost;
#[path = "../../../src/leases/watchdog/term.rs"]
pub(crate) mod term;

pub(crate) use lane::{Lane, Route};
