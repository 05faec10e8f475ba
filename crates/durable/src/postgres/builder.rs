//! The options of a store in a PostgreSQL database.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tourbillon_postgres::{Caller, Connector, ConnectorBuilder, Session};

use crate::postgres::Postgres;
use crate::postgres::failure::of_connection;
use crate::postgres::link::{Link, Settings};
use crate::postgres::schema::Schema;
use crate::store::{Beats, DEFAULT, StoreError};
use crate::sync::{Arc, OnceLock};

/// This crate, as errors and lists of threads name it.
const CALLER: Caller = Caller {
    package: "tourbillon-durable",
    builder: "PostgresBuilder",
    threads: "durable",
};

/// Options of a [`Postgres`].
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tourbillon_durable::Postgres;
///
/// let store = Postgres::builder("postgres://app@db.example.com/shop")?
///     .schema("shop_timers")
///     .statement_limit(Duration::from_secs(3))
///     .lock_limit(Duration::from_millis(200))
///     .scan_limit(Duration::from_secs(300)) // it has many millions of timers
///     .loss_limit(Duration::ZERO) // nothing that was committed is ever lost
///     .notify(true)
///     .connect()?;
/// # Ok::<(), tourbillon_durable::StoreError>(())
/// ```
pub struct PostgresBuilder {
    connector: ConnectorBuilder,
    statement_limit: Duration,
    lock_limit: Duration,
    scan_limit: Duration,
    loss_limit: Duration,
    schema: String,
    create_tables: bool,
    notify: bool,
    listen: Option<bool>,
    #[cfg(feature = "test-util")]
    has_test_clock: bool,
}

