//! Looks for the large access log, which some checkouts have beside them. One test replays it.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(large_log)");
    let tests = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    let log = Path::new(&tests).join("../../shared/data/apache_access.log");
    println!("cargo::rustc-env=LARGE_LOG={}", log.display());
    // Only an existing file is watched: a missing one would run this, and build the tests, each
    // time anew.
    if log.is_file() {
        println!("cargo::rerun-if-changed={}", log.display());
        println!("cargo::rustc-cfg=large_log");
    }
}
