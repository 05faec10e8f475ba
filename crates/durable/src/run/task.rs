//! The life of one run on this node: whether it starts, and what its end means.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::due::{Due, RunInfo};
use super::ending::{Ending, HandlerError};
use super::late::Late;
use super::node_lease::{NodeLease, StoreClock};
use super::queue_options::QueueOptions;
use crate::calls::CompleteError;
use crate::events::{Counters, DurableEvent, EventSink};
use crate::store::{ClaimedRun, Epoch, Outcome, Run, Settled, Settlement, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, catch_panic};

/// For how long a timer is left alone whose payload does not parse.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);

/// For how long a timer is left alone that could not be started here.
const DROPPED_PAUSE: Duration = Duration::from_secs(1);

/// The greatest length of an error that is stored, in bytes.
const LONGEST_ERROR: usize = 4 * 1024;

/// A queue of which nothing was refused for this long begins anew. It is far longer than the pause
/// between two attempts.
const QUIET: Duration = Duration::from_secs(300);

/// The error of a run that called `complete_in` and was not committed.
const NOT_COMMITTED: &str = "complete_in was called, but its transaction was not committed";

/// Takes the end of a run to the node.
pub(crate) type Finish = Box<dyn Fn(Run, Outcome) + Send + Sync>;

/// The state that all runs of a node share.
pub(crate) struct Runs {
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: EventSink,
    pub(crate) store_clock: StoreClock,
    /// That of the store, for transactions that end runs.
    namespace: Arc<str>,
    finish: Finish,
    /// Set at a stop: what has not started is given back.
    is_stopping: AtomicBool,
    /// Runs that have called `complete_in` and returned `Ok`, until they are settled. To be fenced
    /// is a success for them.
    completing: Mutex<HashSet<(Epoch, Run)>>,
    /// When the store has last refused a timer of each queue.
    refused: Mutex<HashMap<Box<str>, Instant>>,
    random: RandomState,
}

impl Runs {
    pub(crate) fn new(
        counters: Arc<Counters>,
        events: EventSink,
        store_clock: StoreClock,
        namespace: Arc<str>,
        finish: Finish,
    ) -> Arc<Self> {
        Arc::new(Runs {
            counters,
            events,
            store_clock,
            namespace,
            finish,
            is_stopping: AtomicBool::new(false),
            completing: Mutex::new(HashSet::new()),
            refused: Mutex::new(HashMap::new()),
            random: RandomState::new(),
        })
    }

