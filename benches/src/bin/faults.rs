//! Leases on real servers, while everything goes wrong that may: do two holders ever believe at one
//! time that they hold a lock?
//!
//! ```text
//! cargo run --release -p benches --bin faults -- --rounds 1000
//! ```

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../machine.rs"]
#[allow(dead_code, reason = "this program needs a part of it")]
mod machine;
#[path = "../../../crates/leases/tests/kit/redis.rs"]
mod redis_kit;
#[path = "../rng.rs"]
mod rng;

fn main() -> std::process::ExitCode {
    faults::main()
}
