//! What a program that follows all runs is told.

use std::time::Duration;

use super::run_info::RunInfo;
use crate::events::Event;

/// The start or the end of a run. See [`on_run`](crate::DurableBuilder::on_run).
///
/// Each start has one end, unless one of the two is dropped since the listener is too slow. A timer
/// that does not start has neither: one that is given back, is too late, or can't be read.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Memory, RunEvent};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (sender, ends) = std::sync::mpsc::channel();
/// let timers = Durable::builder(Memory::new())
///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
///     .on_run(move |event| match event {
///         RunEvent::Started { run, .. } => println!("{} starts, {:?} late", run.key(), run.lateness()),
///         RunEvent::Ended { run, duration, outcome, .. } => {
///             println!("{} took {duration:?}: {outcome:?}", run.key());
/// #           drop(sender.send(run.key().to_owned()));
///         }
///         _ => {}
///     })
///     .start()?;
/// timers.schedule("mail", "welcome:7", Duration::ZERO, "anna@example.com").wait()?;
/// # assert_eq!(ends.recv()?, "welcome:7");
/// # Ok(())
/// # }
/// ```
#[doc(alias("log", "audit", "trace"))]
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RunEvent {
    /// The handler is about to be called.
    #[non_exhaustive]
    Started {
        /// The run.
        run: RunInfo,
    },
    /// The handler has ended.
    #[non_exhaustive]
    Ended {
        /// The run.
        run: RunInfo,
        /// From its start to its end. For a handler that is a future it includes the waits.
        duration: Duration,
        /// How it has ended.
        outcome: RunOutcome,
        /// After which time the timer is to run again: after the backoff, or since the handler has
        /// asked for it. `None` if no run of this timer follows. A call on the key that was made
        /// during the run decides instead, and so does another node that has the run by now.
        next_attempt: Option<Duration>,
    },
    /// This number of events of runs were dropped, since the listener was too slow.
    #[non_exhaustive]
    Dropped {
        /// Their number.
        events: u64,
    },
}

/// How the handler of a run has ended. See [`RunEvent::Ended`].
///
/// It is known before the store has taken the end. If the store does not, a
/// [`Fenced`](crate::DurableEvent::Fenced) or a [`Refused`](crate::DurableEvent::Refused) follows
/// among the other events.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::RunOutcome;
///
/// fn is_error(outcome: &RunOutcome) -> bool {
///     matches!(outcome, RunOutcome::Failed { .. } | RunOutcome::Panicked { .. })
/// }
/// # assert!(!is_error(&RunOutcome::Done));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum RunOutcome {
    /// It has succeeded, and the timer is done.
    Done,
    /// It has succeeded, and the timer is to run again: [`Ending::Again`](crate::Ending::Again).
    Again,
    /// It has called [`complete_in`](crate::Due::complete_in), and returned `Ok`. Whether the
    /// transaction was committed shows later. If it was not, a
    /// [`DurableEvent::Failed`](crate::DurableEvent::Failed) follows, and the timer runs again.
    Completed,
    /// It has returned an error, or its runtime was shut down.
    #[non_exhaustive]
    Failed {
        /// The error.
        error: String,
    },
    /// It, or a layer around it, has panicked.
    #[non_exhaustive]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// It has returned [`CompleteError::Fenced`](crate::CompleteError::Fenced): another node has the
    /// run.
    Fenced,
}

#[cfg(feature = "tracing")]
impl RunOutcome {
    /// Its name in the span of the run.
    pub(super) fn word(&self) -> &'static str {
        match self {
            RunOutcome::Done => "done",
            RunOutcome::Again => "again",
            RunOutcome::Completed => "completed",
            RunOutcome::Failed { .. } => "failed",
            RunOutcome::Panicked { .. } => "panicked",
            RunOutcome::Fenced => "fenced",
        }
    }
}

impl Event for RunEvent {
    const THREAD: &'static str = "runs";

    // The span of the run says all of it.
    #[cfg(feature = "tracing")]
    const TRACE: Option<fn(&Self)> = None;

    fn dropped(events: u64) -> Self {
        RunEvent::Dropped { events }
    }
}
