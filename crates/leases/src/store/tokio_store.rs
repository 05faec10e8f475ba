//! Backends whose calls are futures.

use std::fmt;
use std::future::{Future, ready};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, Secret, StoreError, Watch,
};
use crate::sync::catch_panic;

/// A [`LeaseStore`] whose calls are futures. [`TokioStore`] makes leases of it.
///
/// Each method promises what the one of the same name of [`LeaseStore`] promises, and has the same
/// default. An implementation can write them as `async fn`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tokio::runtime::Handle;
/// use tourbillon_leases::{
///     Acquired, AsyncLeaseStore, Claim, Destination, Leases, Outcome, Released, Renewal, Secret,
///     StoreError, TokioStore,
/// };
/// # use tourbillon_leases::{LeaseStore, MemoryStore};
/// # struct Client(MemoryStore);
/// # impl Client {
/// #     async fn ask<T>(&self, call: impl FnOnce(&MemoryStore) -> T) -> T { tokio::task::yield_now().await; call(&self.0) }
/// # }
///
/// struct MyStore {
///     client: Client, // the async client of some database
/// }
///
/// impl AsyncLeaseStore for MyStore {
///     async fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
///         // ..
/// #       self.client.ask(|store| store.acquire(claim, limit)).await
///     }
///
///     async fn renew(
///         &self,
///         destination: Destination,
///         batch: &[Renewal<'_>],
///         limit: Duration,
///     ) -> Result<Vec<Outcome>, StoreError> {
///         // ..
/// #       self.client.ask(|store| store.renew(destination, batch, limit)).await
///     }
///
///     async fn release(
///         &self,
///         name: &str,
///         secret: Secret<'_>,
///         limit: Duration,
///     ) -> Result<Released, StoreError> {
///         // ..
/// #       self.client.ask(|store| store.release(name, secret, limit)).await
///     }
/// }
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
/// # runtime.block_on(async {
/// # let store = MyStore { client: Client(MemoryStore::new()) };
/// let leases = Leases::new(TokioStore::new(store, Handle::current()))?;
/// let guard = leases.lock_async("report").await?;
/// guard.release_async().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait AsyncLeaseStore: Send + Sync + 'static {
    /// See [`LeaseStore::destination`].
    fn destination(&self, name: &str) -> Destination {
        let _ = name;
        Destination::default()
    }

    /// See [`LeaseStore::longest_lease`].
    fn longest_lease(&self) -> Duration {
        Duration::MAX
    }

    /// See [`LeaseStore::acquire`].
    ///
    /// # Errors
    ///
    /// As there, and so for the other calls.
    fn acquire(
        &self,
        claim: &Claim<'_>,
        limit: Duration,
    ) -> impl Future<Output = Result<Acquired, StoreError>> + Send;

    /// See [`LeaseStore::acquire_many`].
    ///
    /// # Errors
    ///
    /// As there.
    fn acquire_many(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<Result<Acquired, StoreError>>, StoreError>> + Send {
        async move {
            let _ = destination;
            let (start, mut answers) = (Instant::now(), Vec::with_capacity(batch.len()));
            for claim in batch {
                answers.push(match left(start, limit) {
                    Ok(left) => self.acquire(claim, left).await,
                    Err(late) => Err(late),
                });
            }
            Ok(answers)
        }
    }

    /// See [`LeaseStore::leave`].
    ///
    /// # Errors
    ///
    /// As there.
    fn leave(
        &self,
        name: &str,
        owner: &str,
        limit: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (name, owner, limit);
        ready(Ok(()))
    }

    /// See [`LeaseStore::renew`].
    ///
    /// # Errors
    ///
    /// As there.
    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<Outcome>, StoreError>> + Send;

    /// See [`LeaseStore::release`].
    ///
    /// # Errors
    ///
    /// As there.
    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> impl Future<Output = Result<Released, StoreError>> + Send;

    /// See [`LeaseStore::release_many`].
    ///
    /// # Errors
    ///
    /// As there.
    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<Result<Released, StoreError>>, StoreError>> + Send {
        async move {
            let (start, mut answers) = (Instant::now(), Vec::with_capacity(batch.len()));
            for held in batch {
                answers.push(match left(start, limit) {
                    Err(late) => Err(late),
                    Ok(left) if held.rest.is_zero() => {
                        self.release(held.name, held.secret, left).await
                    }
                    Ok(left) => {
                        let shorter = [Renewal::new(held.name, held.secret, held.rest)];
                        let outcome = self.renew(destination, &shorter, left).await;
                        outcome.and_then(Outcome::of_shortened)
                    }
                });
            }
            Ok(answers)
        }
    }

    /// See [`LeaseStore::detach`].
    ///
    /// # Errors
    ///
    /// As there.
    fn detach(
        &self,
        detach: &Detach<'_>,
        limit: Duration,
    ) -> impl Future<Output = Result<Detached, StoreError>> + Send {
        let _ = limit;
        ready(Err(StoreError::no_hand_over(detach.name)))
    }

    /// See [`LeaseStore::resume`].
    ///
    /// # Errors
    ///
    /// As there.
    fn resume(
        &self,
        resume: &Resume<'_>,
        limit: Duration,
    ) -> impl Future<Output = Result<Option<Resumed>, StoreError>> + Send {
        let _ = limit;
        ready(Err(StoreError::no_hand_over(resume.name)))
    }

    /// See [`LeaseStore::holder_of`].
    ///
    /// # Errors
    ///
    /// As there.
    fn holder_of(
        &self,
        name: &str,
        limit: Duration,
    ) -> impl Future<Output = Result<Option<Holder>, StoreError>> + Send {
        let _ = limit;
        ready(Err(StoreError::no_holder(name)))
    }

    /// See [`LeaseStore::list`].
    ///
    /// # Errors
    ///
    /// As there.
    fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> impl Future<Output = Result<LockPage, StoreError>> + Send {
        let _ = (paging, limit);
        ready(Err(StoreError::no_list(prefix)))
    }

    /// See [`LeaseStore::watch`].
    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let _ = (name, waker);
        None
    }
}

