//! Calls within transactions of `tokio_postgres`. Each test has a runtime with one thread: a call
//! that blocked it would wait for itself.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use kit::wakes;
use tokio::runtime::Builder;
use tokio_postgres::{Client, IsolationLevel, NoTls};
use tourbillon_durable::StoreError;
use tourbillon_durable::{
    CallError, CancelAnswer, CompleteError, CompletesRun, Completion, Due, Ending, IfAbsentAnswer,
    Postgres, RescheduleAnswer, RetryPolicy, ScheduleAnswer,
};

use crate::cluster::Database;
use crate::transactions::{ME, MINUTE, bench};

fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

async fn client(database: &Database) -> Client {
    let connected = tokio_postgres::connect(&database.url(), NoTls).await;
    let (client, connection) = connected.expect("the cluster answers");
    tokio::spawn(connection);
    client
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_awaited_in_a_transaction_exists_with_its_commit() {
    let bench = bench();
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let transaction = client.transaction().await.expect("it begins");
        let scheduled = bench
            .store
            .in_transaction(&transaction)
            .schedule("q", "a", MINUTE, &1)
            .await;
        scheduled.expect("it is accepted");
        transaction.rollback().await.expect("it ends");
        assert_eq!(bench.timers(), "");
        let tx = client.transaction().await.expect("it begins");
        let first = bench
            .store
            .in_transaction(&tx)
            .schedule("q", "a", MINUTE, &1)
            .await;
        let first = first.expect("it is accepted");
        let again = bench
            .store
            .in_transaction(&tx)
            .schedule("q", "a", first.due + MINUTE, &2)
            .await;
        let again = again.expect("it is accepted");
        assert_eq!(again.replaced, Some(first.due));
        let exists = bench
            .store
            .in_transaction(&tx)
            .schedule_if_absent("q", "a", MINUTE, &3)
            .await;
        assert!(
            matches!(exists, Ok(IfAbsentAnswer::Exists { due, running: false, .. }) if due == again.due),
            "{exists:?}"
        );
        let absent = bench
            .store
            .in_transaction(&tx)
            .schedule_if_absent("q", "b", MINUTE, &3)
            .await;
        assert!(absent.expect("it is accepted").is_scheduled());
        let moved = bench
            .store
            .in_transaction(&tx)
            .reschedule("q", "a", MINUTE * 5)
            .await;
        assert!(
            matches!(moved, Ok(RescheduleAnswer::Moved { from, .. }) if from == again.due),
            "{moved:?}"
        );
        let moved = bench
            .store
            .in_transaction(&tx)
            .reschedule("q", "a", first.due)
            .await;
        assert!(
            matches!(moved, Ok(RescheduleAnswer::Moved { to, .. }) if to == first.due),
            "{moved:?}"
        );
        let cancelled = bench.store.in_transaction(&tx).cancel("q", "b").await;
        assert!(cancelled.expect("it is accepted").is_cancelled());
        let absent = bench.store.in_transaction(&tx).cancel("q", "c").await;
        assert_eq!(absent, Ok(CancelAnswer::NotFound));
        tx.commit().await.expect("it ends");
    });
    assert_eq!(bench.timers(), "a");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn bad_arguments_are_refused_when_awaited_and_the_transaction_goes_on() {
    let bench = bench();
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let tx = client.transaction().await.expect("it begins");
        let refused = [
            bench
                .store
                .in_transaction(&tx)
                .schedule("", "a", MINUTE, &1)
                .await
                .err(),
            bench
                .store
                .in_transaction(&tx)
                .schedule("q", "a", MINUTE, "\0")
                .await
                .err(),
            bench
                .store
                .in_transaction(&tx)
                .schedule_if_absent("q", "a", Duration::MAX, &1)
                .await
                .err(),
            bench
                .store
                .in_transaction(&tx)
                .reschedule("q", "", MINUTE)
                .await
                .err(),
            bench
                .store
                .in_transaction(&tx)
                .cancel("q", "\0")
                .await
                .err(),
        ];
        for refused in refused {
            assert!(
                matches!(refused, Some(CallError::Invalid(_))),
                "{refused:?}"
            );
        }
        let scheduled = bench
            .store
            .in_transaction(&tx)
            .schedule("q", "a", MINUTE, &1)
            .await;
        scheduled.expect("it goes on");
        tx.execute("no statement", &[])
            .await
            .expect_err("it is none");
        let aborted = bench.store.in_transaction(&tx).cancel("q", "a").await;
        assert!(
            matches!(&aborted, Err(CallError::Refused(why)) if why.contains("roll the transaction back")),
            "{aborted:?}"
        );
    });
    assert_eq!(bench.timers(), "");
}

