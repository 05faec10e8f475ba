//! Timers in a PostgreSQL database.

mod awaited;
#[cfg(feature = "postgres")]
mod blocking;
mod builder;
mod calls;
pub mod driver;
mod failure;
mod guess;
mod link;
mod listener;
mod polls;
mod published;
mod rows;
mod schema;
mod statements;
mod transaction;
mod values;
mod wire;
mod writes;

use std::fmt;
use std::time::{Duration, SystemTime};

pub use self::builder::PostgresBuilder;
use crate::postgres::calls::PostgresConnection;
use crate::postgres::link::{Link, Settings};
use crate::store::{Connection, NotificationListener, Store, StoreError, Subscription};
use crate::sync::Arc;

/// A store in a PostgreSQL database, version 13 or newer, which many machines share.
///
/// Its tables and functions are in the schema `tourbillon`, or in the one that
/// [`PostgresBuilder::schema`] names. The first connection makes them. If programs must not make
/// tables, an administrator runs [`Postgres::SCHEMA`] once.
///
/// # Schedule from other programs
///
/// Whatever speaks SQL schedules, moves and cancels timers by functions, in its own transactions:
///
/// ```sql
/// select * from tourbillon.schedule('pay-by', 'order:7', interval '15 min', '{"order":7}');
/// select * from tourbillon.schedule('pay-by', 'order:7', timestamptz '2030-01-01 09:00+01', '{"order":7}');
/// select * from tourbillon.schedule_if_absent('pay-by', 'order:8', interval '15 min', '{"order":8}');
/// select * from tourbillon.reschedule('pay-by', 'order:7', interval '30 min');
/// select * from tourbillon.cancel('pay-by', 'order:7');
/// select tourbillon.complete('pay-by', 'order:7', generation, epoch, attempt); -- false: roll back
/// ```
///
/// The first three take a delay or a time, so that argument needs a type, as above or as in
/// `$3::interval`, or its name, as in `delay => '15 min'` and `at => '2030-01-01 09:00+01'`.
/// PostgreSQL answers `'15 min'` alone with "function .. is not unique".
///
/// [`Postgres::SCHEDULE`] and the others are such statements with parameters. A handler has the
/// values of the last one from [`Due::completion`](crate::Due::completion).
///
/// An interval must not have months, whose length depends on the date. A day has 24 hours. In a
/// transaction with the isolation `repeatable read` or `serializable` the functions see the timers
/// as of the transaction's snapshot: a timer that was scheduled later is not found.
///
/// # Grants
///
/// The functions run with the rights of their caller. The guide to PostgreSQL has the rights that
/// each program needs, and how many connections.
///
/// # Durability
///
/// An accepted call is as durable as a commit of the server. With `synchronous_commit = off` a
/// crash of the server loses the last moments, and so does the promotion of an asynchronous
/// standby: accepted calls may be missing, and runs that have ended may run again.
///
/// # Examples
///
/// ```no_run
/// use tourbillon_durable::Postgres;
///
/// let store = Postgres::connect("postgres://app@db.example.com/shop?connect_timeout=5")?;
/// # Ok::<(), tourbillon_durable::StoreError>(())
/// ```
#[doc(alias("postgresql", "pg"))]
#[derive(Clone)]
pub struct Postgres(Arc<Settings>);

impl Postgres {
    /// All statements that make the schema, for databases where programs must not make tables.
    ///
    /// Run it once, for instance by `psql --single-transaction`, with a role that may create a
    /// schema. [`Postgres::in_schema`] has the statements for a schema of another name.
    pub const SCHEMA: &'static str = schema::ALL;

