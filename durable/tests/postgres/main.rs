//! What the store in PostgreSQL has beyond the suite of all stores.

#[path = "../kit/postgres.rs"]
mod cluster;

mod awaited;
mod drivers;
mod faults;
mod functions;
mod orders;
mod plans;
mod same;
mod stress;
mod transactions;
