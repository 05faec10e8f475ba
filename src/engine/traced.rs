//! Runs and faults of an engine, as `tracing` is told of them. See `trace.rs`.

use std::time::Duration;

use super::faults::Faults;
use super::{Engine, Frontend, RunInfo, RunOutcome, Server};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::trace::{self, RunSpan, Source};

/// The faults that were told, by their counters in [`Faults`].
#[derive(Debug, Default)]
pub(super) struct Told {
    spawn: AtomicU64,
    refused: AtomicU64,
    ticker: AtomicU64,
    saturated: AtomicU64,
    stalled: AtomicU64,
}

impl Told {
    /// The faults with their texts, and how many of each were told.
    fn all<'a>(&'a self, faults: &'a Faults) -> [(&'a AtomicU64, &'a AtomicU64, &'static str); 5] {
        [
            (
                &faults.spawn,
                &self.spawn,
                "the system has refused a thread for a worker",
            ),
            (
                &faults.refused,
                &self.refused,
                "the executor has refused or dropped a batch of tasks, which are due again",
            ),
            (
                &faults.ticker,
                &self.ticker,
                "something has panicked on the thread of a ticker, which goes on",
            ),
            (
                &faults.saturated,
                &self.saturated,
                "tasks wait while as many run as `max_running` allows",
            ),
            (
                &faults.stalled,
                &self.stalled,
                "a ticker has stalled, since 65,536 due tasks of it wait for workers",
            ),
        ]
    }
}

impl<F: Frontend> Engine<F> {
    fn source<'a>(&'a self, key: &'a F::Key) -> Source<'a, F::Key> {
        Source {
            kind: F::KIND,
            name: self.name(),
            key: self.frontend.show_key().map(|show| (key, show)),
        }
    }

    /// Makes the span of a run.
    pub(crate) fn run_span(&self, key: &F::Key, lateness: Duration) -> RunSpan {
        RunSpan::new(&self.source(key), lateness)
    }

    /// Warns of a panic of a task.
    pub(crate) fn tell_panic(&self, key: &F::Key, message: &str) {
        if trace::hears_warnings() {
            trace::panicked(&self.source(key), message);
        }
    }

    /// Whether a run is to be traced.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        trace::hears_spans() || self.slow_task.is_some()
    }

    /// Tells what went wrong since it was told last: on a worker, without a lock, since the thread
    /// that has noted it may be a ticker, or hold a lock.
    #[inline]
    pub(super) fn tell_faults(&self) {
        if trace::hears_warnings() {
            self.tell_new_faults();
        }
    }

    #[inline(never)]
    fn tell_new_faults(&self) {
        for (count, told, what) in self.told.all(self.faults()) {
            // Relaxed: counts. Of two workers that find the same faults, one tells them.
            let now = count.load(Ordering::Relaxed);
            if told.load(Ordering::Relaxed) < now {
                let before = told.fetch_max(now, Ordering::Relaxed);
                let times = now.saturating_sub(before);
                if times > 0 {
                    let source = Source {
                        kind: F::KIND,
                        name: self.name(),
                        key: None,
                    };
                    trace::fault(&source, times, what);
                }
            }
        }
    }
}

impl<F: Frontend> Server<F> {
    /// Runs a payload, within a span if somebody listens to that.
    #[inline]
    pub(super) fn run_traced(
        &self,
        info: &RunInfo<'_, F::Key>,
        payload: F::Payload,
    ) -> RunOutcome<F::Payload> {
        match self.engine().is_traced() {
            true => self.run_within_span(info, payload),
            false => F::run_to_its_end(&self.access, info, payload),
        }
    }

    /// Runs a payload within a span, and warns if it takes long. A payload that only spawns a future
    /// has its span there.
    #[cold]
    #[inline(never)]
    fn run_within_span(
        &self,
        info: &RunInfo<'_, F::Key>,
        payload: F::Payload,
    ) -> RunOutcome<F::Payload> {
        let engine = self.engine();
        let access = &self.access;
        if F::is_span_elsewhere(access, &payload) {
            return F::run_to_its_end(access, info, payload);
        }
        let outcome = {
            let span = engine.run_span(info.key, info.started.since(info.deadline));
            span.within(|| F::run_to_its_end(access, info, payload))
        };
        if let Some(bound) = engine.slow_task {
            let took = engine.now().since(info.started);
            if took >= bound && trace::hears_warnings() {
                trace::slow(&engine.source(info.key), took);
            }
        }
        outcome
    }
}
