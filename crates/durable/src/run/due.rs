//! A timer that is due, as its handler gets it.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::run_info::RunInfo;
use super::token::Token;
use crate::calls::{CompletesRun, Completion};
use crate::store::Meta;

/// One run of a timer, with its payload.
///
/// A timer runs *at least once*: if the process dies during a run, the timer runs again elsewhere,
/// unless its key was scheduled or cancelled since.
/// Make the effect idempotent by its [`token`](Self::token), or commit it together with the end of
/// the run by [`complete_in`](Self::complete_in).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let timers = Durable::builder(Memory::new())
///     .handle("greet", move |due: &Due<String>| {
///         let _ = sender.send(format!("{}: {}", due.key(), due.payload()));
///     })
///     .start()?;
/// timers.schedule("greet", "world", Duration::from_millis(5), "hello").wait()?;
/// assert_eq!(receiver.recv()?, "world: hello");
/// # Ok(())
/// # }
/// ```
#[doc(alias("job", "task", "message"))]
pub struct Due<T> {
    info: RunInfo,
    payload: T,
}

impl<T> Due<T> {
    pub(crate) fn new(info: RunInfo, payload: T) -> Self {
        Due { info, payload }
    }

    /// Returns the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("greet", move |due: &Due<String>| {
    ///         println!("{} is due in {}", due.key(), due.queue());
    /// #         drop(sender.send(due.queue().to_owned()));
    ///     })
    ///     .start()?;
    /// timers.schedule("greet", "world", Duration::ZERO, "hello").wait()?;
    /// # assert_eq!(receiver.recv()?, "greet");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queue(&self) -> &str {
        self.info.queue()
    }

    /// Returns the key within the queue.
    #[must_use]
    pub fn key(&self) -> &str {
        self.info.key()
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// Returns what was said about the timer when it was scheduled: see [`Meta`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use std::collections::BTreeMap;
    /// use tourbillon_durable::{Due, Durable, Memory, Meta};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("greet", move |due: &Due<String>| {
    ///         let meta = due.meta().map(Meta::parse::<BTreeMap<String, String>>);
    ///         let tenant = meta.and_then(|meta| meta.ok()?.remove("tenant"));
    /// #         drop(sender.send(tenant.clone()));
    ///         println!("{} of {tenant:?}", due.payload());
    ///     })
    ///     .start()?;
    /// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
    /// timers.meta(&meta).schedule("greet", "world", Duration::ZERO, "hello").wait()?;
    /// # assert_eq!(receiver.recv()?.as_deref(), Some("acme"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        self.info.meta()
    }

    /// Returns when this run was due, by the store's clock. For a retry it is the end of the
    /// backoff.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tourbillon_durable::Due;
    ///
    /// fn handler(due: &Due<u64>) {
    ///     // A report of the hour that ends now, however late the run is.
    ///     let until: SystemTime = due.due();
    ///     println!("order {} until {until:?}", due.payload());
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.info.due()
    }

    /// Returns when the timer was due first, before retries.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon_durable::Due;
    ///
    /// /// Whether the reminder is still worth sending, retries included.
    /// fn is_fresh(due: &Due<String>) -> bool {
    ///     let age = SystemTime::now().duration_since(due.planned()).unwrap_or_default();
    ///     age < Duration::from_secs(3_600)
    /// }
    /// # let _ = is_fresh;
    /// ```
    #[must_use]
    pub fn planned(&self) -> SystemTime {
        self.info.planned()
    }

    /// Returns the time that the run stands for: the occurrence of its
    /// [schedule](crate::CronSchedule), which no conversion and no retry has changed. Needs the
    /// feature `cron`.
    ///
    /// A timer that was moved to an earlier time runs in addition, and this is when it was to run. So
    /// it is for a timer without a schedule, which has [`planned`](Self::planned) here. A dead letter
    /// of an occurrence that was revived has the occurrence.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Due;
    ///
    /// fn handler(due: &Due<u64>) {
    ///     println!("the report of customer {} until {:?}", due.payload(), due.scheduled_for());
    /// }
    /// # let _ = handler;
    /// ```
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    #[doc(alias("fire time", "logical date", "execution date"))]
    #[must_use]
    pub fn scheduled_for(&self) -> SystemTime {
        self.info.scheduled_for()
    }

    /// Returns how long after [`due`](Self::due) the run was started, by an estimate of the store's
    /// clock. It may be too small by the time that an answer of the store takes.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Due;
    ///
    /// fn handler(due: &Due<u64>) {
    ///     if due.lateness().as_secs() >= 5 {
    ///         eprintln!("{} was {:?} late", due.key(), due.lateness());
    ///     }
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.info.lateness()
    }

    /// Returns the number of the run, from 1. It counts failed runs, and those whose process died.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory, RetryPolicy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("greet", move |due: &Due<String>| {
    ///         let attempt = due.attempt();
    /// #         drop(sender.send(attempt));
    ///         if attempt == 1 { Err("the first one fails") } else { Ok(()) }
    ///     })
    ///     .retry(RetryPolicy::fixed(Duration::from_millis(1)).attempts(3))
    ///     .start()?;
    /// timers.schedule("greet", "world", Duration::ZERO, "hello").wait()?;
    /// # assert_eq!((receiver.recv()?, receiver.recv()?), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.info.attempt()
    }

    /// Returns how many runs have returned an error before this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Due, Ending};
    ///
    /// /// Gives up by itself after three errors, and tells somebody.
    /// fn handler(due: &Due<String>) -> Result<Ending, String> {
    ///     if due.fails() >= 3 {
    ///         eprintln!("{} can't be reached", due.payload());
    ///         return Ok(Ending::Done);
    ///     }
    ///     Err("no answer".to_owned())
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn fails(&self) -> u32 {
        self.info.fails()
    }

    /// Returns how many runs before this one were lost because their process died.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Due;
    ///
    /// /// A picture that may take all memory: the second time in a careful way.
    /// fn handler(due: &Due<String>) {
    ///     let careful = due.crashes() > 0;
    ///     println!("{} {careful}", due.payload());
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn crashes(&self) -> u32 {
        self.info.crashes()
    }

    /// Whether the timer is certainly still this node's, by the local clock. It does not ask the
    /// store.
    ///
    /// After `false`, another node may have started the same timer already, and the end of this run
    /// will be refused if it has. A handler with effects outside the database should ask before
    /// each of them. The answer is `true` again after a pause of the store that was longer than the
    /// lease, unless this node was declared gone meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Due;
    ///
    /// fn handler(due: &Due<Vec<String>>) -> Result<(), String> {
    ///     for address in due.payload() {
    ///         if !due.is_held() {
    ///             return Err("another process may have this timer".to_owned());
    ///         }
    ///         println!("mail to {address}");
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.info.is_held()
    }

    /// Returns the idempotency token: it is the same in all runs of this timer, and no other timer
    /// has it, also if it has the same key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("greet", move |due: &Due<String>| {
    ///         let once = due.token();
    /// #         drop(sender.send(once.clone()));
    ///         println!("send {} with the idempotency key {once}", due.payload());
    ///     })
    ///     .start()?;
    /// timers.schedule("greet", "world", Duration::ZERO, "hello").wait()?;
    /// # assert_eq!(receiver.recv()?.key(), "world");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("idempotency key", "job id"))]
    #[must_use]
    pub fn token(&self) -> Token {
        self.info.token()
    }

    /// Ends the run within a transaction, so that its effect happens exactly once: the effect and
    /// the end are one commit.
    ///
    /// It returns `Result<(), CompleteError>` if the driver's calls block, and the future
    /// [`Awaited`](crate::Awaited) with that if they are awaited:
    ///
    /// | transaction | call |
    /// |---|---|
    /// | `rusqlite` | `due.complete_in(&tx)?` |
    /// | `postgres` | `due.complete_in(&mut tx)?` |
    /// | `tokio-postgres` | `due.complete_in(&tx).await?` |
    /// | `deadpool-postgres` | `due.complete_in(&*tx).await?` |
    /// | `sqlx`, by the crate `tourbillon-durable-sqlx` | `due.complete_in(&mut *tx).await?` |
    ///
    /// Call it last, commit if it returned `Ok`, and roll back if it did not. A handler that called
    /// it and returns `Ok` without having committed is tried again like one that failed. What it
    /// asks for by [`Ending::Again`](crate::Ending::Again) is ignored.
    ///
    /// # Errors
    ///
    /// [`CompleteError`](crate::CompleteError) says why the transaction must be rolled back.
    ///
    /// # Blocking
    ///
    /// With a driver whose calls block, it executes a statement on the transaction.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] {
    /// use tourbillon_durable::{Due, tokio_postgres};
    ///
    /// type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;
    ///
    /// async fn cancel_unpaid(client: &mut tokio_postgres::Client, due: Due<i64>) -> Ended {
    ///     let tx = client.transaction().await?;
    ///     let cancel = "update orders set state = 'cancelled' where id = $1 and state = 'open'";
    ///     tx.execute(cancel, &[due.payload()]).await?;
    ///     due.complete_in(&tx).await?;
    ///     Ok(tx.commit().await?)
    /// }
    /// # }
    /// ```
    #[doc(alias("ack", "acknowledge", "exactly once"))]
    pub fn complete_in<X: CompletesRun<D>, D>(&self, tx: X) -> X::Answer {
        // It notes the end before the call, which may panic.
        tx.complete(&self.completion())
    }

    /// Returns what a transaction of another driver or language needs to end the run: the values
    /// for the function `tourbillon.complete` of PostgreSQL, in this order. `Postgres::COMPLETE` is
    /// its statement.
    ///
    /// Call it only in a handler that ends the run so. From this call on the rules of
    /// [`complete_in`](Self::complete_in) hold: a handler that returns `Ok` without having
    /// committed is tried again like one that failed. The statement answers `false` if the run is
    /// no longer this node's. Then roll the transaction back, and return
    /// [`CompleteError::Fenced`](crate::CompleteError::Fenced).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")] {
    /// use tourbillon_durable::{CompleteError, Due, Postgres};
    ///
    /// # mod driver { pub(super) type Client = postgres::Client; }
    /// type Failed = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// fn cancel_unpaid(client: &mut driver::Client, due: &Due<i64>) -> Result<(), Failed> {
    ///     let mut transaction = client.transaction()?;
    ///     let cancel = "update orders set state = 'cancelled' where id = $1 and state = 'open'";
    ///     transaction.execute(cancel, &[due.payload()])?;
    ///     let run = due.completion();
    ///     let row = transaction.query_one(
    ///         Postgres::COMPLETE,
    ///         &[
    ///             &run.queue, &run.key, &run.generation, &run.epoch, &run.attempt, &run.next,
    ///             &run.next_meta,
    ///         ],
    ///     )?;
    ///     let is_ended: bool = row.get("completed");
    ///     if !is_ended {
    ///         return Err(CompleteError::Fenced.into()); // the drop rolls it back
    ///     }
    ///     Ok(transaction.commit()?)
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn completion(&self) -> Completion<'_> {
        self.info.will_complete();
        let completion = Completion::of(
            self.info.namespace(),
            self.info.lease().epoch,
            self.info.run(),
        )
        .then(self.info.next());
        #[cfg(all(feature = "test-util", feature = "sqlite"))]
        let completion = completion.at(self.info.time_of_test());
        completion
    }
}

impl<T: fmt::Debug> fmt::Debug for Due<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Due")
            .field("queue", &self.queue())
            .field("key", &self.key())
            .field("attempt", &self.attempt())
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}
