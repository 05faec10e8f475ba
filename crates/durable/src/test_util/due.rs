//! Runs that a test makes by hand, for a handler alone.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tourbillon::{Clock, ManualClock};

use crate::calls::{Awaited, CompleteError, CompletesRun, Completion};
use crate::run::{Due, LocalClock, NodeLease, RunInfo, Token};
use crate::store::{ClaimedRun, Epoch, Meta, Payload, Run, StoreTime};
use crate::sync::{Arc, Mutex};

/// Makes a [`Due`] by hand, to call a handler with it: no timer, no store and no clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::Due;
/// use tourbillon_durable::test_util::DueBuilder;
///
/// /// The handler.
/// fn remind(due: &Due<String>) -> Result<&'static str, String> {
///     if due.lateness() > Duration::from_secs(3_600) {
///         return Ok("too late to be of use");
///     }
///     match due.attempt() {
///         1 => Err(format!("{} does not answer", due.payload())),
///         _ => Ok("sent"),
///     }
/// }
///
/// let due = || DueBuilder::new("remind", "anna", "anna@example.com".to_owned());
/// assert!(remind(&due().build()).is_err());
/// assert_eq!(remind(&due().attempt(2).build()), Ok("sent"));
/// let late = due().late_by(Duration::from_secs(7_200)).build();
/// assert_eq!(remind(&late), Ok("too late to be of use"));
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct DueBuilder<T> {
    queue: Arc<str>,
    key: Box<str>,
    payload: T,
    meta: Option<Meta>,
    due: SystemTime,
    planned: Option<SystemTime>,
    late: Duration,
    attempt: u32,
    crashes: u32,
    is_held: bool,
}

impl<T> DueBuilder<T> {
    /// Returns the options of a first run, which was due at the start of 1970 and is not late.
    pub fn new(queue: &str, key: &str, payload: T) -> Self {
        DueBuilder {
            queue: Arc::from(queue),
            key: Box::from(key),
            payload,
            meta: None,
            due: UNIX_EPOCH,
            planned: None,
            late: Duration::ZERO,
            attempt: 1,
            crashes: 0,
            is_held: true,
        }
    }

    /// Sets the [number of the run](Due::attempt), from 1. Those before have
    /// [failed](Due::fails), except the [crashes](Self::crashes).
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt.max(1);
        self
    }

    /// Sets [how many of the runs before](Due::crashes) were lost with their process. There are at
    /// least as many runs before this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::test_util::DueBuilder;
    ///
    /// let due = DueBuilder::new("picture", "7", ()).attempt(4).crashes(1).build();
    /// assert_eq!((due.attempt(), due.fails(), due.crashes()), (4, 2, 1));
    /// let due = DueBuilder::new("picture", "7", ()).crashes(2).build();
    /// assert_eq!((due.attempt(), due.fails(), due.crashes()), (3, 0, 2));
    /// ```
    pub fn crashes(mut self, crashes: u32) -> Self {
        self.crashes = crashes;
        self
    }

    /// Sets how [late](Due::lateness) the run was started.
    pub fn late_by(mut self, late: Duration) -> Self {
        self.late = late;
        self
    }

    /// Sets when the run was [due](Due::due).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use tourbillon_durable::test_util::DueBuilder;
    ///
    /// let noon = UNIX_EPOCH + Duration::from_secs(12 * 60 * 60);
    /// let due = DueBuilder::new("report", "daily", ()).due_at(noon).build();
    /// assert_eq!((due.due(), due.planned()), (noon, noon));
    /// ```
    pub fn due_at(mut self, due: SystemTime) -> Self {
        self.due = due;
        self
    }

    /// Sets when the timer was [due first](Due::planned), which is as [`due_at`](Self::due_at) says
    /// by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use tourbillon_durable::test_util::DueBuilder;
    ///
    /// let noon = UNIX_EPOCH + Duration::from_secs(12 * 60 * 60);
    /// let retry = DueBuilder::new("mail", "anna", ()).attempt(2).planned_at(noon).build();
    /// assert_eq!(retry.planned(), noon);
    /// ```
    pub fn planned_at(mut self, planned: SystemTime) -> Self {
        self.planned = Some(planned);
        self
    }

    /// Sets the [meta](Due::meta) of the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use tourbillon_durable::Meta;
    /// use tourbillon_durable::test_util::DueBuilder;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
    /// let due = DueBuilder::new("mail", "anna", 7).meta(&meta).build();
    /// assert_eq!(due.meta(), Some(&meta));
    /// # Ok(())
    /// # }
    /// ```
    pub fn meta(mut self, meta: &Meta) -> Self {
        self.meta = Some(meta.clone());
        self
    }

    /// Lets the run be one whose node was silent for too long: [`Due::is_held`] is `false`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::test_util::DueBuilder;
    ///
    /// assert!(DueBuilder::new("mail", "anna", 7).build().is_held());
    /// assert!(!DueBuilder::new("mail", "anna", 7).lost().build().is_held());
    /// ```
    pub fn lost(mut self) -> Self {
        self.is_held = false;
        self
    }

    /// Makes the run. It belongs to no timer: a real transaction answers
    /// [`CompleteError::Fenced`](crate::CompleteError::Fenced) to its
    /// [`complete_in`](Due::complete_in), and a [`CompletionRecord`] notes it.
    #[must_use]
    pub fn build(self) -> Due<T> {
        let lease = NodeLease::new(Epoch(0), LocalClock::on(Clock::manual(&ManualClock::new())));
        if self.is_held {
            lease.set_end(Duration::MAX);
        }
        let before = (self.attempt - 1).max(self.crashes);
        let due = StoreTime::from(self.due);
        let claimed = ClaimedRun {
            run: Run {
                queue: self.queue,
                key: self.key,
                generation: 0,
                attempt: before.saturating_add(1),
            },
            due,
            planned: self.planned.map_or(due, StoreTime::from),
            fails: before - self.crashes,
            crashes: self.crashes,
            stepped: false,
            payload: Payload {
                json: Box::default(),
                meta: self.meta,
            },
        };
        let info = RunInfo::new(
            claimed,
            lease,
            due + self.late,
            &Arc::from("tourbillon"),
            None,
        );
        Due::new(info, self.payload)
    }
}

