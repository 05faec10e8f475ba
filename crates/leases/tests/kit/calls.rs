//! The calls of a store, each of which blocks: for tests that ask a store themselves.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, Secret, StoreError, Watch,
};

/// The methods of [`LeaseStore`], and its batches for one name. A test imports one of the two traits.
#[allow(dead_code, reason = "no crate of tests makes all calls")]
pub(crate) trait Calls {
    fn destination(&self, name: &str) -> Destination;
    fn longest_lease(&self) -> Duration;
    fn can_share(&self) -> bool;
    fn acquire_many(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError>;
    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError>;
    fn leave(&self, name: &str, owner: &str, limit: Duration) -> Result<(), StoreError>;
    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError>;
    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> Result<Released, StoreError>;
    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError>;
    fn detach(&self, detach: &Detach<'_>, limit: Duration) -> Result<Detached, StoreError>;
    fn resume(&self, resume: &Resume<'_>, limit: Duration) -> Result<Option<Resumed>, StoreError>;
    fn holder_of(&self, name: &str, limit: Duration) -> Result<Option<Holder>, StoreError>;
    fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> Result<LockPage, StoreError>;
    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>>;
}

impl<S: LeaseStore + ?Sized> Calls for S {
    fn destination(&self, name: &str) -> Destination {
        LeaseStore::destination(self, name)
    }

    fn longest_lease(&self) -> Duration {
        LeaseStore::longest_lease(self)
    }

    fn can_share(&self) -> bool {
        LeaseStore::can_share(self)
    }

    fn acquire_many(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        wait(LeaseStore::acquire(self, destination, batch, limit))
    }

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        let to = LeaseStore::destination(self, claim.name);
        only(wait(LeaseStore::acquire(self, to, &[*claim], limit)))
    }

    fn leave(&self, name: &str, owner: &str, limit: Duration) -> Result<(), StoreError> {
        wait(LeaseStore::leave(self, name, owner, limit))
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        wait(LeaseStore::renew(self, destination, batch, limit))
    }

    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> Result<Released, StoreError> {
        let to = LeaseStore::destination(self, name);
        let batch = [Holding::new(name, secret)];
        only(wait(LeaseStore::release(self, to, &batch, limit)))
    }

    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        wait(LeaseStore::release(self, destination, batch, limit))
    }

    fn detach(&self, detach: &Detach<'_>, limit: Duration) -> Result<Detached, StoreError> {
        wait(LeaseStore::detach(self, detach, limit))
    }

    fn resume(&self, resume: &Resume<'_>, limit: Duration) -> Result<Option<Resumed>, StoreError> {
        wait(LeaseStore::resume(self, resume, limit))
    }

    fn holder_of(&self, name: &str, limit: Duration) -> Result<Option<Holder>, StoreError> {
        wait(LeaseStore::holder_of(self, name, limit))
    }

    fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> Result<LockPage, StoreError> {
        wait(LeaseStore::list(self, prefix, paging, limit))
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        LeaseStore::watch(self, name, waker)
    }
}

/// Waits for a call on this thread.
pub(crate) fn wait<T>(call: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        thread::park();
    }
}

fn only<T>(answers: Result<Vec<Result<T, StoreError>>, StoreError>) -> Result<T, StoreError> {
    let mut answers = answers?;
    assert!(answers.len() <= 1, "{} answers to one item", answers.len());
    let missing = || Err(StoreError::Unavailable("no answer".to_owned()));
    answers.pop().unwrap_or_else(missing)
}
