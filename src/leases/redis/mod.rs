//! Leases on a Redis server.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::task::Waker;
use std::time::Duration;

use redis::Value;

use super::store::{
    Acquired, Claim, Destination, LeaseStore, Outcome, Released, Renewal, StoreError, Watch,
};
use crate::sync::{Arc, unique_number};

mod builder;
mod errors;
mod keys;
mod link;
mod listener;
mod pool;
mod scripts;

pub use builder::{RedisBuildError, RedisStoreBuilder};
use errors::answered;
use keys::{Keys, SLOTS, slot};
use link::{Limit, Server};
use listener::Listener;
use pool::{Pool, Whose};
use scripts::{Call, Scripts};

/// Leases on a Redis server, for processes that share one. Feature `redis`.
///
/// A name is held in one hash, which ends by itself when nobody renews it. Each call is one script,
/// executed by the server as a whole; a batch of renewals is one round trip.
///
/// ```no_run
/// use tourbillon::leases::{Leases, RedisStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(RedisStore::open("redis://127.0.0.1/")?)?;
/// let guard = leases.lock("orders/42")?;
/// println!("held with the token {}", guard.fencing_token());
/// guard.release()?;
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
/// | `tourbillon:{NAME}:lock` | hash | who holds the name; not there if nobody does, but for a moment after a release that leaves it to `next` | a lease, from the last renewal on |
/// | `tourbillon:{NAME}:token` | string | the last token | 7 days after the last grant ([`token_life`](RedisStoreBuilder::token_life)) |
///
/// | field of the hash | what |
/// |---|---|
/// | `owner` | who holds it: the [`instance`](super::LeasesBuilder::instance), random digits, the process, and the number of the holding; never used twice |
/// | `count` | how many guards held it at the last renewal |
/// | `token` | the token of the grant |
/// | `waited` | `1` if somebody has waited since the grant; then the release is announced |
/// | `next` | the store whose turn is next, since somebody there has waited for 20 ms; others are not granted the name for 5 to 25 ms after the release |
/// | `since` | since when that one has waited, in milliseconds of the server's clock |
///
/// The channel `tourbillon:released` announces releases that somebody waits for: a number that the
/// releasing store has drawn, a space, and the name. The `tourbillon` in front is the
/// [prefix](RedisStoreBuilder::prefix). In a name `{`, `}` and `%` become `%7B`, `%7D` and `%25`,
/// so that both keys of a name lie in one slot of a cluster.
///
/// A person can read it, and take a lock from a holder; that one notices at its next renewal:
///
/// ```text
/// $ redis-cli HGETALL 'tourbillon:{orders/42}:lock'
/// 1) "owner"
/// 2) "leases-07ced7a57e09f7995634dc1649e55c9f:25159:0"
/// 3) "count"
/// 4) "1"
/// 5) "token"
/// 6) "1794844800000000"
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
/// A token is the server's time in microseconds, or the last one plus 1 if that is more. So tokens
/// of a name strictly grow also over restarts that forget everything, **as long as the server's
/// clock is not set back** while the last token is forgotten too. Scripts count in doubles, which
/// are exact up to 2^53: for microseconds that is until the year 2255.
///
/// # Restarts
///
/// A server that is killed may come back without a key that somebody still believes to hold. So a
/// server grants nothing, and answers [`StoreError::Restarted`], until it has been up for the
/// [longest lease](RedisStoreBuilder::longest_lease), 30 s by default, and up to a second more,
/// since it tells its uptime in whole seconds. The script that grants asks for that itself. So it
/// does not matter whether this process was connected before, how many servers a proxy hides, or
/// that it is the server's first start, which looks the same. Renewals and releases go on at once.
/// For a server that forgets nothing ([`durable`](RedisStoreBuilder::durable)) all of this is off.
///
/// # What it cannot promise
///
/// - **A failover to a replica loses what was not replicated yet**: the replica may grant what is
///   held, and its uptime says nothing. If its clock is behind, also tokens may repeat. `WAIT`
///   would make that rarer and not impossible, so it is not used.
/// - The same goes for whoever deletes keys (`FLUSHALL`, eviction): `maxmemory-policy` has to be
///   `noeviction`, or one of the volatile ones with enough room.
/// - The server's clock also counts leases and uptime: one that jumps forward ends leases early.
///
/// Against all of these there is one remedy, the token, checked by what the lock is to protect
/// ([`Fence`](super::Fence)).
///
/// # Limits, and what goes wrong
///
/// Every call connects, writes and reads within its limit; only looking up the name of a host has
/// the system's own limits. A connection on which something went wrong is thrown away. If one that
/// was idle turns out to be closed, or a signal interrupts the wait for an answer, the call is sent
/// once more on a new one, and what was sent first may have been executed: the second answer of a
/// release may then be [`Released::NotHeld`](super::Released::NotHeld). An acquire that was sent first
/// and is held up on its way for longer than its lock is held leaves the name with nobody for a lease.
///
/// [`StoreError::Unavailable`]: no server, no answer in time, `LOADING`, `BUSY`, `READONLY`,
/// `MASTERDOWN`, `NOREPLICAS`, `CLUSTERDOWN`, `TRYAGAIN`, `ASK`, `NOSCRIPT`, `OOM`, `MISCONF`, too
/// many clients.
/// [`StoreError::Refused`]: all else, such as `NOAUTH`, `WRONGPASS`, `NOPERM`, `WRONGTYPE`,
/// `MOVED`, an empty name, a lease that is zero or longer than the longest.
///
/// A thread listens for releases while somebody waits, with one connection, and ends some seconds
/// after the last one, or a second after the store. What it misses while it can't listen, waiters
/// find by asking again.
///
/// # Servers
///
/// Tested with Redis 7.0; nothing is used that Redis 5 does not have. A user of the server needs
/// `+eval +evalsha +hget +hset +hmget +hdel +get +set +del +pexpire +pttl +time +info +publish +subscribe
/// +unsubscribe +punsubscribe +ping +select ~tourbillon:* &tourbillon:released`.
///
/// `rediss://` works if your `Cargo.toml` names the crate `redis` 1.8 with one of its features for
/// TLS (this is not tested). This client talks to one server, and does not follow `MOVED`: a
/// cluster needs a proxy that hides it. That is tested with three nodes; no call has keys of two
/// slots, and each node looks at its own uptime. Where such a proxy has no `SUBSCRIBE`, who waits
/// finds a release by asking again.
///
/// Clones are one store.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    options: Options,
    scripts: Scripts,
    server: Arc<Server>,
    pool: Pool,
    listener: Arc<Listener>,
}

