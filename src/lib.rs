#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Timers for programs with many threads. A timer has a key, by which any thread can move or cancel
//! it.
//!
//! - **Time out a request.** [`schedule`](Handle::schedule) a closure under a key, and
//!   [`cancel`](Handle::cancel) it when the answer arrives. The result says whether the closure had
//!   started already.
//! - **Expire sessions.** An [`ExpiryMap`] delivers the entries that nobody has touched for a
//!   while, or that have become too old.
//! - **Repeat a task**, at a fixed rate or with a fixed delay, with a rule for missed rounds and
//!   for panics.
//! - **Limit a wait** in async code, on any runtime.
//!
//! Each of these calls takes constant time, however many timers are pending. Closures run on a pool
//! of worker threads, so a slow closure delays no tick.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::Scheduler;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::new()?;
//! let timers = scheduler.handle();
//! timers.schedule("request 7", Duration::from_secs(5), |firing| {
//!     eprintln!("{} timed out, {:?} late", firing.key(), firing.lateness());
//! })?;
//! // The answer has arrived.
//! assert!(timers.cancel("request 7").is_cancelled());
//! # Ok(())
//! # }
//! ```
//!
//! # Which type do I need?
//!
//! | task | type |
//! |---|---|
//! | run a closure once, later, under a key | [`Scheduler`], called through its [`Handle`] |
//! | run a closure again and again | [`Handle::repeat`] with a [`Period`] |
//! | run a closure at dates, or by a cron expression in a time zone | [`Period::calendar`], [`Period::cron`] (feature `cron`) |
//! | forget values that are idle or too old: sessions, tokens, caches | [`ExpiryMap`] |
//! | the same, for groups of entries such as all sessions of a user | [`GroupedExpiryMap`] |
//! | raise an alarm when something falls silent | [`ExpiryMap`] with a [time to idle](ExpiryMapBuilder::time_to_idle): each sign of life is [`touch_with(..).or_insert(..)`](Entry::touch_with) of its [`entry`](ExpiryMap::entry) |
//! | run a closure later, without a key | [`Timer`]; the [`TimerHandle`] that it returns cancels the closure |
//! | sleep, tick, or limit a future, in async code | [`Timer::sleep`], [`Timer::interval`], [`Timer::timeout`] |
//! | run a key when its calls have stopped for a while, or at most once per window | [`keyed::Debounce`], [`keyed::Throttle`] |
//! | try a call again when it fails | [`Timer::retry`] with a [`retry::Retry`]; [`retry::Backoff`] alone makes the delays |
//! | run a future later, or repeatedly | [`Handle::on_tokio`] (feature `tokio`) |
//! | test code that uses timers, without waiting | [`test_util`] (feature `test-util`): every type above, several on one clock, also tokio's |
//! | keep time in an event loop of your own | [`wheel::Wheel`], without threads and locks |
//! | hold a lock that ends by itself, in one process or on Redis | the crate `tourbillon-leases` |
//! | timers that survive restarts and crashes | the crate `tourbillon-durable` |
//! | answer a probe for health, and look into a process in trouble | [`Handle::health`] and [`Handle::dump`], and the same of [`ExpiryMap`] and [`Timer`] |
//! | watch all this by Prometheus | [`Handle::metrics`], [`ExpiryMap::metrics`], [`Timer::metrics`]; see [`metrics`] |
//!
//! The module [`guide`] has a page for each task: sessions, request timeouts, periodic work, testing,
//! shutdown, operation, recipes, and coming from other timers. It also has the reasons for the
//! [design](guide::design) and the [changelog](guide::changelog).
//!
//! # Add it
//!
//! Tourbillon is not on crates.io yet. Clone it, and then run `cargo add --path ../tourbillon` in
//! your project. The minimum Rust version is 1.88.
//!
//! It is tested on Linux x86-64 only. It needs threads and 64-bit atomics. Three things depend on the
//! platform:
//!
//! | | on Linux and Android | elsewhere |
//! |---|---|---|
//! | the pool | sees which workers are blocked, and [grows](SchedulerBuilder::max_running) for them | grows by at most one worker every 10 ms |
//! | [`Clock::fast`] | reads the processor's counter, on Linux x86-64 | is [`Clock::system`] |
//! | [`Clock::boottime`] | counts the time while the machine is suspended | is [`Clock::system`] |
//!
//! # Features
//!
//! None of them is on by default.
//!
//! | feature | adds | dependency |
//! |---|---|---|
//! | `cron` | [`Period::cron`]: repeating timers by cron expressions in time zones | `croner` and `jiff` |
//! | `metrics` | [`metrics::Metrics::publish`]: counters and gauges for the recorder of the crate `metrics` | `metrics` |
//! | `serde` | [`ExpiryMap::snapshot`] and `restore`: the entries of a map for another process; `Serialize` for statistics, infos and events | `serde` with `derive` |
//! | `stream` | [`ExpiryMapBuilder::build_stream`]: expired entries as a `Stream` | `futures-core` |
//! | `test-util` | the module [`test_util`]: a scheduler, timer or map that a test drives on its own thread, and futures in virtual time | none; with `tokio`, tokio's `time` |
//! | `tracing` | a span for each run, and warnings, for the subscriber of the crate `tracing`: [`guide::traces`] | `tracing` |
//! | `tokio` | [`Handle::on_tokio`] and [`ExpiryMapBuilder::build_on_tokio`]: tasks and handlers that are futures | `tokio` with `rt` |
//!
//! The other async calls need no feature and no particular runtime: [`Timer::sleep`],
//! [`Timer::timeout`], [`Handle::cancel_and_wait`], and [`Closing`] as a future.
//!
//! A loop of awaits that are ready at once, such as sleeps of zero, returns to the runtime after a
//! bounded number of them; see [`coop`]. So other tasks go on, and a timeout or a `select!` around
//! the loop can end it.
//!
//! # Entries that expire
//!
//! The handler gets each expired entry. A map can also send its entries into a
//! [channel](ExpiryMapBuilder::build_channel) or a stream.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::ExpiryMap;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let connections = ExpiryMap::<u64, String>::builder()
//!     .time_to_idle(Duration::from_secs(30))
//!     .build(|_, expired| eprintln!("{} has been silent for 30 s", expired.value))?;
//! connections.insert(7, "printer".to_owned())?;
//! // A message has arrived, so the 30 s start again.
//! assert!(connections.touch(&7).is_alive());
//! # Ok(())
//! # }
//! ```
//!
//! # Tasks that repeat
//!
//! The rounds of a fixed rate lie on a grid, so they do not drift. A round that starts too late is
//! *missed*, and [`Missed`] says what happens to it. [`Period`] has all options.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::{Missed, Next, Period, Scheduler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::new()?;
//! let beat = Period::fixed_rate(Duration::from_secs(1)).random_phase().missed(Missed::Once);
//! scheduler.handle().repeat("heartbeat", beat, |round| {
//!     eprintln!("beat {}, {} missed", round.number(), round.missed());
//!     Next::Again
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - A task never starts before its deadline, except after [`Shutdown::RunNow`].
//! - Every accepted timer, and every round of a repeating one, has exactly one end: it ran, or was
//!   cancelled, replaced, or handed back at shutdown.
//! - A task runs at most once; a repeating task runs at most once per round.
//! - *Cancelled* means that the task has not started and never will, even if it was due and queued.
//!   After a repeating key is cancelled no round starts, even if one is running.
//! - Two runs of one key never overlap.
//! - Tasks never delay ticks, unless they run [inline](SchedulerBuilder::inline).
//! - No thread wakes while nothing is due.
//! - Memory is bounded by the greatest number of timers that were pending at one time.
//!   [`Handle::shrink_to_fit`] and [`ExpiryMap::shrink_to_fit`] release memory that a peak has left
//!   behind.
//!
//! The order of timers within one tick is not guaranteed. Neither is a bound on the lateness on a
//! busy machine; [`Handle::stats`] measures it.
//!
//! User code that panics under a lock of this crate, and the hook that runs then, have [rules of their
//! own](guide::panic_hooks).
//!
//! # Errors that hand something back
//!
//! The error of a call that takes a task, or a key and a value, contains what was refused. Such an
//! error can be passed on by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>` only if its
//! content is `Sync`, and many closures are not. `into_reason` drops the content and keeps the
//! reason as an error, for each of these types: [`ScheduleError::into_reason`],
//! [`InsertError::into_reason`], [`EntryError::into_reason`] and
//! [`wheel::FullError::into_reason`].
//!
//! ```
//! # use std::error::Error;
//! # use std::time::Duration;
//! use tourbillon::{Handle, ScheduleError};
//!
//! fn time_out(timers: &Handle<u64>, id: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
//!     let (send, _receive) = std::sync::mpsc::channel::<()>();
//!     let close = std::cell::Cell::new(Some(send)); // is not `Sync`
//!     let armed = timers.schedule(id, Duration::from_secs(5), move |_| drop(close.take()));
//!     armed.map_err(ScheduleError::into_reason)?;
//!     Ok(())
//! }
//! # let scheduler = tourbillon::Scheduler::<u64>::new()?;
//! # time_out(&scheduler.handle(), 7).unwrap();
//! # Ok::<(), Box<dyn Error>>(())
//! ```
//!
//! # Vocabulary
//!
//! - A timer is *armed* with a *deadline*. Each accepted call that arms is an *arming* and has a
//!   [`TimerId`].
//! - Time passes in *ticks* of 1 ms, or as [`SchedulerBuilder::tick`] says. At the first tick that
//!   is not before its deadline, a timer *expires*: it is taken off the wheel and *queued*.
//! - A worker *claims* a queued timer and runs its task.
//! - *Lateness* is start minus deadline. It has two parts: the time until the tick, and the time in
//!   the queue.
//! - Each *round* of a repeating timer is an arming of its own. A round that starts later than its
//!   *grace* allows is missed.
//!
// Where a feature is off, what it adds is a link to the table of features.
#![cfg_attr(
    not(feature = "metrics"),
    doc = "[`metrics::Metrics::publish`]: #features"
)]
#![cfg_attr(not(feature = "cron"), doc = "[`Period::cron`]: #features")]
#![cfg_attr(not(feature = "serde"), doc = "[`ExpiryMap::snapshot`]: #features")]
#![cfg_attr(
    not(feature = "stream"),
    doc = "[`ExpiryMapBuilder::build_stream`]: #features"
)]
#![cfg_attr(not(feature = "test-util"), doc = "[`test_util`]: #features")]
#![cfg_attr(
    not(feature = "tokio"),
    doc = "[`Handle::on_tokio`]: #features\n[`ExpiryMapBuilder::build_on_tokio`]: #features"
)]