    /// Opens the store at a URL, or a string of `key=value` pairs, as `psql` takes them. The tables
    /// are made if there are none.
    ///
    /// # The environment and the files of `psql`
    ///
    /// What the URL does not say comes from the service that `service` or `PGSERVICE` names, and
    /// then from the environment: `PGHOST`, `PGHOSTADDR`, `PGPORT`, `PGUSER`, `PGDATABASE`,
    /// `PGPASSWORD`, `PGPASSFILE`, `PGSSLMODE`, `PGSSLROOTCERT`, `PGAPPNAME`, `PGOPTIONS`,
    /// `PGCONNECT_TIMEOUT`, `PGTARGETSESSIONATTRS` and others. A password that is not given is
    /// looked up at each connect in `~/.pgpass`, or in `passfile`, unless others may read that
    /// file. Without a host the server of this machine is meant, by its socket. An empty URL leaves
    /// everything to them. What is not supported is refused by its name, such as `sslcert`,
    /// `sslcrl`, `requirepeer`, `require_auth` and `gssencmode=require`, also from the environment.
    ///
    /// # Several hosts
    ///
    /// Each connection tries the hosts in the order of the URL, and with
    /// `target_session_attrs=read-write` it finds the primary. `connect_timeout` is the limit for
    /// each address of each host, from the first packet until the server is ready, in seconds; 5 by
    /// default. So a host that accepts connections and never answers does not hide the next one.
    ///
    /// # TLS
    ///
    /// With the feature `postgres-tls`, `sslmode` says what is checked:
    ///
    /// | `sslmode` | the connection |
    /// |---|---|
    /// | none, `disable`, `allow`, `prefer` | is not encrypted |
    /// | `verify-full`, `require` | is encrypted, with a server whose certificate is valid, was issued by a trusted authority, and has the host of the URL as a name |
    /// | `verify-ca` | the same, but the certificate may have any name |
    ///
    /// There is no encryption without a check. So `require` is stricter than in `libpq`, and
    /// `prefer` does not pretend to protect. The trusted authorities are those of the system, or
    /// those of `sslrootcert` and `PostgresBuilder::tls_root_certificate_pem`. With `hostaddr` the
    /// connection goes to that address, and the certificate is for `host`. A connection to a Unix
    /// socket is never encrypted, as in `libpq`. Whether a certificate was revoked is not checked.
    /// Without the feature a URL that asks for TLS is refused.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the URL can't be read, the server is too old or a standby, the
    /// role lacks rights, or the tables belong to an incompatible version, also to one before the
    /// first release.
    /// [`StoreError::Unavailable`] if the server can't be reached.
    ///
    /// # Blocking
    ///
    /// It waits for the server. It does not panic inside a runtime, but blocks its thread.
    pub fn connect(url: &str) -> Result<Postgres, StoreError> {
        Postgres::builder(url)?.connect()
    }

    /// Returns the options for a store at a URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the URL can't be read.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tourbillon_durable::Postgres;
    ///
    /// let store = Postgres::builder("host=/run/postgresql user=app dbname=shop")?
    ///     .statement_limit(Duration::from_secs(10))
    ///     .connect()?;
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    pub fn builder(url: &str) -> Result<PostgresBuilder, StoreError> {
        PostgresBuilder::new(url)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.0).finish()
    }
}

impl Store for Postgres {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let link = Link::connect(Arc::clone(&self.0))?;
        Ok(Box::new(PostgresConnection::new(link)))
    }

    fn refusal(&self) -> Option<StoreError> {
        let is_copy = self.0.connector.is_elsewhere();
        is_copy.then_some(StoreError::Forked)
    }

    fn wall_clock(&self) -> Option<SystemTime> {
        // The clock of a test is in its schema.
        #[cfg(feature = "test-util")]
        if self.0.schema.has_test_clock() {
            return None;
        }
        Some(SystemTime::now())
    }

    fn writers(&self) -> usize {
        // More of them make smaller batches. With two cores, 16 threads made 28,000 calls a second
        // by one connection, 22,000 by two and 18,000 by four.
        1
    }

    fn namespace(&self) -> &str {
        self.0.schema.name()
    }

    fn lock_limit(&self) -> Duration {
        self.0.lock_limit
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        match self.0.listen {
            true => listener::start(&self.0, listener),
            false => None,
        }
    }
}
