//! What is known of a run, without its payload.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::node_lease::NodeLease;
use super::occurrence::Occurrence;
#[cfg(feature = "tracing")]
use super::span::RunSpan;
use super::token::Token;
#[cfg(feature = "cron")]
use crate::store::schedule;
use crate::store::{ClaimedRun, Meta, Next, Outcome, Run, StoreTime};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// One run of a timer, without its payload, as [layers](crate::DurableBuilder::around) and
/// [listeners](crate::DurableBuilder::on_run) see it. A clone is cheap, and may outlive the run.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::RunInfo;
///
/// fn line(run: &RunInfo) -> String {
///     let (queue, key, attempt) = (run.queue(), run.key(), run.attempt());
///     let (errors, lost) = (run.fails(), run.crashes());
///     format!(
///         "{queue}/{key} attempt {attempt} after {errors} errors and {lost} crashes, {:?} late, \
///          due {:?}, planned {:?}, once {}, held {}, meta {:?}",
///         run.lateness(), run.due(), run.planned(), run.token(), run.is_held(), run.meta(),
///     )
/// }
/// # let _ = line;
/// ```
#[derive(Clone)]
pub struct RunInfo(Arc<RunRecord>);

/// A run, with its node's lease.
struct RunRecord {
    claimed: ClaimedRun,
    /// The lease of the node that has claimed it.
    lease: Arc<NodeLease>,
    /// The store's clock when the run was about to start, as far as it is known here.
    started: StoreTime,
    /// See [`Store::namespace`](crate::store::Store::namespace).
    namespace: Arc<str>,
    /// Whether a transaction of the user's was about to end the run.
    completing: AtomicBool,
    /// What a timer with a schedule runs for. Other timers have none.
    occurrence: Option<Occurrence>,
    #[cfg(feature = "tracing")]
    span: RunSpan,
}

impl RunInfo {
    pub(crate) fn new(
        claimed: ClaimedRun,
        lease: Arc<NodeLease>,
        started: StoreTime,
        namespace: &Arc<str>,
        occurrence: Option<Occurrence>,
    ) -> Self {
        RunInfo(Arc::new(RunRecord {
            #[cfg(feature = "tracing")]
            span: RunSpan::new(&claimed, started),
            claimed,
            lease,
            started,
            namespace: Arc::clone(namespace),
            completing: AtomicBool::new(false),
            occurrence,
        }))
    }

    pub(crate) fn run(&self) -> &Run {
        &self.0.claimed.run
    }

    pub(crate) fn lease(&self) -> &NodeLease {
        &self.0.lease
    }

    /// The store's clock at the start of the run, if a test moves it.
    #[cfg(all(feature = "test-util", feature = "sqlite"))]
    pub(super) fn time_of_test(&self) -> Option<StoreTime> {
        let is_moved = self.0.lease.is_moved_by_a_test();
        is_moved.then_some(self.0.started)
    }

    /// What follows the run if a transaction of the user's ends it now.
    pub(crate) fn next(&self) -> Option<&Next> {
        self.0.occurrence.as_ref()?.completing()
    }

    /// The end of the run, with what follows.
    pub(super) fn end(&self, outcome: Outcome) -> Outcome {
        match &self.0.occurrence {
            Some(occurrence) => occurrence.end(outcome),
            None => outcome,
        }
    }

    /// Whether the run has given way to the next occurrence, or will have after this span.
    pub(super) fn gives_way(&self, after: Duration) -> bool {
        let occurrence = self.0.occurrence.as_ref();
        occurrence.is_some_and(|occurrence| occurrence.gives_way(after))
    }

    pub(crate) fn namespace(&self) -> &Arc<str> {
        &self.0.namespace
    }

    #[cfg(feature = "tracing")]
    pub(super) fn run_span(&self) -> &RunSpan {
        &self.0.span
    }

