//! The bounds on the calls that wait for one thread.

use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The number of calls that may wait for one thread.
const MOST_CALLS: usize = 65_536;

/// The bytes of the keys and payloads that may wait for one thread.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// The calls that wait for one thread. A call, or a batch of them, that comes while both numbers
/// are below their bounds is taken as a whole, so that one large call is never refused for its
/// size.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    // Relaxed, everywhere: the numbers bound memory, and need not be exact.
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

impl Capacity {
    /// Why no call is taken now.
    pub(super) fn refusal(&self) -> Option<String> {
        // Relaxed: see the fields.
        if self.calls.load(Ordering::Relaxed) >= MOST_CALLS {
            return Some(format!("{MOST_CALLS} calls wait for the store already"));
        }
        // Relaxed: see the fields.
        let is_full = self.bytes.load(Ordering::Relaxed) >= MOST_BYTES;
        is_full.then(|| {
            let megabytes = MOST_BYTES >> 20;
            format!("calls with {megabytes} MiB wait for the store already")
        })
    }

    /// Reserves what a call with this number of bytes takes.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        // Relaxed, twice: see the fields.
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Reservation {
            capacity: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn calls(&self) -> usize {
        // Relaxed: see the fields.
        self.calls.load(Ordering::Relaxed)
    }
}

/// What a waiting call takes, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    capacity: Arc<Capacity>,
    bytes: usize,
}

impl Reservation {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Relaxed, twice: see the fields of the capacity.
        let calls = self.capacity.calls.fetch_sub(1, Ordering::Relaxed);
        let bytes = self.capacity.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(calls > 0 && bytes >= self.bytes, "it was reserved");
    }
}
