//! Tasks for developers of this repository.
//!
//! `cargo run -p xtask -- teeth [name..]` breaks the code on purpose, once per patch in
//! `loom-tests/teeth`, and expects the test that each patch names to fail.
//!
//! `cargo run -p xtask -- teeth --refresh [name..]` adapts these patches after a refactoring: it
//! follows moved files, renamed identifiers and changed context, and writes the patches anew. It
//! prints `refreshed NAME`, `as it was NAME`, or `CANNOT NAME` with the file and the hunk that have
//! to be adapted by hand. If it prints a `CANNOT`, the exit code is 1. Run the teeth afterwards,
//! since only a run shows whether the new patches are still caught.

#[macro_use]
mod say;

use std::env;
use std::path::Path;
use std::process::ExitCode;

mod teeth;

const USAGE: &str = "usage: cargo run -p xtask -- teeth [--refresh] [name..]";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("a tool lies two folders below the workspace's root");
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((command, names)) if command == "teeth" => teeth::run(root, names),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(reason) => {
            complain!("xtask: {reason}");
            ExitCode::from(2)
        }
    }
}
