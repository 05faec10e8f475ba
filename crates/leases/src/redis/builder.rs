//! The builder of a store on Redis.

use std::fmt;
use std::time::Duration;

use redis::RedisConnectionInfo;
use tokio::runtime::Handle;

use super::address::{self, Address};
use super::build_error::RedisBuildError;
use super::keys::{Keys, SLOTS};
use super::server::Server;
#[cfg(feature = "redis-tls")]
use super::tls::Certificates;
use super::{Options, RedisStore};

const PREFIX: &str = "tourbillon";
const LONGEST_LEASE: Duration = Duration::from_secs(30);
/// Covers a clock that is set back by a day, with an hour to spare.
const TOKEN_LIFE: Duration = Duration::from_secs(25 * 3_600);
const KEEPALIVE: Duration = Duration::from_secs(15);
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(1);
/// Below 32,767 s, the longest time that Linux accepts.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(9 * 3_600);
const DAY: u64 = 24 * 3_600;
/// A year in microseconds is far below 2^53, up to which the numbers of Lua are exact.
const LONGEST: Duration = Duration::from_secs(365 * DAY);
/// Twice the longest possible lease.
const LONGEST_TOKEN_LIFE: Duration = Duration::from_secs(2 * 365 * DAY);
/// The number of destinations in a cluster: several for each of a few nodes, so that few ranges lie on two.
const IN_CLUSTER: u16 = 16;
/// Redis expires keys to the millisecond.
const SHORTEST: Duration = Duration::from_millis(1);

