//! Forks while other threads use leases, and looks what the copies can do.
//!
//! `fork-tests memory` or `fork-tests URL`. Prints `FORKS copies, all as they should be` and ends with
//! 0, or prints what was wrong.

#[cfg(unix)]
mod copies;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    copies::main()
}

#[cfg(not(unix))]
fn main() {
    println!("this platform does not fork");
}
