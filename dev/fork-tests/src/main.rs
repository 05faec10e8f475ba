//! Forks while other threads use timers or leases, and looks what the copies can do.
//!
//! - `fork-tests memory` and `fork-tests URL`: leases, on a Redis, a PostgreSQL or an etcd server.
//! - `fork-tests core`: schedulers, timers and maps, once in a quiet process, and then beside busy
//!   threads.
//! - `fork-tests sqlite`: leases in a SQLite file.
//! - `fork-tests durable`: durable timers in memory and in a SQLite file.
//! - `fork-tests postgres URL`: connections to a PostgreSQL server.
//! - `fork-tests no-threads`: all of that but the servers', in copies in which no thread starts.
//!
//! Prints `FORKS copies, all as they should be` and ends with 0, or prints what was wrong.

#[cfg(unix)]
#[path = "../../../crates/leases/tests/kit/calls.rs"]
mod calls;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod core;
#[cfg(unix)]
mod durable;
#[cfg(all(unix, feature = "etcd"))]
mod etcd;
#[cfg(unix)]
mod leases;
#[cfg(unix)]
mod postgres;
#[cfg(unix)]
mod program;
#[cfg(unix)]
mod redis;
#[cfg(unix)]
mod stuck;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(unix))]
fn main() {
    println!("this platform does not fork");
}