    /// Returns the span of the run, which handlers are in. After the end of the run, and if nobody
    /// listens, it is [`Span::none`](tracing::Span::none). Needs the feature `tracing`.
    ///
    /// A [layer](crate::DurableBuilder::around) has it before it is entered, which is the moment at
    /// which OpenTelemetry takes a parent: the guide `traces` shows it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .around(|run| {
    ///         let cause = tracing::Span::current(); // in a program: what has scheduled the timer
    ///         run.span().follows_from(&cause);
    ///         |next| next.run()
    ///     })
    ///     .handle("mail", |due: &Due<String>| tracing::info!("to {}", due.payload()))
    ///     .start()?;
    /// # drop(timers);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    #[must_use]
    pub fn span(&self) -> tracing::Span {
        self.0.span.get()
    }

    /// Notes that a transaction of the user's is about to end the run.
    pub(crate) fn will_complete(&self) {
        // Relaxed: see `is_completing`.
        self.0.completing.store(true, Ordering::Relaxed);
    }

    /// Whether a transaction of the user's was about to end the run.
    pub(crate) fn is_completing(&self) -> bool {
        // Relaxed: the handler's end, which comes before, orders it after the store in
        // `will_complete`.
        self.0.completing.load(Ordering::Relaxed)
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.run().queue
    }

    /// Returns the key within the queue.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.run().key
    }

    /// Returns the meta of the timer: see [`Due::meta`](crate::Due::meta).
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        self.0.claimed.payload.meta.as_ref()
    }

    /// Returns when this run was due: see [`Due::due`](crate::Due::due).
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.0.claimed.due.into()
    }

    /// Returns when the timer was due before retries: see [`Due::planned`](crate::Due::planned).
    #[must_use]
    pub fn planned(&self) -> SystemTime {
        self.0.claimed.planned.into()
    }

    /// Returns how late the run was started: see [`Due::lateness`](crate::Due::lateness).
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.0.started.since(self.0.claimed.due)
    }

    /// Returns the number of the run, from 1: see [`Due::attempt`](crate::Due::attempt).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.run().attempt
    }

    /// Returns how many runs have failed before this one: see [`Due::fails`](crate::Due::fails).
    #[must_use]
    pub fn fails(&self) -> u32 {
        self.0.claimed.fails
    }

    /// Returns how many processes died in runs before: see [`Due::crashes`](crate::Due::crashes).
    #[must_use]
    pub fn crashes(&self) -> u32 {
        self.0.claimed.crashes
    }

    /// Whether the timer is certainly still this node's: see [`Due::is_held`](crate::Due::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.lease.is_held() && !self.gives_way(Duration::ZERO)
    }

    /// Returns the time that the run stands for: see
    /// [`Due::scheduled_for`](crate::Due::scheduled_for). Needs the feature `cron`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Durable, Memory, RunEvent};
    ///
    /// let builder = Durable::builder(Memory::new()).on_run(|event| {
    ///     if let RunEvent::Started { run, .. } = event {
    ///         println!("{} of {:?} starts", run.key(), run.scheduled_for());
    ///     }
    /// });
    /// # drop(builder);
    /// ```
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    #[must_use]
    pub fn scheduled_for(&self) -> SystemTime {
        let of_run = self.0.occurrence.as_ref().map(Occurrence::scheduled_for);
        let of_letter = || schedule::scheduled_for(self.meta());
        of_run
            .or_else(of_letter)
            .map_or_else(|| self.planned(), SystemTime::from)
    }

    /// Returns the idempotency token: see [`Due::token`](crate::Due::token).
    #[must_use]
    pub fn token(&self) -> Token {
        let run = self.run();
        Token::new(&run.queue, run.key.clone(), run.generation)
    }
}

/// Writes the queue, the key, the token as text, the number of the run, and the lateness.
#[cfg(feature = "serde")]
impl serde::Serialize for RunInfo {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("RunInfo", 5)?;
        fields.serialize_field("queue", self.queue())?;
        fields.serialize_field("key", self.key())?;
        fields.serialize_field("token", &self.token().to_string())?;
        fields.serialize_field("attempt", &self.attempt())?;
        fields.serialize_field("lateness", &self.lateness())?;
        fields.end()
    }
}

impl fmt::Debug for RunInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunInfo")
            .field("queue", &self.queue())
            .field("key", &self.key())
            .field("attempt", &self.attempt())
            .field("lateness", &self.lateness())
            .finish_non_exhaustive()
    }
}
