//! The stop: the node leaves, the calls that wait are carried out, and the threads end.

use std::io;
use std::time::Duration;

use super::stop_state::StopReport;
use super::{Durable, Inner, Owner};
use crate::calls::{CallError, Sent};
use crate::node::Input;
use crate::run::is_within;
use crate::sync::atomic::Ordering;
use crate::sync::channel::{RecvTimeoutError, Sender, bounded};
use crate::sync::{Arc, thread};

/// For how long the stop waits until the calls that were sent before are carried out, or for the
/// lease if that is shorter.
const CALLS_LIMIT: Duration = Duration::from_secs(5);

/// For how long a drop waits until the store knows that the node has left.
const DROP_LIMIT: Duration = Duration::from_millis(250);

/// A grace that is longer is as good as endless.
const LONGEST_GRACE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

impl Durable {
    /// Stops: no further timer starts, and runs get the time of `grace` to end. Then the node
    /// leaves, so that others go on at once, with the timers of unfinished runs too. Timers stay in
    /// the store.
    ///
    /// The stop has begun when this returns, and goes on if the answer is dropped. With the answer
    /// all calls fail with [`CallError::Stopped`](crate::CallError::Stopped). Until then they go
    /// on, since the handlers that run may need them. A second stop waits for the end of the first,
    /// and may shorten its grace.
    ///
    /// A stop that a handler of these timers begins can't be waited for there: the handler would
    /// wait for itself. So its answer is known at once, with the number of runs that go on.
    ///
    /// # Errors
    ///
    /// No stop fails: what did not end in time, or could not be told to the store, is in the
    /// report. But [`CallError::TimedOut`](crate::CallError::TimedOut) ends a wait that has a
    /// [limit](Sent::within), and the stop goes on. And a copy of the process that is forked before
    /// the stop has ended gets [`CallError::Forked`](crate::CallError::Forked) from an answer that
    /// it has inherited, since the stop goes on in the original alone.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the stop has ended: after the grace, if runs don't end, and
    /// later if the store doesn't answer, at most by the [node
    /// lease](crate::DurableBuilder::node_lease) and 5 s.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new()).handle("greet", |_: &Due<()>| ()).start()?;
    /// let report = timers.stop(Duration::from_secs(10)).wait()?;
    /// assert_eq!(report.unfinished, 0);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("shutdown", "graceful shutdown"))]
    pub fn stop(&self, grace: Duration) -> Sent<StopReport> {
        let inner = &self.0.0;
        if inner.origin.is_elsewhere() {
            return Sent::known(Ok(StopReport::default()));
        }
        begin(inner, grace);
        if inner.is_within_handler() {
            return Sent::known(Ok(inner.present_report()));
        }
        inner.stop.wait(&inner.alarm)
    }

    /// Ends the node as if its process had died: it does not leave, and its runs can't settle. For
    /// tests.
    #[doc(hidden)]
    pub fn crash(&self) {
        let inner = &self.0.0;
        if inner.origin.is_elsewhere() {
            return;
        }
        inner.stop.begin();
        if let Some(node) = &inner.node {
            node.sender.crash();
        }
        inner.refuse_calls();
        inner.writers.give_up();
        inner.reader.give_up();
        inner.stop.end(inner.present_report());
    }
}

/// The thread that will stop the timers. It is started with them, since the system may refuse a
/// thread later: then nobody would wait for the runs. It ends without work when the timers are
/// dropped, or not started.
pub(super) struct Stopper(Sender<(Arc<Inner>, Duration)>);

impl Stopper {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, receiver) = bounded::<(Arc<Inner>, Duration)>(1);
        thread::spawn("stop", move || {
            if let Ok((inner, grace)) = receiver.recv() {
                inner.stop_all(grace);
            }
        })?;
        Ok(Stopper(sender))
    }
}

/// Begins the stop on its thread, unless it was begun before.
fn begin(inner: &Arc<Inner>, grace: Duration) {
    let grace = grace.min(LONGEST_GRACE);
    if !inner.stop.begin() {
        // It may shorten the grace.
        inner.stop_node(grace);
        return;
    }
    // The thread takes one message, and this is the only one.
    let _ = inner.stopper.0.send((Arc::clone(inner), grace));
}

impl Inner {
    fn stop_node(&self, grace: Duration) {
        if let Some(node) = &self.node {
            node.runs.stop();
            node.sender.send(Input::Stop { grace });
        }
    }

    fn stop_all(&self, grace: Duration) {
        let mut report = StopReport::default();
        if let Some(node) = &self.node {
            self.stop_node(grace);
            // A store that does not answer must not hold up the stop for longer than it would hold
            // up the other nodes.
            match node.end.recv_timeout(grace + self.node_lease) {
                Ok(end) => {
                    report.unfinished = end.stopped.unfinished;
                    report.has_left = end.has_left;
                }
                Err(_) => {
                    node.sender.crash();
                    report = self.present_report();
                }
            }
        }
        self.refuse_calls();
        self.writers.close();
        self.reader.close();
        let limit = self.node_lease.min(CALLS_LIMIT);
        if let Err(RecvTimeoutError::Timeout) = self.threads.recv_timeout(limit) {
            self.writers.give_up();
            self.reader.give_up();
        }
        self.stop.end(report);
    }

    fn refuse_calls(&self) {
        // Release: pairs with the Acquire in `is_closed`.
        self.is_closed.store(true, Ordering::Release);
    }

    /// The reason why a call is refused now.
    pub(super) fn refusal(&self) -> Option<CallError> {
        if self.origin.is_elsewhere() {
            return Some(CallError::Forked);
        }
        self.is_closed().then_some(CallError::Stopped)
    }

    fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `refuse_calls`. A call that does not see it finds a
        // thread that has ended, which answers the same.
        self.is_closed.load(Ordering::Acquire)
    }

    fn present_report(&self) -> StopReport {
        StopReport {
            unfinished: usize::try_from(self.counters.running()).unwrap_or(usize::MAX),
            has_left: false,
        }
    }

    fn is_within_handler(&self) -> bool {
        self.node.as_ref().is_some_and(|node| is_within(&node.runs))
    }
}

/// Whether this thread drives tasks of a runtime, which a wait would hold up.
pub(super) fn is_in_runtime() -> bool {
    #[cfg(feature = "tokio")]
    return tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(feature = "tokio"))]
    false
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.0.origin.is_elsewhere() {
            // A clone that is never dropped: the drops of the rest would take locks of the
            // original.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        if self.0.stop.is_begun() {
            return;
        }
        begin(&self.0, Duration::ZERO);
        if !self.0.is_within_handler() && !is_in_runtime() {
            self.0.stop.wait_for(DROP_LIMIT);
        }
    }
}
