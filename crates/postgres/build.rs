//! Looks for the server that the tests need, as the durable timers do.

#[path = "../durable/build.rs"]
#[expect(dead_code, reason = "its `main` asks for a feature of that crate")]
mod durable;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../durable/build.rs");
    durable::look(true);
}
