#[path = "../../../crates/leases/src/remote/turn.rs"]
pub(crate) mod turn;
