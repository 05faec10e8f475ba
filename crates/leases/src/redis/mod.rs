//! A store on a Redis server.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::task::Waker;
use std::time::Duration;

use redis::{ServerError, Value};
use tokio::runtime::Handle;
use tourbillon::Clock;

use crate::remote::Limit;
use crate::store::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LONGEST_NAME, LeaseStore,
    LockPage, LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture,
    Watch, only,
};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, unique_number};
use client::Client;
use errors::answered;
use keys::Keys;
use listener::Listener;
use scripts::{Call, Scripts};
use server::Server;
use slot::Whose;

mod address;
mod answers;
mod build_error;
mod builder;
mod checking;
mod client;
mod cluster;
mod errors;
mod granting;
mod hand_over;
mod held;
mod keys;
mod learning;
mod link;
mod listener;
mod listing;
mod received;
mod scripts;
mod sentinel;
mod server;
mod slot;
mod slot_map;
#[cfg(feature = "redis-tls")]
mod tls;
mod topology;

pub use build_error::RedisBuildError;
pub use builder::RedisStoreBuilder;

/// Keeps leases on a Redis server, for processes that share one. Feature `redis`.
///
/// A held name is one hash, which expires unless it is renewed. Each call is one script, which the
/// server executes as a whole. A batch of up to 1,000 renewals or releases takes one round trip. The server
/// may also be a master that [Sentinels](#sentinels) watch, or a [cluster](#clusters).
///
/// ```no_run
/// use tourbillon_leases::{Leases, RedisStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(RedisStore::open("redis://127.0.0.1/")?)?;
/// let guard = leases.lock("orders/42").wait()?;
/// println!("held with the token {}", guard.token());
/// guard.release().wait()?;
/// # Ok(())
/// # }
/// ```
///
/// # What is in Redis
///
/// For each name:
///
/// | key | type | what | lives |
/// |---|---|---|---|
/// | `tourbillon:{NAME}:lock` | hash | who holds the name; missing if nobody does, except for a moment after a release that reserves the name for `next` | a lease, from the last renewal on |
/// | `tourbillon:{NAME}:holders` | sorted set | of [read locks](crate::Acquisition::shared) and [permits](crate::Acquisition::permit_of) the holders, `=` and the secret of each, by the end of its lease in milliseconds | up to ten leases longer than the lock |
/// | `tourbillon:{NAME}:token` | string | the last token | 25 hours after the last grant ([`token_life`](RedisStoreBuilder::token_life)) |
///
/// and for each [destination](RedisStoreBuilder::destinations), of which there is one by default, or for
/// each node of a cluster:
///
/// | key | type | what | lives |
/// |---|---|---|---|
/// | `tourbillon:{0}:marker` | string | shows that no data were lost: the server's run, the time in microseconds until which nothing is granted (or 0), the reason, the greatest longest lease in microseconds, with Sentinels or in a cluster the number of the last failover, and in a cluster the ranges of slots that were waited for | until the data are lost |
///
/// | field of the hash | what |
/// |---|---|
/// | `owner` | who holds it: the [`instance`](crate::LeasesBuilder::instance), random digits, the process, and the number of the holding; never used twice. It is for people, and proves nothing. With ` (released)` behind it: nobody, but the name [stays locked](crate::Acquisition::at_least) |
/// | `secret` | what the holder proves with that it holds it. No call of a store shows it; whoever may read keys, `MONITOR` or `SLOWLOG` sees it |
/// | `count` | how many guards held it at the last renewal |
/// | `token` | the token of the grant |
/// | `lease` | how long its lease is, in milliseconds |
/// | `data` | what the holder [says about itself](crate::LeasesBuilder::holder_data), if it says something |
/// | `ticket` | while it is [detached](crate::LeaseGuard::detach), the secret of its ticket |
/// | `detached`, `terms` | since it was detached, how long its lease becomes when it is resumed, in milliseconds, and its options |
/// | `waited` | `1` if callers of a store that is not `next` wait, too. So the next release has to be announced |
/// | `next` | the store whose caller has waited longest; the release is announced, and if that wait was 20 ms or more by then, no other store gets the name for another 5 to 25 ms |
/// | `since` | when the wait of that caller began, in milliseconds of the server's clock |
/// | `mode` | only of read locks (`s`) and permits (`p4`: of 4). Then `owner` is the first holder, `=SECRET` has the place, the token, the owner and the data of each, and `share.lua` lists the other fields |
///
/// The channel `tourbillon:released` announces releases that somebody waits for: a number that the
/// releasing store has drawn, a space, and the name. The `tourbillon` in front is the
/// [prefix](RedisStoreBuilder::prefix). In a name `{`, `}` and `%` become `%7B`, `%7D` and `%25`,
/// so all keys of a name lie in one slot of a cluster.
///
/// A person can read it, and can take a lock from its holder, which notices at its next renewal:
///
/// ```text
/// $ redis-cli HGETALL 'tourbillon:{orders/42}:lock'
/// 1) "owner"
/// 2) "leases-07ced7a57e09f7995634dc1649e55c9f:25159:0"
/// 3) "secret"
/// 4) "5b8d1f0a93c24e7796ab30c5d2f81e64"
/// 5) "count"
/// 6) "1"
/// 7) "token"
/// 8) "1794844800000000"
/// 9) "lease"
/// 10) "30000"
/// $ redis-cli PTTL 'tourbillon:{orders/42}:lock'
/// (integer) 24310
/// $ redis-cli GET 'tourbillon:{orders/42}:token'
/// "1794844800000000"
/// $ redis-cli --scan --pattern 'tourbillon:*:lock'
/// "tourbillon:{orders/42}:lock"
/// $ redis-cli DEL 'tourbillon:{orders/42}:lock'
/// (integer) 1
/// ```
///
/// # Tokens
///
/// A token is the server's time in microseconds, or the last token plus 1 if that is more. So the
/// tokens of a name also grow when a restart loses all data, **unless the server's clock is set
/// back** while the last token is lost, too. A server that loses nothing keeps the last token for
/// 25 hours, so its clock may be set back by a day. Scripts count in doubles, which are exact up
/// to 2^53: for microseconds that is until the year 2255.
///
/// # Restarts, and lost data
///
/// A server that is killed, flushed, or replaced by an empty one may have lost a lock that a holder
/// still relies on. So each destination has a marker in Redis, which vanishes together with the
/// locks. The script that grants a lock checks the marker in the same step:
///
/// - **No marker**: the server is new, or its data are gone ([`StoreError::Emptied`]). The script
///   writes one, and nothing is granted for the [longest lease](RedisStoreBuilder::longest_lease),
///   30 s by default. All stores wait until the same time. A marker that was evicted to save memory
///   counts as lost data, and the error says so.
/// - **A marker of another run of the server**: the server has restarted with its data, which may
///   lack the latest writes ([`StoreError::Restarted`]). Nothing is granted until it has been up
///   for the longest lease, and up to a second more, since it reports its uptime in whole seconds.
/// - **A marker of this run whose time has passed**: no data were lost since. The store grants.
///
/// Renewals and releases never wait. The first use of a prefix on a server waits, too, since it
/// looks like a loss; [`check`](Self::check) starts this wait early. With
/// [`durable`](RedisStoreBuilder::durable), for a server that loses nothing, there is no such
/// wait. With [`starts_empty`](RedisStoreBuilder::starts_empty) a missing marker is no loss.
///
/// # What it cannot promise
///
/// - **A failover to a replica loses the writes that were not replicated yet.** With
///   [Sentinels](#sentinels), or in a [cluster](#clusters), the store waits until nobody relies on what was
///   lost. Without them it does not notice the failover: the replica has the marker, so it may grant a lock that is held. If the
///   replica's clock is behind, tokens may repeat, too. `WAIT` would make that rarer but not impossible, so
///   the store does not use it.
/// - **A master that stands still during a failover goes on granting when it wakes**, until it learns
///   that it was replaced. `min-replicas-to-write 1` with a short `min-replicas-max-lag` in its
///   configuration makes that rarer, not impossible: a master without replicas then answers
///   `NOREPLICAS`, which callers take for an outage.
/// - Eviction may remove a lock and leave the marker: `maxmemory-policy` must be `noeviction`.
///   [`check`](Self::check) reports another one. Deleting single keys has the same effect.
/// - Leases and uptime are counted by the server's clock. If it jumps forward, leases end early. If
///   it is set back, no lease ends early, and nobody waits for longer than one lease: a waiting
///   caller cuts the rest of a lease to its full length.
///
/// There is one remedy for all of these: the protected resource checks the token
/// ([`Fence`](crate::Fence)).
///
/// # Connections, limits and errors
///
/// Each [destination](RedisStoreBuilder::destinations), or each node of a cluster, has two connections: one for callers, and one for
/// renewals and releases, so that these never wait behind callers. Many calls share a connection. A
/// thread of the store drives all connections, unless a thread that waits for the only call does, or a
/// [tokio runtime](RedisStoreBuilder::tokio) of yours. So a call can be awaited on any runtime.
///
/// A call that is dropped before it is sent is never sent. A call that was sent may be executed. A batch
/// is sent in portions of 100 calls, or of 1,000 renewals or releases. Up to four portions of a batch are
/// under way at one time.
///
/// The limit of a call covers all of its steps: the lookup of the host's name, the connection, the
/// handshake, the login, and the answer. The store makes a new connection in three cases:
///
/// - A call got no answer in time, and nothing was received on the connection since it was sent.
/// - The connection has failed, or its server has become a replica.
/// - There was no call for a minute. A device in between may have forgotten the connection.
///
/// If a connection was open before the call and turns out to be closed, the call is sent again on a new
/// one. The first request may have been executed: the second answer of a release may then be
/// [`Released::NotHeld`](crate::Released::NotHeld). If the first request of an acquire arrives
/// after its lock was released, nobody holds the name, and it stays locked for a lease.
///
/// - [`StoreError::Unavailable`]: no server, no answer in time, `LOADING`, `BUSY`, `READONLY`,
///   `MASTERDOWN`, `NOREPLICAS`, `CLUSTERDOWN`, `TRYAGAIN`, `ASK`, `NOSCRIPT`, `OOM`, `MISCONF`,
///   too many clients.
/// - [`StoreError::Refused`]: all other errors, such as `NOAUTH`, `WRONGPASS`, `NOPERM`, `WRONGTYPE`,
///   `MOVED` without a URL of a cluster, a command that is renamed or disabled, a certificate that is not accepted, a name
///   that is empty or longer than 1,024 bytes, and a lease that is zero or longer than the longest.
///
/// One more connection listens for releases while callers wait. It is closed some seconds after the
/// last waiting caller, or with the store. If it misses a release, waiting callers find it by asking
/// again.
///
/// # Sentinels
///
/// A URL `redis-sentinel://[user][:password@]a[:26379],b,c/MASTER[/DATABASE]` names Sentinels and the
/// master that they watch. `rediss-sentinel://` is the same with TLS, to the Sentinels and to the master.
/// Name all Sentinels: for each connection the store asks all of them, and takes the newest answer of a
/// majority. Without a majority there is no connection. The store connects to the address that the
/// Sentinels announce, and with TLS the certificate must be for that address.
///
/// User and password of the URL are those of the master.
/// [`sentinel_login`](RedisStoreBuilder::sentinel_login) has those of the Sentinels, whose user needs
/// `+sentinel|master +sentinel|get-master-addr-by-name`.
///
/// Each failover has a number, the `config-epoch`. The marker keeps the greatest one. So after a failover,
/// or a restart, nothing is granted for the longest lease and 10 s ([`StoreError::Restarted`]). Renewals
/// and releases go on. The store asks the Sentinels every 3 s whether the master is another one, and moves
/// its renewals there. A server whose marker has a greater number than the connection grants nothing
/// ([`StoreError::Unavailable`]). Sentinels that are set up anew count from 0 again: then delete the key of
/// the marker.
///
/// All programs that share locks need a URL with Sentinels: a plain URL knows no number. A program that
/// reaches the old master and no majority of the Sentinels goes on renewing there.
///
/// # Clusters
///
/// A URL `redis-cluster://[user][:password@]a[:6379],b,c/` names nodes of a cluster.
/// `rediss-cluster://` is the same with TLS. The store asks these nodes for all others, and connects to
/// the addresses that they announce: with TLS, certificates must be for these. One node of the URL that
/// answers is enough. User and password are the same at all nodes, who need the rights below and
/// `+cluster|nodes +cluster|slots +asking`.
///
/// Each call goes to the node that serves the slot of its name. If a slot moves, calls follow it. While
/// the keys of a slot are on their way, a free name of this slot can't be acquired
/// ([`StoreError::Unavailable`]); what is held is renewed and released. A shared name has two keys: while
/// one of them has arrived and the other one has not, its calls fail with the same error, and are tried
/// again. A node that fails or hangs costs only
/// its own names, except that the calls of a batch end together. So names are spread over 16
/// [destinations](RedisStoreBuilder::destinations) by default. With `cluster-require-full-coverage yes`,
/// which is the default of Redis, one node that fails stops the whole cluster.
///
/// Each node has a marker, with the number of the last failover that made it the master (`config-epoch`),
/// and with its slots. A marker is missing where a node is new. After a failover or a
/// restart the node grants nothing for the longest lease and 10 s
/// ([`StoreError::Restarted`], [`StoreError::Emptied`]). If a slot moves to it, names in that slot wait for so
/// long, from the first of them that is asked for: the node before may have lost data. While more slots come,
/// the wait of those that came shortly before goes on. The other names of the node wait, too, if the move
/// raises the number, or gives the node another marker. Renewals and releases go on, and so do grants of
/// the other nodes. A node grants nothing while it has no slot that can have a marker: one of 16 slots can.
///
/// The 10 s cover a `cluster-node-timeout` of up to about 15 s, which is the default. A master that is cut
/// off from the others serves on for so long. With a longer one, a program that reaches only the old master may
/// renew there for longer than the new one waits.
///
/// A [list](crate::Leases::list) walks over one node after the other. Names in a slot that moves between two
/// pages may be missing, or be there twice.
///
/// The script of a grant reads the marker in the same step as the lock, although it lies in another slot
/// of the same node. Redis allows that to scripts. A server or a provider that does not refuses all
/// grants ([`StoreError::Refused`]).
///
/// If a slot moves to another node right after its own one has lost data, the new node may not know of
/// the loss: let the longest lease pass before you move slots from such a node.
///
/// # Servers
///
/// Tested with Redis 7.0 and 8.2 and with Valkey 9.1. It uses only what Redis 5 has, too. A user of the server needs
/// `+eval +evalsha +hget +hset +hmget +hdel +get +set +del +pexpire +pttl +time +info +publish
/// +subscribe +unsubscribe +punsubscribe +ping +select +scan ~tourbillon:* &tourbillon:released`. For
/// [read locks](crate::Acquisition::shared) and [permits](crate::Acquisition::permit_of) it also needs
/// `+zadd +zcount +zrange +zrangebyscore +zrem +zscore`.
///
/// `rediss://` needs the feature `redis-tls`. The server's certificate must be issued for the host
/// of the URL, by an authority that the system trusts or that was passed to the builder
/// (`tls_root_certificate_pem`).
///
/// A plain URL of one node of a [cluster](#clusters) is refused, by
/// [`check`](Self::check) and before the first lock is held: the store asks for names all over the slots
/// then. A proxy that hides a cluster is like one server; that is tested with three nodes. It refuses a call with keys of two slots. Then a
/// second call checks the marker, and releases the lock if nothing may be granted yet. Each
/// node also checks its own uptime. If the proxy has no `SUBSCRIBE`, waiting callers find a
/// release by asking again.
///
/// # Forks
///
/// A store belongs to the process that created it. In a forked copy of that process (`fork` without
/// `exec`) each call fails with [`StoreError::Forked`] at once and sends nothing, guards are not
/// held, and drops do nothing. A future from before the fork fails when it is polled. The locks stay
/// with the original. The copy keeps the sockets open until it ends. Create a store of any kind, and
/// its leases, after the fork.
///
/// Clones share one store.
#[derive(Clone)]
pub struct RedisStore(Arc<RedisInner>);

