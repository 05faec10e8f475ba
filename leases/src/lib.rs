#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//! Leases: locks that end by themselves, and watchdogs that keep things alive.
//!
//! - [`Leases`]: locks by name over a [`LeaseStore`], renewed in the background.
//! - [`KeepAlive`]: the same renewals for whatever else ends unless it is renewed.
//! - [`MemoryStore`]: the embedded store. `RedisStore` (feature `redis`): the same on a server.
//! - [`Fence`]: keeps holders that have lost their lease away from a resource.
//!
//! `lock_async`, `try_lock_async`, `try_lock_for_async` and `release_async` wait without a thread, on
//! any runtime; [`lock`](Leases::lock) in a task would block its runtime.
//!
//! ```
//! use std::time::Duration;
//! use tourbillon_leases::{Leases, MemoryStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = Leases::builder(MemoryStore::new()).lease(Duration::from_secs(10)).build()?;
//! let guard = leases.lock("invoices")?; // waits until it is free
//! for invoice in 1..=3 {
//!     if !guard.is_held() {
//!         break; // somebody else may have it
//!     }
//!     println!("sending invoice {invoice} with token {}", guard.fencing_token());
//! }
//! guard.release()?; // an error if it was not held to the end
//! # Ok(())
//! # }
//! ```
//!
//! # What a lease can and cannot promise
//!
//! A lease is a lock with an end. Who holds it renews it; who dies, is cut off or stands still
//! renews nothing, and others get the lock when the lease has run out. Between machines no lock can
//! do better: nobody can tell a dead holder from one that is slow.
//!
//! ```text
//!          request sent                                 lost
//!  holder  |--------------- lease - margin ------------>|
//!  store         |----------------------- lease --------------------->|
//!                executed                                             free for others
//! ```
//!
//! **What is counted from when.** For the holder a lease begins *before* the request is sent that
//! acquires or renews it; for the store when it executes the request, which is later. And the
//! holder takes a margin off the end, by default a hundredth of the lease and 2 ms. So for the
//! holder it is over before anybody else can have it, as long as the two clocks drift apart by less
//! than the margin during a lease.
//!
//! **The local clock decides.** [`is_held`](LeaseGuard::is_held) looks at the clock of this machine
//! and asks nobody, so it is right while the store hangs, and at once after a pause. That clock,
//! [`Clock::boottime`](tourbillon::Clock::boottime), goes on while the machine is suspended, on Linux
//! and Android; elsewhere it may not.
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
//! **A failed renewal ends nothing, a loss is final.** What fails is tried again until the lease
//! has run out. When it has, or the store says that somebody else holds the name or nobody does,
//! the lease is lost, and no answer that comes later brings it back: acquire it anew. The holder
//! learns of it by whatever it looks at: `is_held` and [`remaining`](LeaseGuard::remaining), the
//! flag, channel or future of [`lost`](LeaseGuard::lost), an event, the error of
//! [`release`](LeaseGuard::release).
//!
//! ## What cannot be promised
//!
//! - **That you still hold it when you write.** Between `is_held` and the write that follows the
//!   process may be paused, or the write may be long on its way. No lock can close that gap; a
//!   *fence* can.
//! - **Anything about clocks that jump.** If the store's clock is set forward, leases end early
//!   there, while their holders believe in them. If a virtual machine is frozen, it is up to its
//!   host whether the machine's clock counts that.
//! - **That a server remembers.** A server that was killed, flushed or replaced by an empty one may
//!   come back without the lock. So `RedisStore` grants nothing on a server that has restarted, has
//!   lost its data, or is new to the store. That lasts for the longest lease, 30 s by default, and
//!   a second more at most; [`lock`](Leases::lock) waits that long. Leases that the server has
//!   forgotten are lost at their next renewal.
//!
//!   A server with `appendonly yes` and `appendfsync always` forgets nothing: build its store with
//!   `durable`, which grants at once. For a server that is empty on purpose, such as one of a test,
//!   there is `starts_empty`.
//! - **That a replica knows.** A failover loses the writes that were not replicated yet, the latest
//!   grants among them, and nothing can notice that: then two may hold one lock.
//!
//! The last two are no matter for `MemoryStore`, which knows of this process only.
//!
//! ## When a fence is needed, and how
//!
//! If the lock only saves work that would be done twice, it is enough. If two holders at one time
//! would do harm, let the resource check the [token](LeaseGuard::fencing_token), which is greater
//! for every later holder of a name: it refuses what comes with a smaller one than it has seen. In
//! a database that is a column, and one statement that checks and writes:
//!
//! ```sql
//! UPDATE account SET balance = :balance, token = :token WHERE id = :id AND token <= :token
//! ```
//!
//! No row changed: the lease has passed to somebody else, so stop. For what lives in this process
//! there is [`Fence`]: admit the token and write under *one* hold of the resource's own lock, or
//! the gap is back. Tokens of `RedisStore` grow through restarts too, unless the server forgets the
//! last one and its clock is set back.
//!
//! ## Which lease
//!
//! When a holder dies, the others wait for the rest of its lease: mostly between two thirds of it
//! and all. When the store does not answer, the holder goes on for about as long. So a short lease
//! is taken over soon, and a long one outlives failovers and pauses. The default is 30 s, the
//! shortest 50 ms. A call to renew has a sixth of the lease, so it should be many times what the
//! store takes to answer.
//!
//! Renewals go on for as long as the guard lives, which is not always as long as the work does:
//!
//! - [`fixed_lease`](Acquisition::fixed_lease) is never renewed, for work that has an end anyway.
//! - [`fed_every`](Acquisition::fed_every): a worker that no longer calls
//!   [`feed`](LeaseGuard::feed), since it hangs, loses the lease.
//! - [`max_hold`](Acquisition::max_hold) is a limit to all renewals together.
//!
//! ## Events
//!
//! They reach a callback ([`on_event`](LeasesBuilder::on_event)) or a channel
//! ([`events`](Leases::events)), and hold up no renewal. A channel that is full leaves out what
//! comes, be it the loss, and that is counted; the callback gets the loss in any case.
//!
//! | [`What`] | what it means, and what to do |
//! |---|---|
//! | `Renewed` | all is well |
//! | `Failed` | an attempt failed and there will be others: log it |
//! | `AtRisk` | a third of the lease is left and renewals fail: begin nothing new |
//! | `Lost` | it is over: stop, and take nothing for granted that you have not fenced |
//! | `Late` | renewals begin late: the machine is too busy, or the process was stopped |
//! | `Waiting` | a caller has waited for a second or longer: is the lock held that long, or does the store fail? |
//! | `HeldLong` | renewed as often as `alarm_after` says: has somebody forgotten a guard? |
//!
//! ## The end
//!
//! **Dropping a guard**, the last one of its holding, ends the renewals at once. A worker asks the
//! store to give the lock back, together with others of the same destination. The drop waits for
//! that for a tenth of a second at most, and for a guard of an async call not at all. If the store
//! fails, it is asked again in the background until the lease would have run out.
//! [`LeaseStats::releases_queued`] is the number of releases that the store has not answered. A
//! drop reports no result; [`release`](LeaseGuard::release) does, and no renewal is sent after it
//! returns.
//!
//! **Dropping the last of the [`Leases`] and guards** waits until the store has been asked for all
//! queued releases, and no longer than [`end_limit`](LeasesBuilder::end_limit), one second by
//! default. So a `main` may end right after its guard. The wait blocks the thread, also one of an
//! async runtime.
//!
//! **A process that ends** with guards in its hands, or is killed, gives nothing back: the others
//! wait for the rest of the lease. In good order, drop the guards, or [`close`](Leases::close) the
//! leases, which gives back what is held, within a limit. A panic that unwinds drops its guards. A
//! guard that is leaked is renewed until the process ends, which is what `HeldLong`,
//! [`most_renewals`](LeaseStats::most_renewals) and `max_hold` are for.
//!
//! **A forked copy of the process** (`fork` without `exec`) holds nothing. There
//! [`is_held`](LeaseGuard::is_held) says no, every attempt fails with [`StoreError::Forked`], and
//! drops do nothing. The locks stay with the original. Make leases, and their store, after the
//! fork.
//!
//! # Panic hooks
//!
//! A hook of [`std::panic::set_hook`] may run while the thread has a lock of a map or a scheduler, as
//! the documentation of [`tourbillon`](tourbillon#panic-hooks) describes. Only acquires are protected
//! there: they fail, and nothing is acquired. Make no other call of this crate from such a hook.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `test-util` | `Steps`, which drive leases from a test's own thread; no dependency |
//! | `redis` | `RedisStore`: leases on a Redis server; the crate `redis`, its blocking half |
//! | `redis-tls` | `redis`, and URLs that begin with `rediss://`: the same over TLS; the crates `rustls`, with `ring` for its cryptography, and `rustls-native-certs` |

