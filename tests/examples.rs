//! What all examples have in common: they say what they are, and refuse what they do not know.

#[path = "kit/program.rs"]
mod program;

use std::fs;
use std::path::Path;
use std::process::Command;

/// Each example of this directory, by the names of its files.
fn examples() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
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
    names.sort_unstable();
    names
}

/// The exit code, what went to stdout, and what to stderr.
fn run(name: &str, arg: &str) -> (Option<i32>, String, String) {
    let output = Command::new(program::example(name))
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
    assert!(names.len() >= 5, "{names:?}");
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
