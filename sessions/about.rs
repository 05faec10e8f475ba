//! The options `--help` and `--version` of the examples.

#![allow(dead_code, reason = "some examples have a command line of their own")]

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// Returns the version, like `NAME (tourbillon) 0.1.0`.
pub(crate) fn version(name: &str) -> String {
    format!("{name} (tourbillon) {}\n", env!("CARGO_PKG_VERSION"))
}

/// Handles these options. Returns `None` if there are no arguments: then the program has to run.
pub(crate) fn answer(
    name: &str,
    help: &str,
    mut args: impl Iterator<Item = OsString>,
) -> Option<ExitCode> {
    let arg = args.next()?;
    let text = match arg.to_str() {
        Some("-h" | "--help") => help.to_owned(),
        Some("-V" | "--version") => version(name),
        _ => {
            let arg = arg.to_string_lossy();
            let _ = writeln!(
                io::stderr(),
                "{name}: unknown argument {arg:?}; --help says what this program does"
            );
            return Some(ExitCode::from(2));
        }
    };
    // A reader that closed the pipe has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    Some(ExitCode::SUCCESS)
}
