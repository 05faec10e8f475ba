//! The compiled programs of the examples.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example. `cargo test --workspace` has built it; `cargo test --test NAME` has not, and
/// then this call builds it.
pub fn example(name: &str) -> PathBuf {
    let (program, _) = place(name);
    if program.exists() {
        program
    } else {
        built(name)
    }
}

/// The program of an example, after a build with all features.
pub fn built(name: &str) -> PathBuf {
    let (program, profile) = place(name);
    let target = profile.parent().expect("target/debug");
    let mut build = Command::new(env!("CARGO"));
    // As in `cargo test --workspace --all-features`, so that nothing is built twice.
    build
        .args(["build", "--quiet", "--workspace", "--all-features"])
        .args(["--example", name, "--target-dir"])
        .arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "the example builds"
    );
    program
}

/// The path of the program, and the folder of the profile, such as `target/debug`.
fn place(name: &str) -> (PathBuf, PathBuf) {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/debug/deps/test-..");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    (profile.join("examples").join(file), profile.to_owned())
}
