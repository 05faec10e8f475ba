//! The faults that tests inject into a store in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use super::{Claim, Destination, Detach, Holding, Renewal, Resume, Secret, StoreError};
use crate::sync::{Arc, Mutex, Origin};

/// A call to a [`MemoryStore`](crate::MemoryStore) that has not been executed yet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StoreCall<'a> {
    /// A caller acquires a name.
    Claim(&'a Claim<'a>),
    /// One call renews a batch of leases.
    Renew {
        /// The destination of the batch.
        destination: Destination,
        /// The leases to renew.
        batch: &'a [Renewal<'a>],
    },
    /// A holder releases a name.
    GiveBack {
        /// The name.
        name: &'a str,
        /// The secret that it has to be held with.
        secret: Secret<'a>,
    },
    /// One call releases several names. A batch of one is a [`GiveBack`](Self::GiveBack).
    GiveBackMany {
        /// The destination of the batch.
        destination: Destination,
        /// The names to release.
        batch: &'a [Holding<'a>],
    },
    /// A caller asks who holds a name.
    Holder {
        /// The name.
        name: &'a str,
    },
    /// One call acquires several names. A batch of one is a [`Claim`](Self::Claim).
    ClaimMany {
        /// The destination of the batch.
        destination: Destination,
        /// The names to acquire.
        batch: &'a [Claim<'a>],
    },
    /// A caller that waited for a name gives up.
    Leave {
        /// The name.
        name: &'a str,
        /// The owner that would have held it.
        owner: &'a str,
    },
    /// A holder detaches a name.
    Detach(&'a Detach<'a>),
    /// A caller resumes a detached name.
    Resume(&'a Resume<'a>),
    /// A caller lists the names that begin with a prefix.
    List {
        /// The prefix.
        prefix: &'a str,
    },
}

/// What happens to a call.
#[non_exhaustive]
pub enum Fault {
    /// The call is executed.
    None,
    /// The call is not executed, and fails.
    Fail(StoreError),
    /// The call is executed, and its answer is lost: the caller gets this error.
    LoseAnswer(StoreError),
    /// The call is executed. Then this function runs before the call returns, without a lock, on the
    /// thread that polls the call. This is a thread that waits for the call, a thread that runs the
    /// task of the caller, or a worker of the leases. A function that blocks also blocks that thread.
    /// To imitate a call that hangs, use [`Hang`](Self::Hang), or wrap the store in a
    /// [`BlockingStore`](crate::BlockingStore).
    Then(Box<dyn FnOnce() + Send>),
    /// The items at these positions of a batch of acquires, renewals or releases fail with the
    /// error. All other items, and all calls without a batch, are executed.
    Some(Vec<usize>, StoreError),
    /// The call gets no answer, and its polls do not block. It ends at its limit. If a test
    /// [heals](crate::MemoryStore::heal) the store or injects other faults before that, the store
    /// decides again what happens to the call. With [`Steps`](crate::Steps), the limit is reached only
    /// when the test moves the clock. A thread that blocks in `wait()` for the call can't move it.
    Hang,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::None => f.write_str("None"),
            Fault::Fail(error) => f.debug_tuple("Fail").field(error).finish(),
            Fault::LoseAnswer(error) => f.debug_tuple("LoseAnswer").field(error).finish(),
            Fault::Then(_) => f.write_str("Then(..)"),
            Fault::Hang => f.write_str("Hang"),
            Fault::Some(which, error) => f.debug_tuple("Some").field(which).field(error).finish(),
        }
    }
}