mod acquire;
mod attempt;
mod awaiting;
mod background;
mod build_error;
mod builder;
mod error;
mod fence;
mod guard;
mod id;
mod inner;
mod keep_alive;
mod locks;
mod memory;
mod oneshot;
mod panics;
#[cfg(feature = "redis")]
mod redis;
mod releases;
mod request;
mod stats;
mod store;
mod sync;
mod turns;
mod wait_queue;

#[cfg(feature = "redis")]
pub use self::redis::{RedisBuildError, RedisStore, RedisStoreBuilder};
pub use acquire::Acquisition;
pub use build_error::BuildError;
pub use builder::LeasesBuilder;
pub use error::{LockError, ReleaseError};
pub use fence::{Fence, StaleToken};
pub use guard::LeaseGuard;
pub use id::LeaseId;
#[cfg(any(test, feature = "test-util"))]
pub use keep_alive::Steps;
pub use keep_alive::{
    Batch, Entry, Event, KeepAlive, KeepAliveBuilder, KeepAliveStats, KeepError, KeepGuard,
    KeepOptions, Loss, Lost, What,
};
pub use locks::Leases;
pub use memory::{Fault, MemoryStore, StoreCall};
pub use stats::LeaseStats;
pub use store::{
    Acquired, Claim, Destination, Holding, LeaseStore, Outcome, Released, Renewal, StoreError,
    Watch,
};

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
