//! A store in a PostgreSQL database.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::task::Waker;
use std::time::Duration;

use tokio::time::sleep;
use tourbillon::Clock;
use tourbillon_postgres::Row;

use crate::remote::{ForkSafe, Io, Limit, Task, no_runtime};
use crate::store::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
    complete,
};
use crate::sync::{Arc, Mutex, unique_number};
use calls::{micros, values};
use ear::Ear;
use lines::{Lines, Purpose, Values};
use statements::Sql;

mod builder;
mod calls;
mod ear;
mod failure;
mod lines;
mod statements;
mod tables;

pub use builder::{PostgresBuildError, PostgresStoreBuilder};

/// How often a store looks for rows that nobody needs any more. In the database this happens once an
/// hour at most.
const SWEEP: Duration = Duration::from_secs(20 * 60);

/// Keeps leases in a PostgreSQL database, version 13 or newer, for processes that share one. Feature
/// `postgres`.
///
/// Each name is a row, and so is each reader or permit of a shared one. Each call is one statement, and a batch takes one round trip. A lock outlives
/// crashes and restarts of the server, as all that it has committed does.
///
/// ```no_run
/// use tourbillon_leases::{Leases, PostgresStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(PostgresStore::open("postgres://app@db.example.com/shop")?)?;
/// let guard = leases.lock("orders/42").wait()?;
/// println!("held with the token {}", guard.token());
/// guard.release().wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # The URL
///
/// The URL, or a string of `key=value` pairs, is read as `psql` reads it, together with the same
/// environment variables and files. Several hosts are tried in their order. For a primary with
/// standbys, use `postgres://a,b/shop?target_session_attrs=read-write`. `connect_timeout` is the limit
/// for each address, 5 s by default.
///
/// TLS needs the feature `postgres-tls` and `sslmode=verify-full`, `require` or `verify-ca`. Two values
/// differ from `psql`: `require` checks the certificate and the name of the host, and `prefer` does not
/// encrypt. A password may also [come from a function](PostgresStoreBuilder::password_with). No error
/// shows it.
///
/// # Exact fencing
///
/// A lease may end while its holder writes. If the holder writes to the same database, the function
/// `guard` closes that gap. It is called within the transaction that writes:
///
/// ```sql
/// begin;
/// select tourbillon_leases.guard('orders/42', 1794844800000000); -- the name, and `guard.token()`
/// update orders set state = 'sent' where id = 42;
/// commit;
/// ```
///
/// If the name is not held with this token, the call fails with the SQLSTATE `TB002`. After a call that
/// succeeds, nobody else gets the name before the transaction has ended, even if the lease runs out
/// meanwhile. So a long transaction blocks the name beyond its lease. Renewals and releases still work.
/// A holder that stands still within the transaction blocks the name without end. To limit that, set
/// `idle_in_transaction_session_timeout` for the connection that writes. Once the transaction is committed,
/// its writes stand, even if the release then returns [`Lost`](crate::ReleaseError::Lost).
///
/// The connection is the program's own, of any client. The token is a `bigint`:
/// `i64::try_from(guard.token())?`. The guide to locks has the calls in Rust.
///
/// In a transaction with the isolation `repeatable read` or `serializable`, call `guard` first. Do not
/// call it within a savepoint: `rollback to savepoint` ends its protection.
///
/// The same call is for [read locks](crate::Acquisition::shared) and [permits](crate::Acquisition::permit_of).
/// During the transaction of a reader, only readers get the name, and only until the last lease of them has
/// ended. During that of a permit, nobody gets its place, and others get other places.
///
/// # What is in the database
///
/// The tables and functions are in the schema `tourbillon_leases`, or in the one that
/// [`PostgresStoreBuilder::schema`] names. The first connection makes them.
///
/// The table `lease` has a row for each name. Its only index is on the name, so a renewal adds no index
/// entry. The row of a free name keeps the last token, for
/// [25 hours](PostgresStoreBuilder::token_life) by default. A million names in a day take some 300 MB.
///
/// | column of `lease` | what |
/// |---|---|
/// | `mode` | 0 if one holder has it alone. Otherwise its holders are in `lease_share`: -1 readers, `n` permits of `n`. It stays when their leases have run out, until somebody asks |
/// | `owner` | who holds it: the [`instance`](crate::LeasesBuilder::instance), random digits, the process, and the number of the holding. It is for people, and proves nothing. With ` (released)` behind it: nobody, but the name [stays locked](crate::Acquisition::at_least). Null: nobody |
/// | `secret` | a text by which the holder proves that it holds the name. No call of a store shows it. Every role that may read the table sees it |
/// | `token` | the token of the last grant |
/// | `ends`, `length` | when the lease ends unless it is renewed, and how long it is |
/// | `holds`, `data` | how many guards held it at the last renewal, and what the holder [says about itself](crate::LeasesBuilder::holder_data) |
/// | `waiter`, `since` | the store whose caller has waited longest; if that wait was 20 ms or more at the release, no other store gets the name for another 5 to 25 ms |
/// | `announce` | whether the release is also announced to stores other than `waiter` |
/// | `asker`, `asked` | of a shared name: the store whose caller has asked last for another mode (`*` for several stores), and when. For 1.5 s nobody joins the holders |
/// | `turn` | of permits: the store for which a place is reserved until `ends` |
/// | `ticket`, `detached`, `terms` | after a [detach](crate::LeaseGuard::detach): the secret of the ticket until it is used, the length of the lease once it is resumed, and the options of the lock |
///
/// The table `lease_share` has a row for each holder of a shared name, with columns of the same meaning, the
/// [`place`](crate::LeaseGuard::place) of a permit, and `released`: whether the place only
/// [stays taken](crate::Acquisition::at_least). A renewal changes this row alone. An acquire reads the rows of
/// all holders of the name, so it takes longer with thousands of them.
///
/// These statements show who holds which lock, and take a lock from its holders. They notice that at
/// their next renewal:
///
/// ```sql
/// select name, owner, token, ends from tourbillon_leases.lease where owner is not null and ends > now()
/// union all select name, owner, token, ends from tourbillon_leases.lease_share where ends > now();
/// update tourbillon_leases.lease set secret = null, ends = now() where name = 'orders/42';
/// update tourbillon_leases.lease_share set ends = now() where name = 'orders/42';
/// ```
///
/// Do not delete rows of `lease`: the token of a name is in its row. A transaction that changes a row and stays
/// open keeps this name from being renewed and released. Other names of the same batch are not
/// affected.
///
/// # Rights
///
/// All functions except `guard` run with the rights of their caller. `guard` runs with the rights of its
/// owner.
///
/// | a role that | needs |
/// |---|---|
/// | makes the tables | `create` on the database |
/// | uses leases | `usage` on the schema; `select`, `insert`, `update` and `delete` on all tables in it; `execute` on all functions in it |
/// | only calls `guard` | `usage` on the schema; `execute` on `guard` |
/// | only shows who holds which lock | `usage` on the schema; `select` on all tables in it |
///
/// By default every role may execute functions. If programs must not make tables, an administrator runs
/// [`PostgresStore::tables_sql`] once.
///
/// The owner of the schema or of its functions can replace them, and they run with the rights of the
/// programs. So before the schema is there, no role that you do not trust may have `create` on the
/// database.
///
/// Secrets are values of statements. With `log_statement = all`, `log_min_duration_statement` or
/// `log_parameter_max_length_on_error` the server may write them to its log, so protect that log as you
/// protect the table.
///
/// # Tokens
///
/// A token is the server's time in microseconds, or the last token plus 1 if that is more. So the
/// tokens of a name grow as long as its row is there, whatever the clock does. They also grow after
/// the row was deleted or lost, **unless the server's clock is set back** meanwhile.
///
/// # Failovers and lost data
///
/// A standby that is promoted may lack the last commits of its primary, and with them locks that
/// holders still rely on. So may a server that was recovered from a physical backup. Both begin a new
/// timeline. A dump that was restored may lack locks, too. Its tables have other numbers (`oid`).
///
/// The table `meta` has the identifier and the timeline of the server that was used last, and the
/// numbers of its own table and database. Each new connection compares them with those that it finds.
/// An acquire compares the number of the table once more. If they differ, nothing is granted for
/// the [longest lease](PostgresStoreBuilder::longest_lease), 30 s by default
/// ([`StoreError::Restarted`]). The same happens if a process finds that the tables were made anew.
/// Renewals and releases never wait.
///
/// A server that only restarts has lost nothing: there is no wait, and holders keep their locks. In a
/// new database there is no wait, either. With [`durable`](PostgresStoreBuilder::durable) the store
/// never waits. Use it only if each standby that may be promoted has all commits.
///
/// # What it cannot promise
///
/// - **A former primary that goes on after a failover, or starts again, still grants**, unless it
///   commits synchronously. A `synchronous_standby_names` with `synchronous_commit = on` closes this
///   gap.
/// - **The store does not notice a snapshot of the server's disk that is put back**: all numbers are
///   those from before. The same holds for rows of a dump that are loaded into the tables that are
///   there. Before programs connect, run
///   `update tourbillon_leases.meta set opens = now() + interval '30 s'`, with your longest lease.
/// - With `fsync = off` a crash of the machine loses locks, and the store does not notice it. A
///   database with `synchronous_commit = off` is no danger: the store turns it on for its own
///   sessions. A durable store also turns `local` into `on`.
/// - Leases are counted by the server's clock. If it jumps forward, leases end early. If it is set
///   back, no lease ends early, and nobody waits for longer than one lease.
///
/// For all of these there is one remedy: the protected resource checks the token
/// ([`Fence`](crate::Fence)).
///
/// # Connections, limits and errors
///
/// A store has one thread, which drives all of its connections, unless a thread that waits for the only
/// call does. One connection is for renewals and background releases. Up to [four](PostgresStoreBuilder::connections) are for other calls. Another one
/// listens for releases while callers wait. Many calls share a connection, so a few callers need only
/// one. A connection is opened when it is needed, and opened again after it was lost.
///
/// A call is given up at its limit. The server may still execute it, so leases release the locks that
/// it may have granted. If the server has answered nothing on the connection since the call was sent,
/// the connection is given up, too.
///
/// While a synchronous standby does not answer, commits on the primary hang. A call ends at its limit,
/// but its session stays on the server until the standby answers, also after the client has closed the
/// connection. These sessions count for `max_connections`, and in a long outage they may reach it.
///
/// PgBouncer needs `pool_mode = session`. The store refuses a pooler that shares connections between
/// transactions. If announcements of releases do not arrive, the store notices that. Then waiting
/// callers ask ten times a second.
///
/// - [`StoreError::Unavailable`]: no server, no answer in time, a server that starts or shuts down, too
///   many connections, a standby, a row that somebody has locked by hand, tables that are gone. A
///   caller that waits goes on waiting.
/// - [`StoreError::Refused`]: a wrong password, missing rights, a server that is older than version 13,
///   a database whose encoding is not UTF-8, tables that need a newer version of this crate, a name that
///   is empty, has more than 1,024 bytes, or has a zero byte, and a lease that is zero or longer than the
///   longest.
///
/// # Forks
///
/// A store belongs to the process that created it. In a forked copy each call fails with
/// [`StoreError::Forked`] at once and sends nothing. Create a store, and its leases, after the fork.
///
/// Clones share one store.
#[doc(alias("postgresql", "pg"))]
#[derive(Clone)]
pub struct PostgresStore(Arc<PostgresInner>);

