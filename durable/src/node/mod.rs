//! The node: what decides when timers are looked at, claimed, run and settled.
//!
//! It is a state machine without threads, clock or I/O. Its *inputs* are the answers of the store,
//! the ends of runs, hints of timers that are due soon, and the time. Its *commands* are calls to the
//! store and starts of runs. The shell around it has the threads and the connections, and a
//! simulation drives the very same machine.
//!
//! Times here are [`Mono`]: the time since the start of the node, by a clock of this machine that
//! nobody sets. What is due is decided by the store.

mod adoption;
mod claims;
mod clock;
mod coming;
mod interface;
mod lane;
mod looks;
mod machine;
mod marks;
mod membership;
mod numbers;
mod queue;
mod runs;
mod shards;
mod stopping;
#[cfg(test)]
mod tests;

#[allow(unused_imports, reason = "the shell uses them")]
pub(crate) use interface::{
    Command, Input, Lane, Mono, Near, NodeConfig, QueueConfig, Reply, Stopped, StoreCall,
};
pub(crate) use machine::Node;
