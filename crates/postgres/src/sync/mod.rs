//! The only module of this crate that names `std::sync`, `std::thread` or crossbeam. It also runs
//! user code that may panic.

mod panics;

pub(crate) use panics::catch_panic;
pub(crate) use std::sync::Arc;
pub(crate) use tourbillon_fork::Origin;

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
}

pub(crate) mod thread {
    /// Starts a thread with this name.
    pub(crate) fn spawn<F>(name: String, run: F) -> std::io::Result<()>
    where
        F: FnOnce() + Send + 'static,
    {
        let builder = std::thread::Builder::new().name(name);
        builder.spawn(run).map(drop)
    }
}
