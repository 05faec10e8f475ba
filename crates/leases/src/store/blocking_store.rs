//! Stores whose client blocks.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon::Clock;

use super::call::{complete, is_in_background, is_waited_for};
use super::call_threads::{CallBounds, CallThreads, Lane};
use super::owned::{OwnedClaim, OwnedDetach, OwnedHolding, OwnedRenewal, OwnedResume};
use super::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
};
use crate::sync::Arc;
use crate::sync::thread::Builder;

/// The bounds of one store. Two destinations that hang leave a third of the threads to the others.
const BOUNDS: CallBounds = CallBounds {
    all: 192,
    of_one: 64,
    lists: 2,
};

/// The bounds of its renewals, and also those of its other calls in the background. Each have threads
/// of their own: other calls that hang must not cost leases, nor keep locks held. For leases of about
/// one length, one call for a destination is under way at a time, and two more may hang.
pub(crate) const BACKGROUND_BOUNDS: CallBounds = CallBounds {
    all: 192,
    of_one: 3,
    lists: 1,
};

/// Lets async code use a store whose calls block.
///
/// The task that awaits a call of [`Leases`](crate::Leases) also polls the store. A store whose
/// client blocks would block a thread of the async runtime. This type makes the awaited calls of
/// such a store on threads of its own. A thread starts when a call needs it, and ends after ten
/// seconds without a call.
///
/// At most 192 awaited calls run at one time. At most 64 of them are for one [`Destination`], and
/// at most two [list](LeaseStore::list) locks. So one or two destinations that hang leave threads
/// to the others, and three leave none. A call that gets no thread within its limit is not made,
/// and fails with [`StoreError::Unavailable`]. The leases can't tell this error from a lost answer,
/// so they also give back what such a call has asked for. The looks for those who follow a lock run
/// on these threads, too.
///
/// Renewals in the background have threads of their own. Releases in the background, together with
/// notes that a caller has left, also have threads of their own. Each of these two groups has at most
/// 192 threads, and at most three of them are for one destination. So up to 63 destinations may hang,
/// and the renewals and releases of the others go on.
///
/// A thread that waits for the answer, as in [`wait`](crate::LeaseFuture::wait), calls the store
/// itself. Such a call needs no thread of the store, and the bounds do not hold for it.
///
/// If a store of yours combines several such stores, a waiting thread makes their calls one after
/// the other. Calls that your store polls with a waker of its own are made on threads.
///
/// An awaited call that is dropped before a thread has begun it is not made. A call that a thread
/// has begun goes on to its end, and the leases give back what it was granted.
///
/// In a forked copy of the process each call fails with [`StoreError::Forked`]. Clones share the
/// store and the threads. The threads end after the last clone is dropped. A thread whose call
/// hangs ends when that call returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{
///     Acquired, BlockingStore, Claim, Destination, Holding, LeaseStore, Leases, Outcome, Released,
///     Renewal, StoreError, StoreFuture,
/// };
/// # use tourbillon_leases::MemoryStore;
/// # struct Client(MemoryStore);
///
/// struct MyStore {
///     client: Client, // the blocking client of some database
/// }
///
/// impl LeaseStore for MyStore {
///     fn acquire<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Claim<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
///         Box::pin(async move {
///             // .. blocks here, for at most `limit` ..
/// #           std::thread::sleep(Duration::from_millis(1));
/// #           self.client.0.acquire(destination, batch, limit).await
///         })
///     }
///
///     fn renew<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Renewal<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Outcome>> {
///         Box::pin(async move {
///             // ..
/// #           self.client.0.renew(destination, batch, limit).await
///         })
///     }
///
///     fn release<'a>(
///         &'a self,
///         destination: Destination,
///         batch: &'a [Holding<'a>],
///         limit: Duration,
///     ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
///         Box::pin(async move {
///             // ..
/// #           self.client.0.release(destination, batch, limit).await
///         })
///     }
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # let store = MyStore { client: Client(MemoryStore::new()) };
/// let leases = Leases::new(BlockingStore::new(store))?;
/// let guard = leases.lock("report").wait()?; // blocks this thread
/// guard.release().wait()?;
/// # runtime.block_on(async {
/// let guard = leases.lock("report").await?; // blocks a thread of the store
/// # guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockingStore<S>(Arc<BlockingShared<S>>);

