//! Looks for the servers that some tests need, as the crates do whose tests need them.

#[path = "../../crates/durable/build.rs"]
mod durable;
#[path = "../../crates/leases/build.rs"]
mod leases;

fn main() {
    println!("cargo::rerun-if-changed=../../crates/durable/build.rs");
    println!("cargo::rerun-if-changed=../../crates/leases/build.rs");
    durable::main();
    leases::main();
}
