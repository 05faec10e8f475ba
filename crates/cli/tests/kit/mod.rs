//! The command as a child process.

use std::process::{Command, Output, Stdio};

/// The command, without a store in its environment.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tourbillon"));
    for name in ["TOURBILLON_URL", "TOURBILLON_FILE", "TOURBILLON_LOCKS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn call(words: &[&str]) -> Output {
    command().args(words).output().expect("it starts")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it is text")
}
