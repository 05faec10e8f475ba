//! The thread that drives the connections of a store, and calls that run there.
//!
//! - **ETCDIO-1** A call runs as a task on the thread, and a future waits for its answer. So the future may be polled
//!   anywhere, on any runtime or on none. If it is dropped, the task ends at its next `await`.
//! - **ETCDIO-2** A forked copy has neither the thread nor its runtime, which is on the stack of the thread. It touches
//!   nothing that belongs to the runtime: each call and each poll first asks whether this is a copy, and drops leak.
//! - **ETCDIO-3** The thread ends with the store, whatever its connections do.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tourbillon_leases::StoreError;

use crate::sync::{Mutex, Origin, lock, thread};

/// A value that only the process uses and drops that made it (ETCDIO-2).
pub(crate) struct OfProcess<T> {
    /// `None` after the drop has begun.
    value: Option<T>,
    origin: Origin,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess {
            value: Some(value),
            origin: Origin::here(),
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    ///
    /// [`StoreError::Forked`] in a forked copy.
    pub(crate) fn get(&self) -> Result<&T, StoreError> {
        match &self.value {
            Some(value) if !self.origin.is_elsewhere() => Ok(value),
            _ => Err(StoreError::Forked),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            std::mem::forget(self.value.take());
        }
    }
}

/// A thread that is started by the first task, and ends when this is dropped.
#[derive(Default)]
pub(crate) struct OwnThread(Mutex<Option<Running>>);

struct Running {
    runtime: Handle,
    /// Its drop ends the thread.
    _ends: oneshot::Sender<()>,
}

impl OwnThread {
    /// Starts a task on the thread.
    ///
    /// # Errors
    ///
    /// If the system refuses the thread.
    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>, StoreError> {
        let mut running = lock(&self.0);
        let running = match &*running {
            Some(running) => running,
            None => running.insert(start().map_err(|error| {
                StoreError::Unavailable(format!(
                    "the thread for the connections to etcd does not start: {error}; raise the limits of this process"
                ))
            })?),
        };
        Ok(running.runtime.spawn(task))
    }

    /// Makes a call on the thread (ETCDIO-1).
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<Called<T>, StoreError> {
        let task = OfProcess::new(Task(self.spawn(call)?));
        Ok(Called(task))
    }

    /// Starts a task that goes on until its end, or that of the thread.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub(crate) fn start(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.spawn(task).map(drop)
    }
}

/// The most threads that look up names of servers. Lookups that hang outlive the attempt to connect.
const LOOKUPS: usize = 4;

fn start() -> std::io::Result<Running> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name("tb-etcd-name")
        .max_blocking_threads(LOOKUPS)
        .build()?;
    let handle = runtime.handle().clone();
    let (ends, ended) = oneshot::channel::<()>();
    thread::spawn("tb-etcd", move || {
        // The error is that of the drop.
        let _ = runtime.block_on(ended);
        // A plain drop would wait for lookups of names of hosts (ETCDIO-3).
        runtime.shutdown_background();
    })?;
    Ok(Running {
        runtime: handle,
        _ends: ends,
    })
}

/// A task that ends when this is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The answer of a call.
pub(crate) struct Called<T>(OfProcess<Task<Result<T, StoreError>>>);

impl<T> Future for Called<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = &mut self.0;
        let task = match &mut own.value {
            Some(task) if !own.origin.is_elsewhere() => task,
            _ => return Poll::Ready(Err(StoreError::Forked)),
        };
        Pin::new(&mut task.0).poll(context).map(|answer| {
            answer.unwrap_or_else(|_| {
                let why = "etcd: the store was dropped during the call, or the call has panicked";
                Err(StoreError::Unavailable(why.to_owned()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::channel::channel;

    fn wait<T>(call: Called<T>) -> Result<T, StoreError> {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(call)
    }

    #[test]
    fn calls_run_on_the_thread_of_the_store_and_one_that_panics_fails() {
        let own = OwnThread::default();
        let name = async { Ok(std::thread::current().name().map(str::to_owned)) };
        assert_eq!(
            wait(own.call(name).unwrap()),
            Ok(Some("tb-etcd".to_owned()))
        );
        let panics = async { panic!("on purpose") };
        let failed = wait::<()>(own.call(panics).unwrap());
        assert!(
            matches!(failed, Err(StoreError::Unavailable(_))),
            "{failed:?}"
        );
        assert_eq!(wait(own.call(async { Ok(7) }).unwrap()), Ok(7));
    }

    #[test]
    fn a_call_ends_with_the_future_that_waits_for_it_and_with_the_store() {
        let own = OwnThread::default();
        let endless = || {
            let (tell, told) = channel::<()>();
            let call = own.call(async move {
                let _tell = tell;
                std::future::pending::<Result<(), StoreError>>().await
            });
            (call.unwrap(), told)
        };
        let ((first, first_ended), (second, second_ended)) = (endless(), endless());
        drop(first);
        // The sender is dropped with the task.
        assert!(first_ended.recv().is_err());
        drop(own);
        assert!(second_ended.recv().is_err());
        assert!(matches!(wait(second), Err(StoreError::Unavailable(_))));
    }
}
