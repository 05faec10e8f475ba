//! Why calls fail.

use std::fmt;
use std::time::Duration;

use super::names::Invalid;
use crate::store::StoreError;

/// The reason why a call failed.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory, CallError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// match timers.schedule("pay-by", "order:7", 15 * minute, &7).wait() {
///     Ok(_) => println!("it is kept"),
///     Err(error) if error.may_pass() => println!("try again: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// let refused = timers.schedule("pay-by", "", minute, &7).wait();
/// assert!(matches!(refused, Err(CallError::Invalid(_))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The arguments are refused. Nothing was sent to the store.
    Invalid(Invalid),
    /// The store can't be reached, or is busy, and the call was not carried out. It may be
    /// repeated.
    Unavailable(String),
    /// The store's answer was lost: the call may have been carried out, or may still be. To repeat
    /// a schedule re-arms the key; that is harmless unless the timer has run meanwhile, and
    /// [`schedule_if_absent`](crate::Durable::schedule_if_absent) or [`get`](crate::Durable::get)
    /// tell.
    Unknown(String),
    /// No answer has come within this [limit](crate::Sent::within). The call goes on: it may have
    /// been carried out, or may still be. To repeat it is as safe as after
    /// [`Unknown`](Self::Unknown).
    TimedOut(Duration),
    /// The store refused the call and did not carry it out. The same call will be refused again.
    Refused(String),
    /// The store is not the one that was opened: it was replaced, removed or emptied, or is older
    /// than it was. The text says what to do. The call was not carried out, or only in what lies
    /// there no more.
    Replaced(String),
    /// The timers have been [stopped](crate::Durable::stop), and the call was not carried out.
    Stopped,
    /// This process was forked after the timers were started, and they belong to the original
    /// process. The call was not carried out, unless it was made before the fork: then the original
    /// has its answer. Start timers, and open their store, after the fork.
    Forked,
}

impl CallError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            CallError::Unavailable(_) | CallError::Unknown(_) | CallError::TimedOut(_)
        )
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Invalid(invalid) => invalid.fmt(f),
            CallError::Unavailable(why) => write!(f, "the store is unavailable: {why}"),
            CallError::Unknown(why) => write!(
                f,
                "the store's answer was lost, and the call may have been carried out, so look before you \
                 repeat it: {why}"
            ),
            CallError::TimedOut(limit) => write!(
                f,
                "no answer within {limit:?}, and the call may still be carried out, so look before you \
                 repeat it"
            ),
            CallError::Refused(why) => write!(f, "the store refuses the call: {why}"),
            CallError::Replaced(why) => write!(f, "this is not the store as it was: {why}"),
            CallError::Stopped => f.write_str("the timers have been stopped"),
            CallError::Forked => f.write_str(
                "the timers were started before this process was forked, and belong to the original \
                 process: start new ones after the fork",
            ),
        }
    }
}

// Without a source: the text has that of the inner error, which has no cause.
impl std::error::Error for CallError {}

impl From<Invalid> for CallError {
    fn from(invalid: Invalid) -> Self {
        CallError::Invalid(invalid)
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(why) | StoreError::Locked(why) => CallError::Unavailable(why),
            StoreError::Unknown(why) => CallError::Unknown(why),
            StoreError::Refused(why) => CallError::Refused(why),
            StoreError::Forked => CallError::Forked,
            StoreError::Replaced(why) => CallError::Replaced(why),
        }
    }
}

/// The reason why timers can't be started.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Memory, StartError};
///
/// let twice = Durable::builder(Memory::new())
///     .handle("mail", |_: &Due<u64>| ())
///     .handle("mail", |_: &Due<u64>| ())
///     .start();
/// assert!(matches!(twice, Err(StartError::SameQueue(queue)) if queue == "mail"));
///
/// let short = Durable::builder(Memory::new()).node_lease(Duration::ZERO).start();
/// assert!(matches!(short, Err(StartError::Option(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name of a queue is refused.
    Queue(Invalid),
    /// Two handlers have this queue.
    SameQueue(String),
    /// An option has a value that is not allowed. The text has the value and the valid range.
    Option(String),
    /// Two schedules of a queue have this key.
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    SameSchedule {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
    },
    /// A schedule is refused, or could not be stored.
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    Schedule {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
        /// Why.
        error: CallError,
    },
    /// The store can't be reached, or refuses.
    Store(StoreError),
    /// A thread could not be started.
    Spawn(std::io::Error),
    /// The [runtime](crate::DurableBuilder::runtime) was shut down, or belongs to the process from
    /// which this one was forked.
    Runtime(tourbillon::BuildError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Queue(invalid) => invalid.fmt(f),
            StartError::SameQueue(queue) => {
                write!(f, "two handlers for the queue {queue:?}: keep one")
            }
            StartError::Option(what) => f.write_str(what),
            #[cfg(feature = "cron")]
            StartError::SameSchedule { queue, key } => {
                write!(
                    f,
                    "two schedules of the queue {queue:?} have the key {key:?}: keep one"
                )
            }
            #[cfg(feature = "cron")]
            StartError::Schedule { queue, key, error } => {
                write!(f, "the schedule {key:?} of the queue {queue:?}: {error}")
            }
            StartError::Store(error) => error.fmt(f),
            StartError::Spawn(error) => write!(f, "a thread could not be started: {error}"),
            StartError::Runtime(error) => write!(f, "{error}, and start the timers on it"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text has that of the inner error, so the chain goes on after it.
            StartError::Spawn(error) => error.source(),
            _ => None,
        }
    }
}
