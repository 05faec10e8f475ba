//! The span of a run, for the crate `tracing`. Feature `tracing`.
//!
//! A subscriber is code of the user. It is called on the thread of the handler and without a lock.
//! If it panics, the run goes on without its span.

use std::mem::replace;

use tracing::field::Empty;
use tracing::span::Id;
use tracing::{Dispatch, Span, info_span};

use crate::store::{ClaimedRun, Meta, StoreTime};
use crate::sync::{Mutex, catch_panic};

/// The span of a run, until the run has ended.
#[derive(Debug)]
pub(super) struct RunSpan(Mutex<Span>);

impl RunSpan {
    /// Makes the span of a run that starts now. It has no parent in this process: that is what
    /// scheduled the timer, perhaps elsewhere.
    pub(super) fn new(claimed: &ClaimedRun, now: StoreTime) -> Self {
        let span = catch_panic(|| {
            let run = &claimed.run;
            // It is read only if somebody asks for the span.
            let traceparent = || claimed.payload.meta.as_ref().and_then(Meta::traceparent);
            info_span!(
                target: "tourbillon_durable",
                parent: None,
                "run",
                queue = &*run.queue,
                key = &*run.key,
                attempt = run.attempt,
                lateness = ?now.since(claimed.due),
                traceparent = traceparent(),
                outcome = Empty,
            )
        });
        RunSpan(Mutex::new(span.unwrap_or_else(|_| Span::none())))
    }

    /// Returns the span. After the end of the run it is none.
    pub(super) fn get(&self) -> Span {
        self.0.lock().clone()
    }

    /// Runs a part of the run within the span.
    pub(super) fn within<R>(&self, part: impl FnOnce() -> R) -> R {
        let span = self.get();
        if span.is_none() {
            return part();
        }
        tell(&span, Dispatch::enter);
        let _entered = Entered(span);
        part()
    }

    /// Ends the span. Clones of it that a user keeps do so later.
    pub(super) fn end(&self, outcome: &str) {
        let span = replace(&mut *self.0.lock(), Span::none());
        let _ = catch_panic(|| {
            span.record("outcome", outcome);
        });
        let _ = catch_panic(|| drop(span));
    }
}

/// Leaves the span, also if the handler panics.
struct Entered(Span);

impl Drop for Entered {
    fn drop(&mut self) {
        tell(&self.0, Dispatch::exit);
        let span = replace(&mut self.0, Span::none());
        let _ = catch_panic(|| drop(span));
    }
}

fn tell(span: &Span, what: fn(&Dispatch, &Id)) {
    let _ = catch_panic(|| span.with_subscriber(|(id, dispatch)| what(dispatch, id)));
}
