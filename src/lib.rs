//! Keyed timers on sharded hierarchical wheels.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod tick;
pub mod wheel;

pub use tick::Time;
