//! A run that continues on an async runtime after its worker has started it.
//!
//! For everybody else it is an ordinary run. Until it is completed its key is Running, with the
//! usual rules for cancelling, arming and waiting. The [`Detached`] value owns the run and
//! completes it when it is dropped: at the end of the future, after a panic, or when the runtime
//! discards the future.
//!
//! A round of a repeating timer is such a run, too. Its payload becomes the successor of the run
//! right before the run is completed.

use super::{Engine, Frontend, task_scope};
use crate::job::{AtLock, catch_panic};
use crate::shard::{EntryId, when_unlocked};
use crate::sync::Arc;
use crate::tick::Time;

/// Owns a run and completes it on drop.
pub(crate) struct Detached<F: Frontend> {
    engine: Arc<Engine<F>>,
    stripe: u32,
    id: EntryId,
    panicked: bool,
    /// The payload of a round that may run again, and when the next round is due.
    round: Option<(F::Payload, Option<Time>)>,
}

impl<F: Frontend> Detached<F> {
    /// Takes over a run that its worker will not complete.
    pub(crate) fn new(engine: &Arc<Engine<F>>, stripe: u32, id: EntryId) -> Self {
        Detached {
            engine: Arc::clone(engine),
            stripe,
            id,
            panicked: false,
            round: None,
        }
    }

    /// Executes a part of the run, which counts as being inside the run.
    pub(crate) fn proceed<R>(&self, part: impl FnOnce() -> R) -> R {
        let run = Some((self.stripe, self.id));
        let _inside = task_scope::TaskScope::enter_run(self.engine.tag(), run);
        part()
    }

    /// Executes a part of the run that `holder` owns, which is user code. A panic is told by `tell`
    /// and recorded. `run` finds the place of the run in the holder. The place is empty if the part
    /// belongs to another run.
    pub(crate) fn proceed_catching<T, R>(
        holder: &mut T,
        run: impl Fn(&mut T) -> &mut Option<Self>,
        part: impl FnOnce(&mut T) -> R,
        tell: impl FnOnce(&T, &str),
    ) -> Option<R> {
        // Taken out meanwhile, since it is entered while the part has the rest.
        let mut taken = run(holder).take();
        let part = || {
            let ended = catch_panic(|| part(holder));
            if let Err(message) = &ended {
                let _ = catch_panic(|| tell(holder, message));
            }
            ended.ok()
        };
        let ended = match &taken {
            Some(run) => run.proceed(part),
            None => part(),
        };
        if ended.is_none()
            && let Some(run) = &mut taken
        {
            run.panicked = true;
        }
        *run(holder) = taken;
        ended
    }

    /// Sets the payload of a round that may run again, and when the next round is due; `None` if
    /// there is none.
    pub(crate) fn set_next(&mut self, payload: F::Payload, next: Option<Time>) {
        self.round = Some((payload, next));
    }
}

impl<F: Frontend> Drop for Detached<F> {
    fn drop(&mut self) {
        let (stripe, id, panicked) = (self.stripe, self.id, self.panicked);
        // The drop may happen under a lock of another engine, and completing a run takes a lock.
        let engine = Arc::clone(&self.engine);
        let round = self.round.take();
        when_unlocked(move || {
            if let Some((payload, next)) = round {
                // A payload that does not run again is dropped here, which is user code of the run.
                let _inside = task_scope::TaskScope::enter_run(engine.tag(), Some((stripe, id)));
                engine.go_on(stripe, id, payload, next, &AtLock::default());
            }
            engine.complete(stripe, id, panicked, &AtLock::default());
            // A task that steps this engine may wait for the end of its runs.
            if engine.is_stepped() && !engine.is_forked() {
                engine.shards().shard(0).bell.ring_for(Time::ZERO);
            }
        });
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
