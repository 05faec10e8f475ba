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
use keys::Keys;
use link::{Limit, Server};
use listener::Listener;
use pool::{Pool, Whose};
use scripts::{Call, Scripts};

/// Leases on a Redis server.
pub struct RedisStore {
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
        RedisStore {
            scripts: Scripts::new(),
            pool: Pool::new(Arc::clone(&server), options.connections),
            listener: Arc::new(Listener::new(
                Arc::clone(&server),
                options.keys.channel().to_owned(),
                format!("{own:016x}"),
            )),
            server,
            options,
        }
    }

    /// Asks the server whether it would grant something now. Nothing has to be asked before a store
    /// is used; this is for telling somebody at the start that there is no server.
    ///
    /// # Errors
    ///
    /// What an acquire would meet: [`StoreError::Unavailable`] if there is no server,
    /// [`StoreError::Restarted`] if it started too short a time ago.
    pub fn check(&self, limit: Duration) -> Result<(), StoreError> {
        let call = Call::new(&self.scripts.ready, [self.options.keys.lock("check")])
            .arg(self.guard_micros());
        match self.call_one(call, limit)? {
            Value::Int(0) => Ok(()),
            Value::Int(wait) => Err(restarted(wait)),
            other => Err(unexpected(&other)),
        }
    }

    fn call_one(&self, call: Call<'_>, limit: Duration) -> Result<Value, StoreError> {
        let answers = self.pool.call(Whose::User, &[call], Limit::new(limit))?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(answered(&error)),
            Some(answer) => Ok(answer),
            None => Err(StoreError::Unavailable("no answer".to_owned())),
        }
    }

    /// What is asked of the server's uptime, or 0.
    fn guard_micros(&self) -> u128 {
        match self.options.durable {
            true => 0,
            // As long as the longest lease is when it is rounded up.
            false => millis(self.options.longest_lease) * 1_000,
        }
    }

    /// Whether a name and its lease can be asked for.
    fn valid(&self, name: &str, lease: Duration) -> Result<(), StoreError> {
        let longest = self.options.longest_lease;
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
    fn longest_lease(&self) -> Duration {
        self.options.longest_lease
    }

    fn acquire(&self, claim: &Claim<'_>, limit: Duration) -> Result<Acquired, StoreError> {
        self.valid(claim.name, claim.lease)?;
        let keys = &self.options.keys;
        let keys = [keys.lock(claim.name), keys.token(claim.name)];
        let call = Call::new(&self.scripts.acquire, keys)
            .arg(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(self.options.token_life))
            .arg(self.guard_micros())
            .arg(u8::from(claim.waits));
        let answer = self.call_one(call, limit)?;
        let Value::Array(parts) = &answer else {
            return Err(unexpected(&answer));
        };
        match parts[..] {
            [Value::Int(0), Value::Int(left)] => Ok(Acquired::Held {
                // Negative if somebody has taken the key's end away by hand.
                remaining: u64::try_from(left)
                    .map_or(self.options.longest_lease, Duration::from_millis),
            }),
            [Value::Int(1), Value::Int(token)] if token > 0 => Ok(Acquired::Granted {
                token: token.unsigned_abs(),
            }),
            [Value::Int(2), Value::Int(wait)] => Err(restarted(wait)),
            _ => Err(unexpected(&answer)),
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
            let key = self.options.keys.lock(renewal.name);
            let call = Call::new(&self.scripts.renew, [key]);
            calls.push(
                call.arg(renewal.owner)
                    .arg(millis(renewal.lease))
                    .arg(renewal.holds),
            );
        }
        if calls.is_empty() {
            return Ok(outcomes);
        }
        let answers = self.pool.call(Whose::Watchdog, &calls, Limit::new(limit))?;
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
        let call = Call::new(&self.scripts.release, [self.options.keys.lock(name)])
            .arg(owner)
            .arg(self.options.keys.channel())
            .arg(self.listener.message(name));
        match self.call_one(call, limit)? {
            Value::Int(1) => {
                // Who waits in this process may have come after the last acquire that was refused,
                // so that nothing is announced.
                self.listener.hub.released(name);
                Ok(Released::Released)
            }
            Value::Int(0) => Ok(Released::NotHeld),
            other => Err(unexpected(&other)),
        }
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let place = self.listener.hub.watch(name, waker);
        self.listener.listen();
        Some(place)
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.server.to_string())
            .field("prefix", &self.options.keys.prefix())
            .field("longest_lease", &self.options.longest_lease)
            .field("durable", &self.options.durable)
            .field("idle_connections", &self.pool.idle())
            .field("listens", &self.listener.is_running())
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

fn unexpected(answer: &Value) -> StoreError {
    StoreError::Refused(format!(
        "an answer that none of the scripts gives: {answer:?}"
    ))
}