    /// From now on no run starts.
    pub(crate) fn stop(&self) {
        // Relaxed: a run that sees it late starts, and has the grace to end.
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        // Relaxed: see `stop`.
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Notes what the store did with the end of a run.
    pub(crate) fn settled(&self, epoch: Epoch, settlement: &Settlement, settled: Settled) {
        if settled == Settled::Locked {
            // It will be asked again.
            return;
        }
        let run = &settlement.run;
        let has_completed = {
            let mut completing = self.completing.lock();
            !completing.is_empty() && completing.remove(&(epoch, run.clone()))
        };
        if has_completed {
            match settled {
                // The row is gone: the transaction has committed.
                Settled::Fenced => return self.counters.of(&run.queue).succeeded.increment(),
                _ => self.failed(run, NOT_COMMITTED.to_owned()),
            }
        }
        match (settled, &settlement.outcome) {
            (Settled::Fenced, _) => {
                self.counters.of(&run.queue).fenced.increment();
                self.events.send(|| DurableEvent::Fenced {
                    queue: run.queue.to_string(),
                    key: run.key.to_string(),
                    attempt: run.attempt,
                });
            }
            // Runs that the node itself gives back are counted, too.
            (Settled::Waits, Outcome::GiveBack(pause)) if *pause != UNREADABLE_PAUSE => {
                self.counters.of(&run.queue).given_back.increment();
            }
            (Settled::Waits, Outcome::Retry(_)) => {
                self.counters.of(&run.queue).retried.increment();
            }
            (Settled::Buried, Outcome::Dead(error)) => {
                self.counters.of(&run.queue).dead.increment();
                self.events.send(|| DurableEvent::Dead {
                    queue: run.queue.to_string(),
                    key: run.key.to_string(),
                    error: error.clone(),
                });
            }
            _ => {}
        }
    }

    /// Forgets runs of lives that are over: nobody settles them any more.
    pub(crate) fn new_epoch(&self, epoch: Epoch) {
        self.completing.lock().retain(|(other, _)| *other == epoch);
    }

    /// Notes that the store does not take the claim or the end of a timer. It is tried again and
    /// again, so only the first refusal of each queue is an event.
    pub(crate) fn refused(&self, queue: &str, key: &str, error: &StoreError) {
        self.counters.of(queue).refused.increment();
        let now = Instant::now();
        let last = self.refused.lock().insert(queue.into(), now);
        if last.is_none_or(|last| now.duration_since(last) >= QUIET) {
            self.events.send(|| DurableEvent::Refused {
                queue: queue.to_owned(),
                key: key.to_owned(),
                error: error.to_string(),
            });
        }
    }

    fn failed(&self, run: &Run, error: String) {
        self.counters.of(&run.queue).failed.increment();
        self.events.send(|| DurableEvent::Failed {
            queue: run.queue.to_string(),
            key: run.key.to_string(),
            attempt: run.attempt,
            error,
        });
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs")
            .field("is_stopping", &self.is_stopping())
            .finish_non_exhaustive()
    }
}

/// A claimed timer that has not started. If it is dropped, it is given back.
pub(crate) struct Task {
    claimed: Option<ClaimedRun>,
    lease: Arc<NodeLease>,
    options: Arc<QueueOptions>,
    runs: Arc<Runs>,
}

impl Task {
    pub(crate) fn new(
        claimed: ClaimedRun,
        lease: &Arc<NodeLease>,
        options: &Arc<QueueOptions>,
        runs: &Arc<Runs>,
    ) -> Self {
        Task {
            claimed: Some(claimed),
            lease: Arc::clone(lease),
            options: Arc::clone(options),
            runs: Arc::clone(runs),
        }
    }

    /// Starts the run, unless it may not start. Then it is settled.
    pub(crate) fn begin<T: DeserializeOwned>(mut self) -> Option<(Due<T>, Running)> {
        let runs = &self.runs;
        if runs.is_stopping() || !self.lease.is_held() {
            // The drop gives it back.
            return None;
        }
        let claimed = self.claimed.take()?;
        let started = runs.store_clock.now();
        if let Late::ExpireAfter(span) = self.options.late
            && started > claimed.planned + span
        {
            self.options.counters.expired.increment();
            let late = started.since(claimed.planned);
            let error = format!("it could start only {late:?} after its planned time");
            (runs.finish)(claimed.run, Outcome::Dead(error));
            return None;
        }
        // Parsing is code of the user.
        let parsed = catch_panic(|| {
            serde_json::from_str::<T>(&claimed.payload).map_err(|error| error.to_string())
        });
        let payload = match parsed.and_then(|parsed| parsed) {
            Ok(payload) => payload,
            Err(error) => {
                self.options.counters.unreadable.increment();
                runs.events.send(|| DurableEvent::Unreadable {
                    queue: claimed.run.queue.to_string(),
                    key: claimed.run.key.to_string(),
                    error,
                });
                (runs.finish)(claimed.run, Outcome::GiveBack(UNREADABLE_PAUSE));
                return None;
            }
        };
        self.options.counters.runs.increment();
        self.options.counters.running.increment();
        let info = RunInfo::new(claimed, Arc::clone(&self.lease), started, &runs.namespace);
        let running = Running {
            info: Arc::clone(&info),
            options: Arc::clone(&self.options),
            runs: Arc::clone(runs),
            has_ended: false,
        };
        Some((Due::new(info, payload), running))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            let is_over = self.runs.is_stopping() || !self.lease.is_held();
            let pause = match is_over {
                true => Duration::ZERO,
                // This process can't run it: the runtime of its handler was shut down.
                false => DROPPED_PAUSE,
            };
            (self.runs.finish)(claimed.run, Outcome::GiveBack(pause));
        }
    }
}

/// How a handler has ended.
pub(crate) enum End {
    Succeeded(Ending),
    Failed {
        error: String,
        /// Whether `complete_in` was fenced: another node has the run.
        is_fenced: bool,
    },
    Panicked(String),
}

