//! The command against servers of the tests' own.

#[path = "../kit/mod.rs"]
mod command;

mod locks;
mod outages;
mod postgres;

use std::time::{Duration, Instant};

use command::{call, code, text};

/// The exit code and the error of a command that fails, and finds the end soon: its limit is a
/// second, and a busy machine takes longer.
#[track_caller]
fn fails(words: &[&str]) -> (i32, String) {
    let begun = Instant::now();
    let output = call(words);
    let error = text(&output.stderr);
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{words:?}: {error}"
    );
    assert_eq!(text(&output.stdout), "", "{words:?}");
    (code(&output), error)
}
