//! The runtime of a store: its thread, and threads that drive it for a while.
//!
//! - **IO-1** A forked copy never drops a runtime. The drop would take locks that another thread
//!   held at the fork, and would wait for threads that the copy lacks. Three places own the
//!   runtime: the stack of its thread, the store, and for a moment the stack of a thread that
//!   starts, polls or drives a call. A copy leaks the store. Of the threads it has only the one
//!   that forked, which does not fork while it owns the runtime.
//! - **IO-2** The thread ends with the store, whatever its connections do.
//! - **IO-3** A thread that waits for a call may drive the runtime meanwhile, as [`Turn`] says.

use std::future::{Future, poll_fn};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tourbillon::{Clock, ClockParker, Time};

use super::turn::{LINGER, Next, Turn};
use crate::store::{Bell, Driver};
use crate::sync::{Arc, Origin, thread};

/// A thread that drives a runtime until this is dropped.
pub(super) struct KeeperThread(Arc<Driven>);

impl KeeperThread {
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name(format!("{name}-name"))
            .build()?;
        let parker = ClockParker::new(&Clock::system());
        let driven = Arc::new(Driven {
            runtime: Some(runtime),
            turn: Arc::new(Turn::new(parker.unparker())),
            origin: Origin::here(),
        });
        let keeps = Arc::clone(&driven);
        let run = move || keeps.keep(&parker);
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(KeeperThread(driven))
    }

    pub(super) fn driven(&self) -> &Arc<Driven> {
        &self.0
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.0.turn.end();
    }
}

/// A runtime, and who drives it.
pub(super) struct Driven {
    /// `None` once the drop has begun.
    runtime: Option<Runtime>,
    turn: Arc<Turn>,
    origin: Origin,
}

impl Driven {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is not dropped yet")
    }

    /// Starts a task that counts (TURN-1).
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let counted = self.turn.begins();
        self.spawn_uncounted(async move {
            let _counted = counted;
            task.await
        })
    }

    /// Starts a task that may be late by twice [`LINGER`] (TURN-2).
    pub(super) fn spawn_uncounted<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime().spawn(task)
    }

    /// Drives whenever no other thread does, until the end.
    fn keep(&self, parker: &ClockParker) {
        loop {
            let stops = poll_fn(|context| self.turn.poll_stops(context));
            self.runtime().block_on(stops);
            loop {
                match self.turn.next() {
                    Next::Drive => break,
                    Next::Nap => parker.park_for(LINGER),
                    Next::Sleep => parker.park_until(Time::MAX),
                    Next::End => return,
                }
            }
        }
    }
}

impl Driver for Driven {
    fn drive(&self, bell: &Bell, most: Duration) -> bool {
        // A thread within another runtime may not block on this one. A thread that has destroyed its
        // thread-locals can't.
        let is_outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
        if !is_outside || self.origin.is_elsewhere() {
            return false;
        }
        let Some(_lent) = self.turn.lend() else {
            return false;
        };
        let rings = poll_fn(|context| bell.poll(context));
        // At the limit the caller looks at its clock.
        let _ = self
            .runtime()
            .block_on(async { timeout(most, rings).await });
        true
    }

    fn wants(&self) {
        if !self.origin.is_elsewhere() {
            self.turn.wants();
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A plain drop waits. It would panic within a task of another runtime, and a lookup of
            // a host name may hang for longer than the store lives (IO-2).
            runtime.shutdown_background();
        }
    }
}
