//! Counts the drops of what a test marked: a payload is freed when its mark is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes marks and counts those that are gone.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<AtomicUsize>);

impl Drops {
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// To be captured by a task.
pub(crate) struct Mark(Drops);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}
