//! Timers in a PostgreSQL database.

mod awaited;
#[cfg(feature = "postgres")]
mod blocking;
mod calls;
pub mod driver;
mod failure;
mod guess;
mod hosts;
mod link;
mod listener;
mod parameters;
mod passfile;
mod password;
mod polls;
mod published;
mod rows;
mod schema;
mod security;
mod session;
mod statements;
#[cfg(feature = "postgres-tls")]
mod tls;
mod transaction;
mod url;
mod values;
mod wire;
mod writes;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Config;
#[cfg(feature = "postgres-tls")]
use tokio_postgres::config::Host;

use crate::postgres::calls::PostgresConnection;
use crate::postgres::hosts::Hosts;
use crate::postgres::link::{Link, Settings};
use crate::postgres::parameters::Parameters;
use crate::postgres::passfile::PasswordFile;
use crate::postgres::password::{AskPassword, Passwords};
use crate::postgres::schema::Schema;
use crate::postgres::security::{Encryption, Security};
#[cfg(feature = "postgres-tls")]
use crate::postgres::tls::Certificates;
use crate::store::{
    Beats, Connection, DEFAULT, NotificationListener, Store, StoreError, Subscription,
};
use crate::sync::{Arc, OnceLock, Origin, thread};

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
/// select * from tourbillon.schedule('pay-by', 'order:7', timestamptz '2030-01-01 09:00+01',
/// '{"order":7}'); select * from tourbillon.schedule_if_absent('pay-by', 'order:8', interval '15
/// min', '{"order":8}'); select * from tourbillon.reschedule('pay-by', 'order:7', interval '30
/// min'); select * from tourbillon.cancel('pay-by', 'order:7'); select
/// tourbillon.complete('pay-by', 'order:7', generation, epoch, attempt); -- false: roll back
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
    /// role lacks rights, or the tables belong to an incompatible version.
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
        let var = |name: &str| std::env::var(name).ok();
        let Parameters {
            mut config,
            encryption,
            root_certificate,
            password_file,
        } = parameters::read(url, &var).map_err(|why| {
            StoreError::Refused(format!("the URL of the database can't be read: {why}"))
        })?;
        security::check(encryption, cfg!(feature = "postgres-tls"))?;
        #[cfg(feature = "postgres-tls")]
        let mut certificates = Certificates::default();
        #[cfg(feature = "postgres-tls")]
        if let Some(file) = root_certificate.filter(|_| encryption != Encryption::None) {
            let pem = std::fs::read(&file).map_err(|error| {
                StoreError::Refused(format!("`sslrootcert`: {file:?} can't be read: {error}"))
            })?;
            certificates.trust(pem);
        }
        #[cfg(not(feature = "postgres-tls"))]
        drop(root_certificate);
        // Finds a server that is gone within seconds, also where no answer is awaited.
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        // A router forgets idle connections within minutes, and the driver's own default is two
        // hours.
        config.keepalives_idle(config.get_keepalives_idle().min(Duration::from_secs(60)));
        Ok(PostgresBuilder {
            config,
            encryption,
            #[cfg(feature = "postgres-tls")]
            certificates,
            password_file,
            ask_password: None,
            statement_limit: Duration::from_secs(5),
            lock_limit: Duration::from_secs(1),
            scan_limit: Duration::from_secs(60),
            loss_limit: Duration::from_secs(15),
            schema: DEFAULT.to_owned(),
            notify: false,
            listen: None,
        })
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
        let is_copy = self.0.origin.is_elsewhere();
        is_copy.then_some(StoreError::Forked)
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
///     .loss_limit(Duration::ZERO) // nothing that was committed is ever lost
///     .notify(true)
///     .connect()?;
/// # Ok::<(), tourbillon_durable::StoreError>(())
/// ```
pub struct PostgresBuilder {
    config: Config,
    encryption: Encryption,
    #[cfg(feature = "postgres-tls")]
    certificates: Certificates,
    password_file: Option<PasswordFile>,
    ask_password: Option<AskPassword>,
    statement_limit: Duration,
    lock_limit: Duration,
    scan_limit: Duration,
    loss_limit: Duration,
    schema: String,
    notify: bool,
    listen: Option<bool>,
}

/// The shortest time limit: a limit of zero would be none.
const SHORTEST: Duration = Duration::from_millis(10);

