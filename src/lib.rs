#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Keyed timers on sharded hierarchical wheels, with exact answers from any thread, and tasks on a
//! work-stealing pool.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::Scheduler;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::builder().build()?;
//! let timers = scheduler.handle();
//! timers.schedule("request 7", Duration::from_secs(5), |firing| {
//!     eprintln!("{} timed out, {:?} late", firing.key(), firing.lateness());
//! })?;
//! assert!(timers.cancel("request 7").is_cancelled());
//! # Ok(())
//! # }
//! ```
//!
//! # Faces
//!
//! - [`Scheduler<K>`](Scheduler): a closure per key, which runs once or [repeats](Handle::repeat).
//!   Calls go through its [`Handle`].
//! - [`ExpiryMap<K, V>`](ExpiryMap): a value per key, which expires when it is idle or too old; one
//!   handler, channel or stream for all. For sessions, in [groups](ExpiryMapBuilder::groups) if
//!   wanted.
//! - [`Timer`]: closures without keys, each with a [`Timeout`] to cancel it by.
//! - [`wheel`]: the wheel alone, for an event loop of your own.
//! - The crate `tourbillon-leases`: locks that are renewed while they are held and end by themselves, on
//!   the timers of this crate.
//! - `test_util` (feature `test-util`): the same scheduler, or map, driven by a test's own thread.
//!
//! # Vocabulary
//!
//! A timer is *armed* with a *deadline*; one acceptance is an *arming* and has a [`TimerId`]. When
//! its deadline has passed it *expires*: it is taken off the wheel and *queued*. A worker *claims*
//! it, and its task *runs*. *Lateness* is start minus deadline: until the *tick* that collected it,
//! and in the queue.
//!
//! A timer that repeats has *rounds*, each of which is an arming. Those of a fixed rate lie on a
//! *grid*; one that starts later than its *grace* allows is *missed*, and a policy says what
//! becomes of it. [`Period`] has the options.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::{Missed, Next, Period, Scheduler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::builder().build()?;
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
//! - A task never starts before its deadline (but for [`Shutdown::RunNow`]).
//! - Every accepted arming has exactly one end: it ran, or was cancelled, replaced, or handed back.
//!   A task runs at most once, a repeating one once for each arming.
//! - *Cancelled* means that the task has not started and never will, also when it was queued. After
//!   a cancel of a repeating key no round starts, also when one is running.
//! - Two runs of one key never overlap.
//! - Tasks never hold up ticks, unless they run [inline](Builder::inline).
//! - Nothing due means no thread wakes.
//! - Memory is bounded by the most that was pending at one time. [`Handle::shrink_to_fit`] and
//!   [`ExpiryMap::shrink_to_fit`] give back what a peak has left behind.
//!
//! Not guaranteed: an order within a tick, or lateness on a busy machine. [`Handle::stats`] shows
//! the latter.
//!
//! # Levels
//!
//! Each wheel has six levels of 64 slots; the docs of [`wheel`](wheel#levels) have a table of them.
//! With the default tick of 1 ms they reach 2.2 years. A timer that is due later waits in a list,
//! and moves down as its deadline comes nearer, so it is exact to the tick at any range.
//!
//! # Panic hooks
//!
//! A hook of [`std::panic::set_hook`] runs before the panic has released anything. If user code
//! panicked under a lock of a map or a scheduler, the thread still has that lock, and must not wait
//! for another one. Until the panic has left the call that took the lock, all calls of this thread
//! to any map, scheduler or timer behave as follows. That includes calls from drops that the panic
//! causes under the lock.
//!
//! - Calls that arm or insert fail with the variant `UnderLock` of their error, which gives back
//!   what was to be armed.
//! - Calls that wait for a run fail with [`WaitError::WouldDeadlock`].
//! - A shutdown begins, and returns its ticket. Do not wait for the ticket in the hook.
//! - A drop does its work when the lock is released.
//! - All other calls change nothing, and answer as for a key that is not there: [`Handle::cancel`]
//!   returns [`Cancel::NotFound`], [`Handle::len`] returns 0, and all counters are 0. Such an
//!   answer says nothing about the real contents.
//!
//! Crates that build on this one have [`reentrancy`] for the same purpose.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `test-util` | the module `test_util`; no dependency |
//! | `stream` | `ExpiryMapBuilder::build_stream`: expired entries as a `Stream`; the crate `futures-core` |
//! | `tokio` | `Handle::on_tokio`: tasks that are futures; the crate `tokio` with `rt` alone |
//!
//! The other async calls need no feature and no particular runtime: `Timer::sleep` and `timeout`,
//! `Handle::cancel_and_wait_async`, and `ReportTicket` as a future.
//!
//! The design, its reasons and its figures stand in `DESIGN.md` of the repository.

mod bounded_channel;
mod clock;
mod config;
mod engine;
mod error;
mod executor;
mod expiry;
mod job;
mod options;
pub mod reentrancy;
mod scheduler;
mod shard;
mod stats;
mod sync;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
mod tick;
mod timer;
mod waker;
pub mod wheel;

pub use clock::{Clock, ClockParker, ClockUnparker, ManualClock};
pub use engine::{Lifecycle, Shutdown};
pub use error::{BuildError, ScheduleError, WaitError};
pub use executor::{Executor, Job};
#[cfg(feature = "stream")]
pub use expiry::Expirations;
pub use expiry::{
    Entries, Expired, Expiry, ExpiryHandedBack, ExpiryMap, ExpiryMapBuilder, ExpiryReport, Found,
    Grouping, Groups, InsertError, InsertRefusal, Inserted, NoGroups, Reason, ReceiverLost,
    Removed, Touch,
};
pub use scheduler::{
    AfterPanic, Builder, ById, Cancel, CancelAndWait, CancelGuard, Firing, HandedBack, Handle,
    IntoNext, KeyHasher, Missed, Next, Pending, Period, PullIn, RandomState, Report, ReportTicket,
    Reschedule, Round, Scheduled, Scheduler, ShardStats, SoFar, Stats, Task, TaskPanic, TimerId,
    TimerInfo, TimerState,
};
#[cfg(feature = "tokio")]
pub use scheduler::{AsyncFiring, Cancelled, OnTokio};
pub use stats::Lateness;
pub use tick::Time;
pub use timer::{
    Sleep, SleepError, Timeout, TimeoutError, Timer, TimerBuilder, TimerHandedBack, TimerReport,
};

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "stream", feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
