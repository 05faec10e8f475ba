//! Spans and warnings for the crate `tracing`. This is the only file that names it. Feature `tracing`.
//!
//! A subscriber is code of the user: it may take locks, call the scheduler, block or panic. So
//!
//! - spans are entered and warnings are sent on threads that run tasks, without a lock of this
//!   crate. A ticker notes what it finds, and the next worker tells it
//!   (`Engine::tell_faults`). With inline execution these are the same thread, and user code is on
//!   it anyway.
//! - each call of a subscriber is under `catch_panic`: a run gets to its end in any case.
//! - if nobody listens at the level in question, there is one load and one branch. Nothing is made.

use std::fmt;
use std::mem::replace;
use std::time::Duration;

use tracing::span::Id;
use tracing::{Dispatch, Level, Span, debug_span, warn};

use crate::job::catch_panic;

/// Writes a key.
pub(crate) type ShowKey<K> = fn(&K, &mut fmt::Formatter<'_>) -> fmt::Result;

/// A key, as it is shown if the user has asked for that.
struct Shown<'a, K>(&'a K, ShowKey<K>);

impl<K> fmt::Debug for Shown<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1(self.0, f)
    }
}

/// What a run or a fault belongs to.
#[derive(Debug)]
pub(crate) struct Source<'a, K> {
    /// The type of the front end: `scheduler`, `map` or `timer`.
    pub(crate) kind: &'static str,
    /// The name that the builder was given.
    pub(crate) name: Option<&'a str>,
    /// The key, and how it is shown. Keys may be secrets, so by default they are not.
    pub(crate) key: Option<(&'a K, ShowKey<K>)>,
}

impl<'a, K> Source<'a, K> {
    fn shown(&self) -> Option<tracing::field::DebugValue<Shown<'a, K>>> {
        self.key
            .map(|(key, show)| tracing::field::debug(Shown(key, show)))
    }
}

/// Whether somebody listens to spans of runs.
#[inline]
pub(crate) fn hears_spans() -> bool {
    tracing::level_enabled!(Level::DEBUG)
}

/// Whether somebody listens to warnings.
#[inline]
pub(crate) fn hears_warnings() -> bool {
    tracing::level_enabled!(Level::WARN)
}

/// The span of a run.
#[derive(Debug)]
pub(crate) struct RunSpan(Span);

impl RunSpan {
    /// Makes the span of a run that was late by `lateness`.
    pub(crate) fn new<K>(source: &Source<'_, K>, lateness: Duration) -> Self {
        if !hears_spans() {
            return RunSpan(Span::none());
        }
        let span = catch_panic(|| {
            debug_span!(
                target: "tourbillon",
                "run",
                r#type = source.kind,
                name = source.name,
                key = source.shown(),
                ?lateness,
            )
        });
        RunSpan(span.unwrap_or_else(|_| Span::none()))
    }

    /// Runs a part of the run within the span. `part` must not panic.
    pub(crate) fn within<R>(&self, part: impl FnOnce() -> R) -> R {
        self.tell(Dispatch::enter);
        let result = part();
        self.tell(Dispatch::exit);
        result
    }

    /// Tells the subscriber of the span.
    fn tell(&self, what: fn(&Dispatch, &Id)) {
        let told = || self.0.with_subscriber(|(id, dispatch)| what(dispatch, id));
        let _ = catch_panic(told);
    }
}

impl Drop for RunSpan {
    fn drop(&mut self) {
        let span = replace(&mut self.0, Span::none());
        let _ = catch_panic(|| drop(span));
    }
}

/// Warns of a task that panicked.
#[cold]
pub(crate) fn panicked<K>(source: &Source<'_, K>, message: &str) {
    let _ = catch_panic(|| {
        warn!(
            target: "tourbillon",
            r#type = source.kind,
            name = source.name,
            key = source.shown(),
            panic = message,
            "a task has panicked",
        );
    });
}

/// Warns of a task that took long.
#[cold]
pub(crate) fn slow<K>(source: &Source<'_, K>, took: Duration) {
    let _ = catch_panic(|| {
        warn!(
            target: "tourbillon",
            r#type = source.kind,
            name = source.name,
            key = source.shown(),
            ?took,
            "a task was slow",
        );
    });
}

/// Warns of something that has happened `times` times since it was told last.
#[cold]
pub(crate) fn fault(source: &Source<'_, ()>, times: u64, what: &'static str) {
    let _ = catch_panic(|| {
        warn!(
            target: "tourbillon",
            r#type = source.kind,
            name = source.name,
            times,
            "{what}",
        );
    });
}
