//! Bounds the number of futures that handle expired entries.
//!
//! One thread takes places, the map's only worker. Futures end on any thread, and free theirs. The
//! worker finds no place and leaves its handle under one hold of the lock. Under the same lock, a
//! place becomes free and the handle is taken out. So either the worker finds the place, or the
//! place finds the worker. **PLACES-1**

use crate::sync::fork::Origin;
use crate::sync::{Arc, Mutex, Parker, Unparker};

/// The places for futures.
pub(crate) struct Places {
    /// The free places, and the worker that waits for one (PLACES-1). Unpark after unlocking.
    free: Mutex<Free>,
    origin: Origin,
}

struct Free {
    count: usize,
    /// The worker that waits for a place.
    waiting: Option<Unparker>,
}

/// A place for a future. It is free again when this is dropped.
pub(crate) struct Place(Arc<Places>);

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Places {
            free: Mutex::new(Free {
                count,
                waiting: None,
            }),
            origin: Origin::here(),
        }
    }

    /// Takes a place. Waits until there is one.
    pub(crate) fn take(self: &Arc<Self>) -> Place {
        let mut parker = None;
        loop {
            {
                let mut free = self.free.lock();
                if let Some(left) = free.count.checked_sub(1) {
                    free.count = left;
                    return Place(Arc::clone(self));
                }
                // PLACES-1.
                let parker = parker.get_or_insert_with(Parker::new);
                free.waiting = Some(parker.unparker().clone());
            }
            if let Some(parker) = &parker {
                parker.park();
            }
        }
    }

    /// Returns whether a place is free.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn are_free(&self) -> bool {
        self.free.lock().count > 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.origin.is_elsewhere() {
            return;
        }
        let waiting = {
            let mut free = self.0.free.lock();
            free.count += 1;
            // PLACES-1.
            free.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.unpark();
        }
    }
}
