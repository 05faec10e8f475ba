//! Calls whose rows others have locked, beside calls that are free, and a failure between two parts
//! of a batch.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon_durable::store::{Action, Answer, Call, Store, StoreError};
use tourbillon_durable::{CallError, DueAt, Durable, Postgres, ScheduleAnswer, Sent};

use crate::cluster;
use crate::transactions::MINUTE;

/// Calls that are free.
const FREE: usize = 1_000;

/// Longer than any test takes: what is locked stays so until its transaction ends.
const LONG: Duration = Duration::from_secs(60);

fn is_answered(pending: &mut Sent<ScheduleAnswer>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    !matches!(Pin::new(pending).poll(&mut context), Poll::Pending)
}

/// Makes calls on free keys and on `key`, which `lock` has locked, and checks that the free ones
/// are answered while the lock is held, and the locked one when it is not.
fn beside_a_lock(key: &str, lock: impl FnOnce(&Postgres, &mut postgres::Transaction<'_>)) {
    let database = cluster::lent();
    let store = Postgres::builder(&database.url())
        .and_then(|builder| builder.lock_limit(LONG).connect())
        .expect("the cluster answers");
    let timers = Durable::builder(store.clone()).start().expect("it starts");
    timers
        .schedule("q", "old", MINUTE, &1)
        .wait()
        .expect("it is accepted");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    lock(&store, &mut transaction);
    let mut locked = timers.schedule("q", key, MINUTE, &2);
    let free: Vec<_> = (0..FREE)
        .map(|number| timers.schedule("q", &format!("free:{number}"), MINUTE, &3))
        .collect();
    for pending in free {
        pending.wait().expect("it is accepted");
    }
    assert!(!is_answered(&mut locked), "the lock is held");
    transaction.rollback().expect("it ends");
    let scheduled = locked.wait().expect("the lock is over");
    assert_eq!(scheduled.replaced.is_some(), key == "old");
    timers.stop(LONG).wait().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_row_that_others_have_changed_holds_up_no_other_call() {
    beside_a_lock("old", |store, transaction| {
        store
            .in_transaction(transaction)
            .cancel("q", "old")
            .expect("it is accepted");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_key_that_others_insert_holds_up_no_other_call() {
    beside_a_lock("new", |store, transaction| {
        store
            .in_transaction(transaction)
            .schedule("q", "new", MINUTE, &1)
            .expect("it is accepted");
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_call_waits_for_a_lock_no_longer_than_its_limit() {
    let database = cluster::lent();
    let store = Postgres::builder(&database.url())
        .and_then(|builder| builder.lock_limit(Duration::from_millis(50)).connect())
        .expect("the cluster answers");
    let timers = Durable::builder(store.clone()).start().expect("it starts");
    let mut client = database.client();
    let mut transaction = client.transaction().expect("it begins");
    store
        .in_transaction(&mut transaction)
        .schedule("q", "new", MINUTE, &1)
        .expect("it is accepted");
    let refused = timers.schedule("q", "new", MINUTE, &2).wait();
    match refused {
        Err(CallError::Unavailable(why)) => assert!(why.contains("lock"), "{why}"),
        other => panic!("{other:?}"),
    }
    transaction.commit().expect("it ends");
    timers.stop(LONG).wait().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn answers_that_are_known_survive_a_failure_of_later_parts() {
    let database = cluster::lent();
    // The first inserts of the key `z` seem to be locked, which divides the batch. The third one
    // ends the connection.
    let trap = "create sequence public.tries;
        create function public.trap() returns trigger language plpgsql as $$
        begin
          if new.key = 'z' then
            if nextval('public.tries') <= 2 then raise exception using errcode = '55P03'; end if;
            perform pg_terminate_backend(pg_backend_pid());
          end if;
          return new;
        end $$;
        create trigger trap before insert on tourbillon.timer for each row execute function public.trap()";
    let mut client = database.client();
    client.batch_execute(trap).expect("a superuser");
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let calls: Vec<Call> = ["a", "b", "y", "z", "zz"]
        .map(|key| Call {
            queue: "q".into(),
            key: key.into(),
            action: Action::Schedule {
                when: DueAt::After(MINUTE),
                payload: "1".into(),
            },
        })
        .into();
    let answers = connection.write(&calls);
    let untrap = "drop trigger trap on tourbillon.timer; drop function public.trap(); drop sequence public.tries";
    client.batch_execute(untrap).expect("a superuser");
    let answers = answers.expect("the answers that are known");
    for (call, answer) in calls.iter().zip(&answers) {
        match &*call.key {
            "a" | "b" | "y" => {
                assert!(matches!(answer, Ok(Answer::Scheduled { .. })), "{answer:?}");
            }
            "zz" => assert!(
                matches!(answer, Err(StoreError::Unavailable(_))),
                "{answer:?}"
            ),
            _ => assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}"),
        }
    }
    let stored = database.psql("select string_agg(key, ' ' order by key) from tourbillon.timer");
    assert_eq!(stored.as_deref(), Ok("a b y"));
}
