//! What all examples have in common: they say what they are, and refuse what they do not know.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kit::program;

/// Each example of this directory, by the names of its files.
fn examples() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let entries = fs::read_dir(directory).expect("there are examples");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let mut names: Vec<String> = paths
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "rs")
                || path.join("main.rs").exists()
        })
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        // It needs the feature.
        .filter(|name| cfg!(all(feature = "stream", feature = "tokio")) || name != "async_expiry")
        .collect();
    // A package of its own.
    names.push("sessions".to_owned());
    names.sort_unstable();
    names
}

fn program(name: &str) -> PathBuf {
    match name {
        "sessions" => program::bin(name),
        _ => program::example(name),
    }
}

/// The exit code, what went to stdout, and what to stderr.
fn run(name: &str, arg: &str) -> (Option<i32>, String, String) {
    let output = Command::new(program(name))
        .arg(arg)
        .output()
        .expect("the example is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn every_example_says_what_it_is_and_which_version() {
    let names = examples();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        for arg in ["-h", "--help"] {
            let (code, out, err) = run(&name, arg);
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
            assert_eq!(run(&name, arg), (Some(0), line, String::new()));
        }
    }
}

#[test]
fn every_example_refuses_options_that_it_does_not_have() {
    for name in examples() {
        let (code, out, err) = run(&name, "--nonsense");
        assert_eq!((code, &*out), (Some(2), ""), "{name}: {err}");
        assert!(
            err.contains(&name) && err.lines().count() == 1,
            "{name}: {err}"
        );
    }
}

/// As with `PROGRAM | head -1`.
#[test]
fn no_program_panics_when_its_reader_goes() {
    for name in examples() {
        let mut command = Command::new(program(&name));
        match &*name {
            "sessions" => command.args(["--seconds", "2", "--sessions", "1000"]),
            "make_log" => command.args(["--lines", "100000"]),
            _ => &mut command,
        };
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a line of text");
        assert!(!first.is_empty(), "{name}");
        drop(lines);
        let mut err = String::new();
        let stderr = child.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut err).expect("text");
        let status = child.wait().expect("it ends");
        assert!(!err.contains("panicked"), "{name}: {err}");
        assert_ne!(status.code(), Some(101), "{name}");
    }
}