struct PostgresInner {
    options: PostgresOptions,
    own: ForkSafe<Connections>,
    ear: Arc<Ear>,
}

/// The options, which the builder has checked.
struct PostgresOptions {
    longest_lease: Duration,
    longest_lease_changes: bool,
    durable: bool,
    token_life: Duration,
}

impl PostgresStore {
    /// Creates a store in the database of this URL, with the defaults of the
    /// [builder](Self::builder). The store connects when it is used first.
    ///
    /// # Errors
    ///
    /// If the URL can't be read, or asks for something that is not supported.
    pub fn open(url: &str) -> Result<PostgresStore, PostgresBuildError> {
        PostgresStore::builder(url).build()
    }

    /// Returns a builder of a store in the database of this URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::PostgresStore;
    /// let store = PostgresStore::builder("postgres://app@localhost/shop").schema("shop_locks").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(url: &str) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(url)
    }

    /// Returns all statements that make the tables and functions in this schema, for databases where
    /// programs must not make tables. The default of a store is `tourbillon_leases`.
    ///
    /// Run them once, for instance by `psql --single-transaction`, with a role that may create a
    /// schema.
    ///
    /// # Errors
    ///
    /// If the name can't be that of a schema: see [`PostgresStoreBuilder::schema`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::PostgresStore;
    ///
    /// let sql = PostgresStore::tables_sql("shop_locks")?;
    /// assert!(sql.contains("create table \"shop_locks\".lease ("));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tables_sql(schema: &str) -> Result<String, PostgresBuildError> {
        Ok(builder::checked(schema)?.statements())
    }

    /// Checks that there is a server that grants locks to this role. Makes the tables if there are none.
    /// A store can be used without this call, which reports a missing server at the start of a program.
    /// There [`StoreError::Restarted`] does no harm, so go on after it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if there is no server, or only a standby, and
    /// [`StoreError::Restarted`] if the server may have lost data and grants nothing yet.
    /// [`StoreError::Refused`] if the server does not accept the role, if the role has too few rights, if
    /// the tables need a newer version of this crate, or if other stores have a longer longest lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{PostgresStore, StoreError};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PostgresStore::open("postgres://app@db.example.com/shop")?;
    /// match store.check(Duration::from_secs(5)) {
    ///     Err(error @ StoreError::Restarted { .. }) => println!("{error}"), // `lock` waits
    ///     checked => checked?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self, limit: Duration) -> Result<(), StoreError> {
        let checked = self.0.granting(limit);
        complete(&Clock::boottime(), limit, Box::pin(checked))
    }

    fn new(lines: Lines, options: PostgresOptions) -> Self {
        // The id includes the process id, since a forked copy draws the same random keys.
        let own = RandomState::new().hash_one((std::process::id(), unique_number()));
        PostgresStore(Arc::new(PostgresInner {
            options,
            own: ForkSafe::new(Connections {
                io: Io::new("tb-postgres", None),
                lines: Arc::new(lines),
                sweep: Mutex::new(None),
            }),
            ear: Arc::new(Ear::new(format!("{own:016x}"))),
        }))
    }
}

