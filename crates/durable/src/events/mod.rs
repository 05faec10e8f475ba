//! What operators are told: events, which a listener gets on a thread of its own, and counters.
//!
//! Nothing here may use a store, or know one.

mod sink;
mod stats;
#[cfg(feature = "tracing")]
mod trace;

use std::time::{Duration, SystemTime};

pub(crate) use sink::{Event, EventSink, Listener};
pub use stats::DurableStats;
pub(crate) use stats::{Counters, QueueCounters};

/// Something that operators may want to log or count. See
/// [`on_event`](crate::DurableBuilder::on_event).
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Durable, DurableEvent, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .on_event(|event| match event {
///         DurableEvent::Dead { queue, key, error, .. } => eprintln!("{queue} {key}: {error}"),
///         DurableEvent::StoreDown { work, error, .. } => eprintln!("{work:?} has stopped: {error}"),
///         DurableEvent::StoreUp => eprintln!("all works again"),
///         _ => {}
///     })
///     .start()?;
/// # drop(timers);
/// # Ok(())
/// # }
/// ```
#[doc(alias("log", "alert"))]
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum DurableEvent {
    /// A handler returned an error, and the timer will be tried again unless a
    /// [`Dead`](DurableEvent::Dead) follows. A [`RunEvent::Ended`](crate::RunEvent::Ended) says the
    /// same to a program that follows all runs.
    #[non_exhaustive]
    Failed {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The number of the run, from 1.
        attempt: u32,
        /// The error.
        error: String,
    },
    /// A handler panicked. It counts as an error of that run.
    #[non_exhaustive]
    Panicked {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The number of the run, from 1.
        attempt: u32,
        /// The message of the panic.
        message: String,
    },
    /// A run took longer than [`slow_after`](crate::QueueBuilder::slow_after) allows. It is sent at
    /// the end of the run.
    #[non_exhaustive]
    Slow {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The number of the run, from 1.
        attempt: u32,
        /// From the start of the handler to its end.
        duration: Duration,
    },
    /// A timer was given up. [`Durable::dead`](crate::Durable::dead) lists it.
    #[non_exhaustive]
    Dead {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// Why.
        error: String,
    },
    /// Timers were given up since the processes that ran them ended too often.
    #[non_exhaustive]
    DeadByCrashes {
        /// Their number.
        timers: u32,
    },
    /// Occurrences of a schedule were left out: they could not start within its grace, since no
    /// process was there, or its queue was paused or had too many runs. Needs the feature `cron`.
    #[non_exhaustive]
    Missed {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The first occurrence that was left out.
        scheduled_for: SystemTime,
        /// The occurrence that the timer waits for now, or that runs at once in their place.
        next: SystemTime,
    },
    /// The payload of a timer does not parse as the type that the handler takes, or its schedule can't
    /// be read here. The timer is left alone for a minute, for others or for the next version of this
    /// program.
    #[non_exhaustive]
    Unreadable {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// Why it can't be read.
        error: String,
    },
    /// The store refuses to claim or to settle a timer, for instance since a trigger or a
    /// constraint of yours refuses the change of its row. All other timers go on. This one is tried
    /// again less and less often, up to once in 30 s, or at the next poll if it was moved before
    /// its claim. If this process ends before the store has taken the end of a run, another one
    /// runs the timer again.
    ///
    /// It is sent for the first such timer of a queue.
    /// [`DurableStats::refused`](crate::DurableStats::refused) counts the others. It is sent again
    /// for the queue if nothing was refused for five minutes.
    #[non_exhaustive]
    Refused {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The reason of the store.
        error: String,
    },
    /// A run has ended, but this node had been silent for longer than its lease, and the timer is
    /// no longer its own. Another node runs it again, unless it was cancelled.
    #[non_exhaustive]
    Fenced {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// The number of the run, from 1.
        attempt: u32,
    },
    /// An outage of the store has begun: a part of the node's work with it has stopped, since a
    /// call failed, was refused, or has had no answer for a second. Whatever else stops until
    /// [`StoreUp`](DurableEvent::StoreUp) belongs to the same outage, and has no event of its own.
    ///
    /// A process without handlers has no work of its own. There the calls of users are meant.
    #[non_exhaustive]
    StoreDown {
        /// The work that has stopped.
        work: StoreWork,
        /// Why.
        error: String,
    },
    /// The outage is over: each part of the work that had stopped has succeeded since, within a
    /// second.
    StoreUp,
    /// The store is not the one that this process has opened: it was replaced, removed or emptied,
    /// or is older than it was. Stop this process, and put the right store in its place. Until then
    /// calls fail with [`CallError::Replaced`](crate::CallError::Replaced), and no timer starts
    /// here. The event is sent once in an outage, beside [`StoreDown`](DurableEvent::StoreDown),
    /// and [`StoreUp`](DurableEvent::StoreUp) says that the right one is back.
    #[non_exhaustive]
    StoreReplaced {
        /// The reason, with what to do about it.
        error: String,
    },
    /// The store's doorbell is not heard any more. Timers that others schedule for the next moments
    /// may start up to one poll late. The store connects again by itself.
    #[non_exhaustive]
    DoorbellDown {
        /// Why.
        error: String,
    },
    /// The store's doorbell is heard again, after [`DoorbellDown`](DurableEvent::DoorbellDown).
    DoorbellUp,
    /// Others have declared this node gone, since it was silent for longer than its lease. It goes
    /// on under a new name; what it ran is run again by others.
    NodeGone,
    /// This number of events were dropped, since the listener was too slow.
    #[non_exhaustive]
    Dropped {
        /// Their number.
        events: u64,
    },
}

/// A kind of work with the store. See [`DurableEvent::StoreDown`].
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{DurableEvent, StoreWork};
///
/// /// Whether timers start late, or not at all.
/// fn is_urgent(event: &DurableEvent) -> bool {
///     use StoreWork::{Beat, Claim, Join, Poll};
///     matches!(event, DurableEvent::StoreDown { work: Beat | Claim | Join | Poll, .. })
/// }
/// # assert!(!is_urgent(&DurableEvent::StoreUp));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum StoreWork {
    /// A node joins the others, or says that it handles no queue any more. Until it has joined it
    /// runs nothing.
    Join,
    /// A node shows that it lives. Without beats for a lease it starts nothing, and others take
    /// over.
    Beat,
    /// A node polls for timers that are due soon.
    Poll,
    /// A node claims timers that are due.
    Claim,
    /// A node writes the ends of runs. Until it succeeds their timers stay claimed.
    Settle,
    /// A node declares a silent one gone, whose timers wait until then.
    DeclareGone,
    /// A node leaves at its stop.
    Leave,
    /// Users schedule, move or cancel timers, in a process without handlers.
    Write,
    /// Users read, pause or revive, in a process without handlers.
    Read,
}

impl StoreWork {
    /// Whether another call of it is made or tried soon, whatever the last one did.
    pub(crate) fn is_repeated(self) -> bool {
        use StoreWork::{Beat, Claim, Poll, Settle};
        matches!(self, Beat | Poll | Claim | Settle)
    }
}
