//! Nodes and their handlers: what runs, when, how it ends, and how nodes share and leave.

mod completing;
mod doorbell;
mod endings;
mod events;
#[cfg(feature = "tokio")]
mod futures;
mod health;
mod layers;
mod metrics;
mod outages;
mod queues;
mod run_events;
mod runtime;
mod setup;
mod sharing;
mod stopping;
mod what_is_due;
