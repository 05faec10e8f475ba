//! The calls, and what becomes of them with their transaction.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use kit::wakes;
use sqlx::{Connection, Executor, PgConnection, Transaction};
use tourbillon_durable::store::{Epoch, Run};
use tourbillon_durable::{
    CallError, CancelAnswer, CompleteError, CompletesRun, Completion, IfAbsentAnswer, Postgres,
    RescheduleAnswer, ScheduleAnswer,
};
use tourbillon_durable_sqlx as _;

use crate::{MINUTE, bench, cluster, connect, keys, on_one_thread, one_waits};

/// A run that no node has.
fn no_run(schema: &str) -> Completion<'_> {
    static RUN: LazyLock<Run> = LazyLock::new(|| Run {
        queue: "q".into(),
        key: "a".into(),
        generation: 1,
        attempt: 1,
    });
    Completion::of(schema, Epoch(3), &RUN)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_called_in_a_transaction_exists_with_its_commit() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        let scheduled = store
            .in_transaction(&mut *tx)
            .schedule("q", "a", MINUTE, &1)
            .await;
        scheduled.expect("it is accepted");
        tx.rollback().await.expect("it ends");
        assert_eq!(keys(&database), "");
        let mut tx = connection.begin().await.expect("it begins");
        let first = store
            .in_transaction(&mut *tx)
            .schedule("q", "a", MINUTE, &1)
            .await;
        let first = first.expect("it is accepted");
        assert_eq!((first.replaced, first.running), (None, false));
        let again = store
            .in_transaction(&mut *tx)
            .schedule("q", "a", first.due + MINUTE, &2)
            .await;
        let again = again.expect("it is accepted");
        assert_eq!(
            (again.due, again.replaced),
            (first.due + MINUTE, Some(first.due))
        );
        let exists = store
            .in_transaction(&mut *tx)
            .schedule_if_absent("q", "a", MINUTE, &3)
            .await;
        assert!(
            matches!(exists, Ok(IfAbsentAnswer::Exists { due, running: false, .. }) if due == again.due),
            "{exists:?}"
        );
        let absent = store
            .in_transaction(&mut *tx)
            .schedule_if_absent("q", "b", MINUTE, &3)
            .await;
        assert!(absent.expect("it is accepted").is_scheduled());
        let moved = store
            .in_transaction(&mut *tx)
            .reschedule("q", "a", first.due)
            .await;
        assert!(
            matches!(moved, Ok(RescheduleAnswer::Moved { from, to, .. })
                if (from, to) == (again.due, first.due)),
            "{moved:?}"
        );
        let none = store
            .in_transaction(&mut *tx)
            .reschedule("q", "c", MINUTE)
            .await;
        assert_eq!(none, Ok(RescheduleAnswer::NotFound));
        let cancelled = store.in_transaction(&mut *tx).cancel("q", "b").await;
        assert!(cancelled.expect("it is accepted").is_cancelled());
        let none = store.in_transaction(&mut *tx).cancel("q", "c").await;
        assert_eq!(none, Ok(CancelAnswer::NotFound));
        assert_eq!(keys(&database), "");
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), "a");
    });
}

/// As a function of a program, which knows that it is within a transaction.
async fn by_connection(store: &Postgres, tx: &mut PgConnection, key: &str) {
    for _ in 0..2 {
        let scheduled = store
            .in_transaction(&mut *tx)
            .schedule("q", key, MINUTE, &1);
        scheduled.await.expect("it is accepted");
    }
}

