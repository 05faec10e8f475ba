//! How the timers end: the node first, then the threads that carry calls.

use std::time::Duration;

use crate::calls::{Alarm, ReplySender, Sent, sent};
use crate::sync::Mutex;

/// How [`stop`](crate::Durable::stop) has ended.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Due, Durable, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).handle("mail", |_: &Due<u64>| ()).start()?;
/// let report = timers.stop(Duration::from_secs(10)).wait()?;
/// if report.unfinished > 0 {
///     eprintln!("{} runs go on, and others will repeat them", report.unfinished);
/// }
/// assert!(report.has_left); // the others take over at once
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The runs that had not ended when the grace was over. Their timers run again elsewhere, or
    /// after the next start. Such a run may still go on in this process, and can't settle.
    pub unfinished: usize,
    /// Whether the store could be told that this node is gone. If not, the other nodes find out
    /// when its lease is over. Without handlers there is no node, and nothing to tell.
    pub has_left: bool,
}

/// Whether a stop has begun, its report, and the callers that wait for it.
#[derive(Default)]
pub(crate) struct StopState(Mutex<StopProgress>);

#[derive(Default)]
struct StopProgress {
    is_begun: bool,
    report: Option<StopReport>,
    waiting: Vec<ReplySender<StopReport>>,
}

impl StopState {
    /// Returns whether this call begins the stop.
    pub(crate) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_begun, true)
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.0.lock().is_begun
    }

    /// Returns the report of the end, once it is there.
    pub(crate) fn wait(&self, alarm: &Alarm) -> Sent<StopReport> {
        let (reply, sent) = Sent::value(alarm);
        let mut state = self.0.lock();
        match state.report {
            Some(report) => Sent::known(Ok(report)),
            None => {
                state.waiting.push(reply);
                sent
            }
        }
    }

    /// Waits for the end, but not longer than this.
    pub(crate) fn wait_for(&self, limit: Duration) {
        let (reply, end) = oneshot::channel();
        {
            let mut state = self.0.lock();
            if state.report.is_some() {
                return;
            }
            state.waiting.push(reply);
        }
        drop(end.recv_timeout(limit));
    }

    /// Notes the end. Only the first report counts.
    pub(crate) fn end(&self, report: StopReport) {
        let waiting = {
            let mut state = self.0.lock();
            state.report.get_or_insert(report);
            std::mem::take(&mut state.waiting)
        };
        // Without the lock, since wakers of runtimes are called.
        for reply in waiting {
            sent::send(reply, Ok(report));
        }
    }
}
