#[path = "../../../crates/leases/src/manager/amid_wait.rs"]
pub(crate) mod amid_wait;
#[path = "../../../crates/leases/src/manager/background.rs"]
pub(crate) mod background;
