//! What a node asks of a store, and what it is told.
//!
//! **It is no public interface before 1.0**, so its documentation is hidden: any release may change
//! it. The tests and benchmarks of this repository implement stores of their own by it.
//!
//! A [`Store`] opens connections. Each thread of a node has a [`Connection`] of its own, and makes
//! one call at a time. Every call of [`Connection`] is one step for all others: it happens as a
//! whole, or not at all. The module [`row`](crate::row) says what each call does to a timer; a
//! store may use these functions, or say the same in its own language.
//!
//! - **STORE-1** The store's clock decides, and never that of the caller. A call reads it after it
//!   has begun, and again after a wait for a row's lock. A store that has [horizons](Horizon) takes
//!   the number of the write before it reads the clock, and shows the write as [open](Complete)
//!   until it has ended, so that no mark passes what the write is about.
//! - **STORE-2** A claim is *live* if its epoch belongs to a node that is in the table of nodes and
//!   not gone. All other claims count as none, in every call.
//! - **STORE-3** `attempt` never falls within a generation, and a generation never comes back for
//!   the same key. So queue, key, generation, epoch and attempt name one run.
//! - **STORE-4** A node that is gone stays gone. Its row is deleted only when no timer has a claim
//!   of it any more.
//! - **STORE-5** A row that can't be written, for instance since a trigger of the user's refuses
//!   it, fails alone. No other row of the same call fails with it.

#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
mod beats;
mod claims;
mod doorbell;
pub(crate) mod due_at;
mod ends;
mod error;
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
mod namespace;
mod payload;
mod polls;
mod reads;
pub(crate) mod schedule;
pub(crate) mod time;

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::sync::Arc;

#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) use self::beats::{Beats, FoundRow, REMEDY};
pub use self::claims::{Claim, Claimed, ClaimedRun, RefusedClaim, Run, Wanted};
pub use self::doorbell::{Notification, NotificationListener, Subscription};
pub(crate) use self::due_at::DueAt;
pub use self::ends::{Outcome, Settle, Settled, Settlement};
pub use self::error::StoreError;
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) use self::namespace::{DEFAULT, Form, Namespace};
pub(crate) use self::payload::is_traceparent;
pub use self::payload::{Meta, Payload};
pub use self::polls::{
    Band, Complete, Offset, Poll, Range, Seen, SeenNode, StoreSnapshot, Survey, SurveyedPart,
};
#[cfg(any(feature = "sqlite", feature = "tokio-postgres"))]
pub(crate) use self::reads::end_of_prefix;
pub use self::reads::{
    DeadLetter, DeadPage, MOST_COUNTED, PAGE_BYTES, Page, QueueCounts, Revived, StoredNode,
    StoredState, Timer,
};
pub use self::schedule::{NamedSchedules, Next};
pub use self::time::StoreTime;
pub(crate) use self::time::{WallClock, micros};

/// The shards of each queue. A node asks for those that are its own; see [`Poll`].
pub const SHARDS: u16 = 64;

