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
}
