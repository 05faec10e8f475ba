//! Looks for what some tests need: the large access log, where a checkout has it beside itself. The
//! crate's own code does not depend on what is found here.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    large_log(Path::new(&root));
}

fn large_log(root: &Path) {
    println!("cargo::rustc-check-cfg=cfg(large_log)");
    let log = root.join("../shared/data/apache_access.log");
    println!("cargo::rustc-env=LARGE_LOG={}", log.display());
    // Only an existing file is watched: a missing one would run this, and build the crate, each
    // time anew.
    if log.is_file() {
        println!("cargo::rerun-if-changed={}", log.display());
        println!("cargo::rustc-cfg=large_log");
    }
}
