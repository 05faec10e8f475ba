//! Real threads on the system clock; in the end the totals must balance.
//!
//! A test crate of its own, because a test sets the panic hook. `STRESS_SECS` sets how long it
//! runs.

mod expiry;
mod scheduler;
