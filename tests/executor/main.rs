//! Where tasks run: the workers of a scheduler, and executors of the user.
//!
//! A test crate of its own, because a test looks for the names of threads in `/proc/self`.

mod foreign;
mod workers;
