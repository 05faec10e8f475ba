//! Faults that tests inject into the store in memory.

use std::fmt;

use crate::store::{Call, Claim, DeadPage, Epoch, NewNode, Page, Poll, Settle, StoreError};
use crate::sync::{Arc, Condvar, Mutex};

/// A call to a [`Memory`](crate::Memory) that has not been carried out yet.
///
/// Fields that are not documented are no public interface before 1.0.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Memory, MemoryCall, MemoryFault, StoreError};
///
/// let store = Memory::new();
/// store.inject(|call| match call {
///     MemoryCall::Counts => MemoryFault::Fail(StoreError::Unavailable("an outage".into())),
///     _ => MemoryFault::None,
/// });
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryCall<'a> {
    /// A connection is opened.
    Connect,
    /// Calls of users are carried out, in one commit.
    Write(#[doc(hidden)] &'a [Call]),
    /// A timer is read.
    Get {
        /// The queue.
        queue: &'a str,
        /// The key.
        key: &'a str,
    },
    /// A page of timers is read.
    List(#[doc(hidden)] &'a Page),
    /// The timers of all queues are counted.
    Counts,
    /// Dead letters are read.
    Dead(#[doc(hidden)] &'a DeadPage),
    /// The dead letters with these numbers are deleted.
    Discard(&'a [i64]),
    /// A node deletes dead letters that were kept long enough.
    DiscardOld,
    /// The nodes are read.
    Nodes,
    /// The dead letter with this number is revived.
    Revive(i64),
    /// A queue is paused or resumed.
    SetPaused {
        /// The queue.
        queue: &'a str,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// A schedule is paused or resumed.
    PauseSchedule {
        /// The queue.
        queue: &'a str,
        /// The key.
        key: &'a str,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// A node joins, or sets its queues.
    Join(#[doc(hidden)] &'a NewNode),
    /// A node shows that it lives.
    Beat(#[doc(hidden)] Epoch),
    /// A node reads what is due soon.
    Poll(#[doc(hidden)] &'a Poll),
    /// A node claims timers that are due.
    Claim(#[doc(hidden)] &'a Claim),
    /// A node ends or frees timers that it has claimed.
    Settle(#[doc(hidden)] &'a Settle),
    /// A node declares another one gone.
    DeclareGone {
        #[doc(hidden)]
        asking: Epoch,
        #[doc(hidden)]
        epoch: Epoch,
        #[doc(hidden)]
        beat: i64,
    },
    /// A node leaves.
    Leave(#[doc(hidden)] Epoch),
}

/// The fate of a call.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{CallError, Durable, Memory, MemoryCall, MemoryFault};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Memory::new();
/// let timers = Durable::builder(store.clone()).start()?;
/// store.inject(|call| match call {
///     MemoryCall::Counts => MemoryFault::Hang,
///     _ => MemoryFault::None,
/// });
/// let answer = timers.counts().within(Duration::from_millis(5)).wait();
/// assert!(matches!(answer, Err(CallError::TimedOut(_))));
/// store.heal();
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub enum MemoryFault {
    /// The call is carried out.
    None,
    /// The call is not carried out, and fails.
    Fail(StoreError),
    /// The call is carried out, and its answer is lost: the caller gets this error.
    LoseAnswer(StoreError),
    /// The call hangs until [`Memory::heal`](crate::Memory::heal), and is carried out then.
    Hang,
    /// The call is carried out, and hangs until [`Memory::heal`](crate::Memory::heal) before it
    /// returns its answer.
    HangAfter,
    /// The call is carried out. Then this function runs, on the caller's thread and without a lock,
    /// before the call returns.
    Then(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryFault::None => f.write_str("None"),
            MemoryFault::Fail(error) => f.debug_tuple("Fail").field(error).finish(),
            MemoryFault::LoseAnswer(error) => f.debug_tuple("LoseAnswer").field(error).finish(),
            MemoryFault::Hang => f.write_str("Hang"),
            MemoryFault::HangAfter => f.write_str("HangAfter"),
            MemoryFault::Then(_) => f.debug_tuple("Then").finish_non_exhaustive(),
        }
    }
}

/// A function that decides the fault of each call.
type Injected = dyn Fn(&MemoryCall<'_>) -> MemoryFault + Send + Sync;

/// The faults of one store.
#[derive(Default)]
pub(super) struct Faults {
    injected: Mutex<Option<Arc<Injected>>>,
    /// The number of times that the store was healed.
    heals: Mutex<u64>,
    healed: Condvar,
}

impl Faults {
    pub(super) fn inject(&self, fault: Arc<Injected>) {
        // The old function is dropped after the lock was released: it is user code.
        let old = self.injected.lock().replace(fault);
        drop(old);
    }

    pub(super) fn heal(&self) {
        let old = self.injected.lock().take();
        *self.heals.lock() += 1;
        self.healed.notify_all();
        drop(old);
    }

    /// Makes a call, as the injected function says.
    pub(super) fn apply<T>(
        &self,
        call: &MemoryCall<'_>,
        execute: impl FnOnce() -> T,
    ) -> Result<T, StoreError> {
        // Read before the function is asked: a later heal ends what it orders.
        let heals = *self.heals.lock();
        let injected = self.injected.lock().clone();
        let fault = injected.map_or(MemoryFault::None, |injected| injected(call));
        match fault {
            MemoryFault::None => Ok(execute()),
            MemoryFault::Fail(error) => Err(error),
            MemoryFault::LoseAnswer(error) => {
                execute();
                Err(error)
            }
            MemoryFault::Hang => {
                self.wait_for_heal(heals);
                Ok(execute())
            }
            MemoryFault::HangAfter => {
                let answer = execute();
                self.wait_for_heal(heals);
                Ok(answer)
            }
            MemoryFault::Then(then) => {
                let answer = execute();
                then();
                Ok(answer)
            }
        }
    }

    fn wait_for_heal(&self, heals: u64) {
        let mut now = self.heals.lock();
        while *now == heals {
            now = self.healed.wait(now);
        }
    }
}
