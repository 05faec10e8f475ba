//! How many callers of a destination are noted as gone at one time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::store::Destination;
use crate::sync::{Arc, Mutex};

/// The number of such calls for one destination. If as many hang, the workers, and the threads of a
/// store that blocks, are left to others.
const MOST_LEAVING: usize = 8;

/// Counts the calls by destination.
#[derive(Default)]
pub(super) struct Leaving(Arc<Mutex<BTreeMap<Destination, usize>>>);

impl Leaving {
    /// Counts a call until the returned value is dropped. Returns `None` if [`MOST_LEAVING`] run.
    pub(super) fn begin(&self, destination: Destination) -> Option<Leaves> {
        let mut counts = self.0.lock();
        let running = counts.entry(destination).or_default();
        if *running == MOST_LEAVING {
            return None;
        }
        *running += 1;
        drop(counts);
        Some(Leaves {
            counts: Arc::clone(&self.0),
            destination,
        })
    }
}

/// One call.
pub(super) struct Leaves {
    counts: Arc<Mutex<BTreeMap<Destination, usize>>>,
    destination: Destination,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Entry::Occupied(mut running) = counts.entry(self.destination) {
            *running.get_mut() -= 1;
            if *running.get() == 0 {
                running.remove();
            }
        }
    }
}