/// What `deadpool-postgres` gives: a type of its own around the transaction.
struct Pooled<'c>(tokio_postgres::Transaction<'c>);

impl<'c> Deref for Pooled<'c> {
    type Target = tokio_postgres::Transaction<'c>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The future has all it needs but the transaction, and can go to another thread.
fn order<'t>(
    url: &str,
    number: i64,
    tx: &'t tokio_postgres::Transaction<'_>,
) -> impl Future<Output = Result<ScheduleAnswer, CallError>> + Send + 't {
    let store = Postgres::connect(url).expect("the cluster answers");
    let (queue, key) = ("q".to_owned(), format!("order:{number}"));
    store
        .in_transaction(tx)
        .schedule(&queue, &key, MINUTE, &number)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_future_outlives_its_store_and_arguments_and_takes_what_a_pool_gives() {
    let bench = bench();
    let url = bench.database.url();
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let tx = Pooled(client.transaction().await.expect("it begins"));
        order(&url, 7, &tx).await.expect("it is accepted");
        order(&url, 8, &tx).await.expect("it is accepted");
        // One receiver for several calls, which the server carries out in the order of the polls.
        let timers = bench.store.in_transaction(&*tx);
        let (seven, nine, none) = tokio::join!(
            timers.cancel("q", "order:7"),
            timers.schedule_if_absent("q", "order:9", MINUTE, &9),
            timers.cancel("q", "order:10"),
        );
        assert!(seven.expect("it is accepted").is_cancelled());
        assert!(nine.expect("it is accepted").is_scheduled());
        assert_eq!(none, Ok(CancelAnswer::NotFound));
        tx.0.commit().await.expect("it ends");
    });
    assert_eq!(bench.timers(), "order:8 order:9");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_loop_of_bad_calls_leaves_the_thread_to_others() {
    let bench = bench();
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let tx = client.transaction().await.expect("it begins");
        let timers = bench.store.in_transaction(&tx);
        wakes::yields("bad", async || {
            let refused = timers.cancel("", "a").await;
            assert!(matches!(refused, Err(CallError::Invalid(_))));
        });
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_future_that_was_dropped_has_sent_its_whole_call_or_nothing() {
    let bench = bench();
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        // Each is asked once, which sends the call, and dropped before the answer is there.
        for is_kept in [false, true] {
            let tx = client.transaction().await.expect("it begins");
            drop(
                bench
                    .store
                    .in_transaction(&tx)
                    .schedule("q", "never", MINUTE, &1),
            );
            {
                let mut sent = pin!(
                    bench
                        .store
                        .in_transaction(&tx)
                        .schedule("q", "sent", MINUTE, &1)
                );
                let answer = poll_fn(|context| Poll::Ready(sent.as_mut().poll(context))).await;
                assert!(answer.is_pending());
            }
            match is_kept {
                true => tx.commit().await.expect("it ends"),
                // What a program does: the drop rolls back.
                false => drop(tx),
            }
            let next = client.query_one("select 1", &[]).await;
            assert_eq!(next.expect("the connection goes on").get::<_, i32>(0), 1);
            assert_eq!(bench.timers(), if is_kept { "sent" } else { "" });
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_future_waits_for_a_locked_row_and_no_thread_is_blocked() {
    let mut bench = bench();
    bench.run("a");
    on_one_thread(async {
        let (mut one, mut other) = (client(&bench.database).await, client(&bench.database).await);
        let lock = one.transaction().await.expect("it begins");
        let locked = bench.store.in_transaction(&lock).cancel("q", "a").await;
        assert!(
            matches!(locked, Ok(CancelAnswer::Running { .. })),
            "{locked:?}"
        );
        let tx = other.transaction().await.expect("it begins");
        let waits = bench.store.in_transaction(&tx).reschedule("q", "a", MINUTE);
        let frees = async {
            let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                           and wait_event_type = 'Lock'";
            while client(&bench.database)
                .await
                .query_one(waiting, &[])
                .await
                .expect("it reads")
                .get::<_, i64>(0)
                == 0
            {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            lock.commit().await.expect("it ends");
        };
        let (moved, ()) = tokio::join!(waits, frees);
        assert!(
            matches!(moved, Ok(RescheduleAnswer::Running { .. })),
            "{moved:?}"
        );
        tx.commit().await.expect("it ends");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_run_is_ended_when_awaited_and_a_fenced_one_is_refused() {
    let mut bench = bench();
    let (held, lost) = (bench.run("a"), bench.run("b"));
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let tx = client.transaction().await.expect("it begins");
        (&tx)
            .complete(&Completion::of("tourbillon", ME, &held))
            .await
            .expect("it is held");
        let again = (&tx)
            .complete(&Completion::of("tourbillon", ME, &held))
            .await;
        assert_eq!(again, Err(CompleteError::Fenced));
        tx.rollback().await.expect("it ends");
        let tx = client.transaction().await.expect("it begins");
        (&tx)
            .complete(&Completion::of("tourbillon", ME, &held))
            .await
            .expect("it is held");
        tx.commit().await.expect("it ends");
        assert_eq!(bench.timers(), "b");
        let snapshot = client.build_transaction();
        let snapshot = snapshot.isolation_level(IsolationLevel::RepeatableRead);
        let tx = snapshot.start().await.expect("it begins");
        tx.query("select 1 from tourbillon.node", &[])
            .await
            .expect("it has a snapshot now");
        let changed = "update tourbillon.timer set cancelled = true";
        bench.database.psql(changed).expect("it may");
        let conflict = (&tx)
            .complete(&Completion::of("tourbillon", ME, &lost))
            .await;
        assert!(
            matches!(conflict, Err(CompleteError::Retry(_))),
            "{conflict:?}"
        );
        let aborted = (&tx)
            .complete(&Completion::of("tourbillon", ME, &lost))
            .await;
        assert!(
            matches!(&aborted, Err(CompleteError::Store(StoreError::Refused(_)))),
            "{aborted:?}"
        );
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_handler_ends_its_run_by_a_future_exactly_once() {
    let bench = bench();
    let url = bench.database.url();
    type Failed = Box<dyn std::error::Error + Send + Sync>;
    async fn effect(url: String, due: Due<i32>) -> Result<Ending, Failed> {
        let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        let tx = client.transaction().await?;
        tx.execute("insert into effects values ($1)", &[due.payload()])
            .await?;
        due.complete_in(&tx).await?;
        match due.attempt() {
            1 => tx.rollback().await?,
            _ => tx.commit().await?,
        }
        // Without a commit this is no success.
        Ok(Ending::Done)
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let timers = bench
        .node_with_effects()
        .handle_tokio("effects", runtime.handle().clone(), move |due: Due<i32>| {
            effect(url.clone(), due)
        })
        .retry(
            RetryPolicy::exponential(Duration::from_millis(1)..=Duration::from_millis(5))
                .attempts(5),
        )
        .start()
        .expect("the node starts");
    // The first run is rolled back.
    bench.has_one_effect_after_failures(&timers, 1);
}

#[test]
#[cfg(feature = "cron")]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_schedule_is_awaited_with_the_order_or_not_at_all() {
    let bench = bench();
    let hourly = tourbillon_durable::Cron::new("@hourly", "UTC").expect("it is good");
    on_one_thread(async {
        let mut client = client(&bench.database).await;
        let tx = client.transaction().await.expect("it begins");
        let undone = bench.store.in_transaction(&tx);
        let undone = undone.schedule("q", "a", hourly.clone(), &1).await;
        undone.expect("it is accepted");
        tx.rollback().await.expect("it ends");
        assert_eq!(bench.timers(), "");
        let tx = client.transaction().await.expect("it begins");
        let made = bench.store.in_transaction(&tx);
        let made = made.schedule_if_absent("q", "a", hourly.clone(), &1).await;
        assert!(made.expect("it is accepted").is_scheduled());
        tx.commit().await.expect("it ends");
    });
    let shown =
        "select queue || ' ' || key || ' ' || expression || ' ' || zone from tourbillon.schedules";
    assert_eq!(
        bench.database.psql(shown).expect("it reads"),
        "q a @hourly UTC"
    );
}