/// Where timers are kept: a [`Memory`](crate::Memory), a `Sqlite`, a `Postgres`, or a box with one of
/// them that was chosen at run time.
///
/// How a store does it is no public interface before 1.0: the methods are not documented, any
/// release may change them, and nobody else should implement this trait.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Durable, Memory, Store, StoreError};
///
/// /// A file on a laptop, and a server in production.
/// fn store(url: Option<&str>) -> Result<Box<dyn Store>, StoreError> {
///     Ok(match url {
///         # #[cfg(feature = "postgres")]
///         Some(url) if url.starts_with("postgres:") => {
///             Box::new(tourbillon_durable::Postgres::connect(url)?)
///         }
///         # #[cfg(feature = "sqlite")]
///         Some(path) => Box::new(tourbillon_durable::Sqlite::open(path)?),
///         # #[cfg(not(feature = "sqlite"))]
///         # Some(_) => unreachable!(),
///         None => Box::new(Memory::new()),
///     })
/// }
///
/// let timers = Durable::builder(store(std::env::var("TIMERS").ok().as_deref())?).start()?;
/// # drop(timers);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Store: Send + Sync + fmt::Debug + 'static {
    #[doc(hidden)]
    /// Opens a connection, and creates or checks the tables when it is the first one of this value.
    /// Each later one checks that the store is still [the same](StoreError::Replaced), and creates
    /// nothing.
    ///
    /// It is called on threads of the crate, which are not part of any runtime. It may block.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError>;

    #[doc(hidden)]
    /// Returns why this process can't connect, where that is known without asking anybody. `None`
    /// by default.
    ///
    /// A start asks it before it starts threads, so that it fails with [`StoreError::Forked`] also
    /// in a forked copy in which no thread starts. It must not block.
    fn refusal(&self) -> Option<StoreError> {
        None
    }

    #[doc(hidden)]
    /// Returns the part that the names of the store's tables have in common. A transaction of the
    /// user's finds the tables by it: [`CompletesRun`](crate::CompletesRun) gets it. `tourbillon`
    /// by default.
    fn namespace(&self) -> &str {
        "tourbillon"
    }

    #[doc(hidden)]
    /// Returns the time, as near to the store's clock as can be known without asking it. The first
    /// occurrence of a schedule is the first after it. By default it is the system's. `None` if only
    /// the store knows: then the first node that claims the timer reckons its first occurrence.
    fn wall_clock(&self) -> Option<SystemTime> {
        Some(SystemTime::now())
    }

    #[doc(hidden)]
    /// How many connections carry the calls of users at one time. More are of use if the store
    /// commits several transactions together.
    fn writers(&self) -> usize {
        1
    }

    #[doc(hidden)]
    /// How long a call of a user is sent again and again while another transaction has locked its
    /// row, that is, while [`Connection::try_write`] answers [`StoreError::Locked`]. 1 s by
    /// default.
    fn lock_limit(&self) -> Duration {
        Duration::from_secs(1)
    }

    #[doc(hidden)]
    /// Listens to the store's *doorbell*, which rings when a timer is scheduled that is due soon.
    /// So a node that has not scheduled it polls its queue at once. A store without a doorbell
    /// returns `None`, as this default does: nodes then find such a timer by their next poll.
    ///
    /// `listener` is called on a thread of the store's, until the result is dropped. A store that
    /// loses its connection connects again by itself. A lost ring is no error, since polls go on as
    /// before.
    ///
    /// It is called by each node at its start, and must not block. A store that has a doorbell and
    /// can't listen now, for instance since no thread could be started, calls `listener` with
    /// [`Notification::Lost`] and returns `None`. Then it is called again after a pause, which
    /// grows up to 10 s, and [`Notification::Open`] ends what `Lost` has begun.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::Memory;
    /// use tourbillon_durable::store::Store;
    ///
    /// assert!(Memory::new().listen(Box::new(|notification|
    /// println!("{notification:?}"))).is_none());
    /// ```
    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        drop(listener);
        None
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        (**self).connect()
    }

    fn refusal(&self) -> Option<StoreError> {
        (**self).refusal()
    }

    fn namespace(&self) -> &str {
        (**self).namespace()
    }

    fn wall_clock(&self) -> Option<SystemTime> {
        (**self).wall_clock()
    }

    fn writers(&self) -> usize {
        (**self).writers()
    }

    fn lock_limit(&self) -> Duration {
        (**self).lock_limit()
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        (**self).listen(listener)
    }
}

/// One connection to a store.
///
/// After a call that has failed as a whole the connection is dropped, and the next call opens
/// another one.
///
/// The start of a node makes some calls with nothing to do: a beat of an epoch that never joined,
/// and a poll, a claim and settlements of it without timers. So it fails if the store refuses them.
/// During an outage such claims and settlements find out when it is over.
pub trait Connection: Send {
    /// Carries out calls of users, in one commit. The answers have the order of the calls.
    ///
    /// No two of the calls concern the same queue and key. A call that the store can't take fails
    /// alone, and so does one whose row stays locked by somebody else's transaction.
    ///
    /// A store that carries out the calls in several commits may fail between two of them. Then it
    /// returns the answers that it knows, and the error in place of each other answer.
    ///
    /// # Errors
    ///
    /// None of the calls was carried out, or, with [`StoreError::Unknown`], perhaps all of them.
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError>;

    /// Carries out calls like [`write`](Self::write), but does not wait for a transaction that has
    /// locked some of the rows: these calls are not carried out, and their answers are
    /// [`StoreError::Locked`]. The caller sends them again. A call may have that answer although
    /// its row is free, if a locked one hides it; after a few repetitions it has another one.
    ///
    /// A store whose rows can't be locked by others needs no other form than this default, which
    /// calls [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    fn try_write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.write(calls)
    }

    /// Reads one timer.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError>;

    /// Reads timers in the order of their due times, queues and keys, at most as many as the page may
    /// have. It ends early at [`PAGE_BYTES`], so that it holds up no other call for long.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError>;

    /// Counts the timers of all queues up to [`MOST_COUNTED`], with the earliest due time of each.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError>;

    /// Reads dead letters in the order of their numbers, at most as many as the page may have. It
    /// ends early at [`PAGE_BYTES`].
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError>;

    /// Deletes the dead letters with these numbers, and returns how many there were.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses to delete one of them. Then none is deleted.
    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError>;

    /// Deletes those of the first `limit` dead letters that were given up so long ago or longer, and
    /// returns how many there were.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses to delete one of them. Then none is deleted.
    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError>;

    /// Reads all nodes in the order of their joins, also those that are gone, for as long as the
    /// store keeps them.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError>;

    /// Turns a dead letter into a timer that is due now, with a new generation.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError>;

    /// Stores whether a queue is paused: its timers are not claimed.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError>;

    /// Pauses or resumes the schedule of a timer, and returns whether there is one. A paused schedule is
    /// due at [`StoreTime::LATEST`], and its planned time stays. A run that is under way goes on.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError>;

    /// Adds a node. Another call with the same epoch sets its queues, and changes nothing else: a
    /// node that stops handles none, so that the others take its part at once.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn join(&mut self, node: &NewNode) -> Result<(), StoreError>;

    /// Increments the node's beat. `None` if the node is gone, or unknown.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError>;

    /// Reads what is due soon, all nodes that are not gone, and the paused queues. It writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError>;

    /// Claims timers that are due: [`row::claim`](crate::row::claim). A timer that the store can't
    /// write is [refused](Claimed::refused) alone.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// Ends or frees timers that the node has claimed: [`row::settle`](crate::row::settle). The
    /// answers have the order of the settlements. A settlement that the store can't take fails
    /// alone: its answer is an error, and it is sent again after a while.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses all.
    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError>;

    /// Declares another node gone, if its beat is still `beat` and the node that asks is not gone
    /// itself. It also removes gone nodes that nothing refers to any more, after a day.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError>;

    /// Ends the node: its claims count as none from now on.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or refuses.
    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError>;

    /// Sets the store's clock, forward or back, for a test.
    ///
    /// # Errors
    ///
    /// No test can move the clock, as of a store without such a thing, or the store fails.
    #[cfg(feature = "test-util")]
    fn set_clock(&mut self, now: StoreTime) -> Result<(), StoreError> {
        let _ = now;
        Err(StoreError::Refused(NO_CLOCK.to_owned()))
    }
}

