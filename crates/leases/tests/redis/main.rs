//! Leases on Redis servers, which the tests start for themselves.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/mode_model.rs"]
mod mode_model;
#[path = "../kit/tickets.rs"]
mod tickets;

mod cluster;
mod cluster_faults;
mod cluster_url;
mod election;
mod faults;
mod guard;
mod holding;
mod modes;
mod refusals;
mod releases;
mod runtime;
mod says;
mod sentinel;
mod store;
#[cfg(feature = "redis-tls")]
mod tls;