/// The same with the transaction. The future has all it needs but that, and can go to another
/// thread.
fn by_transaction<'t>(
    url: &str,
    tx: &'t mut Transaction<'_, sqlx::Postgres>,
    key: &str,
) -> impl Future<Output = Result<ScheduleAnswer, CallError>> + Send + use<'t> {
    let store = Postgres::connect(url).expect("the cluster answers");
    let (queue, key) = ("q".to_owned(), key.to_owned());
    store
        .in_transaction(&mut *tx)
        .schedule(&queue, &key, MINUTE, &1)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_transaction_is_taken_by_its_connection_and_as_it_is() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        by_connection(&store, &mut tx, "a").await;
        by_transaction(&database.url(), &mut tx, "b")
            .await
            .expect("it is accepted");
        let scheduled = store
            .in_transaction(&mut tx)
            .schedule("q", "c", MINUTE, &1)
            .await;
        scheduled.expect("it is accepted");
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), "a b c");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_connection_without_a_transaction_is_refused() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let run = no_run("tourbillon");
        for sql in ["select 1", "begin"] {
            connection.execute(sql).await.expect("it is valid");
            let refused = store
                .in_transaction(&mut connection)
                .schedule("q", "a", MINUTE, &1)
                .await;
            assert!(
                matches!(&refused, Err(CallError::Refused(why)) if why.contains("`begin`")),
                "{refused:?}"
            );
            let refused = (&mut connection).complete(&run).await;
            assert!(
                matches!(&refused, Err(CompleteError::Store(why)) if why.to_string().contains("`begin`")),
                "{refused:?}"
            );
        }
        connection.execute("commit").await.expect("it is valid");
        // A transaction that was begun by the driver and has ended.
        let tx = connection.begin().await.expect("it begins");
        tx.commit().await.expect("it ends");
        let refused = store.in_transaction(&mut connection).cancel("q", "a").await;
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
        assert_eq!(keys(&database), "");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn bad_arguments_are_refused_when_awaited_and_the_transaction_goes_on() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        for (queue, key) in [
            ("", "a"),
            ("q", ""),
            ("q\0", "a"),
            ("q", "\0"),
            (&"q".repeat(65), "a"),
            ("q", &"k".repeat(513)),
        ] {
            let refused = [
                store
                    .in_transaction(&mut *tx)
                    .schedule(queue, key, MINUTE, &1)
                    .await
                    .err(),
                store
                    .in_transaction(&mut *tx)
                    .schedule_if_absent(queue, key, MINUTE, &1)
                    .await
                    .err(),
                store
                    .in_transaction(&mut *tx)
                    .reschedule(queue, key, MINUTE)
                    .await
                    .err(),
                store
                    .in_transaction(&mut *tx)
                    .cancel(queue, key)
                    .await
                    .err(),
            ];
            for refused in refused {
                assert!(
                    matches!(refused, Some(CallError::Invalid(_))),
                    "{queue:?} {key:?}: {refused:?}"
                );
            }
        }
        for (when, payload) in [
            (MINUTE, "\0"),
            (MINUTE, &*"x".repeat(64 * 1_024)),
            (Duration::MAX, "x"),
        ] {
            let refused = store
                .in_transaction(&mut *tx)
                .schedule("q", "a", when, payload)
                .await;
            assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
        }
        let longest = "k".repeat(512);
        let scheduled = store
            .in_transaction(&mut *tx)
            .schedule("q", &longest, MINUTE, &"x".repeat(60 * 1_024))
            .await;
        scheduled.expect("it goes on");
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), longest);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn values_come_to_the_server_as_they_are() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        let due = SystemTime::UNIX_EPOCH + Duration::from_micros(2_000_000_000_123_456);
        let scheduled = store
            .in_transaction(&mut *tx)
            .schedule("q", "ключ 'a' $1", due, &("ü\"\\", [1.5], ()))
            .await;
        assert_eq!(scheduled.expect("it is accepted").due, due);
        tx.commit().await.expect("it ends");
        let rows = "select key, extract(epoch from due), payload from tourbillon.timer";
        assert_eq!(
            database.psql(rows).as_deref(),
            Ok("ключ 'a' $1|2000000000.123456|[\"ü\\\"\\\\\", [1.5], null]")
        );
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn after_a_failed_statement_the_transaction_or_its_savepoint_is_rolled_back() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        tx.execute("no statement").await.expect_err("it is none");
        let aborted = store.in_transaction(&mut *tx).cancel("q", "a").await;
        assert!(
            matches!(&aborted, Err(CallError::Refused(why)) if why.contains("roll the transaction back")),
            "{aborted:?}"
        );
        let run = no_run("tourbillon");
        let aborted = (&mut tx).complete(&run).await;
        assert!(
            matches!(&aborted, Err(CompleteError::Store(why)) if why.to_string().contains("roll the transaction back")),
            "{aborted:?}"
        );
        tx.rollback().await.expect("it ends");

        let mut tx = connection.begin().await.expect("it begins");
        let mut savepoint = tx.begin().await.expect("it begins");
        by_connection(&store, &mut savepoint, "undone").await;
        savepoint
            .execute("no statement")
            .await
            .expect_err("it is none");
        savepoint.rollback().await.expect("it ends");
        let mut savepoint = tx.begin().await.expect("it begins");
        by_connection(&store, &mut savepoint, "kept").await;
        savepoint.commit().await.expect("it ends");
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), "kept");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_transaction_that_is_dropped_is_rolled_back() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        by_connection(&store, &mut tx, "a").await;
        drop(tx);
        let refused = store.in_transaction(&mut connection).cancel("q", "a").await;
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
        let mut tx = connection.begin().await.expect("it begins");
        let none = store.in_transaction(&mut *tx).cancel("q", "a").await;
        assert_eq!(none, Ok(CancelAnswer::NotFound));
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), "");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_timers_are_in_the_schema_of_the_store_or_the_call_is_refused() {
    let (with, without) = (cluster::database(), cluster::database());
    let store = Postgres::builder(&with.url())
        .and_then(|builder| builder.schema("my_timers").connect())
        .expect("the cluster answers");
    on_one_thread(async {
        let mut connection = connect(&with).await;
        // A path that hides the functions of the server from statements that trust it.
        let path = "create schema hidden; set search_path = hidden";
        connection.execute(path).await.expect("a setting");
        let mut tx = connection.begin().await.expect("it begins");
        by_connection(&store, &mut tx, "a").await;
        tx.commit().await.expect("it ends");
        let keys = with.psql("select key from my_timers.timer");
        assert_eq!(keys.as_deref(), Ok("a"));

        // A transaction on a database that does not have these tables.
        let mut connection = connect(&without).await;
        let mut tx = connection.begin().await.expect("it begins");
        let refused = store.in_transaction(&mut *tx).cancel("q", "a").await;
        assert!(
            matches!(&refused, Err(CallError::Refused(why)) if why.contains("my_timers")),
            "{refused:?}"
        );
        tx.rollback().await.expect("it ends");
        let mut tx = connection.begin().await.expect("it begins");
        let run = no_run("my_timers");
        let refused = (&mut tx).complete(&run).await;
        assert!(
            matches!(&refused, Err(CompleteError::Store(why)) if why.to_string().contains("my_timers")),
            "{refused:?}"
        );
        // The prefix of a store on SQLite may be no name of a schema.
        let run = no_run("no name");
        let refused = (&mut tx).complete(&run).await;
        assert!(
            matches!(refused, Err(CompleteError::Store(_))),
            "{refused:?}"
        );
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn of_two_transactions_the_second_waits_for_the_timer_of_the_first() {
    let (database, store) = bench();
    on_one_thread(async {
        let (mut one, mut other) = (connect(&database).await, connect(&database).await);
        for is_kept in [true, false] {
            let mut first = one.begin().await.expect("it begins");
            let mut second = other.begin().await.expect("it begins");
            let scheduled = store
                .in_transaction(&mut *first)
                .schedule("q", "a", MINUTE, &1)
                .await;
            let scheduled = scheduled.expect("it is accepted");
            let waits = store
                .in_transaction(&mut *second)
                .schedule_if_absent("q", "a", MINUTE, &2);
            let ends = async {
                one_waits(&database).await;
                match is_kept {
                    true => first.commit().await.expect("it ends"),
                    false => first.rollback().await.expect("it ends"),
                }
            };
            let (answer, ()) = tokio::join!(waits, ends);
            match answer.expect("it is accepted") {
                IfAbsentAnswer::Exists { due, .. } => {
                    assert!(is_kept);
                    assert_eq!(due, scheduled.due);
                }
                other => assert!(!is_kept && other.is_scheduled(), "{other:?}"),
            }
            let cancelled = store.in_transaction(&mut *second).cancel("q", "a").await;
            assert!(cancelled.expect("it is accepted").is_cancelled());
            second.commit().await.expect("it ends");
            assert_eq!(keys(&database), "");
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_conflict_and_a_lost_connection_may_pass() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut other = connect(&database).await;
        let begin = "begin isolation level repeatable read";
        let mut tx = connection.begin_with(begin).await.expect("it begins");
        tx.execute("select from tourbillon.node")
            .await
            .expect("it has a snapshot now");
        let mut younger = other.begin().await.expect("it begins");
        by_connection(&store, &mut younger, "a").await;
        younger.commit().await.expect("it ends");
        let conflict = store
            .in_transaction(&mut *tx)
            .schedule("q", "a", MINUTE, &1)
            .await;
        assert!(
            matches!(&conflict, Err(CallError::Unavailable(why)) if why.contains("40001")),
            "{conflict:?}"
        );
        tx.rollback().await.expect("it ends");

        let mut tx = connection.begin().await.expect("it begins");
        let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where datname = current_database() and state = 'idle in transaction'";
        database.psql(end).expect("a superuser");
        let lost = store.in_transaction(&mut *tx).cancel("q", "a").await;
        assert!(matches!(lost, Err(CallError::Unavailable(_))), "{lost:?}");
        let lost = (&mut tx).complete(&no_run("tourbillon")).await;
        assert!(
            matches!(&lost, Err(CompleteError::Store(error)) if error.may_pass()),
            "{lost:?}"
        );
    });
    assert_eq!(keys(&database), "a");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_loop_of_bad_calls_leaves_the_thread_to_others() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        wakes::yields("bad", async || {
            let refused = store.in_transaction(&mut *tx).cancel("", "a").await;
            assert!(matches!(refused, Err(CallError::Invalid(_))));
        });
    });
}
