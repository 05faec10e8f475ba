//! A gate on the instructions that hot paths execute.
//!
//! ```text
//! cargo run -p instruction-counts              # measure and compare with the baseline
//! cargo run -p instruction-counts -- --store   # measure and write the baseline
//! ```
//!
//! # What is counted
//!
//! Valgrind's tool callgrind executes every path of `benches/hot_paths` and counts the instructions
//! of the calling thread. The harness is `gungraun`. The count of a path is the mean of [`CALLS`]
//! calls. Setups and drops are not counted. Unlike times, counts are the same on a busy machine, so
//! that a small difference means something. They say nothing about caches, about waiting, or about
//! several threads.
//!
//! Clocks are moved by hand, there is one shard, and seeds are fixed. Two runs of one build differ
//! only where std's own hash tables are used, as in `MemoryStore`, since their seeds are random.
//!
//! Counts depend on the compiler and on the C library, whose allocator and copies are counted too.
//! So there is one baseline for each pair of versions and each architecture, in the folder
//! `baseline`. For other versions nothing is judged, and the gate says so.
//!
//! # The judgement
//!
//! The gate fails if a path takes over 2 % more instructions than its baseline says. It reports a
//! path that takes over 2 % less, and passes. It fails if a path has no stored count or a stored
//! count has no path: store the baseline in the commit that adds, renames or removes a path.
//!
//! A path whose name ends with `_in_real_time` reads a clock that goes on meanwhile. Its count
//! differs from run to run, and is shown and not judged.
//!
//! Paths are compiled with one codegen unit per crate. With the default of 16 a function that moves
//! to another file can change which calls are inlined.
//!
//! # What it needs
//!
//! Debian's package `valgrind`, and the runner of the harness in the version of the lock file:
//! `cargo install gungraun-runner --version VERSION --locked`. `.ci/run` installs both.

mod baseline;
mod counts;
mod platform;
mod verdict;

pub use baseline::Baseline;
pub use counts::{Counts, Unreadable};
pub use platform::Platform;
pub use verdict::{Judgement, Row, TOLERANCE, Verdict};

/// The number of calls that each path makes.
pub const CALLS: u32 = 1_000;