/// What a builder has checked.
struct Options {
    keys: Keys,
    longest_lease: Duration,
    durable: bool,
    token_life: Duration,
    connections: usize,
    destinations: u16,
}

impl RedisStore {
    /// The store on the server of this URL, with the defaults of the [builder](Self::builder).
    /// Connects when it is used first.
    ///
    /// # Errors
    ///
    /// If this is no URL of a server.
    pub fn open(url: &str) -> Result<RedisStore, RedisBuildError> {
        RedisStore::builder(url).build()
    }

    /// A store with other options. URLs are those of the crate `redis`:
    /// `redis://[user][:password@]host[:port][/database]`, or `unix:///path`.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    fn new(server: Server, options: Options) -> Self {
        let server = Arc::new(server);
        // Different in each process and for each store.
        let own = RandomState::new().hash_one(unique_number());
        RedisStore(Arc::new(Inner {
            scripts: Scripts::new(),
            pool: Pool::new(Arc::clone(&server), options.connections),
            listener: Arc::new(Listener::new(
                Arc::clone(&server),
                options.keys.channel().to_owned(),
                format!("{own:016x}"),
            )),
            server,
            options,
        }))
    }

    /// Asks whether there is a server that lets us in and has been up for long enough. Nothing has to
    /// be asked before a store is used; this is for telling somebody at the start that there is none.
    /// It writes nothing, so what keeps a server from writing (a replica, no memory, missing rights)
    /// shows at the first acquire.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if there is no server, [`StoreError::Restarted`] if it started too
    /// short a time ago, [`StoreError::Refused`] if it does not let us in.
    pub fn check(&self, limit: Duration) -> Result<(), StoreError> {
        let call = Call::new(&self.0.scripts.ready, [self.0.options.keys.lock("check")])
            .arg(&self.guard_micros());
        match self.call_one(call, limit)? {
            Value::Int(0) => Ok(()),
            Value::Int(wait) => Err(restarted(wait)),
            other => Err(unexpected(&other)),
        }
    }

    fn call_one(&self, call: Call<'_>, limit: Duration) -> Result<Value, StoreError> {
        let answers = self.0.pool.call(Whose::User, &[call], Limit::new(limit))?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(answered(&error)),
            Some(answer) => Ok(answer),
            None => Err(StoreError::Unavailable("no answer".to_owned())),
        }
    }

    /// What is asked of the server's uptime, or 0.
    fn guard_micros(&self) -> u128 {
        match self.0.options.durable {
            true => 0,
            // As long as the longest lease is when it is rounded up.
            false => millis(self.0.options.longest_lease) * 1_000,
        }
    }

    /// Whether a name and its lease can be asked for.
    fn valid(&self, name: &str, lease: Duration) -> Result<(), StoreError> {
        let longest = self.0.options.longest_lease;
        let why = if name.is_empty() {
            "an empty name".to_owned()
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
        // Nodes of a cluster have ranges of slots.
        let range = u32::from(slot(name)) * u32::from(self.0.options.destinations);
        Destination::new(u64::from(range / u32::from(SLOTS)))
    }

    fn longest_lease(&self) -> Duration {
        self.0.options.longest_lease
    }

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        self.valid(claim.name, claim.lease)?;
        let keys = &self.0.options.keys;
        let keys = [keys.lock(claim.name), keys.token(claim.name)];
        let waited = match claim.is_due() {
            true => millis(claim.waited),
            false => 0,
        };
        let call = Call::new(&self.0.scripts.acquire, keys)
            .arg(claim.owner)
            .arg(&millis(claim.lease))
            .arg(&millis(self.0.options.token_life))
            .arg(&self.guard_micros())
            .arg(&u8::from(claim.waits))
            .arg(&waited)
            .arg(self.0.listener.own());
        let answer = self.call_one(call, limit)?;
        let Value::Array(parts) = &answer else {
            return Err(strange(&answer));
        };
        match parts[..] {
            [Value::Int(0), Value::Int(left)] => Ok(Acquired::Held {
                // Negative if somebody has taken the key's end away by hand.
                remaining: u64::try_from(left)
                    .map_or(self.0.options.longest_lease, Duration::from_millis),
            }),
            [Value::Int(1), Value::Int(token)] if token > 0 => Ok(Acquired::Granted {
                token: token.unsigned_abs(),
            }),
            [Value::Int(2), Value::Int(wait)] => Err(restarted(wait)),
            _ => Err(strange(&answer)),
        }
    }

    fn renew(
        &self,
        _destination: Destination,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut outcomes = vec![Outcome::Renewed; batch.len()];
        let mut calls = Vec::with_capacity(batch.len());
        let mut places = Vec::with_capacity(batch.len());
        for (at, renewal) in batch.iter().enumerate() {
            if let Err(error) = self.valid(renewal.name, renewal.lease) {
                outcomes[at] = Outcome::Failed(error);
                continue;
            }
            places.push(at);
            let key = self.0.options.keys.lock(renewal.name);
            let call = Call::new(&self.0.scripts.renew, [key]);
            calls.push(
                call.arg(renewal.owner)
                    .arg(&millis(renewal.lease))
                    .arg(&renewal.holds),
            );
        }
        if calls.is_empty() {
            return Ok(outcomes);
        }
        let answers = self
            .0
            .pool
            .call(Whose::Watchdog, &calls, Limit::new(limit))?;
        for (at, answer) in places.into_iter().zip(answers) {
            outcomes[at] = match answer {
                Value::Int(1) => Outcome::Renewed,
                Value::Int(0) => Outcome::NotHeld,
                Value::ServerError(error) => Outcome::Failed(answered(&error)),
                other => Outcome::Failed(unexpected(&other)),
            };
        }
        Ok(outcomes)
    }

    fn release(&self, name: &str, owner: &str, limit: Duration) -> Result<Released, StoreError> {
        let call = Call::new(&self.0.scripts.release, [self.0.options.keys.lock(name)])
            .arg(owner)
            .arg(self.0.options.keys.channel())
            .arg(&self.0.listener.message(name));
        let answer = self.call_one(call, limit);
        // Who waits in this process may have come after the last acquire that was refused, so that
        // nothing is announced; and also without an answer it may be free.
        self.0.listener.hub.released(name);
        match answer? {
            Value::Int(1) => Ok(Released::Released),
            Value::Int(0) => Ok(Released::NotHeld),
            other => Err(unexpected(&other)),
        }
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let place = self.0.listener.hub.watch(name, waker);
        self.0.listener.listen();
        Some(place)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.0.server.to_string())
            .field("prefix", &self.0.options.keys.prefix())
            .field("longest_lease", &self.0.options.longest_lease)
            .field("durable", &self.0.options.durable)
            .field("idle_connections", &self.0.pool.idle())
            .field("listens", &self.0.listener.is_running())
            .finish()
    }
}

/// Rounded up: the server's lease must not end before the caller's.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

fn restarted(wait_micros: i64) -> StoreError {
    StoreError::Restarted {
        wait: Duration::from_micros(wait_micros.unsigned_abs()),
    }
}

/// The same after a call that may have granted something.
fn strange(answer: &Value) -> StoreError {
    StoreError::Unavailable(unexpected(answer).to_string())
}

fn unexpected(answer: &Value) -> StoreError {
    StoreError::Refused(format!(
        "an answer that none of the scripts gives: {answer:?}"
    ))
}
