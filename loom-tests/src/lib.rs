//! Models of the protocols, checked with loom on the real source files.
//!
//! This package compiles the files of the crates once more. Their `crate::sync` is the one of this
//! package, with loom's types.
//!
//! `build.rs` sets `cfg(loom)` for this package, so `cargo test --workspace` runs the models and
//! needs no flags. This package does not depend on crossbeam. So a file that bypasses the facade
//! does not compile here.
//!
//! `LOOM_MAX_PREEMPTIONS=3 cargo test -p loom-tests` explores more than the models' own bounds.
#![cfg(test)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "the crate's files are used in part, and nothing in here is public"
)]

// The files of the leases import these names from the crate `tourbillon`, and name each other's
// rooms.
extern crate self as tourbillon;
use clock::{Clock, ClockParker, ClockUnparker};
use leases::{keep_alive, manager, store};
use tick::Time;

#[path = "../../src/bounded_channel.rs"]
mod bounded_channel;
#[path = "../../src/clock/mod.rs"]
mod clock;
#[path = "../../src/config.rs"]
mod config;
#[path = "../../src/coop.rs"]
mod coop;
#[path = "../../src/engine/mod.rs"]
mod engine;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/expiry/eviction.rs"]
mod eviction;
#[path = "../../src/executor/mod.rs"]
mod executor;
#[path = "../../src/expiry/flights.rs"]
mod flights;
#[path = "../../src/expiry/groups/mod.rs"]
mod groups;
#[path = "../../src/job.rs"]
mod job;
#[path = "../../src/expiry/members.rs"]
mod members;
#[path = "../../src/expiry/places.rs"]
mod places;
#[path = "../../src/shard/mod.rs"]
mod shard;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/expiry/tag.rs"]
mod tag;
#[path = "../../src/tick.rs"]
mod tick;
#[path = "../../src/tickers/mod.rs"]
mod tickers;
#[path = "../../src/waker.rs"]
mod waker;
#[path = "../../src/expiry/walks.rs"]
mod walks;
#[path = "../../src/wheel/mod.rs"]
mod wheel;
#[path = "../../src/when.rs"]
mod when;

mod leases;
mod models;
mod rig;
mod sync;