/// Returns the rest of the limit for the next item of a batch.
fn left(start: Instant, limit: Duration) -> Result<Duration, StoreError> {
    let left = limit.saturating_sub(start.elapsed());
    match left.is_zero() {
        true => Err(StoreError::batch_too_slow()),
        false => Ok(left),
    }
}

/// A store whose calls are futures, on a tokio runtime. See [`AsyncLeaseStore`].
///
/// Workers of the leases wait for the futures, at most 240 for renewals at one time and 192 for
/// awaited calls. The runtime polls what the futures wait for: its I/O and its timers. So it must
/// have a thread that runs: with a current-thread runtime, one that is in `block_on`.
///
/// In async code, await the calls of [`Leases`](crate::Leases) whose name ends with `_async`. A
/// blocking call on a thread that runs tasks fails with [`StoreError::Refused`], since tokio does
/// not let such a thread wait for a future.
///
/// Calls do not end by themselves at their `limit`: the store has to see to that, for example by
/// `tokio::time::timeout`. After the runtime has shut down, calls fail or hang as the store makes
/// them, so close the leases first.
pub struct TokioStore<S> {
    store: S,
    runtime: Handle,
}

impl<S: AsyncLeaseStore> TokioStore<S> {
    /// Creates a store whose futures run on `runtime`.
    pub fn new(store: S, runtime: Handle) -> Self {
        TokioStore { store, runtime }
    }

    /// Waits for a call.
    fn wait<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        // A thread that polls tasks may not wait. Others of tokio's threads may, such as those of
        // `spawn_blocking`, and only a trial tells them apart.
        let may_wait = Handle::try_current().is_err()
            || catch_panic(|| self.runtime.block_on(ready(()))).is_ok();
        if !may_wait {
            let why = "this thread runs tasks of tokio and can't wait for a store: await the call \
                       whose name ends with `_async`";
            return Err(StoreError::Refused(why.to_owned()));
        }
        self.runtime.block_on(call)
    }
}

impl<S: AsyncLeaseStore> LeaseStore for TokioStore<S> {
    fn destination(&self, name: &str) -> Destination {
        self.store.destination(name)
    }

    fn longest_lease(&self) -> Duration {
        self.store.longest_lease()
    }

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        self.wait(self.store.acquire(claim, limit))
    }

    fn acquire_many(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let call = self.store.acquire_many(destination, batch, limit);
        self.wait(call)
    }

    fn leave(&self, name: &str, owner: &str, limit: Duration) -> Result<(), StoreError> {
        self.wait(self.store.leave(name, owner, limit))
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        let call = self.store.renew(destination, batch, limit);
        self.wait(call)
    }

    fn release(
        &self,
        name: &str,
        secret: Secret<'_>,
        limit: Duration,
    ) -> Result<Released, StoreError> {
        let call = self.store.release(name, secret, limit);
        self.wait(call)
    }

    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let call = self.store.release_many(destination, batch, limit);
        self.wait(call)
    }

    fn detach(&self, detach: &Detach<'_>, limit: Duration) -> Result<Detached, StoreError> {
        self.wait(self.store.detach(detach, limit))
    }

    fn resume(&self, resume: &Resume<'_>, limit: Duration) -> Result<Option<Resumed>, StoreError> {
        self.wait(self.store.resume(resume, limit))
    }

    fn holder_of(&self, name: &str, limit: Duration) -> Result<Option<Holder>, StoreError> {
        self.wait(self.store.holder_of(name, limit))
    }

    fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> Result<LockPage, StoreError> {
        self.wait(self.store.list(prefix, paging, limit))
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        self.store.watch(name, waker)
    }
}

impl<S: fmt::Debug> fmt::Debug for TokioStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokioStore").field(&self.store).finish()
    }
}
