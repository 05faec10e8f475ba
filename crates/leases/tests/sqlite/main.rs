//! Leases in SQLite files.

#[path = "../kit/calls.rs"]
mod calls;
#[path = "../kit/mode_model.rs"]
mod mode_model;
#[path = "../kit/tickets.rs"]
mod tickets;

mod files;
mod folder;
mod modes;
mod processes;
mod store;
mod waiting;
