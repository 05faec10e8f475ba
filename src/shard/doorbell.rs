//! When the ticker sleeps, who wakes it, and why no earlier deadline is slept through.
//!
//! A ticker that goes to sleep promises to wake at a moment; 0 means that it is awake. A producer
//! that published something earlier rings.
//!
//! ```text
//! ticker                                   producer
//!  promise = at                             publish (next_due lowered, backlog raised, stop set)
//!  fence(SeqCst)                            fence(SeqCst)
//!  look again; found: awake, go on          read promise; due < promise: fetch_min, unpark
//!  park until `at`
//! ```
//!
//! The two fences are totally ordered. If the ticker's is first, the producer reads that promise
//! (or a later one) and rings. If the producer's is first, the ticker's look sees what was
//! published. The unpark leaves a token, so it is not lost between the look and the park.
//! `fetch_min` makes the promise the earlier moment, so that the next producer with a deadline
//! between the two need not ring: the ticker is about to wake and looks at everything. A deadline
//! that is later than the promise never wakes a thread.
//!
//! The promise is only ever written by read-modify-writes. The ticker could store: what a producer
//! lowered before is overwritten in any case. But the checker places a store after the others'
//! read-modify-writes only if it has read them, and would let a producer go on seeing its own.

use crate::sync::Unparker;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::tick::Time;

/// One ticker's promise, and the means to wake it.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// Nanoseconds of the clock; 0 while the ticker is awake.
    promise: AtomicU64,
    ticker: Unparker,
}

impl Doorbell {
    pub(crate) fn new(ticker: Unparker) -> Self {
        Doorbell {
            promise: AtomicU64::new(0),
            ticker,
        }
    }

    /// Rings if the ticker sleeps past `due`. To be called after publishing, without a lock.
    pub(crate) fn ring_for(&self, due: Time) {
        // Pairs with the fence in `promise`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fences, see the head.
        if due.as_nanos() < self.promise.load(Ordering::Relaxed) {
            // Relaxed: as above; being a read-modify-write it sees the newest promise.
            let before = self.promise.fetch_min(due.as_nanos(), Ordering::Relaxed);
            if due.as_nanos() < before {
                self.ticker.unpark();
            }
        }
    }

    /// Promises to wake at `at`. After this the ticker must look again at everything that
    /// `ring_for` is called for.
    pub(crate) fn promise(&self, at: Time) {
        // Relaxed: ordered by the fence. An `at` of 0 would mean awake: then nobody rings, and the
        // ticker must not sleep.
        self.promise.swap(at.as_nanos(), Ordering::Relaxed);
        // Pairs with the fence in `ring_for`.
        fence(Ordering::SeqCst);
    }

    /// The ticker is up and will look before it promises again.
    pub(crate) fn awake(&self) {
        // Relaxed: who still sees the old promise rings once for nothing.
        self.promise.swap(0, Ordering::Relaxed);
    }
}
