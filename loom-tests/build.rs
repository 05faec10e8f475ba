//! Sets `cfg(loom)` for this package only: no RUSTFLAGS, no feature that unification could spread.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=build.rs");
}