/// Builds a [`RedisStore`].
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, RedisStore};
///
/// let second = Duration::from_secs(1);
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .prefix("orders")
///     .longest_lease(60 * second)
///     .longest_lease_changes() // for the time of the change
///     .starts_empty()
///     .token_life(48 * 3_600 * second)
///     .tcp_keepalive(30 * second)
///     .destinations(4)
///     .build()?;
/// let leases = Leases::builder(store).lease(60 * second).build()?;
///
/// // On a server that never forgets a write.
/// let url = "redis://127.0.0.1/1";
/// let store = RedisStore::builder(url).durable().build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisStoreBuilder {
    url: String,
    prefix: String,
    longest_lease: Duration,
    longest_lease_changes: bool,
    durable: bool,
    starts_empty: bool,
    token_life: Option<Duration>,
    runtime: Option<Handle>,
    tcp_keepalive: Option<Duration>,
    destinations: Option<u16>,
    sentinel_login: RedisConnectionInfo,
    #[cfg(feature = "redis-tls")]
    certificates: Certificates,
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        RedisStoreBuilder {
            url: url.to_owned(),
            prefix: PREFIX.to_owned(),
            longest_lease: LONGEST_LEASE,
            longest_lease_changes: false,
            durable: false,
            starts_empty: false,
            token_life: None,
            runtime: None,
            tcp_keepalive: Some(KEEPALIVE),
            destinations: None,
            sentinel_login: RedisConnectionInfo::default(),
            #[cfg(feature = "redis-tls")]
            certificates: Certificates::default(),
        }
    }

    /// Adds one or more certificates of trusted authorities in PEM, for `rediss://`. Without this
    /// call the store trusts the authorities that the system trusts. With one or more calls it
    /// trusts the authorities of these calls and no others. Feature `redis-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_leases::RedisStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::builder("rediss://redis.internal/")
    ///     .tls_root_certificate_pem(std::fs::read("/etc/redis/ca.crt")?)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-tls")]
    pub fn tls_root_certificate_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.trust(pem.into());
        self
    }

    /// Sets the certificate of this client and its private key, both in PEM, for a `rediss://`
    /// server that asks for certificates. `chain` also holds the intermediate certificates up to an
    /// authority that the server trusts. Feature `redis-tls`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use tourbillon_leases::RedisStore;
    /// let (chain, key) = (std::fs::read("client.crt")?, std::fs::read("client.key")?);
    /// let store = RedisStore::builder("rediss://redis.internal/")
    ///     .tls_client_certificate_pem(chain, key)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "redis-tls")]
    pub fn tls_client_certificate_pem(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.show(chain.into(), key.into());
        self
    }

    /// Sets the number of destinations over which names are spread, by equal ranges of slots; one
    /// by default, and 16 with a URL of a cluster. Renewals and releases of a destination are sent
    /// together, so a node that hangs delays only the calls for its own ranges. In a cluster the names of
    /// a range may lie on two nodes, and then wait for both: more destinations make that rarer, and
    /// batches smaller.
    ///
    /// Otherwise each destination has two connections of its own. Use it with a proxy that hides a cluster.
    /// Each destination has its own marker, which vanishes with the data of its node. Choose a
    /// number at which no range lies on two nodes. [`list`](crate::Leases::list) asks each node
    /// that has a marker, so with fewer destinations than nodes it leaves out locks.
    pub fn destinations(mut self, ranges: u16) -> Self {
        self.destinations = Some(ranges);
        self
    }

    /// Sets the prefix of all keys and of the channel; `tourbillon` by default. Stores with
    /// different prefixes are independent of each other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the longest lease that the store grants; 30 s by default. After the server has started or
    /// lost its data, the store grants nothing for this time.
    ///
    /// All stores with this prefix need the same value: one that waits for less might grant a lock
    /// that somebody else still relies on. So once a store with a greater value has asked for a lock,
    /// a store with a smaller one is [refused](crate::StoreError::Refused). Its renewals and releases
    /// go on. The first grant to the greater one waits for the difference of both. See
    /// [`longest_lease_changes`](Self::longest_lease_changes) for how to change the value.
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.longest_lease = longest;
        self
    }

    /// Declares that stores with another [longest lease](Self::longest_lease) are in use. The store
    /// is not refused, and waits for the greatest value that the server knows. If the server has lost
    /// its data, it knows none, and the store waits for its own value alone.
    ///
    /// To make the value greater while processes run: start all of them anew with this option, then
    /// with the option and the greater value, then without the option. Do not let the server lose its
    /// data meanwhile, and move no slots of a cluster: each node knows the values of its own callers. To make it smaller, stop all processes, delete the keys
    /// `PREFIX:{..}:marker` from the server, and start them with the smaller value.
    pub fn longest_lease_changes(mut self) -> Self {
        self.longest_lease_changes = true;
        self
    }

    /// Declares that the server loses nothing when it is killed: it has `appendonly yes` and
    /// `appendfsync always`, and nobody empties it. Then the store never waits before it grants.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Declares that the server starts empty on purpose and all earlier holders are gone, as in a
    /// test or in a container that is started for one run. A server without data of this prefix
    /// then grants at once, instead of waiting for the [longest lease](Self::longest_lease). After
    /// a restart *with* its data the store still waits.
    ///
    /// The danger: if the server loses its data while somebody holds a lock, the store takes it for
    /// a new server and **grants the same lock to somebody else at once**. A crash without
    /// persistence, `FLUSHALL`, eviction, and a failover to an empty server all lose data.
    pub fn starts_empty(mut self) -> Self {
        self.starts_empty = true;
        self
    }

    /// Sets how long the last token of a name is kept after its last grant. By default that is 25
    /// hours, or twice the [longest lease](Self::longest_lease) if that is longer. Each name that
    /// was ever granted takes some 150 bytes of the server's memory for this time.
    ///
    /// Tokens are times of the server's clock, so they grow even if the last one is forgotten,
    /// unless that clock is set back. Choose a life that is longer than the total time by which the
    /// clock is ever set back within it. The default is enough for a clock that is set back by a
    /// day.
    pub fn token_life(mut self, life: Duration) -> Self {
        self.token_life = Some(life);
        self
    }

    /// Makes and uses the connections on this tokio runtime. Without this call the store has a thread
    /// for them, from its first call until it is dropped.
    ///
    /// The runtime needs I/O and timers (`enable_all`). If a task blocks it, renewals are late, and
    /// locks may be lost. A current-thread runtime runs only while a thread is in its `block_on`. On
    /// that thread, await the calls of leases: with `wait` the thread would block the runtime that it
    /// waits for. The timers of the runtime enforce limits, so each call ends at once if tokio's clock
    /// is paused.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::RedisStore;
    ///
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    /// # runtime.block_on(async {
    /// let runtime = tokio::runtime::Handle::current();
    /// let store = RedisStore::builder("redis://127.0.0.1/")
    ///     .tokio(runtime)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tokio(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets how to log in to the Sentinels of a `redis-sentinel://` URL, if they demand it. An empty
    /// user is the default one. The user and the password in the URL are those of the master.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::RedisStore;
    ///
    /// let url = "redis-sentinel://:secret@s1,s2,s3/shop";
    /// let builder = RedisStore::builder(url);
    /// let store = builder.sentinel_login("", "another secret").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sentinel_login(mut self, user: &str, password: impl AsRef<str>) -> Self {
        let mut login = RedisConnectionInfo::default().set_password(password.as_ref());
        if !user.is_empty() {
            login = login.set_username(user);
        }
        self.sentinel_login = login;
        self
    }

    /// Sets the idle time after which the system probes the server (TCP keepalive): 15 s by
    /// default, `None` for never. Probes keep the connection alive in devices between the two
    /// machines, and detect that the server is gone. The time is rounded up to whole seconds. The
    /// system decides how many probes it sends before it gives up. Unix sockets ignore this option.
    pub fn tcp_keepalive(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.tcp_keepalive = after.into();
        self
    }

    /// Creates the store. This does not connect, so it succeeds also while the server is down.
    ///
    /// # Errors
    ///
    /// If an option is invalid. The error names the value.
    pub fn build(self) -> Result<RedisStore, RedisBuildError> {
        let server = self.server()?;
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            return Err(RedisBuildError::Prefix(self.prefix));
        }
        if !(SHORTEST..=LONGEST).contains(&self.longest_lease) {
            return Err(RedisBuildError::LongestLease(self.longest_lease));
        }
        let token_life = self.life_of_tokens();
        if !(self.longest_lease..=LONGEST_TOKEN_LIFE).contains(&token_life) {
            return Err(RedisBuildError::TokenLife {
                life: token_life,
                longest_lease: self.longest_lease,
            });
        }
        if let Some(after) = self.tcp_keepalive
            && !(SHORTEST_KEEPALIVE..=LONGEST_KEEPALIVE).contains(&after)
        {
            return Err(RedisBuildError::TcpKeepalive(after));
        }
        let in_cluster = server.seeds().is_some();
        let default = if in_cluster { IN_CLUSTER } else { 1 };
        let destinations = self.destinations.unwrap_or(default);
        if !(1..=SLOTS).contains(&destinations) {
            return Err(RedisBuildError::Destinations(destinations));
        }
        let keys = match in_cluster {
            true => Keys::in_cluster(self.prefix, destinations),
            false => Keys::new(self.prefix, destinations),
        };
        Ok(RedisStore::new(
            server,
            Options {
                keys,
                longest_lease: self.longest_lease,
                longest_lease_changes: self.longest_lease_changes,
                durable: self.durable,
                starts_empty: self.starts_empty,
                token_life,
            },
            self.runtime,
        ))
    }

    /// Returns the life of tokens, or its default.
    fn life_of_tokens(&self) -> Duration {
        let default = || TOKEN_LIFE.max(self.longest_lease.saturating_mul(2));
        self.token_life.unwrap_or_else(default)
    }
}

