//! What the store in PostgreSQL has beyond the suite of all stores.

#[path = "../kit/postgres.rs"]
mod cluster;
#[path = "../kit/random.rs"]
mod random;

mod awaited;
mod connections;
mod doorbell;
mod drivers;
#[cfg(unix)]
mod environment;
mod faults;
mod functions;
mod hosts;
mod locked;
mod open_writes;
mod orders;
mod outages;
mod plans;
mod pooler;
mod processes;
mod refused;
mod replaced;
mod replica;
mod same;
mod schedules;
mod schemas;
mod slow_polls;
mod stepped;
mod stopped;
mod stress;
mod support;
#[cfg(feature = "postgres-tls")]
mod tls;
mod transactions;
