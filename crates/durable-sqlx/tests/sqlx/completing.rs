//! The end of a run within a transaction.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use sqlx::{Connection, Executor, PgConnection};
use tokio::runtime::{Builder, Runtime};
use tourbillon_durable::{
    CompleteError, Due, Durable, DurableBuilder, Ending, Postgres, RetryPolicy, StoreError,
};
use tourbillon_durable_sqlx as _;

use crate::{bench, cluster::Lent, keys};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A thread for what is awaited.
fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// The builder of a node, and an empty table of effects.
fn node(database: &Lent, store: &Postgres) -> DurableBuilder {
    let table = "drop table if exists effects; create table effects (number int)";
    database.psql(table).expect("it may");
    Durable::builder(store.clone()).poll_interval(Duration::from_millis(50))
}

async fn effect(url: String, due: Due<i32>) -> Outcome<Ending> {
    let mut connection = PgConnection::connect(&url).await?;
    let mut tx = connection.begin().await?;
    sqlx::query("insert into effects values ($1)")
        .bind(due.payload())
        .execute(&mut *tx)
        .await?;
    due.complete_in(&mut *tx).await?;
    match due.attempt() {
        1 => tx.rollback().await?,
        2 => drop(tx),
        _ => tx.commit().await?,
    }
    // Without a commit this is no success.
    Ok(Ending::Done)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_run_has_its_effect_exactly_once() {
    let (database, store) = bench();
    let (url, runtime) = (database.url(), runtime());
    let handle = runtime.handle().clone();
    let timers = node(&database, &store)
        .handle_tokio("effects", handle, move |due: Due<i32>| {
            effect(url.clone(), due)
        })
        .retry(
            RetryPolicy::exponential(Duration::from_millis(1)..=Duration::from_millis(5))
                .attempts(5),
        )
        .start()
        .expect("the node starts");
    let scheduled = timers.schedule("effects", "k", Duration::ZERO, &7).wait();
    scheduled.expect("it is accepted");
    wait::until("a run succeeds", || timers.stats().succeeded == 1);
    assert_eq!((timers.stats().failed, timers.stats().fenced), (2, 0));
    let effects = database.psql("select * from effects");
    assert_eq!(effects.as_deref(), Ok("7"));
    assert_eq!(keys(&database), "");
    timers.stop(Duration::from_secs(5)).wait().unwrap();
}

/// Ends a run in vain, and then with a commit. Returns the answers.
async fn ends(
    url: &str,
    store: &Postgres,
    due: &Due<i32>,
) -> Outcome<[Result<(), CompleteError>; 4]> {
    let mut connection = PgConnection::connect(url).await?;
    let mut other = PgConnection::connect(url).await?;
    let begin = "begin isolation level repeatable read";
    let mut tx = connection.begin_with(begin).await?;
    tx.execute("select from tourbillon.node").await?;
    // Another transaction changes the timer after the snapshot.
    let mut younger = other.begin().await?;
    let cancel = store.in_transaction(&mut *younger).cancel("q", "k");
    assert!(!cancel.await?.is_cancelled(), "it runs");
    younger.commit().await?;
    let conflict = due.complete_in(&mut *tx).await;
    let aborted = due.complete_in(&mut *tx).await;
    tx.rollback().await?;
    let mut tx = connection.begin().await?;
    let ended = due.complete_in(&mut tx).await;
    tx.commit().await?;
    let mut tx = connection.begin().await?;
    let again = due.complete_in(&mut tx).await;
    Ok([conflict, aborted, ended, again])
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_end_that_is_in_vain_says_what_to_do() {
    let (database, store) = bench();
    let runtime = runtime();
    let (told, hears) = mpsc::channel();
    let (url, within) = (database.url(), store.clone());
    let handle = runtime.handle().clone();
    let timers = node(&database, &store)
        .handle_tokio("q", handle, move |due: Due<i32>| {
            let (url, store, told) = (url.clone(), within.clone(), told.clone());
            async move { drop(told.send(ends(&url, &store, &due).await)) }
        })
        .start()
        .expect("the node starts");
    let scheduled = timers.schedule("q", "k", Duration::ZERO, &7).wait();
    scheduled.expect("it is accepted");
    let [conflict, aborted, ended, again] = wait::next(&hears).expect("the cluster answers");
    assert!(
        matches!(&conflict, Err(CompleteError::Retry(why)) if why.contains("40001")),
        "{conflict:?}"
    );
    assert!(
        matches!(&aborted, Err(CompleteError::Store(StoreError::Refused(why)))
            if why.contains("roll the transaction back")),
        "{aborted:?}"
    );
    assert_eq!(ended, Ok(()));
    assert_eq!(again, Err(CompleteError::Fenced));
    assert_eq!(keys(&database), "");
    timers.stop(Duration::from_secs(5)).wait().unwrap();
}
