//! How a ticker sleeps, which threads wake it, and why it never sleeps past an earlier deadline.
//!
//! A ticker that goes to sleep promises to wake at a moment; 0 means that it is awake. A producer
//! that has published an earlier moment rings the bell.
//!
//! ```text
//! ticker                                   producer
//!  promise = at                             publish (next_due lowered, backlog raised, stop set)
//!  fence(SeqCst)                            fence(SeqCst)
//!  check again; found: awake, go on         read promise; due < promise: swap 0; was > 0: ring
//!  sleep until `at`
//! ```
//!
//! The two fences are totally ordered:
//!
//! - If the ticker's fence is first, the producer reads that promise (or a later one) and rings.
//! - If the producer's fence is first, the ticker's check sees the published state.
//!
//! A ring is noted until the ticker's thread takes it (BELL-1), so it is not lost between the check
//! and the sleep. The producer that rings marks the ticker as awake, so the next one need not ring:
//! the ticker is about to look at everything. So a sleep ends with one ring at most. A deadline that
//! is later than the promise never wakes a thread.
//!
//! | what wakes a sleeping ticker | where |
//! |---|---|
//! | a stripe of its shard has become due earlier | `Shards::ring` |
//! | a timer is due at once: the ticker has to watch the pool, or to hand the ticket over | `Engine::inject` |
//! | it stopped collecting at the bound of unclaimed tickets, and half of them are claimed | `Backlog::claimed` |
//! | a wait that a task awaits has an earlier limit | `Engine::begin_limit` |
//! | the engine stops | `Engine::stop` |
//! | a shutdown has no thread of its own | `Engine::leave_to_tickers` |
//!
//! The promise is only written by read-modify-write operations. A plain store by the ticker would
//! be correct: it overwrites a producer's lower value in any case. But the model checker orders a
//! store after the read-modify-writes of other threads only if the storing thread has read them. It
//! would let a producer see its own old value forever.

#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
use std::task::Waker;

#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{OnceLock, Ring};
use crate::tick::Time;
#[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
use crate::waker::leave;

/// The promise of one ticker, and the bell of its thread.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// The moment at which the ticker wakes, in nanoseconds of the clock; 0 while it is awake.
    promise: AtomicU64,
    /// Set once, before the ticker's first step. A ticker that a test steps has none.
    ring: OnceLock<Ring>,
    /// The task that steps the ticker, if a task does.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    task: Mutex<Waker>,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Doorbell {
            promise: AtomicU64::new(0),
            ring: OnceLock::new(),
            #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
            task: Mutex::new(Waker::noop().clone()),
        }
    }

    /// Sets the bell that is rung from now on. It can be set once, before anybody else has the
    /// ticker. Until its first step it counts as asleep for ever.
    pub(crate) fn rings(&self, ring: Ring) {
        let is_first = self.ring.set(ring).is_ok();
        debug_assert!(is_first, "a ticker has one thread");
        // Relaxed: whoever gets the engine gets this, too.
        self.promise.swap(u64::MAX, Ordering::Relaxed);
    }

    /// Returns the bell that is rung.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        self.ring.get()
    }

    /// Makes the bell wake this task. The task must step the ticker afterwards, which promises
    /// anew.
    #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
    pub(crate) fn wakes(&self, task: &Waker) {
        leave(task, |show| show(&mut self.task.lock()));
    }

    /// Wakes the ticker if it sleeps past `due`. The caller has published its change and holds no
    /// lock.
    pub(crate) fn ring_for(&self, due: Time) {
        // Pairs with the fence in `promise`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fences, see the head.
        if due.as_nanos() < self.promise.load(Ordering::Relaxed) {
            // Relaxed: as above; a read-modify-write sees the newest promise.
            let before = self.promise.swap(0, Ordering::Relaxed);
            // Of several producers, only the one that takes the promise wakes the ticker.
            if before > 0 {
                self.wake();
            }
        }
    }

    fn wake(&self) {
        if let Some(ring) = self.ring() {
            ring.ring();
        }
        #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
        {
            let task = self.task.lock().clone();
            task.wake();
        }
    }

    /// Promises to wake at `at`. After this call, the ticker must check everything again that
    /// `ring_for` is called for.
    pub(crate) fn promise(&self, at: Time) {
        // Relaxed: ordered by the fence. An `at` of 0 would mean "awake": no producer would ring,
        // and the ticker must not sleep then.
        self.promise.swap(at.as_nanos(), Ordering::Relaxed);
        // Pairs with the fence in `ring_for`.
        fence(Ordering::SeqCst);
    }

    /// Marks the ticker as awake. It checks everything before it promises again.
    pub(crate) fn awake(&self) {
        // Relaxed: a producer that still sees the old promise rings once in vain.
        self.promise.swap(0, Ordering::Relaxed);
    }

    /// Returns the moment of the promise, or `None` while the ticker is awake.
    pub(crate) fn promised(&self) -> Option<Time> {
        // Relaxed: only read for people and probes.
        let promise = self.promise.load(Ordering::Relaxed);
        (promise > 0).then(|| Time::from_nanos(promise))
    }
}
