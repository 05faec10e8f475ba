#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Timers that survive restarts and dead machines: scheduled, moved and cancelled by key, and kept
//! in a database. "Pay within 15 minutes, or the order is cancelled."
//!
//! - **Schedule, move and cancel** by your own key: [`Durable::schedule`], [`Durable::reschedule`],
//!   [`Durable::cancel`]. The answers are exact: a timer that was cancelled never starts.
//! - **Run** due timers, on any number of processes that share the store:
//!   [`DurableBuilder::handle`].
//! - **Commit together** with your own rows: [`in_transaction`](InTransaction) of the store, and
//!   [`Due::complete_in`], which makes the effect of a run happen exactly once.
//!
//! The store is SQLite for the processes of one machine, or PostgreSQL for many machines.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon_durable::{Due, Durable, Memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (sender, cancelled) = std::sync::mpsc::channel();
//! // Or `Sqlite::open("timers.db")?`, or `Postgres::connect("postgres://app@db/shop")?`.
//! let timers = Durable::builder(Memory::new())
//!     .handle("pay-by", move |due: &Due<u64>| drop(sender.send(*due.payload())))
//!     .start()?;
//! timers.schedule("pay-by", "order:7", Duration::from_millis(5), &7).wait()?;
//! assert_eq!(cancelled.recv()?, 7);
//! # Ok(())
//! # }
//! ```
//!
//! # Add it
//!
//! The crate is not on crates.io yet. Clone the repository, and run this in your project:
//!
//! ```sh
//! cargo add --path ../tourbillon/crates/durable --features tokio-postgres
//! ```
//!
//! | | |
//! |---|---|
//! | Rust | 1.88 or newer |
//! | systems | tested on Linux x86-64 only. Nothing in the crate needs Linux, except that it refuses network file systems where Linux tells it |
//! | PostgreSQL | 13 or newer, the encoding UTF-8, tested on 15 |
//! | SQLite | is compiled in, on a local disk |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `sqlite`, on by default | [`Sqlite`], and calls within a transaction of `rusqlite` |
//! | `tokio-postgres` | [`Postgres`], and calls within a transaction of `tokio-postgres` |
//! | `postgres` | the same, and calls within a transaction of the blocking crate `postgres` |
//! | `postgres-tls` | connections to PostgreSQL over TLS, by rustls |
//! | `tokio` | [`handle_tokio`]: handlers that are futures on a tokio runtime. To await the calls needs no feature |
//! | `jiff` | due times of the crate `jiff`: `Timestamp` and `Zoned` |
//! | `test-util` | [`test_util`]: timers in virtual time, for tests of programs that use them; no dependency |
//! | `metrics` | counters and gauges for the recorder of the crate `metrics`: `timers.metrics().publish()` |
//! | `tracing` | a span for each run, and the events of operators, for the subscriber of the crate `tracing` |
//! | `serde` | events, statistics, counts and timers as they are read can be serialized; a time is `{"secs_since_epoch":1,"nanos_since_epoch":7000}` |
//!
//! The README says which versions of other crates that use SQLite fit beside this one.
//!
//! # Which type do I need?
//!
//! | task | type |
//! |---|---|
//! | schedule and run timers | [`Durable`], which a [`DurableBuilder`] starts |
//! | keep them in a file, for the processes of one machine | [`Sqlite`] |
//! | keep them in a PostgreSQL database, for many machines | [`Postgres`] |
//! | keep them in this process, for tests | [`Memory`] |
//! | schedule and cancel within a transaction of your own | [`InTransaction`], which the store returns |
//! | read the payload of a due timer, and how often it has run | [`Due`] |
//! | give a timer a tenant, tags or a trace context beside its payload | [`Meta`] |
//! | set what follows an error, or a start that is far too late | [`RetryPolicy`], [`Late`] |
//! | run a timer again and again | [`Ending::Again`] |
//! | test code that uses timers, without waiting | [`start_stepped`] (feature `test-util`) |
//! | answer a probe for health | [`Durable::health`] |
//! | log and count | [`DurableEvent`], [`DurableStats`], [`Durable::counts`] |
//! | find timers and dead letters | [`TimerFilter`], [`DeadFilter`] |
//! | follow each run | [`RunEvent`] |
//! | put a span or a context around each run | [`around`](DurableBuilder::around) |
//! | choose the store at run time | a `Box<dyn` [`Store`]`>` |
//!
//! # Guides
//!
//! | page | content |
//! |---|---|
//! | [`order_timeouts`] | orders that are paid in time or cancelled: the whole story |
//! | [`webhooks`] | calls to the outside, with retries, idempotency and dead letters |
//! | [`transactions`] | timers in a transaction of your own, for each driver and for SQL |
//! | [`traces`] | events of runs, layers around handlers, the trace of the caller |
//! | [`postgres`][guide_postgres] | setting up a server: roles and rights, connections, poolers, TLS |
//! | [`support`] | why a timer has not run; hurry, cancel, revive and discard, in Rust and in SQL |
//! | [`testing`] | tests in virtual time: each kind of handler, retries, crashes, late timers, outages |
//! | [`operation`] | for those who run it: what to watch, sizes, backups, outages, updates |
//! | [`coming_from`] | the same job in Quartz, db-scheduler, Celery beat, Sidekiq, Oban and others, and here |
//! | [`promises`] | what you can rely on, what a commit is worth, limits |
//! | [`figures`], [`design`], [`changelog`] | rates and a comparison, reasons, and what changed |
//!
//! # At least once
//!
//! A timer runs again if its process dies during the run, and if its handler fails. Commit the
//! effect with [`Due::complete_in`], or make it idempotent by [`Due::token`]. No timer starts
//! before its due time, by the store's clock.
//!
//! A timer that another process has scheduled less than one [poll](DurableBuilder::poll_interval)
//! before its due time may start up to one poll late, unless the store has a doorbell:
//! `PostgresBuilder::notify`.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | queue | the name that selects the handler of a timer |
//! | key | the name of a timer within its queue |
//! | node | a process with handlers, from its start to its end |
//! | claim | the right of one node to run a timer |
//! | node lease | how long a node may be silent and keep its claims |
//! | fenced | refused, because the claim is no longer this node's |
//! | poll | the read that finds timers that are due soon, once a second by default |
//! | doorbell | a store's signal that a timer was scheduled for the next moments |
//! | settle | to write the end of a run |
//! | follow | to be scheduled during a run of the same key, and to start after it |
//! | dead letter | a timer that was given up, and can be revived |
//!
// Where a feature is off, its links lead to the table of features.
#![cfg_attr(feature = "sqlite", doc = "[`Sqlite`]: Sqlite")]
#![cfg_attr(not(feature = "sqlite"), doc = "[`Sqlite`]: #features")]
#![cfg_attr(feature = "tokio-postgres", doc = "[`Postgres`]: Postgres")]
#![cfg_attr(not(feature = "tokio-postgres"), doc = "[`Postgres`]: #features")]
#![cfg_attr(
    feature = "tokio",
    doc = "[`handle_tokio`]: DurableBuilder::handle_tokio"
)]
#![cfg_attr(not(feature = "tokio"), doc = "[`handle_tokio`]: #features")]
#![cfg_attr(
    feature = "test-util",
    doc = "[`start_stepped`]: DurableBuilder::start_stepped"
)]
#![cfg_attr(
    not(feature = "test-util"),
    doc = "[`start_stepped`]: #features\n[`test_util`]: #features"
)]
//!
//! [`order_timeouts`]: guide::order_timeouts
//! [`webhooks`]: guide::webhooks
//! [`transactions`]: guide::transactions
//! [`traces`]: guide::traces
//! [guide_postgres]: guide::postgres
//! [`support`]: guide::support
//! [`testing`]: guide::testing
//! [`operation`]: guide::operation
//! [`coming_from`]: guide::coming_from
//! [`promises`]: guide::promises
//! [`figures`]: guide::figures
//! [`design`]: guide::design
//! [`changelog`]: guide::changelog

