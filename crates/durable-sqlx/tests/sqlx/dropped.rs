//! Futures that are dropped before their answer is there.

use std::pin::pin;
use std::task::Poll;

use sqlx::Connection;
use tourbillon_durable_sqlx as _;

use crate::{MINUTE, bench, connect, keys, on_one_thread, one_waits};

/// Polls a future so often, and drops it if it has no answer by then.
async fn polled<F: Future>(future: F, mut times: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        times -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_call_that_was_dropped_before_it_was_sent_leaves_the_transaction_as_it_is() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        let mut tx = connection.begin().await.expect("it begins");
        drop(
            store
                .in_transaction(&mut *tx)
                .schedule("q", "never", MINUTE, &1),
        );
        // The server prepares the statement, and is not asked to run it. Now and then its answer is
        // there at once, and the call goes on within the same poll.
        let mut was_sent = true;
        for _ in 0..1_000 {
            let call = store
                .in_transaction(&mut *tx)
                .schedule("q", "prepared", MINUTE, &1);
            drop(polled(call, 1).await);
            let cancelled = store.in_transaction(&mut *tx).cancel("q", "prepared").await;
            was_sent = cancelled.expect("it goes on").is_cancelled();
            if !was_sent {
                break;
            }
        }
        assert!(!was_sent, "every poll was enough to send it");
        let scheduled = store
            .in_transaction(&mut *tx)
            .schedule("q", "kept", MINUTE, &1);
        scheduled.await.expect("it goes on");
        tx.commit().await.expect("it ends");
        assert_eq!(keys(&database), "kept");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_call_that_was_dropped_after_it_was_sent_is_carried_out_or_rolled_back() {
    let (database, store) = bench();
    on_one_thread(async {
        let (mut one, mut other) = (connect(&database).await, connect(&database).await);
        for is_kept in [false, true] {
            let mut lock = one.begin().await.expect("it begins");
            let scheduled = store
                .in_transaction(&mut *lock)
                .schedule("q", "a", MINUTE, &1);
            scheduled.await.expect("it is accepted");
            let mut tx = other.begin().await.expect("it begins");
            let waits = store
                .in_transaction(&mut *tx)
                .schedule("q", "a", MINUTE, &2);
            tokio::select! {
                answer = waits => panic!("it waits for the other transaction: {answer:?}"),
                () = one_waits(&database) => {}
            }
            lock.rollback().await.expect("it ends");
            match is_kept {
                true => tx.commit().await.expect("it ends"),
                // What a program does: the drop rolls back.
                false => drop(tx),
            }
            other.ping().await.expect("the connection goes on");
            assert_eq!(keys(&database), if is_kept { "a" } else { "" });
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_call_that_was_dropped_at_any_point_is_there_as_a_whole_or_not_at_all() {
    let (database, store) = bench();
    on_one_thread(async {
        let mut connection = connect(&database).await;
        for times in 1.. {
            let mut tx = connection.begin().await.expect("it begins");
            let call = store
                .in_transaction(&mut *tx)
                .schedule("q", "a", MINUTE, &1);
            let answer = polled(call, times).await;
            let cancelled = store.in_transaction(&mut *tx).cancel("q", "a").await;
            let cancelled = cancelled.expect("it goes on");
            tx.commit().await.expect("it ends");
            assert_eq!(keys(&database), "");
            if let Some(answer) = answer {
                answer.expect("it is accepted");
                assert!(cancelled.is_cancelled());
                break;
            }
        }
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_dropped_call_that_fails_fails_the_commit() {
    let (database, store) = bench();
    on_one_thread(async {
        let (mut one, mut other) = (connect(&database).await, connect(&database).await);
        let mut lock = one.begin().await.expect("it begins");
        let scheduled = store
            .in_transaction(&mut *lock)
            .schedule("q", "a", MINUTE, &1);
        scheduled.await.expect("it is accepted");
        let begin = "begin isolation level repeatable read";
        let mut tx = other.begin_with(begin).await.expect("it begins");
        let own = store
            .in_transaction(&mut *tx)
            .schedule("q", "own", MINUTE, &2);
        own.await.expect("it is accepted");
        let waits = store
            .in_transaction(&mut *tx)
            .schedule("q", "a", MINUTE, &2);
        tokio::select! {
            answer = waits => panic!("it waits for the other transaction: {answer:?}"),
            () = one_waits(&database) => {}
        }
        // Now the timer is younger than the snapshot.
        lock.commit().await.expect("it ends");
        let conflict = tx.commit().await.expect_err("nothing is committed");
        assert!(conflict.as_database_error().is_some(), "{conflict:?}");
        other.ping().await.expect("the connection goes on");
        assert_eq!(keys(&database), "a");
    });
}
