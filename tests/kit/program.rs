//! The compiled programs of the examples.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example. `cargo test --workspace` has built it; `cargo test --test NAME` has
/// not, and then this call builds it.
pub fn example(name: &str) -> PathBuf {
    let program = profile().join("examples").join(file(name));
    if !program.exists() {
        build("--example", name);
    }
    program
}

/// The program of a package, likewise.
pub fn bin(name: &str) -> PathBuf {
    let program = profile().join(file(name));
    if !program.exists() {
        build("--bin", name);
    }
    program
}

/// Builds a program as `cargo test --workspace --all-features` does, so that nothing is built
/// twice.
fn build(kind: &str, name: &str) {
    let profile = profile();
    let target = profile.parent().expect("target/debug");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--workspace", "--all-features"])
        .args([kind, name, "--target-dir"])
        .arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "the program builds"
    );
}

/// The folder of the profile, such as `target/debug`.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/debug/deps/test-..");
    profile.to_owned()
}

fn file(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}
