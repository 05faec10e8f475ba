//! A store of leases in a table of a database: what a backend has to do. Locks can't be handed over
//! or listed, which is left to the defaults of the trait.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, named_params};
use tourbillon_leases::{
    Acquired, Claim, Destination, Holder, Holding, LeaseStore, Outcome, Released, Renewal,
    StoreError, StoreFuture,
};

// A row stays when its lease is over, so the next token is greater. The owner is for people. Only
// the secret proves who holds the name.
const TABLE: &str = "create table if not exists leases
    (name text primary key, owner text not null, secret text, token integer not null,
    until integer not null)";
const ACQUIRE: &str = "insert into leases (name, owner, secret, token, until)
    values (:name, :owner, :secret, 1, :until)
    on conflict (name) do update
    set owner = :owner, secret = :secret, token = token + 1, until = :until
    where until <= :now or secret = :secret returning token";
const RENEW: &str = "update leases
    set until = case when :never_shortens then max(until, :until) else :until end
    where name = :name and secret = :secret and until > :now";
// It may stay locked for a rest.
const RELEASE: &str = "update leases
    set until = :until, secret = null, owner = owner || ' (released)'
    where name = :name and secret = :secret and until > :now";
const HOLDER: &str = "select owner, token, until from leases where name = :name and until > :now";

/// Leases in a file, for processes of one machine. All of them read the same clock. As with other
/// databases, leases end early if somebody sets it forward.
///
/// Its calls block, so `BlockingStore` wraps it.
pub(crate) struct TableStore(Mutex<Connection>);

impl TableStore {
    pub(crate) fn open(file: &Path) -> rusqlite::Result<Self> {
        let db = Connection::open(file)?;
        db.busy_timeout(Duration::from_secs(5))?;
        db.execute(TABLE, [])?;
        Ok(TableStore(Mutex::new(db)))
    }

    /// Makes a call at `now`, in milliseconds, when it is polled. It blocks. After an error it is
    /// unknown what came of it.
    fn call<'a, T: Send + 'a>(
        &'a self,
        limit: Duration,
        call: impl FnOnce(&Connection, i64) -> rusqlite::Result<T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move { self.call_now(limit, call) })
    }

    fn call_now<T>(
        &self,
        limit: Duration,
        call: impl FnOnce(&Connection, i64) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let db = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock of the file is waited for until the limit. The clock is read under that lock.
        let answer = db.busy_timeout(limit).and_then(|()| {
            let transaction = Transaction::new_unchecked(&db, TransactionBehavior::Immediate)?;
            let answer = call(&transaction, millis(since_epoch()))?;
            transaction.commit()?;
            Ok(answer)
        });
        answer.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

impl LeaseStore for TableStore {
    fn acquire<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        self.call(limit, move |db, now| {
            let acquire = |claim: &Claim<'_>| {
                let (name, until) = (claim.name, now + millis(claim.lease));
                let (owner, secret) = (claim.owner, claim.secret.reveal());
                let row = named_params! {
                    ":name": name, ":owner": owner, ":secret": secret, ":until": until, ":now": now,
                };
                let token: Option<i64> = db.query_row(ACQUIRE, row, |row| row.get(0)).optional()?;
                if let Some(token) = token.map(i64::unsigned_abs) {
                    return Ok(Ok(Acquired::granted(token)));
                }
                let until = "select until from leases where name = ?";
                let until: i64 = db.query_row(until, [name], |row| row.get(0))?;
                let remaining = Duration::from_millis(u64::try_from(until - now).unwrap_or(0));
                Ok(Ok(Acquired::Held { remaining }))
            };
            batch.iter().map(acquire).collect()
        })
    }

    fn renew<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.call(limit, move |db, now| {
            let renew = |renewal: &Renewal<'_>| {
                let (name, secret) = (renewal.name, renewal.secret.reveal());
                let until = now + millis(renewal.lease);
                let row = named_params! {
                    ":name": name, ":secret": secret, ":until": until, ":now": now,
                    ":never_shortens": renewal.never_shortens,
                };
                let renewed = db.execute(RENEW, row)? == 1;
                Ok(if renewed {
                    Outcome::Renewed
                } else {
                    Outcome::NotHeld
                })
            };
            batch.iter().map(renew).collect()
        })
    }

    fn release<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        self.call(limit, move |db, now| {
            let release = |held: &Holding<'_>| {
                let (name, secret) = (held.name, held.secret.reveal());
                let until = now + millis(held.rest);
                let row =
                    named_params! {":name": name, ":secret": secret, ":until": until, ":now": now};
                let released = db.execute(RELEASE, row)? == 1;
                Ok(Ok(if released {
                    Released::Released
                } else {
                    Released::NotHeld
                }))
            };
            batch.iter().map(release).collect()
        })
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        self.call(limit, move |db, now| {
            let row = named_params! {":name": name, ":now": now};
            let holder = db.query_row(HOLDER, row, |row| {
                let (token, until): (i64, i64) = (row.get(1)?, row.get(2)?);
                let remaining = Duration::from_millis((until - now).unsigned_abs());
                Ok(Holder::new(row.get(0)?, token.unsigned_abs(), remaining))
            });
            holder.optional()
        })
    }
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}
