//! The connection to a store, which can be cut. Then no call and no answer gets through, as if the
//! network were gone or the holder dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use chaos::clock::{Moment, now};
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LeaseStore, Outcome, Released, Renewal, StoreError,
    StoreFuture, Watch,
};

/// A holder's connection to the store. Clones share one connection.
#[derive(Clone)]
pub(crate) struct Cable(Arc<Parts>);

struct Parts {
    store: Arc<dyn LeaseStore>,
    cut: AtomicBool,
    last: Mutex<Option<Grant>>,
}

/// A grant, as seen by the holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// The time before the granted call was sent.
    pub(crate) sent: Moment,
    /// The time after its answer came.
    pub(crate) answered: Moment,
}

impl Cable {
    pub(crate) fn new(store: Arc<dyn LeaseStore>) -> Self {
        Cable(Arc::new(Parts {
            store,
            cut: AtomicBool::new(false),
            last: Mutex::new(None),
        }))
    }

    /// Cuts the connection for good.
    pub(crate) fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// Returns the last grant that got through.
    pub(crate) fn last_grant(&self) -> Option<Grant> {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store if the connection works. Otherwise returns an error after the limit of the
    /// call.
    fn through(&self, limit: Duration) -> Result<&dyn LeaseStore, StoreError> {
        if self.0.cut.load(Ordering::SeqCst) {
            thread::sleep(limit);
            let why = format!("no answer within {} ms", limit.as_millis());
            return Err(StoreError::Unavailable(why));
        }
        Ok(self.0.store.as_ref())
    }
}

impl LeaseStore for Cable {
    fn destination(&self, name: &str) -> Destination {
        self.0.store.destination(name)
    }

    fn longest_lease(&self) -> Duration {
        self.0.store.longest_lease()
    }

    fn can_share(&self) -> bool {
        self.0.store.can_share()
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(async move {
            let store = self.through(limit)?;
            let sent = now();
            let answers = store.acquire(destination, batch, limit).await?;
            let answered = now();
            for answer in &answers {
                if let Ok(Acquired::Granted { token, .. }) = *answer {
                    let grant = Grant {
                        token,
                        sent,
                        answered,
                    };
                    *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
                }
            }
            Ok(answers)
        })
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let store = self.through(limit)?;
            store.renew(destination, batch, limit).await
        })
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(async move {
            let store = self.through(limit)?;
            store.release(destination, batch, limit).await
        })
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        self.0.store.watch(name, waker)
    }
}
