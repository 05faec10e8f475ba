//! What the programs of the package `sessions` have in common: they say what they are, and refuse
//! what they do not know.

use std::process::Command;

use kit::program;

use crate::outputs::leave_after_a_line;

const PROGRAMS: [&str; 2] = ["make_log", "sessions"];

/// The exit code, what went to stdout, and what to stderr.
fn run(name: &str, arg: &str) -> (Option<i32>, String, String) {
    let output = Command::new(program::bin(name))
        .arg(arg)
        .output()
        .expect("the program is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn every_program_says_what_it_is_and_which_version() {
    for name in PROGRAMS {
        for arg in ["-h", "--help"] {
            let (code, out, err) = run(name, arg);
            assert_eq!((code, &*err), (Some(0), ""), "{name} {arg}");
            let usage = format!("Usage:\n  {name}");
            assert!(
                out.contains(&usage) && out.contains("--version"),
                "{name}: {out}"
            );
            // It fits into a usual terminal.
            assert!(out.lines().all(|line| line.len() <= 100), "{name}: {out}");
        }
        for arg in ["-V", "--version"] {
            let line = format!("{name} (tourbillon) {}\n", env!("CARGO_PKG_VERSION"));
            assert_eq!(run(name, arg), (Some(0), line, String::new()));
        }
    }
}

#[test]
fn every_program_refuses_options_that_it_does_not_have() {
    for name in PROGRAMS {
        let (code, out, err) = run(name, "--nonsense");
        assert_eq!((code, &*out), (Some(2), ""), "{name}: {err}");
        assert!(
            err.contains(name) && err.lines().count() == 1,
            "{name}: {err}"
        );
    }
}

#[test]
fn no_program_panics_when_its_reader_goes() {
    for name in PROGRAMS {
        let mut command = Command::new(program::bin(name));
        if name == "sessions" {
            command.args(["--seconds", "2", "--sessions", "1000"]);
        } else {
            command.args(["--lines", "100000"]);
        }
        leave_after_a_line(name, &mut command);
    }
}