impl RedisStoreBuilder {
    /// Reads the URL and the certificates.
    fn server(&self) -> Result<Server, RedisBuildError> {
        let wrong = |why: String| RedisBuildError::Url {
            url: without_password(&self.url),
            why,
        };
        // The stream with TLS is made here (`server.rs`), so the crate `redis` gets a plain URL.
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", ""));
        let tls = matches!(
            scheme,
            "rediss" | "valkeys" | "rediss-sentinel" | "rediss-cluster"
        );
        if tls && cfg!(not(feature = "redis-tls")) {
            return Err(wrong(
                "TLS needs tourbillon's feature `redis-tls`".to_owned(),
            ));
        }
        if tls && rest.contains('#') {
            let why = "certificates are always checked, so nothing may follow a `#`";
            return Err(wrong(why.to_owned()));
        }
        let (address, login) = address::read(&self.url, &self.sentinel_login).map_err(wrong)?;
        if self.durable && matches!(address, Address::Sentinels(_) | Address::Cluster(_)) {
            let why = "a failover loses what was not replicated yet, so the store can't be durable";
            return Err(wrong(why.to_owned()));
        }
        // Round up: the system takes whole seconds, and would round down.
        let keepalive = self.tcp_keepalive.map(|after| {
            let begun = u64::from(after.subsec_nanos() > 0);
            Duration::from_secs(after.as_secs() + begun)
        });
        #[cfg(feature = "redis-tls")]
        {
            let certificates = &self.certificates;
            certificates.check().map_err(RedisBuildError::Tls)?;
            let hosts = address.hosts();
            if tls && !hosts.is_empty() {
                let tls = certificates.tls(&hosts).map_err(RedisBuildError::Tls)?;
                return Ok(Server::new(address, login, keepalive).with_tls(tls));
            }
        }
        Ok(Server::new(address, login, keepalive))
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("url", &without_password(&self.url))
            .field("prefix", &self.prefix)
            .field("longest_lease", &self.longest_lease)
            .field("longest_lease_changes", &self.longest_lease_changes)
            .field("durable", &self.durable)
            .field("starts_empty", &self.starts_empty)
            .field("token_life", &self.life_of_tokens())
            .field("tokio", &self.runtime.is_some())
            .finish()
    }
}

