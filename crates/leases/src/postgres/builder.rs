//! The builder of a store in a PostgreSQL database.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tourbillon_postgres::{Caller, Connector, ConnectorBuilder, PostgresError, Session};

use super::calls::micros;
use super::lines::Lines;
use super::tables::{DEFAULT, Schema, Tables};
use super::{PostgresOptions, PostgresStore};

/// This crate, as errors and lists of threads name it.
const CALLER: Caller = Caller {
    package: "tourbillon-leases",
    builder: "PostgresStoreBuilder",
    threads: "tb-postgres",
};

const LONGEST_LEASE: Duration = Duration::from_secs(30);
/// Covers a clock that is set back by a day, with an hour to spare.
const TOKEN_LIFE: Duration = Duration::from_secs(25 * 3_600);
const CONNECTIONS: usize = 4;
const MOST_CONNECTIONS: usize = 64;
const STATEMENT_LIMIT: Duration = Duration::from_secs(5);
/// No function waits for a transaction of a user's. So this is for what somebody does by hand. It is
/// shorter than the limits of most calls: after it a batch goes on without the rows that are locked.
const LOCK_LIMIT: Duration = Duration::from_millis(100);
const DAY: u64 = 24 * 3_600;
const LONGEST: Duration = Duration::from_secs(365 * DAY);
/// Twice the longest possible lease.
const LONGEST_TOKEN_LIFE: Duration = Duration::from_secs(2 * 365 * DAY);
const SHORTEST: Duration = Duration::from_millis(1);

/// Statements look names up by the index, also before the server has counted the rows.
const PLANS: [(&str, &str); 6] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

/// Builds a [`PostgresStore`].
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, PostgresStore};
///
/// let second = Duration::from_secs(1);
/// let store = PostgresStore::builder("postgres://app@a,b/shop?target_session_attrs=read-write")
///     .schema("shop_locks")
///     .longest_lease(60 * second)
///     .longest_lease_changes() // for the time of the change
///     .token_life(48 * 3_600 * second)
///     .connections(8)
///     .statement_limit(3 * second)
///     .create_tables(false)
///     .build()?;
/// let leases = Leases::builder(store).lease(60 * second).build()?;
///
/// // Each standby that may be promoted has all commits.
/// let url = "postgres://app@a,b/shop";
/// let store = PostgresStore::builder(url).durable().build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct PostgresStoreBuilder {
    connector: Result<ConnectorBuilder, PostgresError>,
    schema: String,
    longest_lease: Duration,
    longest_lease_changes: bool,
    durable: bool,
    token_life: Option<Duration>,
    connections: usize,
    statement_limit: Duration,
    create_tables: bool,
}

