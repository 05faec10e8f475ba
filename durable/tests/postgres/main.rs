//! What the store in PostgreSQL has beyond the suite of all stores.

#[path = "../kit/postgres.rs"]
mod cluster;

mod faults;
mod functions;
mod plans;
mod stress;
mod transactions;