/// Replaces everything that may be a password by stars: the text between the first colon and an
/// `@`, and the whole query. This also works for a text that is no URL.
fn without_password(url: &str) -> String {
    // A password may have a question mark.
    let from = url.rfind('@').unwrap_or(0);
    let (url, query) = match url[from..].find('?') {
        Some(at) => (&url[..from + at], "?***"),
        None => (url, ""),
    };
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => format!("***@{host}"),
        },
        None => rest.to_owned(),
    };
    format!("{scheme}{shown}{query}")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1/", "redis://127.0.0.1/"),
            ("redis://:s3@host:1/2", "redis://:***@host:1/2"),
            ("redis://me:s3@host", "redis://me:***@host"),
            ("redis://me@host", "redis://***@host"),
            ("redis://me:s/3@4@host", "redis://me:***@host"),
            ("redis://me:s3?x@host?y=s3", "redis://me:***@host?***"),
            ("me:s3@host", "me:***@host"),
            ("unix:///run/x?pass=s3", "unix:///run/x?***"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_password(url), shown);
            let builder = RedisStoreBuilder::new(url);
            assert!(!format!("{builder:?}").contains("s3"), "{builder:?}");
        }
    }

    #[test]
    fn what_cannot_be_built_is_named() {
        let build = |url: &str| RedisStoreBuilder::new(url).build().unwrap_err().to_string();
        for (url, words) in [
            ("me:s3cret@host", "\"me:***@host\" can't be used"),
            ("http://host", "Redis URL did not parse"),
            ("redis://:s3cret@host/first", "\"redis://:***@host/first\""),
            ("redis://0.0.0.0/", "wildcard"),
            ("redis://host/?protocol=9", "Invalid protocol version (9)"),
            ("redis-sentinel://a,b", "the name of a master is missing"),
            (
                "redis-sentinel://:s3cret@a//1",
                "the name of a master is missing",
            ),
            ("redis-sentinel://a/shop?x=1", "has no options"),
            ("redis-sentinel://a,/shop", "can't be used"),
            ("redis-sentinel://a:x/shop", "can't be used"),
            ("redis-sentinel://a:/shop", "the port of a is missing"),
            ("redis-sentinel://a?x,b/shop", "has no options"),
            ("redis-sentinel://:s3cret?@a/shop#x", "has no options"),
            ("redis-sentinel://:s3cret@a/shop/first", "***@a/shop/first"),
            ("redis-cluster://:s3cret@a,b/1", "only the database 0"),
            ("redis-cluster://a/shop", "only the database 0"),
            ("redis-cluster://a/0/1", "only the database 0"),
            ("redis-cluster:///", "can't be used"),
            ("redis-cluster://a,,b/", "can't be used"),
            ("redis-cluster://a:x", "can't be used"),
            ("redis-cluster://a:,b", "the port of a is missing"),
            (
                "redis-cluster://:s3cret@a/?x=1",
                "a URL of a cluster has no options",
            ),
        ] {
            let error = build(url);
            assert!(error.contains(words), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        if cfg!(feature = "redis-tls") {
            for url in [
                "rediss://:s3cret@host/#insecure",
                "rediss-cluster://a/#insecure",
            ] {
                let error = build(url);
                assert!(error.contains("certificates are always checked"), "{error}");
            }
        } else {
            for url in ["rediss://:s3cret@host/", "rediss-cluster://:s3cret@a,b/"] {
                let error = build(url);
                assert!(error.contains("feature `redis-tls`"), "{error}");
            }
        }
        let some = || RedisStoreBuilder::new("redis://host/");
        let error = |builder: RedisStoreBuilder| builder.build().unwrap_err();
        assert_eq!(
            error(some().prefix("a{b")),
            RedisBuildError::Prefix("a{b".into())
        );
        assert_eq!(error(some().prefix("")), RedisBuildError::Prefix("".into()));
        let zero = Duration::ZERO;
        assert_eq!(
            error(some().longest_lease(zero)),
            RedisBuildError::LongestLease(zero)
        );
        assert_eq!(
            error(some().token_life(zero)).to_string(),
            "tokens that live for 0ns: choose between the longest lease, 30s, and 730 days"
        );
        assert_eq!(
            error(some().tcp_keepalive(zero)).to_string(),
            "a keepalive after 0ns: choose between 1 s and 9 hours, or none"
        );
        assert_eq!(
            error(some().destinations(0)),
            RedisBuildError::Destinations(0)
        );
        let at_sentinels = || RedisStoreBuilder::new("redis-sentinel://a,[::1],b:7/shop/2");
        let refused = at_sentinels().durable().build().unwrap_err().to_string();
        assert!(refused.contains("not replicated yet"), "{refused}");
        let store = at_sentinels().build().unwrap();
        let shown = "shop of the Sentinels a:26379,::1:26379,b:7";
        assert!(format!("{store:?}").contains(shown), "{store:?}");
        let in_cluster =
            |scheme| RedisStoreBuilder::new(&format!("{scheme}://me:s3cret@a,[::1]:7/0"));
        let refused = in_cluster("redis-cluster").durable().build();
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("not replicated yet")
        );
        let schemes = ["redis-cluster", "rediss-cluster"];
        for scheme in &schemes[..1 + usize::from(cfg!(feature = "redis-tls"))] {
            let store = in_cluster(scheme).build().unwrap();
            let shown = format!("{store:?}");
            assert!(shown.contains("\"the cluster of a:6379,::1:7\""), "{shown}");
        }
        assert!(some().build().is_ok());
        // The default is valid with the longest possible lease, too.
        assert!(some().longest_lease(LONGEST).build().is_ok());
    }

    #[test]
    fn destinations_are_equal_ranges_of_slots() {
        use crate::{Destination, LeaseStore};
        let of = |ranges, name: &str| {
            let builder = RedisStoreBuilder::new("redis://127.0.0.1/").destinations(ranges);
            builder.build().unwrap().destination(name)
        };
        // Slots 12,182 and 3,443.
        assert_eq!(of(1, "foo"), of(1, "user1000"));
        assert_eq!(of(4, "foo"), Destination::new(2));
        assert_eq!(of(4, "user1000"), Destination::new(0));
        assert_eq!(of(SLOTS, "foo"), Destination::new(12_182));
        let in_cluster = RedisStoreBuilder::new("redis-cluster://a").build().unwrap();
        assert_eq!(in_cluster.destination("foo"), Destination::new(11));
    }
}
