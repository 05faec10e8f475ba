//! Where the connections of a store are driven: a thread of its own, or a runtime of the user.
//!
//! - **IO-1** The runtime of a store lives on the stack of the thread that runs it, and nobody else
//!   owns it. A fork copies no such thread. So a forked copy never drops a runtime, which would take
//!   locks that another thread may have had, and would wait for threads that are not there.
//! - **IO-2** The thread ends with the store, whatever its connections do.

use std::future::Future;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use super::job::{Job, Task};
use crate::store::StoreError;
use crate::sync::{Arc, Mutex, thread};

/// The place where the I/O of a store runs. Never use it in a forked copy.
pub(crate) struct Io(Driver);

enum Driver {
    /// A thread of the store with this name, from the first call on.
    Own(&'static str, Mutex<Option<IoThread>>),
    /// A runtime of the user.
    Given(Handle),
}

/// A thread that drives a runtime until this is dropped.
struct IoThread {
    runtime: Handle,
    _until: oneshot::Sender<()>,
}

impl Io {
    /// Uses the runtime of the user, or a thread of the store with this name.
    pub(crate) fn new(thread: &'static str, given: Option<Handle>) -> Self {
        Io(match given {
            Some(runtime) => Driver::Given(runtime),
            None => Driver::Own(thread, Mutex::new(None)),
        })
    }

    /// Starts a task where the connections are. It ends when the result is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the system gives no thread.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<Task<T>, StoreError> {
        let (name, own) = match &self.0 {
            Driver::Given(runtime) => {
                let started = runtime.spawn(task);
                // If this thread is a worker of the runtime, the runtime keeps the newest task for this
                // worker. The caller may now block the worker until the task has an answer. So start
                // another task, which does nothing. It takes that place, and another worker can run the
                // first one.
                drop(runtime.spawn(async {}));
                return Ok(Task::new(started));
            }
            Driver::Own(name, own) => (name, own),
        };
        let mut own = own.lock();
        let thread = match &*own {
            Some(thread) => thread,
            None => {
                let started = IoThread::start(name);
                own.insert(started.map_err(|error| {
                    StoreError::Unavailable(format!(
                        "the thread for its connections does not start: {error}; raise the limits of \
                         this process"
                    ))
                })?)
            }
        };
        let runtime = thread.runtime.clone();
        drop(own);
        Ok(Task::new(runtime.spawn(task)))
    }

    /// Makes a call where the connections are.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<Job<T>, StoreError> {
        self.start(call).map(Job::new)
    }
}

impl IoThread {
    fn start(name: &str) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name(format!("{name}-name"))
            .build()?;
        let handle = runtime.handle().clone();
        let (until, ended) = oneshot::channel();
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let taken = Arc::clone(&runtime);
        let run = move || {
            // The lock is free again before the runtime runs.
            let runtime = taken.lock().take();
            if let Some(runtime) = runtime {
                drive(runtime, ended);
            }
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
        if let Err(error) = started {
            // The caller may be a task of another runtime, and must not wait for this one.
            if let Some(runtime) = runtime.lock().take() {
                runtime.shutdown_background();
            }
            return Err(error);
        }
        Ok(IoThread {
            runtime: handle,
            _until: until,
        })
    }
}

/// Drives a runtime until the other end of the channel is dropped.
fn drive(runtime: Runtime, ended: oneshot::Receiver<()>) {
    // It is dropped and never used, so this is always an error.
    let _ = runtime.block_on(ended);
    // A lookup of a name may hang for longer than the store lives (IO-2).
    runtime.shutdown_background();
}

#[cfg(test)]
mod tests {
    use tourbillon::Clock;

    use super::*;
    use crate::store::block_on;

    fn wait<T: Send + 'static>(job: Job<T>) -> Option<T> {
        block_on(&Clock::boottime(), 0, job).expect("this is no forked copy")
    }

    #[test]
    fn calls_share_the_thread_of_the_store_and_one_that_panics_has_no_answer() {
        let io = Io::new("tb-test", None);
        let call = || async {
            let thread = std::thread::current();
            (thread.id(), thread.name().map(str::to_owned))
        };
        let first = wait(io.call(call()).unwrap()).unwrap();
        assert_eq!(first.1, Some("tb-test".to_owned()));
        let panics = async { panic!("on purpose") };
        assert_eq!(wait(io.call::<()>(panics).unwrap()), None);
        assert_eq!(wait(io.call(call()).unwrap()), Some(first));
    }

    #[test]
    fn a_call_ends_with_the_store_and_with_the_future_that_waits_for_it() {
        struct TellsDrop(std::sync::mpsc::Sender<()>);
        impl Drop for TellsDrop {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let endless = || {
            let (tell, told) = std::sync::mpsc::channel();
            let told_on_drop = TellsDrop(tell);
            let call = async move {
                let _told = told_on_drop;
                std::future::pending::<()>().await;
            };
            (call, told)
        };
        let io = Io::new("tb-test", None);
        let (call, told) = endless();
        drop(io.call(call).unwrap());
        assert_eq!(told.recv(), Ok(()));
        let (call, told) = endless();
        let waits = io.call(call).unwrap();
        drop(io);
        assert_eq!(told.recv(), Ok(()));
        assert_eq!(wait(waits), None);
    }
}
