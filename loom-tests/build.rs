//! Sets `cfg(loom)` for this package only: no RUSTFLAGS, no feature that unification could spread.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    // The sources ask for it; here they are without it.
    println!(
        "cargo::rustc-check-cfg=cfg(feature, values(\"serde\", \"test-util\", \"stream\", \"tokio\", \"redis\", \"postgres\", \"sqlite\", \"tracing\"))"
    );
    // What tasks wait at is checked, too.
    println!("cargo::rustc-cfg=feature=\"stream\"");
    println!("cargo::rustc-cfg=feature=\"tokio\"");
    println!("cargo::rerun-if-changed=build.rs");
}