impl PostgresBuilder {
    /// The options for the store at a URL.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        Ok(PostgresBuilder {
            connector: Connector::builder(url, CALLER).map_err(of_connection)?,
            statement_limit: Duration::from_secs(5),
            lock_limit: Duration::from_secs(1),
            scan_limit: Duration::from_secs(60),
            loss_limit: Duration::from_secs(15),
            schema: DEFAULT.to_owned(),
            create_tables: true,
            notify: false,
            listen: None,
            #[cfg(feature = "test-util")]
            has_test_clock: false,
        })
    }

    /// Sets how long the server may take for one statement. 5 s by default, at least 10 ms
    /// and at most a day.
    ///
    /// Two seconds later the connection is given up.
    ///
    /// A node beats and polls by one connection, and a poll without an answer holds up the next
    /// beat so long. So the [node lease](crate::DurableBuilder::node_lease) should be at least
    /// twice this limit and four seconds. Then no single call costs a node its lease.
    #[must_use]
    pub fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = Session::limit(limit);
        self
    }

    /// Sets how long one call waits for a row that another transaction has locked. 1 s by default,
    /// at least 10 ms and at most a day. Then it fails with
    /// [`CallError::Unavailable`](crate::CallError::Unavailable), which names the lock. Other calls
    /// do not wait for it, except later ones on the same key.
    #[must_use]
    pub fn lock_limit(mut self, limit: Duration) -> Self {
        self.lock_limit = Session::limit(limit);
        self
    }

    /// Sets how long the server may take to count all timers. 60 s by default, at least 10 ms and at
    /// most a day.
    #[must_use]
    pub fn scan_limit(mut self, limit: Duration) -> Self {
        self.scan_limit = Session::limit(limit);
        self
    }

    /// Sets how much of what the server has confirmed it may lose at a crash or a failover, without
    /// being taken for an older database. 15 s by default.
    ///
    /// A server with `synchronous_commit = off` loses the last moments at a crash, and so does a
    /// failover to an asynchronous standby. Processes go on by themselves after that. If more is
    /// missing, the database counts as restored from a backup: calls fail with
    /// [`StoreError::Replaced`]. With `synchronous_commit = on`, and without an asynchronous
    /// standby that may be promoted, nothing is lost. Then zero makes each older state known.
    #[must_use]
    pub fn loss_limit(mut self, limit: Duration) -> Self {
        self.loss_limit = limit;
        self
    }

    /// Sets the schema that has the tables and functions: `tourbillon`, unless it is set here.
    ///
    /// Programs that use one database and know nothing of each other take a schema each. Otherwise
    /// they share queues by name: each runs the timers of the other one in queues that both have. A
    /// schema has its own timers, nodes, functions and grants, its own doorbell, which is the
    /// channel of its name, and its own setting, such as `shop.notify`.
    ///
    /// A name has 1 to 48 bytes: the letters a to z, digits and underscores, and no digit in front.
    /// It is checked by [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_durable::Postgres;
    ///
    /// let url = "postgres://app@db.example.com/shop";
    /// let store = Postgres::builder(url)?.schema("shop_timers").connect()?;
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets a function that returns the password of each new connection, in place of the one in the
    /// URL: for passwords that change, such as the tokens of a cloud provider, which are valid for
    /// minutes.
    ///
    /// It is called on a thread of its own before each connection is opened, and again after one
    /// was lost. It may block, and should have a time limit: no connection is opened until it
    /// returns. An error or a panic of it is [`StoreError::Unavailable`], and it is asked again at
    /// the next attempt.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_durable::Postgres;
    ///
    /// let store = Postgres::builder("postgres://app@db.example.com/shop")?
    ///     .password_with(|| Ok(std::fs::read_to_string("/run/secrets/token")?.trim_end().to_owned()))
    ///     .connect()?;
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    #[must_use]
    pub fn password_with(
        mut self,
        ask: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.connector = self.connector.password_with(ask);
        self
    }

    /// Sets whether calls announce timers that are due within two seconds by `NOTIFY tourbillon`,
    /// with the name of the queue. Off by default: it slows down commits, and nodes find timers
    /// without it.
    ///
    /// It holds for calls [within a transaction](Postgres::in_transaction) of the user's, too: they
    /// announce the timer when the transaction commits. The SQL functions do it where the setting
    /// `tourbillon.notify` is `on`, for instance by `alter database .. set tourbillon.notify = on`.
    /// Nodes hear it with [`listen`](Self::listen).
    #[doc(alias("listen notify", "LISTEN", "wake up"))]
    #[must_use]
    pub fn notify(mut self, notify: bool) -> Self {
        self.notify = notify;
        self
    }

    /// Sets whether nodes listen to these announcements: the *doorbell*. A node that hears one
    /// polls the queue at once, at most 50 times a second. So a timer that another process, a
    /// transaction of the user's or an SQL function has scheduled for the next moments starts on
    /// time, and not up to one [poll](crate::DurableBuilder::poll_interval) late.
    ///
    /// The default is that of [`notify`](Self::notify): a doorbell that nobody rings costs a
    /// connection for nothing. Turn it on by hand where only SQL functions announce timers. Each
    /// process with handlers then has one more connection, which is opened again when it was lost,
    /// after 10 s at most. Until then, and for announcements that are lost, timers are found by
    /// polls as before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_durable::Postgres;
    ///
    /// // Other programs schedule timers in SQL, and the database has `tourbillon.notify = on`.
    /// let url = "postgres://app@db.example.com/shop";
    /// let store = Postgres::builder(url)?.listen(true).connect()?;
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = Some(listen);
        self
    }

    /// Adds one or more certificates of trusted authorities in PEM, for a URL that asks for TLS.
    /// Without this call the store trusts the authorities that the system trusts. With one or more
    /// calls it trusts the authorities of these calls and no others. Feature `postgres-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_durable::Postgres;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Postgres::builder("postgres://app@db.example.com/shop?sslmode=verify-full")?
    ///     .tls_root_certificate_pem(std::fs::read("/etc/postgresql/ca.crt")?)
    ///     .connect()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    #[must_use]
    pub fn tls_root_certificate_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.connector = self.connector.tls_root_certificate_pem(pem);
        self
    }

    /// Sets the certificate of this client and its private key, both in PEM, for a server that asks
    /// for certificates. `chain` also holds the intermediate certificates up to an authority that
    /// the server trusts. Feature `postgres-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::fs::read;
    /// use tourbillon_durable::Postgres;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Postgres::builder("postgres://app@db.example.com/shop?sslmode=verify-full")?
    ///     .tls_client_certificate_pem(read("/etc/shop/client.crt")?, read("/etc/shop/client.key")?)
    ///     .connect()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    #[must_use]
    pub fn tls_client_certificate_pem(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.connector = self.connector.tls_client_certificate_pem(chain, key);
        self
    }

    /// Sets whether the first connection makes the tables if there are none: yes by default. A program
    /// that only looks after timers says no, so that a wrong URL is an error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_durable::Postgres;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "postgres://app@db/shop";
    /// let store = Postgres::builder(url)?.create_tables(false).connect()?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn create_tables(mut self, create: bool) -> Self {
        self.create_tables = create;
        self
    }

    /// Gives the schema a clock of its own, which stands still until a test moves it by
    /// [`DurableSteps`](crate::test_util::DurableSteps). It begins at the server's time. Needs the
    /// feature `test-util`.
    ///
    /// The schema must be the test's own: it is made by this option, and all stores on it have it. All
    /// that this crate and the functions of the schema do goes by that clock, also in transactions of
    /// the user's and in `psql`: the calls of `clock_timestamp` are made to a function of this schema.
    /// Other schemas of the database, and all programs without this option, keep the server's clock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tourbillon_durable::{Due, Durable, Postgres};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Postgres::builder("postgres://app@localhost/shop_test")?
    ///     .schema("test_cancels_unpaid_orders")
    ///     .test_clock()
    ///     .connect()?;
    /// let (timers, steps) = Durable::builder(store)
    ///     .handle("pay-by", |due: &Due<u64>| println!("order {} is cancelled", due.payload()))
    ///     .start_stepped()?;
    /// let quarter = Duration::from_secs(15 * 60);
    /// timers.schedule("pay-by", "order:7", quarter, &7).wait()?;
    /// steps.advance(quarter).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn test_clock(mut self) -> Self {
        self.has_test_clock = true;
        self
    }

    fn checked_schema(&self) -> Result<Schema, StoreError> {
        let schema = Schema::new(&self.schema)?;
        #[cfg(feature = "test-util")]
        let schema = schema.with_test_clock(self.has_test_clock);
        Ok(schema)
    }

    /// Opens the store, as [`Postgres::connect`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::connect`].
    ///
    /// # Blocking
    ///
    /// It waits for the server. It does not panic inside a runtime, but blocks its thread.
    pub fn connect(self) -> Result<Postgres, StoreError> {
        let schema = self.checked_schema();
        let connector = self.connector.build().map_err(of_connection)?;
        let settings = Arc::new(Settings {
            connector,
            schema: schema?,
            identity: OnceLock::new(),
            beats: Beats::new(self.loss_limit),
            statement_limit: self.statement_limit,
            lock_limit: self.lock_limit,
            scan_limit: self.scan_limit,
            notify: self.notify,
            listen: self.listen.unwrap_or(self.notify),
            create_tables: self.create_tables,
        });
        // The caller's thread may be one of a runtime.
        let opened = Arc::clone(&settings);
        let open = move || Link::connect(opened).map(drop);
        settings.connector.apart(open).map_err(of_connection)??;
        Ok(Postgres(settings))
    }
}

impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the configuration's password.
        f.debug_struct("PostgresBuilder")
            .field("hosts", &self.connector.hosts())
            .field("encryption", &self.connector.encryption())
            .field("statement_limit", &self.statement_limit)
            .field("lock_limit", &self.lock_limit)
            .field("scan_limit", &self.scan_limit)
            .field("schema", &self.schema)
            .field("create_tables", &self.create_tables)
            .field("notify", &self.notify)
            .field("listen", &self.listen.unwrap_or(self.notify))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits, each set to `limit`.
    fn limits(limit: Duration) -> [Duration; 4] {
        let builder = Postgres::builder("postgres://app@localhost/shop").expect("a good URL");
        let builder = builder.statement_limit(limit).lock_limit(limit);
        let builder = builder.scan_limit(limit).loss_limit(limit);
        let PostgresBuilder {
            statement_limit,
            lock_limit,
            scan_limit,
            loss_limit,
            ..
        } = builder;
        [statement_limit, lock_limit, scan_limit, loss_limit]
    }

    #[test]
    fn limits_are_such_as_the_server_takes() {
        let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
        assert_eq!(limits(minute), [minute; 4]);
        let (none, shortest) = (Duration::ZERO, Duration::from_millis(10));
        assert_eq!(limits(none), [shortest, shortest, shortest, none]);
        assert_eq!(limits(Duration::MAX), [day, day, day, Duration::MAX]);
    }
}
