//! The programs of the examples.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::path::PathBuf;
use std::process::Command;

/// The program of an example, which `cargo test` builds beside the directory of this test's program;
/// `cargo test --test ..` does not.
pub(crate) fn example(name: &str) -> PathBuf {
    let (program, _) = place(name);
    if program.exists() {
        program
    } else {
        built(name)
    }
}

/// The program of an example, built now if it is not as this test's features want it.
pub(crate) fn built(name: &str) -> PathBuf {
    let (program, profile) = place(name);
    let target = profile.parent().expect("target/debug");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--example", name, "--target-dir"])
        .arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    for (feature, on) in [
        ("test-util", cfg!(feature = "test-util")),
        ("stream", cfg!(feature = "stream")),
        ("tokio", cfg!(feature = "tokio")),
        ("redis", cfg!(feature = "redis")),
        ("redis-tls", cfg!(feature = "redis-tls")),
    ] {
        if on {
            build.args(["--features", feature]);
        }
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "the example builds"
    );
    program
}

/// Where it is, and the directory of the profile.
fn place(name: &str) -> (PathBuf, PathBuf) {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/debug/deps/test-..");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    (profile.join("examples").join(file), profile.to_owned())
}
