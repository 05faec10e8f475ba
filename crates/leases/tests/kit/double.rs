//! A store that does less than the embedded one, or differs from it in one way.

use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LeaseStore, MemoryStore, Outcome, Released, Renewal,
    Secret, StoreError,
};

/// Has what has no default: it knows nothing of batches of acquires or releases, can't tell of
/// releases, and can't list or hand over.
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

    /// Forgets all answers to a batch but the first ones.
    pub(crate) fn answers_only(mut self, answers: usize) -> Self {
        self.answers = answers;
        self
    }

    /// Tells of each single call and its limit.
    pub(crate) fn notes(mut self, note: impl Fn(Called, Duration) + Send + Sync + 'static) -> Self {
        self.note = Box::new(note);
        self
    }

    fn shortened<T>(&self, mut answers: Vec<T>) -> Vec<T> {
        answers.truncate(self.answers);
        answers
    }
}

impl LeaseStore for StoreDouble {
    fn longest_lease(&self) -> Duration {
        self.longest
    }

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        (self.note)(Called::Acquire, limit);
        self.store.acquire(claim, limit)
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        let answers = self.store.renew(destination, batch, limit)?;
        Ok(self.shortened(answers))
    }

    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> Result<Released, StoreError> {
        (self.note)(Called::Release, limit);
        self.store.release(name, secret, limit)
    }
}

/// A double that takes batches, whose answers it forgets like those of renewals.
pub(crate) struct Forgetful(pub(crate) StoreDouble);

impl LeaseStore for Forgetful {
    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        self.0.acquire(claim, limit)
    }

    fn acquire_many(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let answers = self.0.store.acquire_many(destination, batch, limit)?;
        Ok(self.0.shortened(answers))
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        self.0.renew(destination, batch, limit)
    }

    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> Result<Released, StoreError> {
        self.0.release(name, secret, limit)
    }

    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        // What has no answer is not done, so that a test sees it done later.
        let batch = &batch[..batch.len().min(self.0.answers)];
        self.0.store.release_many(destination, batch, limit)
    }
}
