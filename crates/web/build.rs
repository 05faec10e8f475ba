//! Looks for a browser, which some tests need. The crate's own code does not depend on what is found here.

use std::env;
use std::path::Path;

#[path = "../leases/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
mod leases;

fn main() {
    for file in ["build.rs", "../leases/build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rustc-check-cfg=cfg(has_chromedriver)");
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    leases::look_for("chromedriver", "has_chromedriver", Path::new(&root));
}