struct BlockingShared<S> {
    store: Arc<S>,
    threads: StoreThreads,
    /// For renewals in the background.
    renewals: StoreThreads,
    /// For releases in the background, and notes that a caller has left.
    releases: StoreThreads,
}

/// Threads for calls that block. They end after the drop of this, and of their calls.
pub(crate) struct StoreThreads {
    threads: Arc<CallThreads>,
    clock: Clock,
}

impl StoreThreads {
    pub(crate) fn new(bounds: CallBounds) -> Self {
        let clock = Clock::boottime();
        StoreThreads {
            threads: Arc::new(CallThreads::new(clock.clone(), bounds)),
            clock,
        }
    }

    /// Makes a call on a thread, with the rest of the limit.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        lane: Lane,
        limit: Duration,
        call: impl FnOnce(Duration) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.threads.is_forked() {
            return Err(StoreError::Forked);
        }
        let clock = self.clock.clone();
        let end = clock.now() + limit;
        let run = move || {
            let left = end.since(clock.now());
            if left.is_zero() {
                let what = format!("no thread began the call within {limit:?}");
                return Err(StoreError::Unavailable(what));
            }
            call(left)
        };
        self.threads.hand_over(lane, run, start).await?
    }
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.threads.close();
    }
}

impl<S: LeaseStore> BlockingStore<S> {
    /// Wraps a store whose calls block.
    pub fn new(store: S) -> Self {
        BlockingStore(Arc::new(BlockingShared {
            store: Arc::new(store),
            threads: StoreThreads::new(BOUNDS),
            renewals: StoreThreads::new(BACKGROUND_BOUNDS),
            releases: StoreThreads::new(BACKGROUND_BOUNDS),
        }))
    }
}

impl<S> BlockingStore<S> {
    /// Returns the wrapped store.
    pub(crate) fn get(&self) -> &S {
        &self.0.store
    }

    fn is_forked(&self) -> bool {
        self.0.threads.threads.is_forked()
    }
}

impl<S: LeaseStore> BlockingStore<S> {
    /// Returns the lane of the calls about a name.
    fn lane(&self, name: &str) -> Lane {
        Lane::To(self.destination(name))
    }

    /// Makes a call. If a thread waits for the answer, `here` makes the call on it. Otherwise a thread
    /// runs what `there` returns, with the rest of the limit. It is one of those that `background`
    /// chooses, if workers of the leases poll.
    fn call<'a, T, C, F>(
        &'a self,
        background: impl FnOnce(&'a BlockingShared<S>) -> &'a StoreThreads + Send + 'a,
        lane: Lane,
        limit: Duration,
        here: impl FnOnce(&'a S) -> StoreFuture<'a, T> + Send + 'a,
        there: impl FnOnce(Arc<S>) -> C + Send + 'a,
    ) -> StoreFuture<'a, T>
    where
        T: Send + 'static,
        C: FnOnce(Duration) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        Box::pin(async move {
            if self.is_forked() {
                return Err(StoreError::Forked);
            }
            if is_waited_for().await {
                return here(self.get()).await;
            }
            let threads = match is_in_background() {
                true => background(&self.0),
                false => &self.0.threads,
            };
            let (clock, call) = (threads.clock.clone(), there(Arc::clone(&self.0.store)));
            let run = move |left| complete(&clock, left, Box::pin(call(left)));
            threads.call(lane, limit, run).await
        })
    }
}

/// Starts a thread of a store. Returns false if the system refuses it.
fn start(threads: Arc<CallThreads>) -> bool {
    let thread = Builder::new().name("tb-store".to_owned());
    thread.spawn(move || threads.serve()).is_ok()
}

