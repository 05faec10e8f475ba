//! Looks for the servers that the tests need, as the crates do whose timers and locks they are.

use std::env;
use std::path::Path;

#[path = "../durable/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
mod durable;
#[path = "../leases/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
mod leases;

fn main() {
    for file in ["build.rs", "../durable/build.rs", "../leases/build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    durable::look(true);
    println!("cargo::rustc-check-cfg=cfg(has_redis_server)");
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    leases::look_for("redis-server", "has_redis_server", Path::new(&root));
}