mod calls;
mod client;
mod durable;
#[cfg(test)]
mod error_texts;
mod events;
// Its code needs the stores, and its pages name them.
#[cfg(all(
    doc,
    any(
        not(doctest),
        all(feature = "sqlite", feature = "postgres", feature = "test-util")
    )
))]
#[cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "test-util")),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "links to what a feature adds"
    )
)]
pub mod guide;
mod memory;
mod node;
#[cfg(feature = "tokio-postgres")]
mod postgres;
#[doc(hidden)]
pub mod row;
mod run;
#[cfg(feature = "sqlite")]
mod sqlite;
#[doc(hidden)]
pub mod store;
mod sync;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod test_util;

#[doc(hidden)]
pub use calls::CallWithin;
pub use calls::{
    Awaited, CallError, CancelAnswer, CompleteError, CompletesRun, Completion, DeadFilter,
    DeadTimer, IfAbsentAnswer, InTransaction, Invalid, Paging, RescheduleAnswer, ScheduleAnswer,
    Sent, StartError, StoredTimer, TakesCalls, TimerFilter,
};
pub use durable::{Durable, DurableBuilder, QueueBuilder, RevivedDead, StopReport, WithMeta};
pub use events::{DurableEvent, DurableStats, StoreWork};
pub use memory::{Memory, MemoryCall, MemoryFault};
#[cfg(feature = "tokio-postgres")]
#[doc(hidden)]
pub use postgres::driver;
#[cfg(feature = "tokio-postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio-postgres")))]
pub use postgres::{Postgres, PostgresBuilder};
pub use run::{
    Due, Ending, IntoEnding, Late, NextLayer, Ran, RetryPolicy, RunEvent, RunInfo, RunOutcome,
    Token,
};
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use rusqlite;
#[cfg(feature = "sqlite")]
#[cfg_attr(docsrs, doc(cfg(feature = "sqlite")))]
pub use sqlite::Sqlite;
pub use store::due_at::DueAt;
pub use store::schedule::Schedule;
#[cfg(feature = "cron")]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
pub use store::schedule::{CronSchedule, LastRun, Overlap, StoredSchedule, UnreadableSchedule};
pub use store::time::WallClock;
#[doc(inline)]
pub use store::{Meta, QueueCounts, Revived, Store, StoreError, StoredNode, StoredState};
#[cfg(feature = "tokio-postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio-postgres")))]
pub use tokio_postgres;
#[cfg(feature = "cron")]
#[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
pub use tourbillon::{Cron, CronError, Missed};
pub use tourbillon::{Finding, FindingKind, Health, Impact, metrics};

#[cfg(all(doctest, feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../README.md")]
struct Readme;
