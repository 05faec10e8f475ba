//! Tasks for developers of this repository.
//!
//! `cargo run -p xtask -- teeth [name..]` breaks the code on purpose, once per patch in
//! `loom-tests/teeth`, and expects the test that each patch names to fail.
//!
//! `cargo run -p xtask -- teeth --refresh [name..]` brings patches that no longer apply up to date with the last
//! commit. It prints `refreshed NAME`, or `CANNOT NAME` with the files that have to be looked at by hand, and then ends
//! with 1. Run the teeth afterwards: only a run shows whether the new patches are still caught.

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