/// What a forked copy of the process must not touch.
struct Connections {
    io: Io,
    lines: Arc<Lines>,
    /// The task that deletes rows, once there was a call.
    sweep: Mutex<Option<Task>>,
}

impl PostgresInner {
    /// Makes a call.
    async fn call(
        &self,
        purpose: Purpose,
        limit: Duration,
        sql: Sql,
        values: Values,
    ) -> Result<Vec<Row>, StoreError> {
        let own = self.own.get()?;
        own.sweep_from_now_on(self.options.token_life);
        let (lines, limit) = (Arc::clone(&own.lines), Limit::new(limit));
        let call = async move { lines.call(purpose, limit, sql, values).await };
        let answered = own.io.call(call)?.await?;
        answered.unwrap_or_else(|| Err(no_runtime("PostgreSQL")))
    }
}

impl Connections {
    fn sweep_from_now_on(&self, life: Duration) {
        let mut sweep = self.sweep.lock();
        if sweep.is_none() {
            // If no thread can be started, the call of the user tells it.
            let task = sweep_forever(Arc::clone(&self.lines), micros(life));
            *sweep = self.io.start_at_leisure(task).ok();
        }
    }
}

/// Deletes rows that nobody needs for their tokens any more, from time to time. An error is dropped:
/// the next time is soon enough.
async fn sweep_forever(lines: Arc<Lines>, life: i64) {
    loop {
        sleep(SWEEP).await;
        let mut after: Option<String> = None;
        loop {
            let (limit, values) = (Limit::new(SWEEP), values![life, after]);
            let rows = lines
                .call(Purpose::Callers, limit, Sql::Sweep, values)
                .await;
            let rows = rows.unwrap_or_default();
            // Each step goes on behind the last name. Without one it was the last step.
            after = rows.first().and_then(|row| row.try_get(0).ok().flatten());
            if after.is_none() {
                break;
            }
        }
    }
}

