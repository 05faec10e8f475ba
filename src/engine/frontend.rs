//! What a front end defines: the payload of a timer, and how it runs. And what it is told of a run.

use std::num::NonZeroUsize;

use super::Engine;
use crate::clock::ClaimReading;
use crate::job::catch_panic;
use crate::shard::{EntryId, Start, Taken};
use crate::sync::Arc;
use crate::tick::Time;

/// The facts about a run that the front end gets.
#[derive(Debug)]
pub(crate) struct RunInfo<'a, K> {
    pub(crate) key: &'a K,
    pub(crate) stripe: u32,
    pub(crate) id: EntryId,
    pub(crate) deadline: Time,
    pub(crate) started: Time,
}

/// One run of a batch.
#[derive(Debug)]
pub(crate) struct Batched<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) deadline: Time,
    pub(crate) started: Time,
}

/// The outcome of a run, when the call that began it has returned.
#[derive(Debug)]
pub(crate) enum RunOutcome<P> {
    /// The run has ended.
    Done { panicked: bool },
    /// The run has ended, and its payload may run again.
    Repeat {
        panicked: bool,
        payload: P,
        /// The deadline of the next run, or `None` if there is none.
        next: Option<Time>,
    },
    /// The run continues elsewhere, and is completed there.
    Detached,
}

/// The types of a front end. They are apart from [`Frontend`], so that a struct can hold an engine
/// without bounds on its type parameters.
pub(crate) trait FrontendTypes: Sized {
    /// The key of a timer; `()` where timers have no key.
    type Key;
    /// The payload, stored inline in the entry.
    type Payload;
    /// What a run needs of the engine, for example a handle. Made once per engine.
    type Access;
}

/// A front end of the engine: it defines the payload and how the payload runs.
pub(crate) trait Frontend:
    FrontendTypes<
        Key: Clone + Send + 'static,
        Payload: Send + 'static,
        Access: Send + Sync + 'static,
    > + Send
    + Sync
    + 'static
{
    /// What spans and warnings call it.
    #[cfg(feature = "tracing")]
    const KIND: &'static str = "timer";

    /// How spans and warnings show a key, if the user has asked for that.
    #[cfg(feature = "tracing")]
    fn show_key(&self) -> Option<crate::trace::ShowKey<Self::Key>> {
        None
    }

    /// Whether the payload only spawns a future, which makes the span of the run.
    #[cfg(feature = "tracing")]
    fn is_span_elsewhere(_: &Self::Access, payload: &Self::Payload) -> bool {
        Self::is_light(payload)
    }

    /// Whether [`ended`](Self::ended) does anything.
    const ENDS: bool = false;

    /// Whether there are wake-ups, see [`is_wake_up`](Self::is_wake_up).
    const HAS_WAKE_UPS: bool = false;

    /// Whether payloads may be [light](Self::is_light).
    const LIGHT: bool = false;

    /// Returns whether there may be such a payload.
    fn has_light(&self) -> bool {
        Self::LIGHT
    }

    /// Returns whether the payload only wakes a task or spawns a future. Called under the lock.
    fn is_light(payload: &Self::Payload) -> bool {
        Self::is_wake_up(payload)
    }

    /// Makes the access that all runs share.
    fn access(engine: &Arc<Engine<Self>>) -> Self::Access;

    /// Decides how a claimed payload starts, by an exact reading if by the time at all (READING-6).
    /// Called under the stripe's lock, so it must not run user code.
    fn start(_: &mut Self::Payload, _deadline: Time, _: &mut ClaimReading<'_>) -> Start {
        Start::Once
    }

    /// Returns whether the payload only wakes a task. Its claim frees its entry, so it never runs.
    fn is_wake_up(_: &Self::Payload) -> bool {
        false
    }

    /// Wakes the task of such a payload. Called without a lock and under `catch_unwind`.
    fn wake_up(_: &Self::Access, _: Self::Payload) {}

    /// Reads what the payload points to, so that it is in the cache of this processor when the
    /// payload runs. Called under the stripe's lock, so it must not run user code.
    #[inline]
    fn prefetch(_: &mut Self::Payload) {}

    /// Runs the payload, which is user code. Called without a lock and under `catch_unwind`.
    fn run(access: &Self::Access, info: &RunInfo<'_, Self::Key>, payload: Self::Payload);

    /// The maximum size of a batch, if this front end takes batches by
    /// [`run_batch`](Self::run_batch).
    fn batch(_: &Self::Access) -> Option<NonZeroUsize> {
        None
    }

    /// Runs a batch, which is never empty. A panic is reported for the first of its payloads only.
    fn run_batch(access: &Self::Access, batch: Vec<Batched<Self::Key, Self::Payload>>) {
        let _ = (access, batch);
        unreachable!("only a front end that takes batches is given one");
    }

    /// Runs a payload and does everything that belongs to the run. If the payload may run again,
    /// the answer contains it. Called without a lock. Must not panic.
    #[inline]
    fn run_to_its_end(
        access: &Self::Access,
        info: &RunInfo<'_, Self::Key>,
        payload: Self::Payload,
    ) -> RunOutcome<Self::Payload> {
        let ended = catch_panic(|| Self::run(access, info, payload));
        let panicked = ended.is_err();
        if let Err(message) = ended {
            let _ = catch_panic(|| Self::panicked(access, info, &message));
        }
        RunOutcome::Done { panicked }
    }

    /// Reports that a run panicked. Also called under `catch_unwind`.
    fn panicked(access: &Self::Access, info: &RunInfo<'_, Self::Key>, message: &str);

    /// Removes the payloads that must not wait for running tasks from those that are handed back,
    /// or dropped with the engine. Called once and without a lock, before a shutdown waits for
    /// running tasks. Must not panic.
    fn keep_back(&self, taken: &mut Vec<Taken<Self::Key, Self::Payload>>, handed_back: bool) {
        let _ = (taken, handed_back);
    }

    /// Returns whether a run would find room; `None` if runs need none. Asked where runs make room.
    #[cfg(any(test, feature = "test-util"))]
    fn room(&self) -> Option<bool> {
        None
    }

    /// Called when all gates are closed, perhaps more than once, without a lock. Must not panic.
    fn closing(&self) {}

    /// Called when the engine is closed, nothing is pending and nothing runs any more. This may run
    /// user code: it is called without a lock, and its panic is caught.
    fn ended(&self) {}
}
