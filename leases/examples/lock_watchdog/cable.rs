//! The way to a store, which can be cut: then nothing comes through, and no answer either, as from a
//! network that is gone or by a holder that is dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use tourbillon::{Clock, Time};
use tourbillon_leases::{
    Acquired, Claim, Destination, LeaseStore, Outcome, Released, Renewal, StoreError, Watch,
};

/// A holder's cable to the store. Clones are one cable.
#[derive(Clone)]
pub(crate) struct Cable(Arc<Parts>);

struct Parts {
    store: Arc<dyn LeaseStore>,
    clock: Clock,
    cut: AtomicBool,
    last: Mutex<Option<Grant>>,
}

/// A grant, as seen from this end of the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// The moment before the call that was granted was sent.
    pub(crate) sent: Time,
    /// The moment after its answer had come.
    pub(crate) answered: Time,
}

impl Cable {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, clock: Clock) -> Self {
        Cable(Arc::new(Parts {
            store,
            clock,
            cut: AtomicBool::new(false),
            last: Mutex::new(None),
        }))
    }

    /// Cuts it, for good.
    pub(crate) fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// The last grant that came through.
    pub(crate) fn last_grant(&self) -> Option<Grant> {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, if something comes through; else an error after the time that a call has.
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

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        let store = self.through(limit)?;
        let sent = self.0.clock.now();
        let answer = store.acquire(claim, limit)?;
        let answered = self.0.clock.now();
        if let Acquired::Granted { token } = answer {
            let grant = Grant {
                token,
                sent,
                answered,
            };
            *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
        }
        Ok(answer)
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        self.through(limit)?.renew(destination, batch, limit)
    }

    fn release(&self, name: &str, owner: &str, limit: Duration) -> Result<Released, StoreError> {
        self.through(limit)?.release(name, owner, limit)
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        self.0.store.watch(name, waker)
    }
}
