//! Counts dropped values: a task that captures a mark has been dropped when its mark has been
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes marks and counts the dropped ones. Clones share one count.
#[derive(Clone, Default, Debug)]
pub struct Drops(Arc<AtomicUsize>);

impl Drops {
    /// A new mark, for a task to capture.
    pub fn mark(&self) -> Mark {
        Mark(self.clone())
    }

    /// The number of marks that have been dropped.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Adds one to the count when it is dropped.
#[derive(Debug)]
pub struct Mark(Drops);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}
