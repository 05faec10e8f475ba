//! The life of one run on this node: whether it starts, and what its end means.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::due::Due;
use super::end::{End, bounded};
use super::ending::Ending;
use super::late::Late;
use super::layer::{Layers, NextLayer, RunLayer};
use super::node_lease::{NodeLease, StoreClock};
use super::occurrence::{Occurrence, Start};
use super::queue_options::QueueOptions;
use super::run_event::{RunEvent, RunOutcome};
use super::run_info::RunInfo;
use crate::events::{Counters, DurableEvent, EventSink};
use crate::store::{ClaimedRun, Epoch, Outcome, Run, Settled, Settlement, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, catch_panic};

/// For how long a timer is left alone whose payload does not parse.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);

/// For how long a timer is left alone that could not be started here.
const DROPPED_PAUSE: Duration = Duration::from_secs(1);

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
    run_events: EventSink<RunEvent>,
    layers: Layers,
    pub(crate) store_clock: Arc<StoreClock>,
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
        run_events: EventSink<RunEvent>,
        layers: Layers,
        store_clock: Arc<StoreClock>,
        namespace: Arc<str>,
        finish: Finish,
    ) -> Arc<Self> {
        Arc::new(Runs {
            counters,
            events,
            run_events,
            layers,
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
            (Settled::Buried, Outcome::Dead(error) | Outcome::DeadThen(error, _)) => {
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

    /// A random number for the end of a run.
    fn random_of(&self, run: &Run) -> u64 {
        #[cfg(feature = "test-util")]
        if self.store_clock.is_moved_by_a_test() {
            // The same one in each run of the test, in which generations may differ.
            let hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
            return hasher.hash_one((&run.queue, &run.key, run.attempt));
        }
        self.random.hash_one(run)
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
        let mut claimed = self.claimed.take()?;
        let started = runs.store_clock.now();
        let limit = self.options.crash_limit;
        let occurrence = match Occurrence::start(&claimed, limit, &runs.store_clock, started) {
            Start::Run(occurrence) => occurrence,
            Start::Not(outcome) => {
                (runs.finish)(claimed.run, outcome);
                return None;
            }
            #[cfg(feature = "cron")]
            Start::Missed(first, due, outcome) => {
                runs.events.send(|| DurableEvent::Missed {
                    queue: claimed.run.queue.to_string(),
                    key: claimed.run.key.to_string(),
                    scheduled_for: first.into(),
                    next: due.into(),
                });
                (runs.finish)(claimed.run, outcome);
                return None;
            }
            Start::Unreadable(why) => {
                self.give_back(claimed.run, why);
                return None;
            }
        };
        if let Late::ExpireAfter(span) = self.options.late
            && started > claimed.planned + span
        {
            self.options.counters.expired.increment();
            let late = started.since(claimed.planned);
            let error = format!("it could start only {late:?} after its planned time");
            let outcome = Outcome::Dead(error);
            let outcome = match &occurrence {
                Some(occurrence) => occurrence.end(outcome),
                None => outcome,
            };
            (runs.finish)(claimed.run, outcome);
            return None;
        }
        // Parsing is code of the user.
        let json = std::mem::take(&mut claimed.payload.json);
        let parsed =
            catch_panic(|| serde_json::from_str::<T>(&json).map_err(|error| error.to_string()));
        // It may be long, and listeners keep what is known of the run.
        drop(json);
        let payload = match parsed.and_then(|parsed| parsed) {
            Ok(payload) => payload,
            Err(error) => {
                self.give_back(claimed.run, error);
                return None;
            }
        };
        self.options.counters.runs.increment();
        self.options.counters.running.increment();
        let lease = Arc::clone(&self.lease);
        let info = RunInfo::new(claimed, lease, started, &runs.namespace, occurrence);
        // A clock is read only for those who ask.
        let is_timed = runs.run_events.listens() || self.options.slow_after.is_some();
        runs.run_events
            .send(|| RunEvent::Started { run: info.clone() });
        let running = Running {
            info: info.clone(),
            options: Arc::clone(&self.options),
            runs: Arc::clone(runs),
            layers: Vec::new(),
            has_begun: false,
            began: is_timed.then(Instant::now),
            has_ended: false,
        };
        Some((Due::new(info, payload), running))
    }

    /// Gives back a timer that this process can't read. Another one may be able to.
    fn give_back(&self, run: Run, error: String) {
        self.options.counters.unreadable.increment();
        self.runs.events.send(|| DurableEvent::Unreadable {
            queue: run.queue.to_string(),
            key: run.key.to_string(),
            error,
        });
        (self.runs.finish)(run, Outcome::GiveBack(UNREADABLE_PAUSE));
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

/// A run whose handler has started.
pub(crate) struct Running {
    info: RunInfo,
    options: Arc<QueueOptions>,
    runs: Arc<Runs>,
    /// What the layers do for this run, from the first step on.
    layers: Vec<RunLayer>,
    has_begun: bool,
    /// When the run has started, if somebody asks.
    began: Option<Instant>,
    has_ended: bool,
}

impl Running {
    /// Runs the handler, or one step of it, within the layers. `None` if it goes on. The layers are
    /// code of the user like the handler, so a panic of theirs is a panic of the run.
    pub(crate) fn step(&mut self, handler: &mut dyn FnMut() -> Option<End>) -> Option<End> {
        let Running {
            info, runs, layers, ..
        } = self;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let ran = within(runs, || {
            if is_first {
                // Those that were made stay here, also if the next one panics.
                for layer in runs.layers.iter() {
                    layers.push(layer(info));
                }
            }
            let next = NextLayer::new(layers, handler);
            #[cfg(feature = "tracing")]
            return info.run_span().within(|| next.run().end);
            #[cfg(not(feature = "tracing"))]
            next.run().end
        });
        ran.unwrap_or_else(|message| Some(End::Panicked(message)))
    }

    /// Ends the run.
    pub(crate) fn end(mut self, end: End) {
        self.end_once(end);
    }

    fn end_once(&mut self, end: End) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // The layers end with the handler, the innermost one first. What they captured is the
        // user's, too, and two panics at one time would end the process.
        while let Some(layer) = self.layers.pop() {
            drop(within(&self.runs, move || drop(layer)));
        }
        let duration = self.began.map(|began| began.elapsed());
        let (runs, run) = (&self.runs, self.info.run());
        let counters = &self.options.counters;
        counters.running.decrement();
        // A text is copied for a listener only.
        let listens = runs.run_events.listens();
        let told = |text: &String| match listens {
            true => text.clone(),
            false => String::new(),
        };
        let (how, outcome) = match end {
            End::Succeeded(_) if self.info.is_completing() => {
                let epoch = self.info.lease().epoch;
                runs.completing.lock().insert((epoch, run.clone()));
                // If the transaction was committed, the store answers that the run is fenced.
                let outcome = self.after_failure(NOT_COMMITTED.to_owned());
                (RunOutcome::Completed, outcome)
            }
            End::Succeeded(ending) => {
                counters.succeeded.increment();
                match ending {
                    Ending::Done => (RunOutcome::Done, Outcome::Done),
                    Ending::Again(after) => (RunOutcome::Again, Outcome::Again(after)),
                }
            }
            // Not an error of the run. The answer to this settlement counts it and reports it.
            End::Failed {
                error,
                is_fenced: true,
            } => (RunOutcome::Fenced, self.after_failure(error)),
            End::Failed { error, .. } => {
                runs.failed(run, error.clone());
                let how = RunOutcome::Failed {
                    error: told(&error),
                };
                (how, self.after_failure(error))
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
                let how = RunOutcome::Panicked {
                    message: told(&message),
                };
                let error = bounded(format!("the handler panicked: {message}"));
                (how, self.after_failure(error))
            }
        };
        #[cfg(feature = "tracing")]
        self.info.run_span().end(how.word());
        if let Some(duration) = duration {
            self.report(duration, how, &outcome);
        }
        (runs.finish)(run.clone(), self.info.end(outcome));
    }

    /// Tells those who asked for the time that the run took.
    fn report(&self, duration: Duration, how: RunOutcome, outcome: &Outcome) {
        let (runs, run) = (&self.runs, self.info.run());
        let bound = self.options.slow_after;
        if bound.is_some_and(|bound| duration >= bound) {
            runs.events.send(|| DurableEvent::Slow {
                queue: run.queue.to_string(),
                key: run.key.to_string(),
                attempt: run.attempt,
                duration,
            });
        }
        runs.run_events.send(|| RunEvent::Ended {
            run: self.info.clone(),
            duration,
            next_attempt: match (&how, outcome) {
                (RunOutcome::Completed | RunOutcome::Fenced, _) => None,
                (_, Outcome::Retry(span) | Outcome::Again(span)) => Some(*span),
                _ => None,
            },
            outcome: how,
        });
    }

    /// Another run after the backoff, or none.
    fn after_failure(&self, error: String) -> Outcome {
        let fails = self.info.fails().saturating_add(1);
        let random = self.runs.random_of(self.info.run());
        match self.options.retry.after(fails, random) {
            Some(span) if self.info.gives_way(span) => Outcome::Dead(error),
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
fn within<R>(runs: &Arc<Runs>, handler: impl FnOnce() -> R) -> Result<R, String> {
    let before = WITHIN.replace(Some(Arc::as_ptr(runs)));
    let result = catch_panic(handler);
    WITHIN.set(before);
    result
}

/// Whether this thread is in a handler of any timers.
#[cfg(feature = "test-util")]
pub(crate) fn is_within_any() -> bool {
    WITHIN.get().is_some()
}

/// Whether this thread is in a handler of these runs.
pub(crate) fn is_within(runs: &Arc<Runs>) -> bool {
    WITHIN.get() == Some(Arc::as_ptr(runs))
}