impl LeaseStore for PostgresStore {
    fn longest_lease(&self) -> Duration {
        self.0.options.longest_lease
    }

    fn can_share(&self) -> bool {
        true
    }

    fn acquire<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(self.0.acquire_now(batch, limit))
    }

    fn leave<'a>(&'a self, name: &'a str, _owner: &'a str, limit: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.0.leave_now(name, limit))
    }

    fn renew<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        Box::pin(self.0.renew_now(batch, limit))
    }

    fn release<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(self.0.release_now(batch, limit))
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        Box::pin(self.0.detach_held(detach, limit))
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        Box::pin(self.0.resume_detached(resume, limit))
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        Box::pin(self.0.holder_now(name, limit))
    }

    /// The pages are in the order of the names.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        Box::pin(self.0.list_held(prefix, paging, limit))
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let own = self.0.own.get().ok()?;
        let place = self.0.ear.wait_queue.watch(name, waker);
        self.0.ear.listen(&own.lines, &own.io);
        Some(place)
    }
}

impl Drop for PostgresInner {
    fn drop(&mut self) {
        // A forked copy has no such task.
        if !self.own.is_forked() {
            self.ear.close();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        let mut shown = f.debug_struct("PostgresStore");
        if let Ok(own) = inner.own.get() {
            shown
                .field("hosts", &own.lines.connector.hosts())
                .field("database", &own.lines.connector.database())
                .field("schema", &own.lines.schema().name())
                .field("listens", &inner.ear.is_running());
        }
        shown
            .field("longest_lease", &inner.options.longest_lease)
            .field("durable", &inner.options.durable)
            .finish_non_exhaustive()
    }
}