impl PostgresBuilder {
    /// Sets how long the server may take for one statement. 5 s by default, at least 10 ms.
    ///
    /// Two seconds later the connection is given up.
    ///
    /// A node beats and polls by one connection, and a poll without an answer holds up the next
    /// beat so long. So the [node lease](crate::DurableBuilder::node_lease) should be at least
    /// twice this limit and four seconds. Then no single call costs a node its lease.
    #[must_use]
    pub fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = limit.max(SHORTEST);
        self
    }

    /// Sets how long one call waits for a row that another transaction has locked. 1 s by default,
    /// at least 10 ms. Then it fails with
    /// [`CallError::Unavailable`](crate::CallError::Unavailable), which names the lock. Other calls
    /// do not wait for it, except later ones on the same key.
    #[must_use]
    pub fn lock_limit(mut self, limit: Duration) -> Self {
        self.lock_limit = limit.max(SHORTEST);
        self
    }

    /// Sets how long the server may take to count all timers. 60 s by default, at least 10 ms.
    #[must_use]
    pub fn scan_limit(mut self, limit: Duration) -> Self {
        self.scan_limit = limit.max(SHORTEST);
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
    /// let store =
    /// Postgres::builder("postgres://app@db.example.com/shop")?.schema("shop_timers").connect()?;
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
    ///     .password_with(||
    ///     Ok(std::fs::read_to_string("/run/secrets/token")?.trim_end().to_owned())) .connect()?;
    /// # Ok::<(), tourbillon_durable::StoreError>(())
    /// ```
    #[must_use]
    pub fn password_with(
        mut self,
        ask: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.ask_password = Some(AskPassword::new(ask));
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
    /// let store =
    /// Postgres::builder("postgres://app@db.example.com/shop")?.listen(true).connect()?;
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
        self.certificates.trust(pem.into());
        self
    }

    /// Sets the certificate of this client and its private key, both in PEM, for a server that asks
    /// for certificates. `chain` also holds the intermediate certificates up to an authority that
    /// the server trusts. Feature `postgres-tls`.
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    #[must_use]
    pub fn tls_client_certificate_pem(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.show(chain.into(), key.into());
        self
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
        let passwords = match (self.ask_password.clone(), self.password_file.clone()) {
            (Some(ask), _) => Passwords::Asked(ask),
            (None, Some(file)) => Passwords::InFile(file),
            (None, None) => Passwords::OfUrl,
        };
        let settings = Arc::new(Settings {
            origin: Origin::here(),
            hosts: Hosts::new(&self.config, self.security()?, passwords)?,
            schema: Schema::new(&self.schema)?,
            identity: OnceLock::new(),
            beats: Beats::new(self.loss_limit),
            statement_limit: self.statement_limit,
            lock_limit: self.lock_limit,
            scan_limit: self.scan_limit,
            notify: self.notify,
            listen: self.listen.unwrap_or(self.notify),
        });
        // On a thread of its own, since the caller's may be one of a runtime.
        let (answer, answered) = oneshot::channel();
        let opened = Arc::clone(&settings);
        let open = move || {
            // Nobody waits any more if the sender fails, which can't be.
            let _ = answer.send(Link::connect(opened).map(drop));
        };
        thread::spawn("connect", open).map_err(|error| {
            StoreError::Unavailable(format!("a thread could not be started: {error}"))
        })?;
        match answered.recv() {
            Ok(opened) => opened?,
            Err(_) => {
                let why = "the thread that connects has ended early".to_owned();
                return Err(StoreError::Unavailable(why));
            }
        }
        Ok(Postgres(settings))
    }

    #[cfg(not(feature = "postgres-tls"))]
    #[allow(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "with TLS it can fail"
    )]
    fn security(&self) -> Result<Security, StoreError> {
        Ok(Security::none())
    }

    #[cfg(feature = "postgres-tls")]
    fn security(&self) -> Result<Security, StoreError> {
        if self.encryption == Encryption::None {
            return match self.certificates.is_empty() {
                true => Ok(Security::none()),
                false => Err(StoreError::Refused(
                    "there are certificates, and the URL does not ask for TLS: add \
                     `sslmode=verify-full`"
                        .to_owned(),
                )),
            };
        }
        for host in self.config.get_hosts() {
            if let Host::Tcp(name) = host {
                tls::check_name(name).map_err(StoreError::Refused)?;
            }
        }
        let tls = self.certificates.tls(self.encryption);
        tls.map(Security::tls).map_err(StoreError::Refused)
    }
}

impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the configuration's password.
        f.debug_struct("PostgresBuilder")
            .field("hosts", &self.config.get_hosts())
            .field("encryption", &self.encryption)
            .field("statement_limit", &self.statement_limit)
            .field("lock_limit", &self.lock_limit)
            .field("scan_limit", &self.scan_limit)
            .field("schema", &self.schema)
            .field("notify", &self.notify)
            .field("listen", &self.listen.unwrap_or(self.notify))
            .finish()
    }
}