impl PostgresStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        PostgresStoreBuilder {
            connector: Connector::builder(url, CALLER),
            schema: DEFAULT.to_owned(),
            longest_lease: LONGEST_LEASE,
            longest_lease_changes: false,
            durable: false,
            token_life: None,
            connections: CONNECTIONS,
            statement_limit: STATEMENT_LIMIT,
            create_tables: true,
        }
    }

    /// Sets the schema that has the tables and functions; `tourbillon_leases` by default. Stores with
    /// different schemas are independent of each other.
    ///
    /// A name has 1 to 48 bytes: the letters a to z, digits and underscores, and no digit in front.
    /// Releases are announced in the channel of the same name.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets the longest lease that the store grants; 30 s by default. After the server may have lost
    /// data, the store grants nothing for this time.
    ///
    /// All stores with this schema need the same value: one that waits for less might grant a lock
    /// that somebody else still relies on. So once a store with a greater value has connected, a store
    /// with a smaller one is [refused](crate::StoreError::Refused). Its renewals and releases go on.
    /// See [`longest_lease_changes`](Self::longest_lease_changes) for how to change the value.
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.longest_lease = longest;
        self
    }

    /// Declares that stores with another [longest lease](Self::longest_lease) are in use. The store is
    /// not refused. After a loss all stores wait for the greatest value that the database knows.
    ///
    /// To make the value greater while processes run: start all of them anew with this option, then
    /// with the option and the greater value, then without the option. To make it smaller, stop all
    /// processes, set the column `longest` of the table `meta` to 0, and start them with the smaller
    /// value.
    pub fn longest_lease_changes(mut self) -> Self {
        self.longest_lease_changes = true;
        self
    }

    /// Declares that no server at this URL ever lacks a commit. Either there are no standbys, or each one
    /// that may be promoted has all commits (`synchronous_standby_names`). Then the store also grants at
    /// once after a failover.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Sets how long the row of a name stays after its last lease has ended. By default that is 25
    /// hours, or twice the [longest lease](Self::longest_lease) if that is longer. The row has the last
    /// token.
    ///
    /// Tokens are times of the server's clock, so they grow even if the last one is forgotten, unless
    /// that clock is set back. The default is enough for a clock that is set back by a day. Any store may
    /// delete the row, so the smallest value of all stores counts.
    pub fn token_life(mut self, life: Duration) -> Self {
        self.token_life = Some(life);
        self
    }

    /// Sets the greatest number of connections for calls that somebody waits for; 4 by default. A
    /// connection carries any number of calls, which the server executes in their order. A further one
    /// is opened when all are busy. If the disk of the server is slow, more connections help: the server
    /// writes their commits together.
    ///
    /// Two more connections do not count: one for renewals and background releases, and one that listens
    /// while callers wait.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets how long the server may take for one statement; 5 s by default. A value below 10 ms counts as
    /// 10 ms, and a value above one day as one day. Each call also has its own limit, at which the caller
    /// stops waiting. The statement limit ends a statement that the server still executes after that.
    pub fn statement_limit(mut self, limit: Duration) -> Self {
        self.statement_limit = Session::limit(limit);
        self
    }

    /// Sets whether the first connection makes the tables if there are none; `true` by default. With
    /// `false`, a database without the tables is an error. So a program with a wrong URL gets no locks.
    pub fn create_tables(mut self, create: bool) -> Self {
        self.create_tables = create;
        self
    }

    /// Sets a function that returns the password of each new connection, in place of the one in the
    /// URL: for passwords that change, such as the tokens of a cloud provider, which are valid for
    /// minutes.
    ///
    /// The store calls the function before it opens a connection, on a thread that may block. The
    /// function should have a time limit. If it returns an error or panics, the call of the store fails
    /// with [`StoreError::Unavailable`](crate::StoreError::Unavailable). The next attempt to connect
    /// calls it again.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::PostgresStore;
    ///
    /// let store = PostgresStore::builder("postgres://app@db.example.com/shop")
    ///     .password_with(|| Ok(std::fs::read_to_string("/run/secrets/token")?.trim_end().to_owned()))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn password_with(
        mut self,
        ask: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.connector = self.connector.map(|connector| connector.password_with(ask));
        self
    }

    /// Adds one or more certificates of trusted authorities in PEM, for a URL that asks for TLS.
    /// Without this call the store trusts the authorities that the system trusts. With one or more
    /// calls it trusts the authorities of these calls and no others. Feature `postgres-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_leases::PostgresStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PostgresStore::builder("postgres://app@db.example.com/shop?sslmode=verify-full")
    ///     .tls_root_certificate_pem(std::fs::read("/etc/postgresql/ca.crt")?)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "postgres-tls")]
    pub fn tls_root_certificate_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        let connector = self.connector;
        self.connector = connector.map(|connector| connector.tls_root_certificate_pem(pem));
        self
    }

    /// Sets the certificate of this client and its private key, both in PEM, for a server that asks
    /// for certificates. `chain` also holds the intermediate certificates up to an authority that the
    /// server trusts. Feature `postgres-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use tourbillon_leases::PostgresStore;
    /// let (chain, key) = (std::fs::read("client.crt")?, std::fs::read("client.key")?);
    /// let store = PostgresStore::builder("postgres://app@db.example.com/shop?sslmode=verify-full")
    ///     .tls_client_certificate_pem(chain, key)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "postgres-tls")]
    pub fn tls_client_certificate_pem(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let connector = self.connector;
        self.connector =
            connector.map(|connector| connector.tls_client_certificate_pem(chain, key));
        self
    }

    /// Creates the store. This does not connect, so it succeeds also while the server is down.
    ///
    /// # Errors
    ///
    /// If the URL or an option is invalid. The error names the value.
    pub fn build(self) -> Result<PostgresStore, PostgresBuildError> {
        let connector = self.connector.and_then(ConnectorBuilder::build);
        let connector = connector.map_err(|error| {
            PostgresBuildError::Url(match error {
                PostgresError::Refused(why) | PostgresError::Unavailable(why) => why,
                error => error.to_string(),
            })
        })?;
        let schema = checked(&self.schema)?;
        if !(SHORTEST..=LONGEST).contains(&self.longest_lease) {
            return Err(PostgresBuildError::LongestLease(self.longest_lease));
        }
        let default = TOKEN_LIFE.max(self.longest_lease.saturating_mul(2));
        let token_life = self.token_life.unwrap_or(default);
        if !(self.longest_lease..=LONGEST_TOKEN_LIFE).contains(&token_life) {
            return Err(PostgresBuildError::TokenLife {
                life: token_life,
                longest_lease: self.longest_lease,
            });
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return Err(PostgresBuildError::Connections(self.connections));
        }
        let tables = Tables::new(
            schema,
            micros(self.longest_lease),
            self.create_tables,
            self.durable,
        );
        let session = Session::usual(self.statement_limit, LOCK_LIMIT).and(PLANS);
        Ok(PostgresStore::new(
            Lines::new(connector, tables, session, self.connections),
            PostgresOptions {
                longest_lease: self.longest_lease,
                longest_lease_changes: self.longest_lease_changes,
                durable: self.durable,
                token_life,
            },
        ))
    }
}

