//! User code that panics, or that calls the crate where it must not.

mod keys;
mod maps;
mod rounds;
mod tasks;
mod under_lock;
mod unwinding;