/// A function that decides the fault of each call.
pub(super) type Injected = dyn Fn(&StoreCall<'_>) -> Fault + Send + Sync;

/// The faults of a store, and the calls that hang.
pub(super) struct Faults {
    state: Mutex<FaultState>,
    origin: Origin,
}

#[derive(Default)]
struct FaultState {
    injected: Option<Arc<Injected>>,
    /// How often the function was replaced.
    changes: u64,
    /// The calls that hang, each under a number.
    hanging: BTreeMap<u64, Waker>,
    last: u64,
}

impl Faults {
    pub(super) fn new() -> Self {
        Faults {
            state: Mutex::default(),
            origin: Origin::here(),
        }
    }

    /// Replaces the function, and lets all calls that hang ask it.
    pub(super) fn set(&self, injected: Option<Arc<Injected>>) {
        let (hanging, before) = {
            let mut state = self.state.lock();
            state.changes += 1;
            let before = std::mem::replace(&mut state.injected, injected);
            (std::mem::take(&mut state.hanging), before)
        };
        // Without the lock: the function is a user's, and a woken task may call the store at once.
        drop(before);
        for waker in hanging.into_values() {
            waker.wake();
        }
    }

    /// Returns the future of a call. `execute` gets the positions that fail, and their error.
    pub(super) fn call<'a, F>(&'a self, call: StoreCall<'a>, execute: F) -> FaultyCall<'a, F> {
        FaultyCall {
            faults: self,
            call,
            execute: Some(execute),
            hangs: None,
        }
    }

    /// Returns what happens to a call. If it hangs, returns the number of the changes so far.
    fn of(&self, call: &StoreCall<'_>) -> Result<Fault, u64> {
        let (injected, changes) = {
            let state = self.state.lock();
            (state.injected.clone(), state.changes)
        };
        // Without the lock: the function may block or replace itself.
        match injected.map_or(Fault::None, |fault| fault(call)) {
            Fault::Hang => Err(changes),
            fault => Ok(fault),
        }
    }
}

/// A call that is executed when it is polled, as the injected fault says. It is no async block, which
/// costs more for each call that does not hang.
pub(super) struct FaultyCall<'a, F> {
    faults: &'a Faults,
    call: StoreCall<'a>,
    /// `None` once it was executed.
    execute: Option<F>,
    hangs: Option<HangingCall<'a>>,
}

/// Nothing in it is pinned.
impl<F> Unpin for FaultyCall<'_, F> {}

impl<T, F> Future for FaultyCall<'_, F>
where
    F: FnOnce(&[usize], Option<StoreError>) -> T,
{
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.faults.origin.is_elsewhere() {
            return Poll::Ready(Err(StoreError::Forked));
        }
        let fault = loop {
            if let Some(hangs) = &mut this.hangs {
                ready!(Pin::new(hangs).poll(context));
            }
            match this.faults.of(&this.call) {
                Ok(fault) => break fault,
                Err(changes) => {
                    this.hangs = Some(HangingCall {
                        faults: this.faults,
                        changes,
                        number: None,
                    });
                }
            }
        };
        let execute = this.execute.take().expect("a future is not polled again");
        Poll::Ready(match fault {
            Fault::None | Fault::Hang => Ok(execute(&[], None)),
            Fault::Fail(error) => Err(error),
            Fault::LoseAnswer(error) => {
                execute(&[], None);
                Err(error)
            }
            Fault::Then(then) => {
                let answer = execute(&[], None);
                then();
                Ok(answer)
            }
            Fault::Some(which, error) => Ok(execute(&which, Some(error))),
        })
    }
}

/// A call that hangs until the faults change.
struct HangingCall<'a> {
    faults: &'a Faults,
    changes: u64,
    /// `None` before the first poll.
    number: Option<u64>,
}

impl Future for HangingCall<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Cloned before the lock is taken, and the one before is dropped after it: a waker is a
        // runtime's code.
        let waker = context.waker().clone();
        let mut state = self.faults.state.lock();
        if state.changes != self.changes {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| {
            state.last += 1;
            state.last
        });
        let before = state.hanging.insert(number, waker);
        drop(state);
        drop(before);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for HangingCall<'_> {
    fn drop(&mut self) {
        // In a forked copy the lock may stay locked forever.
        if let Some(number) = self.number
            && !self.faults.origin.is_elsewhere()
        {
            let waker = self.faults.state.lock().hanging.remove(&number);
            drop(waker);
        }
    }
}
