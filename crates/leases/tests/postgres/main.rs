//! Leases on PostgreSQL servers, which the tests start for themselves.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/mode_model.rs"]
mod mode_model;
#[path = "../kit/tickets.rs"]
mod tickets;

mod contest;
mod faults;
mod fencing;
mod kept;
mod modes;
mod shop;
mod store;
mod waiting;
mod ways;
