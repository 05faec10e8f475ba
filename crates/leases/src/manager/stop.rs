//! What somebody outside has of a caller's wait: it can be ended, while everything else of the same
//! leases goes on, and it says why the store grants nothing.

use std::task::Waker;

use tourbillon::Time;

use crate::store::{StoreError, WaitQueue, Watch};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Ends waits, for good.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    stopped: AtomicBool,
    waiting: WaitQueue,
    /// What the waits hear of the store.
    failing: StoreFailures,
}

impl StopSignal {
    pub(crate) fn stop(&self) {
        // Release: whoever sees it also sees what was done before. The flag is set before the
        // waiting callers are woken, and they look at it after they have registered. The lock of
        // the queue puts the two in an order, so a caller is woken or sees the flag.
        self.stopped.store(true, Ordering::Release);
        self.waiting.all_may_be_free();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire: pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Notes an answer of the store to a wait, if somebody outside has its signal.
    pub(super) fn hears(stop: Option<&Self>, error: Option<&StoreError>, now: Time) {
        if let Some(stop) = stop {
            stop.failing.note(error, now);
        }
    }

    /// Returns how the store fails the waits.
    pub(crate) fn failing(&self) -> &StoreFailures {
        &self.failing
    }

    /// Wakes `waker` at the stop, until the returned value is dropped.
    pub(super) fn watch(&self, waker: &Waker) -> Box<dyn Watch> {
        self.waiting.watch("", waker)
    }
}

/// How a store fails, since it last answered.
#[derive(Debug, Default)]
pub(crate) struct StoreFailures(Mutex<Option<StoreFailure>>);

/// The last failure of a store, and when the first one of its row was.
#[derive(Clone, Debug)]
pub(crate) struct StoreFailure {
    pub(crate) since: Time,
    pub(crate) error: StoreError,
}

impl StoreFailures {
    /// Notes an answer, or how the store has failed. Returns whether that is another failure than
    /// the last one.
    pub(crate) fn note(&self, error: Option<&StoreError>, now: Time) -> bool {
        let mut failing = self.0.lock();
        let Some(error) = error else {
            *failing = None;
            return false;
        };
        let is_new = failing.as_ref().is_none_or(|last| last.error != *error);
        let since = failing.as_ref().map_or(now, |last| last.since);
        *failing = Some(StoreFailure {
            since,
            error: error.clone(),
        });
        is_new
    }

    /// Returns the last failure, if the store has not answered since.
    pub(crate) fn get(&self) -> Option<StoreFailure> {
        self.0.lock().clone()
    }
}
