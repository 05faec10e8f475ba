//! Leases in SQLite files.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/tickets.rs"]
mod tickets;

mod files;
mod folder;
mod processes;
mod store;
mod waiting;
