//! The programs of the examples.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example, which `cargo test` builds beside the directory of this test's program;
/// `cargo test --test ..` does not.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/debug/deps/test-..");
    let program = profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        let target = profile.parent().expect("target/debug");
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--example", name, "--target-dir"])
            .arg(target);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "the example builds"
        );
    }
    program
}
