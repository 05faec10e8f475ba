//! Looks for the large access log, which some checkouts have beside them. One test replays it. Also
//! for `promtool`, by which one test checks the text of metrics.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let tests = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    large_log(Path::new(&tests));
    promtool(Path::new(&tests));
}

fn large_log(tests: &Path) {
    println!("cargo::rustc-check-cfg=cfg(large_log)");
    let log = tests.join("../../shared/data/apache_access.log");
    println!("cargo::rustc-env=LARGE_LOG={}", log.display());
    // Only an existing file is watched: a missing one would run this, and build the tests, each
    // time anew.
    if log.is_file() {
        println!("cargo::rerun-if-changed={}", log.display());
        println!("cargo::rustc-cfg=large_log");
    }
}

/// The test with `promtool` is ignored, and shown as that, where there is none.
fn promtool(tests: &Path) {
    println!("cargo::rustc-check-cfg=cfg(has_promtool)");
    println!("cargo::rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let program = format!("promtool{}", env::consts::EXE_SUFFIX);
    let mut candidates = folders.iter().map(|folder| folder.join(&program));
    if let Some(found) = candidates.find(|candidate| candidate.is_file()) {
        println!("cargo::rerun-if-changed={}", found.display());
        println!("cargo::rustc-cfg=has_promtool");
        return;
    }
    // Whatever is installed changes a folder: the next run looks again.
    for folder in folders {
        if folder.is_absolute() && folder.is_dir() && !tests.starts_with(&folder) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
    }
}
