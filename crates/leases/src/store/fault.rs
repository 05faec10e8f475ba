//! The faults that tests inject into a store in memory.

use std::fmt;

use super::{Claim, Destination, Detach, Holding, Renewal, Resume, Secret, StoreError};

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
    /// The call is executed. Then this function runs, on the caller's thread and without a lock,
    /// before the call returns. If the call is awaited, this blocks the task, unless the store is
    /// wrapped in a [`BlockingStore`](crate::BlockingStore).
    Then(Box<dyn FnOnce() + Send>),
    /// The items at these positions of a batch of acquires, renewals or releases fail with the
    /// error. All other items, and all calls without a batch, are executed.
    Some(Vec<usize>, StoreError),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::None => f.write_str("None"),
            Fault::Fail(error) => f.debug_tuple("Fail").field(error).finish(),
            Fault::LoseAnswer(error) => f.debug_tuple("LoseAnswer").field(error).finish(),
            Fault::Then(_) => f.write_str("Then(..)"),
            Fault::Some(which, error) => f.debug_tuple("Some").field(which).field(error).finish(),
        }
    }
}
