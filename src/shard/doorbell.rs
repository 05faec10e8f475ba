//! When the ticker sleeps, who wakes it, and why no earlier deadline is slept through.
//!
//! A ticker that goes to sleep promises to wake at a moment; 0 means that it is awake. A producer
//! that published something earlier rings.
//!
//! ```text
//! ticker                                   producer
//!  T1  promise = at                         P1  publish (next_due lowered, backlog raised, stop set)
//!  T2  fence(SeqCst)                        P2  fence(SeqCst)
//!  T3  look again; found: awake, go on      P3  read promise; due < promise: fetch_min, unpark
//!  T4  park until `at`
//! ```
//!
//! T2 and P2 are totally ordered. If T2 is first, P3 sees T1's promise (or a later one) and rings;
//! if P2 is first, T3 sees what P1 published. The unpark leaves a token, so it is not lost between
//! T3 and T4. `fetch_min` makes the promise the earlier moment, so that the next producer with a
//! deadline between the two need not ring: the ticker is about to wake and looks at everything.
//! A deadline that is later than the promise never wakes a thread.
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

    /// P2, P3: rings if the ticker sleeps past `due`. To be called after publishing, without a
    /// lock.
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

    /// T1, T2: after this the ticker must look again at everything that `ring_for` is called for.
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
