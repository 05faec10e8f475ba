#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Locks that end by themselves if their holder dies. They are kept in one process, in a SQLite file
//! for the processes of one machine, or for many machines on a Redis server, in a PostgreSQL database
//! or on an etcd cluster.
//!
//! - **Lock a name**, in one process or across machines: [`Leases::lock`]. The lock is renewed in
//!   the background while its [`LeaseGuard`] lives.
//! - **Learn that a lock is lost**, without a call to the store: [`LeaseGuard::is_held`] and
//!   [`LeaseGuard::lost`].
//! - **Refuse writes of former holders**: each lock has a token that grows, and a [`Fence`]
//!   compares tokens.
//! - **Renew other things**, such as sessions at a peer: [`KeepAlive`].
//!
//! ```
//! use std::time::Duration;
//! use tourbillon_leases::{Leases, MemoryStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = Leases::builder(MemoryStore::new()).lease(Duration::from_secs(10)).build()?;
//! let guard = leases.lock("invoices").wait()?; // waits until it is free
//! for invoice in 1..=3 {
//!     if !guard.is_held() {
//!         break; // somebody else may have it
//!     }
//!     println!("sending invoice {invoice} with token {}", guard.token());
//! }
//! guard.release().wait()?; // an error if it was not held to the end
//! # Ok(())
//! # }
//! ```
//!
//! # Which type do I need?
//!
//! | task | type |
//! |---|---|
//! | lock a name | [`Leases`], which returns a [`LeaseGuard`] |
//! | watch the locks by Prometheus | [`Leases::metrics`] |
//! | answer a probe for health | [`Leases::health`], [`Election::health`] |
//! | see who holds it, or all that are held | [`Leases::holder`], [`Leases::list`] |
//! | lock it with other options, such as a lease that is not renewed | [`Acquisition`] |
//! | lock several names, all or none | [`Leases::lock_all`] |
//! | let several read, or one write | [`Acquisition::shared`] |
//! | let at most `n` work at a time | [`Acquisition::permit_of`], [`LeaseGuard::place`] |
//! | keep it locked for a while after a short job | [`Acquisition::at_least`] |
//! | hand it over to another process | [`LeaseGuard::detach`], [`Leases::resume`] |
//! | let one of several processes lead | [`Leases::election`], which returns an [`Election`]; [`Election::serve`] |
//! | follow the process that leads | [`Election::leaders`] |
//! | lock it in async code | `leases.lock(name).await`, `guard.release().await`: [`LeaseFuture`] |
//! | keep the locks in this process | [`MemoryStore`] |
//! | keep the locks in a SQLite file, for the processes of one machine | `SqliteStore` (feature `sqlite`) |
//! | keep the locks on a Redis server | `RedisStore` (feature `redis`) |
//! | keep the locks in a PostgreSQL database | `PostgresStore` (feature `postgres`) |
//! | keep the locks on an etcd cluster | the crate `tourbillon-etcd` |
//! | keep the locks elsewhere | a [`LeaseStore`] of your own, in a [`BlockingStore`] if its client blocks, or a `TokioStore` if it needs a tokio runtime |
//! | protect a resource from holders that were paused | [`LeaseGuard::token`], [`Fence`] |
//! | renew something else that ends by itself | [`KeepAlive`] |
//! | test code that uses leases, without waiting | `Steps` (feature `test-util`) |
//!
//! The module `guide` has a page for each task: locks, elections, metrics, and coming from Redisson.
//!
//! `wait` makes the call on the calling thread, and blocks it. `.await` makes it in the task, on
//! any runtime. A store whose client blocks has threads for awaited calls: see [`BlockingStore`].
//! In a task use `.await`: `wait` would block the runtime's thread.
//!
//! # What a lease can and cannot promise
//!
//! A lease is a lock with an end. Its holder renews it. A holder that dies, is cut off or stands
//! still renews nothing, and others get the lock when the lease has run out. Between machines no
//! lock can do better, because nobody can tell a dead holder from a slow one.
//!
//! ```text
//!          request sent                                 lost
//!  holder  |--------------- lease - margin ------------>|
//!  store         |----------------------- lease --------------------->|
//!                executed                                             free for others
//! ```
//!
//! **When a lease begins and ends.** For the holder, a lease begins *before* the request is sent
//! that acquires or renews it. For the store, it begins when the store executes the request, which
//! is later. The holder also takes a margin off the end, by default a hundredth of the lease and
//! 2 ms. So the lease is over for the holder before anybody else can have it, while the two clocks
//! drift apart by less than the margin during a lease.
//!
//! **The local clock decides.** [`is_held`](LeaseGuard::is_held) reads the clock of this machine
//! and calls nobody. So its answer is right while the store hangs, and at once after a pause. The
//! clock is [`Clock::boottime`](tourbillon::Clock::boottime). On Linux and Android it goes on while
//! the machine is suspended; elsewhere it may not.
//!
//! ```text
//!                   .--- renewed: a full lease again ---.
//!                   v                                   |
//!  lock --grant--> held --after a third of the lease--> renewal sent <--.
//!                   |                                   '-- failed -----'  early and often
//!                   |-- release, drop --> given back
//!                   '-- run out, `not held`, not fed, held too long, closed --> lost
//! ```
//!
//! **A failed renewal ends nothing, a loss is final.** A renewal that fails is tried again until
//! the lease has run out. The lease is lost when it has run out, or when the store answers that the
//! name is not held by this holder. No later answer brings it back, so acquire the lock anew. The
//! holder learns of the loss in several ways:
//!
//! - from [`is_held`](LeaseGuard::is_held) and [`remaining`](LeaseGuard::remaining),
//! - from the flag, channel or future of [`lost`](LeaseGuard::lost),
//! - from an [event](#events),
//! - from the error of [`release`](LeaseGuard::release).
//!
//! ## What cannot be promised
//!
//! - **That you still hold the lock when you write.** The process may be paused between `is_held`
//!   and the write, or the write may take long to arrive. No lock can close that gap; a *fence*
//!   can.
//! - **Anything about clocks that jump.** If the store's clock is set forward, leases end early
//!   there, while their holders believe that they hold them. If a virtual machine is frozen, its
//!   host decides whether the machine's clock counts that time.
//! - **That a server remembers.** A server that was killed, flushed or replaced by an empty one may
//!   come back without the lock. So `RedisStore` grants nothing on a server that has restarted, has
//!   lost its data, or is new to the store. That lasts for the longest lease, 30 s by default, and
//!   a second more at most; [`lock`](Leases::lock) waits that long. Leases that the server has
//!   forgotten are lost at their next renewal.
//!
//!   A `PostgresStore` waits only after the promotion of a standby, or the recovery of a physical
//!   backup. A server that restarts still has all that it has committed.
//!
//!   A server with `appendonly yes` and `appendfsync always` forgets nothing: build its store with
//!   `durable`, which grants at once. For a server that is empty on purpose, such as one of a test,
//!   there is `starts_empty`.
//! - **That a replica knows.** A failover loses the writes that were not replicated yet, and the
//!   latest grants may be among them. Nothing can detect that. Two holders may then have one lock.
//!
//! The last two do not concern `MemoryStore`, which serves one process, nor `SqliteStore`, whose leases
//! are over after a reboot.
//!
//! ## When a fence is needed, and how
//!
//! If the lock only saves work that would be done twice, it is enough. If two holders at one time
//! would do harm, let the resource check the [token](LeaseGuard::token). The token is
//! greater for every later holder of a name. The resource refuses a write whose token is smaller
//! than one that it has seen. In a database that takes a column, and one statement that checks and
//! writes:
//!
//! ```sql
//! UPDATE account SET balance = :balance, token = :token WHERE id = :id AND token <= :token
//! ```
//!
//! If no row changed, the lease has passed to somebody else: stop. If the locks are in the same
//! PostgreSQL database, a function of `PostgresStore` fences the whole transaction, without a column.
//! In the same SQLite file, a `select` on the table of `SqliteStore` does.
//! For a resource in this process
//! there is [`Fence`]. [Permits](Acquisition::permit_of) need one for each [place](LeaseGuard::place). Admit the token and write under *one* hold of the resource's own lock, or
//! the gap is back. Tokens of `RedisStore` grow through restarts too, unless the server forgets the
//! last one and its clock is set back.
//!
//! ## Which lease
//!
//! When a holder dies, the others wait for the rest of its lease, mostly between two thirds of it
//! and all of it. When the store does not answer, the holder goes on for about as long. So a short
//! lease is taken over soon, and a long one outlives failovers and pauses. The default is 30 s, the
//! shortest is 50 ms. A call that renews may take a sixth of the lease, so the lease should be many
//! times as long as the store needs to answer.
//!
//! Renewals go on while the guard lives, even if the work has stopped. These options limit them:
//!
//! - [`not_renewed`](Acquisition::not_renewed): a lease that is never renewed, for work that has an
//!   end anyway.
//! - [`fed_every`](Acquisition::fed_every): a worker that hangs no longer calls
//!   [`feed`](LeaseGuard::feed), and loses the lease.
//! - [`max_hold`](Acquisition::max_hold): a limit to the time that the lock is held in all.
//!
//! ## Events
//!
//! Events reach a callback ([`on_event`](LeasesBuilder::on_event)) or a channel
//! ([`events`](Leases::events)), and delay no renewal. A full channel misses events, even the loss;
//! missed events are counted. The callback gets the loss in any case. This one prints all events but
//! renewals:
//!
//! ```
//! use tourbillon_leases::{Leases, MemoryStore, What};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = Leases::builder(MemoryStore::new())
//!     .on_event(|event| match &event.what {
//!         What::Renewed { .. } => {}
//!         what => eprintln!("{}: {what}", event.key.name()),
//!     })
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! | [`What`] | meaning, and what to do |
//! |---|---|
//! | `Renewed { .. }` | all is well |
//! | `Failed { .. }` | an attempt failed, and others follow: log it |
//! | `AtRisk { .. }` | a third of the lease is left and renewals fail: begin nothing new |
//! | `Lost(loss)` | the lock is lost: stop, and rely on nothing that you have not fenced |
//! | `Late { .. }` | renewals begin late: the machine is too busy, or the process was stopped |
//! | `Waiting { .. }` | a caller has waited for a second or longer: is the lock held that long, or does the store fail? |
//! | `HeldLong { .. }` | renewed as often as `alarm_after` says: has somebody forgotten a guard? |
//!
//! ## The end
//!
//! **Dropping the last guard of a holding** ends the renewals at once. A worker asks the store to
//! give the lock back, together with other locks of the same destination. The drop waits for that
//! for a tenth of a second at most. The drop of a guard does not wait if the call that acquired it
//! was awaited. If the store fails, it is asked again in the background until the lease would have
//! run out. [`LeaseStats::releases_queued`] is the number of releases that the store has not
//! answered. A drop reports no result. [`release`](LeaseGuard::release) does, and no renewal is
//! sent after its answer.
//!
//! **Dropping the last of the [`Leases`] and guards** waits until the store has been asked for all
//! queued releases, and no longer than [`end_limit`](LeasesBuilder::end_limit), one second by
//! default. So a `main` may end right after its guard. The wait blocks the thread, also one of an
//! async runtime.
//!
//! **A process that is killed, or ends while it has guards**, gives nothing back. The others wait
//! for the rest of the lease. To end in good order, drop the guards, or [`close`](Leases::close)
//! the leases, which gives all locks back within a limit. A panic that unwinds drops its guards. A
//! guard that is leaked is renewed until the process ends. `HeldLong`,
//! [`most_renewals`](LeaseStats::most_renewals) and `max_hold` help against that.
//!
//! **A forked copy of the process** (`fork` without `exec`) holds nothing. There
//! [`is_held`](LeaseGuard::is_held) returns false, every attempt fails with
//! [`StoreError::Forked`], and drops do nothing. The locks stay with the original. Make leases, and
//! their store, after the fork.
//!
//! # Threads
//!
//! Leases run on the [runtime](tourbillon::Runtime) of the process, which schedulers, maps and
//! timers share. They have queues of their own there, so tasks of others hold up no renewal, as
//! long as the system starts a thread. [`LeasesBuilder::runtime`] chooses another runtime, and
//! [`LeasesBuilder::own_threads`] threads of their own.
//!
//! # Panic hooks
//!
//! A hook of [`std::panic::set_hook`] may run while the thread has a lock of a map or a scheduler;
//! the docs of [`tourbillon`](tourbillon#panic-hooks) describe this. Only acquires are protected
//! there: they fail, and nothing is acquired. Make no other call of this crate from such a hook.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `test-util` | `Steps`, which drive leases from a test's own thread; with `tokio`, by tokio's paused clock; no dependency |
//! | `tokio` | `TokioStore`: a store of your own whose calls need a tokio runtime; the calls of leases can be awaited without a feature |
//! | `metrics` | counters and gauges for the recorder of the crate `metrics`: `leases.metrics().publish()` |
//! | `tracing` | warnings of lost, late and failed renewals and of long waits, with the name and the token of the lock, for a subscriber of the crate `tracing` that is there when the leases are built |
//! | `redis` | `RedisStore`: leases on a Redis server; the crate `redis`, its async half, and `tokio` with sockets and timers |
//! | `postgres` | `PostgresStore`: leases in a PostgreSQL database, with exact fencing in transactions; the crates `tokio-postgres` and `tokio` |
//! | `sqlite` | `SqliteStore`: leases in a SQLite file, for the processes of one machine; the crate `rusqlite`, with SQLite itself |
//! | `postgres-tls` | `postgres`, and URLs that ask for TLS; the crates `rustls`, with `ring` for its cryptography, and `rustls-native-certs` |
//! | `redis-tls` | `redis`, and URLs that begin with `rediss://`: the same over TLS; the crates `rustls`, with `ring` for its cryptography, `tokio-rustls` and `rustls-native-certs` |

