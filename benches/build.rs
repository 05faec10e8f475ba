//! Tells the program which compiler built it.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    let version = version.trim().trim_start_matches("rustc ");
    println!("cargo::rustc-env=BENCHES_RUSTC={version}");
    println!("cargo::rerun-if-changed=build.rs");
}