mod backoff;
mod bounded_channel;
mod clock;
mod config;
pub mod coop;
mod engine;
mod error;
#[cfg(test)]
mod error_texts;
mod executor;
mod expiry;
#[cfg(any(
    all(doc, not(doctest)),
    all(
        doctest,
        feature = "serde",
        feature = "stream",
        feature = "tokio",
        feature = "test-util"
    )
))]
pub mod guide;
mod health;
mod job;
pub mod keyed;
pub mod metrics;
mod options;
pub mod reentrancy;
pub mod retry;
#[cfg(not(loom))]
mod runtime;
mod scheduler;
mod shard;
mod stats;
mod sync;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
mod tick;
mod tickers;
mod timer;
#[cfg(feature = "tracing")]
mod trace;
mod unwind;
mod waker;
pub mod wheel;
mod when;

/// The receiving end of channels, as [`build_channel`](ExpiryMapBuilder::build_channel) returns it.
///
/// The items are those of the crate `crossbeam-channel`, so a program that uses that crate can mix
/// both. A program that does not use it needs nothing but this module: it can name the types,
/// handle the errors, and wait for several channels.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::channel::{Receiver, RecvTimeoutError, select};
/// use tourbillon::{Expired, ExpiryMap};
///
/// struct Sessions {
///     map: ExpiryMap<u64, &'static str>,
///     expired: Receiver<Expired<u64, &'static str>>,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idle = Duration::from_millis(20);
/// let (map, expired) = ExpiryMap::builder().time_to_idle(idle).build_channel(64)?;
/// let sessions = Sessions { map, expired };
/// sessions.map.insert(7, "ada")?;
/// select! {
///     recv(sessions.expired) -> gone => assert_eq!(gone?.value, "ada"),
///     default(Duration::from_secs(60)) => panic!("the session has not expired"),
/// }
/// let nothing = sessions.expired.recv_timeout(Duration::ZERO);
/// assert_eq!(nothing, Err(RecvTimeoutError::Timeout));
/// # Ok(())
/// # }
/// ```
pub mod channel {
    pub use crate::sync::channel::{
        IntoIter, Iter, Receiver, RecvError, RecvTimeoutError, Select, SelectTimeoutError,
        SelectedOperation, TryIter, TryRecvError, TrySelectError, never, select,
    };
}

