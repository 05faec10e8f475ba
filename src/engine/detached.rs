//! A run that goes on after its worker has started it, on an async runtime.
//!
//! To everybody else it runs as ever: until it is settled its key is Running, with all that this
//! means for cancelling, arming and waiting. Whoever has the [`Detached`] has the run, and settles
//! it by dropping that: at its end, in a panic, or when its runtime throws it away.

use super::{Engine, Face, inside};
use crate::shard::{EntryId, when_unlocked};
use crate::sync::Arc;

/// A run that is settled when this is dropped.
pub(crate) struct Detached<F: Face> {
    engine: Arc<Engine<F>>,
    stripe: u32,
    id: EntryId,
    panicked: bool,
}

impl<F: Face> Detached<F> {
    /// Of a run that its worker will not settle.
    pub(crate) fn new(engine: &Arc<Engine<F>>, stripe: u32, id: EntryId) -> Self {
        Detached {
            engine: Arc::clone(engine),
            stripe,
            id,
            panicked: false,
        }
    }

    /// Does a part of what there is to do: it counts as inside the run.
    pub(crate) fn proceed<R>(&self, part: impl FnOnce() -> R) -> R {
        let run = Some((self.stripe, self.id));
        let _inside = inside::Inside::enter_run(self.engine.tag(), run);
        part()
    }

    /// It ends by a panic.
    pub(crate) fn panicked(&mut self) {
        self.panicked = true;
    }
}

impl<F: Face> Drop for Detached<F> {
    fn drop(&mut self) {
        let (stripe, id, panicked) = (self.stripe, self.id, self.panicked);
        let engine = Arc::clone(&self.engine);
        when_unlocked(move || engine.settle(stripe, id, panicked));
    }
}

impl<F: Face> std::fmt::Debug for Detached<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached")
            .field("stripe", &self.stripe)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
