//! Models of the protocols, checked with loom on the real source files.
//!
//! The files of the crate are compiled once more in here. Their `crate::sync` is this package's own,
//! with loom's types.
//! `build.rs` sets `cfg(loom)` for this package, so `cargo test --workspace` runs the models and
//! needs no flags. crossbeam is no dependency of this package: a file that bypasses the facade does
//! not compile.
//!
//! `LOOM_MAX_PREEMPTIONS=3 cargo test -p loom-tests` looks deeper than the models' own bounds.
#![cfg(test)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "the crate's files are used in part, and nothing in here is public"
)]

// What the files of the leases name of the crate that they build on.
extern crate self as tourbillon;
use clock::{Clock, ClockParker, ClockUnparker};
use tick::Time;

#[path = "../../src/bounded_channel.rs"]
mod bounded_channel;
#[path = "../../src/clock.rs"]
mod clock;
#[path = "../../src/config.rs"]
mod config;
#[path = "../../src/engine/mod.rs"]
mod engine;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/executor/mod.rs"]
mod executor;
#[path = "../../src/expiry/groups.rs"]
mod groups;
#[path = "../../src/job.rs"]
mod job;
#[path = "../../src/expiry/members.rs"]
mod members;
#[path = "../../src/shard/mod.rs"]
mod shard;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/tick.rs"]
mod tick;
#[path = "../../src/waker.rs"]
mod waker;
#[path = "../../src/wheel/mod.rs"]
mod wheel;

#[path = "../../leases/src/panics.rs"]
mod panics;

mod leases;
mod models;
mod rig;
mod sync;