/// Why no test can move a store's clock.
#[cfg(feature = "test-util")]
pub(crate) const NO_CLOCK: &str = "the store goes by a clock that no test can move: give `Memory` or `Sqlite` a \
     `WallClock::manual` by `with_clock`, and a `Postgres` a `PostgresBuilder::test_clock`";

// === calls of users ===

/// One call of a user, on the timer of a queue and key. Queue, key and payload were checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The queue.
    pub queue: Arc<str>,
    /// The key within the queue.
    pub key: Box<str>,
    /// What is to be done.
    pub action: Action,
}

/// What a call does to a timer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Schedules the timer, and replaces one that is there.
    Schedule {
        /// When it is due.
        when: DueAt,
        /// What it carries.
        payload: Payload,
    },
    /// Schedules the timer, unless one is there or runs.
    ScheduleIfAbsent {
        /// When it is due.
        when: DueAt,
        /// What it carries.
        payload: Payload,
    },
    /// Schedules the timer by a schedule that the program has by name. One that is there stays as it
    /// is, if it has the same definition or a greater revision.
    Declare {
        /// When it is due.
        when: DueAt,
        /// What it carries, with the schedule in its meta.
        payload: Payload,
    },
    /// Moves the timer.
    Reschedule {
        /// When it is due.
        when: DueAt,
    },
    /// Cancels the timer.
    Cancel,
}

/// The answer to a [`Call`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The timer was scheduled.
    Scheduled {
        /// When it is due.
        due: StoreTime,
        /// The shard that it lies in.
        shard: u16,
        /// The due time of the timer that it replaced.
        replaced: Option<StoreTime>,
        /// Whether a run of the key is under way. The new timer starts after it.
        running: bool,
    },
    /// There is a timer already, and nothing was changed.
    Exists {
        /// When it is due, or was due if it runs. If another one follows the run, that one's.
        due: StoreTime,
        /// Whether it runs.
        running: bool,
    },
    /// The timer was moved.
    Moved {
        /// When it was due.
        from: StoreTime,
        /// When it is due now.
        to: StoreTime,
        /// The shard that it lies in.
        shard: u16,
        /// Whether it waits for the end of a run of the same key.
        running: bool,
    },
    /// The timer was cancelled, and no run of it will start. None has started, except those that
    /// failed before, and those of nodes that are gone.
    Cancelled {
        /// When it was due.
        due: StoreTime,
    },
    /// The timer runs. After [`Action::Cancel`] no other run will follow.
    Running {
        /// The number of the run, from 1.
        attempt: u32,
        /// Since when it has been claimed.
        since: StoreTime,
    },
    /// There is no such timer.
    NotFound,
}

// === nodes ===

/// The life of a node, from its join to its end: a random number that never comes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub i64);

/// A node that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Its epoch.
    pub epoch: Epoch,
    /// A name for people, such as the machine and the process.
    pub name: String,
    /// The queues that it handles.
    pub queues: Vec<Arc<str>>,
    /// The schedules that its program names: the keys by their queues.
    pub schedules: NamedSchedules,
}

/// A good beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// The store's clock.
    pub now: StoreTime,
    /// Where marks may be set. See [`Horizon`].
    pub horizon: Option<Horizon>,
}

/// A moment after which all writes have a later number: the write that returned it took its number
/// after it had read the clock. A store without it never has marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// The number of the write that returned the horizon.
    pub number: u64,
    /// The clock, read before the number was taken.
    pub at: StoreTime,
}