impl End {
    /// Reads the handler's answer. It calls code of the user's error, so call it within
    /// `catch_panic`.
    pub(crate) fn of(result: Result<Ending, HandlerError>) -> Self {
        match result {
            Ok(ending) => End::Succeeded(ending),
            Err(error) => End::Failed {
                is_fenced: is_fenced(error.as_ref()),
                error: text_of(error.as_ref()),
            },
        }
    }
}

/// The error and its sources, unless their text is part of it already.
fn text_of(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source
        && text.len() < LONGEST_ERROR
    {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    bounded(text)
}

/// Cuts a text to the length that is stored. Some stores can't keep NUL characters.
fn bounded(mut text: String) -> String {
    if text.len() > LONGEST_ERROR {
        let mut end = LONGEST_ERROR;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    match text.contains('\0') {
        true => text.replace('\0', "\u{FFFD}"),
        false => text,
    }
}

fn is_fenced(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    // An error may be its own source.
    for _ in 0..64 {
        let Some(error) = next else { return false };
        if let Some(CompleteError::Fenced) = error.downcast_ref::<CompleteError>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// A run whose handler has started.
pub(crate) struct Running {
    info: Arc<RunInfo>,
    options: Arc<QueueOptions>,
    runs: Arc<Runs>,
    has_ended: bool,
}

impl Running {
    /// Ends the run.
    pub(crate) fn end(mut self, end: End) {
        self.end_once(end);
    }

    fn end_once(&mut self, end: End) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let (runs, run) = (&self.runs, self.info.run());
        let counters = &self.options.counters;
        counters.running.decrement();
        let outcome = match end {
            End::Succeeded(_) if self.info.is_completing() => {
                let epoch = self.info.lease.epoch;
                runs.completing.lock().insert((epoch, run.clone()));
                // If the transaction was committed, the store answers that the run is fenced.
                self.after_failure(NOT_COMMITTED.to_owned())
            }
            End::Succeeded(ending) => {
                counters.succeeded.increment();
                match ending {
                    Ending::Done => Outcome::Done,
                    Ending::Again(after) => Outcome::Again(after),
                }
            }
            // Not an error of the run. The answer to this settlement counts it and reports it.
            End::Failed {
                error,
                is_fenced: true,
            } => self.after_failure(error),
            End::Failed { error, .. } => {
                runs.failed(run, error.clone());
                self.after_failure(error)
            }
            End::Panicked(message) => {
                let message = bounded(message);
                counters.panicked.increment();
                runs.events.send(|| DurableEvent::Panicked {
                    queue: run.queue.to_string(),
                    key: run.key.to_string(),
                    attempt: run.attempt,
                    message: message.clone(),
                });
                self.after_failure(bounded(format!("the handler panicked: {message}")))
            }
        };
        (runs.finish)(run.clone(), outcome);
    }

    /// Another run after the backoff, or none.
    fn after_failure(&self, error: String) -> Outcome {
        let fails = self.info.claimed.fails.saturating_add(1);
        let random = self.runs.random.hash_one(self.info.run());
        match self.options.retry.after(fails, random) {
            Some(span) => Outcome::Retry(span),
            None => Outcome::Dead(error),
        }
    }
}

/// The handler was dropped before its end, with the runtime that it ran on.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end_once(End::Failed {
                error: "the handler was dropped before its end".to_owned(),
                is_fenced: false,
            });
        }
    }
}

crate::sync::thread_local! {
    /// The runs whose handler this thread is in.
    static WITHIN: Cell<Option<*const Runs>> = const { Cell::new(None) };
}

/// Runs code of a handler, and notes meanwhile that this thread is in it.
pub(crate) fn within<R>(runs: &Running, handler: impl FnOnce() -> R) -> Result<R, String> {
    let before = WITHIN.replace(Some(Arc::as_ptr(&runs.runs)));
    let result = catch_panic(handler);
    WITHIN.set(before);
    result
}

/// Whether this thread is in a handler of these runs.
pub(crate) fn is_within(runs: &Arc<Runs>) -> bool {
    WITHIN.get() == Some(Arc::as_ptr(runs))
}