struct RedisInner {
    options: Options,
    scripts: Scripts,
    server: Arc<Server>,
    client: Client,
    listener: Arc<Listener>,
    /// Set when a call with a name's keys and the marker was refused: they lie in different slots.
    apart: AtomicBool,
    /// Set when the server has been asked whether it has all slots.
    has_all_slots: AtomicBool,
    /// The greatest longest lease of other stores that has led to a refusal, in us.
    met: AtomicU64,
}

/// The options, which the builder has checked.
struct Options {
    keys: Keys,
    longest_lease: Duration,
    longest_lease_changes: bool,
    durable: bool,
    starts_empty: bool,
    token_life: Duration,
}

impl RedisStore {
    /// Creates a store on the server of this URL, with the defaults of the
    /// [builder](Self::builder). The store connects when it is used first.
    ///
    /// # Errors
    ///
    /// If this is not the URL of a server.
    pub fn open(url: &str) -> Result<RedisStore, RedisBuildError> {
        RedisStore::builder(url).build()
    }

    /// Returns a builder of a store. URLs are those of the crate `redis`:
    /// `redis://[user][:password@]host[:port][/database]`, `rediss://` for the same with TLS
    /// (feature `redis-tls`), or `unix:///path`. `redis-sentinel://` names [Sentinels](#sentinels), and
    /// `redis-cluster://` nodes of a [cluster](#clusters).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::RedisStore;
    /// let store = RedisStore::builder("redis://127.0.0.1/").prefix("orders").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    fn new(server: Server, options: Options, runtime: Option<Handle>) -> Self {
        let server = Arc::new(server);
        // The id includes the process id, since a forked copy draws the same random keys.
        let own = RandomState::new().hash_one((std::process::id(), unique_number()));
        RedisStore(Arc::new(RedisInner {
            scripts: Scripts::new(),
            client: Client::new(
                Arc::clone(&server),
                &options.keys,
                Clock::boottime(),
                runtime,
            ),
            listener: Arc::new(Listener::new(
                Arc::clone(&server),
                options.keys.channel().to_owned(),
                format!("{own:016x}"),
            )),
            // A cluster has them together.
            has_all_slots: AtomicBool::new(server.seeds().is_some()),
            server,
            options,
            apart: AtomicBool::new(false),
            met: AtomicU64::new(0),
        }))
    }

    fn is_cluster(&self) -> bool {
        self.0.server.seeds().is_some()
    }

    async fn call_one(&self, name: &str, call: Call, limit: Limit) -> Result<Value, StoreError> {
        let answer = self.ask(self.destination(name), call, limit).await?;
        answer.map_err(|error| answered(&error))
    }

    /// Makes one call, and returns an error of the server unchanged.
    async fn ask(
        &self,
        to: Destination,
        call: Call,
        limit: Limit,
    ) -> Result<Result<Value, ServerError>, StoreError> {
        let asked = self.0.client.call(Whose::Callers, to, vec![call], limit);
        Ok(match only(asked.await?)? {
            Value::ServerError(error) => Err(error),
            answer => Ok(answer),
        })
    }

    fn giving_back(&self, held: &Holding<'_>) -> Call {
        self.releasing(held.name, held.mode)
            .arg(held.secret.reveal())
            .arg(self.0.options.keys.channel())
            .arg(&self.0.listener.message(held.name))
            .arg(&millis(held.rest))
            .arg(&Claim::TURN.as_millis())
    }

    /// Returns how long nothing may be granted after a restart or a loss, or 0.
    fn guard_micros(&self) -> u128 {
        match self.0.options.durable {
            true => 0,
            false => {
                // Relaxed: it is only compared. That of other stores is waited for, too.
                let met = self.0.met.load(Ordering::Relaxed);
                self.own_micros().max(met.into())
            }
        }
    }

    /// Returns the longest lease, rounded up as in a call.
    fn own_micros(&self) -> u128 {
        millis(self.0.options.longest_lease) * 1_000
    }

    /// Returns the least that the longest lease of this store has to be for a grant, or 0.
    fn least_micros(&self) -> u128 {
        match self.0.options.longest_lease_changes {
            true => 0,
            false => self.own_micros(),
        }
    }

    /// Returns the error for a store whose longest lease is shorter than that of others, in us. It is
    /// kept in mind: if the server forgets it, this store waits for as long as those others do, and
    /// is granted nothing even then.
    fn too_short(&self, others: i64) -> StoreError {
        let micros = others.unsigned_abs();
        // Relaxed: it is only compared.
        self.0.met.fetch_max(micros, Ordering::Relaxed);
        let (own, prefix) = (self.0.options.longest_lease, self.0.options.keys.prefix());
        let others = Duration::from_micros(micros);
        StoreError::Refused(format!(
            "a store with the prefix {prefix:?} and a longest lease of {others:?} has used this server, and \
             this one was built for {own:?}: build all of them with the same longest_lease. To change \
             it, see RedisStoreBuilder::longest_lease_changes"
        ))
    }

    /// Checks a name and the length of its lease.
    fn valid(&self, name: &str, lease: Duration) -> Result<(), StoreError> {
        let longest = self.0.options.longest_lease;
        let why = if name.is_empty() {
            "an empty name".to_owned()
        } else if name.len() > LONGEST_NAME {
            format!(
                "a name of {} bytes: choose one of at most {}",
                name.len(),
                LONGEST_NAME
            )
        } else if lease.is_zero() {
            "a lease of zero".to_owned()
        } else if lease > longest {
            format!("a lease of {lease:?}: this store was built for {longest:?} at most")
        } else {
            return Ok(());
        };
        Err(StoreError::Refused(why))
    }
}

