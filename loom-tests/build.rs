//! Sets `cfg(loom)` for this package only: no RUSTFLAGS, no feature that unification could spread.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    // The sources ask for it; here they are without it.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"test-util\"))");
    println!("cargo::rerun-if-changed=build.rs");
}
