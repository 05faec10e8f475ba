//! What the store in PostgreSQL has beyond the suite of all stores.

#[path = "../kit/postgres.rs"]
mod cluster;

mod functions;
mod plans;
mod stress;
mod transactions;