impl LeaseStore for RedisStore {
    fn destination(&self, name: &str) -> Destination {
        Destination::new(u64::from(self.0.options.keys.destination(name)))
    }

    fn longest_lease(&self) -> Duration {
        self.0.options.longest_lease
    }

    fn can_share(&self) -> bool {
        true
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(self.acquire_now(destination, batch, Limit::new(limit)))
    }

    fn leave<'a>(&'a self, name: &'a str, _owner: &'a str, limit: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.leave_now(name, Limit::new(limit)))
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        Box::pin(self.renew_now(destination, batch, Limit::new(limit)))
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(self.release_now(destination, batch, Limit::new(limit)))
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        Box::pin(self.detach_held(detach, Limit::new(limit)))
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        Box::pin(self.resume_detached(resume, Limit::new(limit)))
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        Box::pin(self.holder_now(name, Limit::new(limit)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        Box::pin(self.list_held(prefix, paging, limit))
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        if self.0.client.is_forked() {
            return None;
        }
        let place = self.0.listener.wait_queue.watch(name, waker);
        if let Ok(io) = self.0.client.io() {
            self.0.listener.listen(io);
        }
        Some(place)
    }
}

impl Drop for RedisInner {
    fn drop(&mut self) {
        // A forked copy has no listener.
        if !self.client.is_forked() {
            self.listener.close();
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        let mut shown = f.debug_struct("RedisStore");
        shown
            .field("server", &inner.server.to_string())
            .field("prefix", &inner.options.keys.prefix())
            .field("longest_lease", &inner.options.longest_lease)
            .field("durable", &inner.options.durable)
            .field("starts_empty", &inner.options.starts_empty);
        if inner.client.is_forked() {
            return shown.finish_non_exhaustive();
        }
        shown
            .field("listens", &inner.listener.is_running())
            .finish()
    }
}

/// Rounds up to milliseconds: the server's lease must not end before the caller's.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}
