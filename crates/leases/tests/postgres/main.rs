//! Leases on PostgreSQL servers, which the tests start for themselves.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/tickets.rs"]
mod tickets;

mod contest;
mod faults;
mod fencing;
mod kept;
mod shop;
mod store;
mod waiting;
mod ways;
