//! What the tests share: stores of databases of their own, and their usual calls.

use std::time::Duration;

use chaos::servers::postgres::Database;
use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Outcome, PostgresStore, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;

/// Nothing that answers takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn store(database: &Database) -> PostgresStore {
    PostgresStore::open(&database.url()).expect("the URL is good")
}

pub(crate) fn acquire(
    store: &PostgresStore,
    name: &str,
    owner: &str,
) -> Result<Acquired, StoreError> {
    store.acquire(&Claim::new(name, owner, Secret::new(owner), LEASE), LIMIT)
}

/// Takes what has to be free.
#[track_caller]
pub(crate) fn granted(store: &PostgresStore, name: &str, owner: &str) -> u64 {
    match acquire(store, name, owner) {
        Ok(Acquired::Granted { token, .. }) => token,
        other => panic!("{name} is not granted: {other:?}"),
    }
}

/// Asks for what somebody else has, and returns how long it is held.
#[track_caller]
pub(crate) fn held(store: &PostgresStore, claim: &Claim<'_>) -> Duration {
    match store.acquire(claim, LIMIT) {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("{} is held: {other:?}", claim.name),
    }
}

pub(crate) fn renew(store: &PostgresStore, batch: &[Renewal<'_>]) -> Vec<Outcome> {
    let outcomes = store.renew(Destination::default(), batch, LIMIT);
    outcomes.expect("the server is there")
}

pub(crate) fn release(store: &PostgresStore, name: &str, owner: &str) -> Released {
    store
        .release(name, Secret::new(owner), LIMIT)
        .expect("the server is there")
}

/// What `psql` prints.
#[track_caller]
pub(crate) fn psql(database: &Database, sql: &str) -> String {
    database.psql(sql).expect("the statement is good")
}

/// Ends the sessions of all stores.
pub(crate) fn cut(database: &Database) {
    psql(
        database,
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where datname = current_database() and pid <> pg_backend_pid()",
    );
}

/// Asks until a connection was made anew.
pub(crate) fn patiently<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut answer = ask();
    wait::until("the server is reached", || {
        if !matches!(answer, Err(StoreError::Unavailable(_))) {
            return true;
        }
        answer = ask();
        false
    });
    answer
}

#[track_caller]
pub(crate) fn refused(answer: &Result<Acquired, StoreError>, words: &[&str]) {
    let Err(StoreError::Refused(why)) = answer else {
        panic!("it is refused: {answer:?}");
    };
    for word in words {
        assert!(why.contains(word), "{word}: {why}");
    }
}