#[cfg(not(loom))]
pub use clock::WallAnchor;
pub use clock::{Clock, ClockParker, ClockUnparker, ManualClock};
pub use engine::{Lifecycle, Shutdown};
pub use error::{BuildError, ScheduleError, WaitError};
pub use executor::{Executor, Job};
#[cfg(feature = "stream")]
pub use expiry::Expirations;
pub use expiry::{
    Changes, Computing, Entry, EntryError, Expired, Expiry, ExpiryHandedBack, ExpiryMap,
    ExpiryMapBuilder, ExpiryReport, ExpiryStats, Found, GroupFull, GroupNotNamed, GroupedBy,
    GroupedExpiryMap, GroupedExpiryMapBuilder, InGroup, InsertError, InsertRefusal, Inserted, Iter,
    MapHasher, NoGroup, Reads, Reason, ReceiverLost, Removed, RenameError, RenameRefusal, Touch,
    Toucher, Updated,
};
#[cfg(feature = "serde")]
pub use expiry::{NewerFormatError, Restored, Snapshot};
pub use health::{Dump, Finding, FindingKind, Health, Impact, RunDump, ShardDump};
#[cfg(not(loom))]
pub use runtime::{Runtime, RuntimeBuilder, RuntimeInUse, RuntimeStats};
pub use scheduler::{
    AfterPanic, ById, ByIds, Cancel, CancelAndWait, CancelGuard, Closing, Firing, HandedBack,
    Handle, InsideTaskError, IntoNext, KeyHasher, Missed, Next, Pending, Period, PullIn,
    RandomState, Report, Reschedule, Round, Scheduled, Scheduler, SchedulerBuilder, ShardStats,
    SoFar, Stats, Task, TaskPanic, TimerId, TimerInfo, TimerState,
};
#[cfg(feature = "tokio")]
pub use scheduler::{AsyncFiring, AsyncRound, Cancelled, OnTokio};
#[cfg(feature = "cron")]
pub use scheduler::{Cron, CronError};
pub use stats::Lateness;
pub use tick::Time;
pub use timer::{
    Interval, NextTick, Sleep, SleepError, Timeout, TimeoutError, Timer, TimerBuilder,
    TimerHandedBack, TimerHandle, TimerReport,
};
pub use when::When;

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "stream", feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
