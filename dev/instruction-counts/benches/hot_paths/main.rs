//! The hot paths whose instructions are counted. Each function makes [`instruction_counts::CALLS`]
//! calls, and gets what it needs from its setup, which is not counted. It returns that again, so
//! that its drop is not counted either.
//!
//! Everything but the clocks of real time is the same in every run: the clock is moved by hand,
//! there is one shard, and the seeds of hashes and of the test kit are fixed.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "the macros of the harness write public items"
)]

use gungraun::Callgrind;
use gungraun::prelude::*;

#[path = "../../../../crates/leases/tests/kit/calls.rs"]
mod calls;
mod clocks;
mod handles;
mod locks;
mod maps;
mod timers;
mod wheels;

use clocks::clock;
use handles::handle;
use locks::leases;
use maps::expiry;
use timers::timer;
use wheels::wheel;

/// Of hashes and of the test kit.
const SEED: u64 = 42;
/// More than the number of calls, as a server has it.
const STRIPES: usize = 128;

/// The keys of all paths, and as many that are never there.
const KEYS: std::ops::Range<u32> = 0..instruction_counts::CALLS;
const MISSING: std::ops::Range<u32> = instruction_counts::CALLS..2 * instruction_counts::CALLS;

/// From 1 to 61 s, different for each key, so that the slots of three levels are used.
fn delay(key: u32) -> std::time::Duration {
    std::time::Duration::from_millis(1_000 + u64::from(key) * 7_919 % 60_000)
}

/// Makes up for the length of the program's path, which lies on the stack twice. The addresses of
/// local variables depend on it, and so does the way in which the C library fills and copies them.
fn padding() -> String {
    let path = std::env::current_exe().expect("the program has a path");
    let length = 2 * path.as_os_str().len();
    "x".repeat(length.next_multiple_of(64) - length)
}

gungraun::main!(
    // Caches are not simulated: instructions are all that is judged.
    config = LibraryBenchmarkConfig::default()
        .env("PADDING", padding())
        .tool(Callgrind::with_args(["--cache-sim=no"]));
    library_benchmark_groups = clock, handle, timer, expiry, leases, wheel
);