/// The schema of this name.
pub(super) fn checked(name: &str) -> Result<Schema, PostgresBuildError> {
    Schema::new(name).map_err(|why| PostgresBuildError::Schema {
        name: name.to_owned(),
        why,
    })
}

impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PostgresStoreBuilder");
        // Without the configuration's password.
        match &self.connector {
            Ok(connector) => shown.field("hosts", &connector.hosts()),
            Err(error) => shown.field("error", error),
        };
        shown
            .field("schema", &self.schema)
            .field("longest_lease", &self.longest_lease)
            .field("longest_lease_changes", &self.longest_lease_changes)
            .field("durable", &self.durable)
            .field("token_life", &self.token_life)
            .field("connections", &self.connections)
            .field("statement_limit", &self.statement_limit)
            .field("create_tables", &self.create_tables)
            .finish()
    }
}

/// The reason why a store in a PostgreSQL database can't be built. It names the invalid value and the
/// valid ones.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PostgresBuildError {
    /// The URL can't be read, or asks for what there is not. The text is the reason.
    Url(String),
    /// No schema can have this name.
    Schema {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The longest lease is not between 1 ms and 365 days.
    LongestLease(Duration),
    /// The life of tokens is not between the longest lease and 730 days.
    TokenLife {
        /// The life that was asked for.
        life: Duration,
        /// The longest lease of the store.
        longest_lease: Duration,
    },
    /// The number of connections is not between 1 and 64.
    Connections(usize),
}

impl fmt::Display for PostgresBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostgresBuildError::Url(why) => f.write_str(why),
            PostgresBuildError::Schema { name, why } => write!(f, "the schema {name:?} {why}"),
            PostgresBuildError::LongestLease(longest) => write!(
                f,
                "a longest lease of {longest:?}: choose one between 1 ms and 365 days"
            ),
            PostgresBuildError::TokenLife {
                life,
                longest_lease,
            } => write!(
                f,
                "tokens that live for {life:?}: choose between the longest lease, {longest_lease:?}, \
                 and 730 days"
            ),
            PostgresBuildError::Connections(connections) => {
                write!(
                    f,
                    "{connections} connections: choose between 1 and {MOST_CONNECTIONS}"
                )
            }
        }
    }
}

impl Error for PostgresBuildError {}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://app:s3cret@db.example.com/shop";

    #[test]
    fn no_password_is_shown() {
        let builder = PostgresStoreBuilder::new(URL);
        let shown = format!("{builder:?}");
        let shown = format!("{shown} {:?}", builder.build().unwrap());
        assert!(shown.contains("db.example.com"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn what_cannot_be_built_is_named() {
        let some = || PostgresStoreBuilder::new(URL);
        let error = |builder: PostgresStoreBuilder| builder.build().unwrap_err();
        let zero = Duration::ZERO;
        let url = error(PostgresStoreBuilder::new(
            "postgres://app:s3cret@db:many/shop",
        ));
        assert!(matches!(url, PostgresBuildError::Url(_)), "{url}");
        assert!(!url.to_string().contains("s3cret"), "{url}");
        let schema = error(some().schema("Shop"));
        assert!(schema.to_string().contains("\"Shop\""), "{schema}");
        let longest = error(some().longest_lease(zero));
        assert_eq!(longest, PostgresBuildError::LongestLease(zero));
        let life = error(some().token_life(zero));
        assert!(life.to_string().contains("730 days"), "{life}");
        for connections in [0, MOST_CONNECTIONS + 1] {
            let error = error(some().connections(connections));
            assert_eq!(error, PostgresBuildError::Connections(connections));
        }
        // The default is valid with the longest possible lease, too.
        assert!(some().longest_lease(LONGEST).build().is_ok());
    }
}