/// Stands for a transaction, and notes which runs were to be ended in it by
/// [`Due::complete_in`]. Clones note in one list.
///
/// # Examples
///
/// A handler whose database is a part of its own:
///
/// ```
/// use tourbillon_durable::test_util::{CompletionRecord, DueBuilder};
/// use tourbillon_durable::{CompleteError, CompletesRun, Due};
///
/// fn cancel_unpaid<X>(due: &Due<u64>, tx: X) -> Result<(), CompleteError>
/// where
///     X: CompletesRun<Answer = Result<(), CompleteError>>,
/// {
///     // .. cancel the order in the transaction ..
///     due.complete_in(tx)
/// }
///
/// let due = DueBuilder::new("pay-by", "order:7", 7).build();
/// let record = CompletionRecord::new();
/// assert_eq!(cancel_unpaid(&due, &record), Ok(()));
/// assert_eq!(record.completed(), [due.token()]);
///
/// let fenced = CompletionRecord::refusing(CompleteError::Fenced);
/// assert_eq!(cancel_unpaid(&due, &fenced), Err(CompleteError::Fenced));
/// ```
#[derive(Clone, Default)]
pub struct CompletionRecord {
    completed: Arc<Mutex<Vec<Token>>>,
    refusal: Option<CompleteError>,
}

impl CompletionRecord {
    /// Returns an empty record, which takes every end.
    #[must_use]
    pub fn new() -> Self {
        CompletionRecord::default()
    }

    /// Returns a record whose answer is always this error. It notes what was asked all the same.
    #[must_use]
    pub fn refusing(error: CompleteError) -> Self {
        CompletionRecord {
            refusal: Some(error),
            ..CompletionRecord::default()
        }
    }

    /// Returns the [tokens](Due::token) of the runs that were to be ended so far, in their order.
    #[must_use]
    pub fn completed(&self) -> Vec<Token> {
        self.completed.lock().clone()
    }

    /// Returns what stands for a transaction whose calls are awaited, for handlers that are futures.
    /// It notes a run when the answer is awaited.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::test_util::{CompletionRecord, DueBuilder};
    /// use tourbillon_durable::{Awaited, CompleteError, CompletesRun, Due};
    ///
    /// async fn cancel_unpaid<'t, X>(due: &Due<u64>, tx: X) -> Result<(), CompleteError>
    /// where
    ///     X: CompletesRun<Answer = Awaited<'t, Result<(), CompleteError>>>,
    /// {
    ///     // .. cancel the order in the transaction ..
    ///     due.complete_in(tx).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let due = DueBuilder::new("pay-by", "order:7", 7).build();
    /// let record = CompletionRecord::new();
    /// assert_eq!(cancel_unpaid(&due, record.awaited()).await, Ok(()));
    /// assert_eq!(record.completed(), [due.token()]);
    /// # }
    /// ```
    #[must_use]
    pub fn awaited(
        &self,
    ) -> impl CompletesRun<Answer = Awaited<'static, Result<(), CompleteError>>> + use<> {
        AwaitedRecord(self.clone())
    }

    fn note(&self, token: Token) -> Result<(), CompleteError> {
        self.completed.lock().push(token);
        match &self.refusal {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

fn token_of(run: &Completion<'_>) -> Token {
    Token::new(&Arc::from(run.queue), Box::from(run.key), run.generation)
}

impl CompletesRun for &CompletionRecord {
    type Answer = Result<(), CompleteError>;

    fn complete(self, run: &Completion<'_>) -> Self::Answer {
        self.note(token_of(run))
    }
}

struct AwaitedRecord(CompletionRecord);

impl CompletesRun for AwaitedRecord {
    type Answer = Awaited<'static, Result<(), CompleteError>>;

    fn complete(self, run: &Completion<'_>) -> Self::Answer {
        let token = token_of(run);
        Awaited::new(async move { self.0.note(token) })
    }
}

impl fmt::Debug for CompletionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionRecord")
            .field("completed", &self.completed())
            .field("refusal", &self.refusal)
            .finish()
    }
}
