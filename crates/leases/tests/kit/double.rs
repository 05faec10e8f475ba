//! A store that does less than the embedded one, or differs from it in one way.

use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LeaseStore, MemoryStore, Outcome, Released, Renewal,
    StoreError, StoreFuture,
};

/// Has what has no default: it can't tell of releases, and can't list or hand over.
pub(crate) struct StoreDouble {
    store: MemoryStore,
    longest: Duration,
    /// So many answers of a batch reach the caller.
    answers: usize,
    note: Box<dyn Fn(Called, Duration) + Send + Sync>,
}

/// A call, as it is noted before the store gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Called {
    Acquire,
    Release,
}

impl StoreDouble {
    pub(crate) fn of(store: MemoryStore) -> Self {
        StoreDouble {
            store,
            longest: Duration::MAX,
            answers: usize::MAX,
            note: Box::new(|_, _| ()),
        }
    }

    pub(crate) fn grants_at_most(mut self, lease: Duration) -> Self {
        self.longest = lease;
        self
    }

    /// Forgets all answers to a batch but the first ones. An acquire of one name is answered.
    pub(crate) fn answers_only(mut self, answers: usize) -> Self {
        self.answers = answers;
        self
    }

    /// Tells of each acquire and each release, and its limit.
    pub(crate) fn notes(mut self, note: impl Fn(Called, Duration) + Send + Sync + 'static) -> Self {
        self.note = Box::new(note);
        self
    }

    fn shortened<'a, T: 'a>(&self, answers: StoreFuture<'a, Vec<T>>) -> StoreFuture<'a, Vec<T>> {
        let most = self.answers;
        Box::pin(async move {
            let mut answers = answers.await?;
            answers.truncate(most);
            Ok(answers)
        })
    }
}

impl LeaseStore for StoreDouble {
    fn longest_lease(&self) -> Duration {
        self.longest
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        (self.note)(Called::Acquire, limit);
        let answers = self.store.acquire(destination, batch, limit);
        match batch {
            [_] => answers,
            _ => self.shortened(answers),
        }
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.shortened(self.store.renew(destination, batch, limit))
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        (self.note)(Called::Release, limit);
        // What has no answer is not done, so that a test sees it done later.
        let batch = &batch[..batch.len().min(self.answers)];
        self.store.release(destination, batch, limit)
    }
}