impl<S: LeaseStore> LeaseStore for BlockingStore<S> {
    fn destination(&self, name: &str) -> Destination {
        self.get().destination(name)
    }

    fn longest_lease(&self) -> Duration {
        self.get().longest_lease()
    }

    fn can_share(&self) -> bool {
        self.get().can_share()
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        let here = move |store: &'a S| store.acquire(destination, batch, limit);
        self.call(
            |shared| &shared.threads,
            Lane::To(destination),
            limit,
            here,
            move |store| {
                let own: Vec<_> = batch.iter().map(OwnedClaim::of).collect();
                move |limit| async move {
                    let batch: Vec<_> = own.iter().map(OwnedClaim::get).collect();
                    store.acquire(destination, &batch, limit).await
                }
            },
        )
    }

    fn leave<'a>(&'a self, name: &'a str, owner: &'a str, limit: Duration) -> StoreFuture<'a, ()> {
        let here = move |store: &'a S| store.leave(name, owner, limit);
        self.call(
            |shared| &shared.releases,
            self.lane(name),
            limit,
            here,
            move |store| {
                let (name, owner) = (name.to_owned(), owner.to_owned());
                move |limit| async move { store.leave(&name, &owner, limit).await }
            },
        )
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        let here = move |store: &'a S| store.renew(destination, batch, limit);
        self.call(
            |shared| &shared.renewals,
            Lane::To(destination),
            limit,
            here,
            move |store| {
                let own: Vec<_> = batch.iter().map(OwnedRenewal::of).collect();
                move |limit| async move {
                    let batch: Vec<_> = own.iter().map(OwnedRenewal::get).collect();
                    store.renew(destination, &batch, limit).await
                }
            },
        )
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        let here = move |store: &'a S| store.release(destination, batch, limit);
        self.call(
            |shared| &shared.releases,
            Lane::To(destination),
            limit,
            here,
            move |store| {
                let own: Vec<_> = batch.iter().map(OwnedHolding::of).collect();
                move |limit| async move {
                    let batch: Vec<_> = own.iter().map(OwnedHolding::get).collect();
                    store.release(destination, &batch, limit).await
                }
            },
        )
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        let here = move |store: &'a S| store.detach(detach, limit);
        self.call(
            |shared| &shared.threads,
            self.lane(detach.name),
            limit,
            here,
            move |store| {
                let own = OwnedDetach::of(detach);
                move |limit| async move { store.detach(&own.get(), limit).await }
            },
        )
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        let here = move |store: &'a S| store.resume(resume, limit);
        self.call(
            |shared| &shared.threads,
            self.lane(resume.name),
            limit,
            here,
            move |store| {
                let own = OwnedResume::of(resume);
                move |limit| async move { store.resume(&own.get(), limit).await }
            },
        )
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        let here = move |store: &'a S| store.holder_of(name, limit);
        self.call(
            |shared| &shared.threads,
            self.lane(name),
            limit,
            here,
            move |store| {
                let name = name.to_owned();
                move |limit| async move { store.holder_of(&name, limit).await }
            },
        )
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        let here = move |store: &'a S| store.list(prefix, paging, limit);
        self.call(
            |shared| &shared.threads,
            Lane::Lists,
            limit,
            here,
            move |store| {
                let (prefix, paging) = (prefix.to_owned(), paging.clone());
                move |limit| async move { store.list(&prefix, &paging, limit).await }
            },
        )
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        // In a forked copy a lock of the store may stay locked forever.
        match self.is_forked() {
            true => None,
            false => self.get().watch(name, waker),
        }
    }
}

impl<S> Clone for BlockingStore<S> {
    fn clone(&self) -> Self {
        BlockingStore(Arc::clone(&self.0))
    }
}

impl<S: fmt::Debug> fmt::Debug for BlockingStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("BlockingStore");
        match self.is_forked() {
            true => shown.finish_non_exhaustive(),
            false => shown.field(self.get()).finish(),
        }
    }
}
