//! A run that continues on an async runtime after its worker has started it.
//!
//! For everybody else it is an ordinary run. Until it is completed its key is Running, with the
//! usual rules for cancelling, arming and waiting. The [`Detached`] value owns the run and
//! completes it when it is dropped: at the end of the future, after a panic, or when the runtime
//! discards the future.

use super::{Engine, Frontend, task_scope};
use crate::job::AtLock;
use crate::shard::{EntryId, when_unlocked};
use crate::sync::Arc;

/// Owns a run and completes it on drop.
pub(crate) struct Detached<F: Frontend> {
    engine: Arc<Engine<F>>,
    stripe: u32,
    id: EntryId,
    panicked: bool,
}

impl<F: Frontend> Detached<F> {
    /// Takes over a run that its worker will not complete.
    pub(crate) fn new(engine: &Arc<Engine<F>>, stripe: u32, id: EntryId) -> Self {
        Detached {
            engine: Arc::clone(engine),
            stripe,
            id,
            panicked: false,
        }
    }

    /// Executes a part of the run, which counts as being inside the run.
    pub(crate) fn proceed<R>(&self, part: impl FnOnce() -> R) -> R {
        let run = Some((self.stripe, self.id));
        let _inside = task_scope::TaskScope::enter_run(self.engine.tag(), run);
        part()
    }

    /// Records that the run ended by a panic.
    pub(crate) fn panicked(&mut self) {
        self.panicked = true;
    }
}

impl<F: Frontend> Drop for Detached<F> {
    fn drop(&mut self) {
        let (stripe, id, panicked) = (self.stripe, self.id, self.panicked);
        // The drop may happen under a lock of another engine, and completing a run takes a lock.
        let engine = Arc::clone(&self.engine);
        when_unlocked(move || engine.complete(stripe, id, panicked, &AtLock::default()));
    }
}

impl<F: Frontend> std::fmt::Debug for Detached<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached")
            .field("stripe", &self.stripe)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