mod election;
#[cfg(test)]
mod error_texts;
#[cfg(all(any(doc, doctest), feature = "test-util"))]
pub mod guide;
mod keep_alive;
mod manager;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod remote;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod sync;

#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresBuildError, PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "redis")]
pub use self::redis::{RedisBuildError, RedisStore, RedisStoreBuilder};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
pub use election::{
    Change, Election, ElectionRole, ElectionStatus, Leader, Leadership, Over, TermEnd,
};
#[cfg(any(test, feature = "test-util"))]
pub use keep_alive::Steps;
pub use keep_alive::{
    Batch, BuildError, Entry, Event, KeepAlive, KeepAliveBuilder, KeepAliveStats, KeepError,
    KeepGuard, KeepOptions, Loss, Lost, What, blocking,
};
pub use manager::{
    Acquisition, DetachError, Fence, LeaseFuture, LeaseGuard, LeaseId, LeaseStats, LeaseTicket,
    Leases, LeasesBuilder, LockAll, LockError, ParseTicketError, ReleaseError, StaleToken,
};
pub use store::{
    Acquired, BlockingStore, Claim, Destination, Detach, Detached, Fault, HeldLock, Holder,
    Holding, LeaseStore, LockPage, LockPaging, MemoryStore, Mode, Outcome, Released, Renewal,
    Resume, Resumed, Secret, StoreCall, StoreError, StoreFuture, WaitQueue, Watch,
};

#[cfg(feature = "tokio")]
pub use store::TokioStore;
pub use tourbillon::{Finding, FindingKind, Health, Impact};
// Not inlined: the links of their pages lead to items of `tourbillon`, which are not here.
#[doc(no_inline)]
pub use tourbillon::{channel, metrics};

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
