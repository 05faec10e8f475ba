//! The only module of this crate that names `std::sync`, `std::thread` or crossbeam. Beside them:
//! how user code runs that may panic.

mod panics;

pub(crate) use panics::catch_panic;
pub(crate) use std::sync::Arc;
pub(crate) use tourbillon_fork::Origin;

pub(crate) mod channel {
    pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
}

pub(crate) mod thread {
    /// Starts a thread with a name, which lists of threads show.
    pub(crate) fn spawn<F>(name: String, run: F) -> std::io::Result<()>
    where
        F: FnOnce() + Send + 'static,
    {
        let builder = std::thread::Builder::new().name(name);
        builder.spawn(run).map(drop)
    }
}
