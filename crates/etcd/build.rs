//! Looks for `etcd`, which the tests need. The crate's own code does not depend on what is found here.

#[path = "../leases/build.rs"]
#[expect(
    dead_code,
    reason = "its `main` looks for what the tests of that crate need"
)]
mod leases;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../leases/build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_etcd)");
    let root =
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's directory");
    leases::look_for("etcd", "has_etcd", std::path::Path::new(&root));
}
