//! Looks for the servers that the tests need, as the crates do for theirs.

#[path = "../../crates/durable/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
mod durable;
#[path = "../../crates/leases/build.rs"]
mod leases;

fn main() {
    println!("cargo::rerun-if-changed=../../crates/durable/build.rs");
    println!("cargo::rerun-if-changed=../../crates/leases/build.rs");
    leases::main();
    durable::look(true);
    println!("cargo::rustc-check-cfg=cfg(has_etcd)");
    let root =
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    leases::look_for("etcd", "has_etcd", std::path::Path::new(&root));
}
