//! Calls within transactions of users.

use std::time::Duration;

use postgres::IsolationLevel;
use tourbillon_durable::store::{
    Action, Answer, Call, Claim, Connection, Epoch, NewNode, Outcome, Run, Settle, Settled,
    Settlement, Store, StoreError, Wanted,
};
use tourbillon_durable::{
    CallError, CancelAnswer, CompleteError, CompletesRun, Completion, DueAt, Durable,
    DurableBuilder, IfAbsentAnswer, Postgres, RescheduleAnswer,
};

use crate::cluster;

pub(crate) const ME: Epoch = Epoch(3);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) struct Bench {
    pub(crate) store: Postgres,
    pub(crate) connection: Box<dyn Connection>,
    pub(crate) client: postgres::Client,
    // Dropped last, so that nobody uses the database when it goes to the next test.
    pub(crate) database: cluster::Lent,
}

pub(crate) fn bench() -> Bench {
    let database = cluster::lent();
    let store = Postgres::builder(&database.url())
        .and_then(|builder| builder.lock_limit(Duration::from_millis(50)).connect())
        .expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let node = NewNode {
        epoch: ME,
        name: "n".to_owned(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("the store answers");
    Bench {
        store,
        connection,
        client: database.client(),
        database,
    }
}

impl Bench {
    pub(crate) fn call(&mut self, key: &str, action: Action) -> Answer {
        let call = Call {
            queue: "q".into(),
            key: key.into(),
            action,
        };
        let answers = self.connection.write(&[call]).expect("the store answers");
        answers
            .into_iter()
            .next()
            .expect("one answer")
            .expect("it is accepted")
    }

    pub(crate) fn run(&mut self, key: &str) -> Run {
        let schedule = Action::Schedule {
            when: DueAt::After(Duration::ZERO),
            payload: "1".into(),
        };
        self.call(key, schedule);
        let mut runs = self.claim(key);
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    }

    fn claim(&mut self, key: &str) -> Vec<Run> {
        let beat = self.connection.beat(ME).expect("the store answers");
        let claim = Claim {
            epoch: ME,
            deadline: beat.expect("it lives").now + MINUTE,
            timers: vec![Wanted {
                queue: "q".into(),
                key: key.into(),
                crash_limit: 3,
            }],
            adopt: Vec::new(),
        };
        let claimed = self.connection.claim(&claim).expect("the store answers");
        claimed.runs.into_iter().map(|run| run.run).collect()
    }

    fn settle(&mut self, run: &Run) -> Settled {
        let settle = Settle {
            epoch: ME,
            settlements: vec![Settlement {
                run: run.clone(),
                outcome: Outcome::Done,
            }],
        };
        let mut settled = self.connection.settle(&settle).expect("the store answers");
        settled.remove(0).expect("not refused")
    }

    pub(crate) fn timers(&self) -> String {
        let rows = "select string_agg(key, ' ' order by key) from tourbillon.timer";
        self.database.psql(rows).expect("it reads")
    }

    /// The builder of a node, and an empty table of effects.
    pub(crate) fn node_with_effects(&self) -> DurableBuilder {
        let table = "drop table if exists effects; create table effects (number int)";
        self.database.psql(table).expect("it may");
        let store = Postgres::connect(&self.database.url()).expect("the cluster answers");
        Durable::builder(store).poll_interval(Duration::from_millis(50))
    }

    /// Runs a timer of the queue `effects`, whose effect is its payload in the table. Its last run
    /// succeeds after this number of runs that fail, and only that run has its effect.
    pub(crate) fn has_one_effect_after_failures(&self, timers: &Durable, failed: u64) {
        let scheduled = timers.schedule("effects", "k", Duration::ZERO, &7).wait();
        scheduled.expect("it is accepted");
        kit::wait::until("a run succeeds", || timers.stats().succeeded == 1);
        assert_eq!((timers.stats().failed, timers.stats().fenced), (failed, 0));
        let effects = self.database.psql("select * from effects");
        assert_eq!(effects.as_deref(), Ok("7"));
        assert_eq!(self.timers(), "");
        timers.stop(Duration::from_secs(5)).wait().unwrap();
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_scheduled_in_a_transaction_exists_with_its_commit() {
    let mut bench = bench();
    let mut transaction = bench.client.transaction().expect("it begins");
    bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, &1)
        .expect("it is accepted");
    transaction.rollback().expect("it ends");
    assert_eq!(bench.timers(), "");
    let mut transaction = bench.client.transaction().expect("it begins");
    let first = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, &1)
        .expect("it is accepted");
    let again = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, &2)
        .expect("it is accepted");
    assert_eq!(again.replaced, Some(first.due));
    let moved = bench
        .store
        .in_transaction(&mut transaction)
        .reschedule("q", "a", MINUTE * 2)
        .expect("it is accepted");
    assert!(
        matches!(moved, RescheduleAnswer::Moved { from, .. } if from == again.due),
        "{moved:?}"
    );
    bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "b", first.due, &3)
        .expect("it is accepted");
    let exists = bench
        .store
        .in_transaction(&mut transaction)
        .schedule_if_absent("q", "b", MINUTE, &4);
    assert!(
        matches!(exists, Ok(IfAbsentAnswer::Exists { due, running: false, .. }) if due == first.due),
        "{exists:?}"
    );
    let absent = bench
        .store
        .in_transaction(&mut transaction)
        .schedule_if_absent("q", "c", MINUTE, &5);
    assert!(absent.expect("it is accepted").is_scheduled());
    let moved = bench
        .store
        .in_transaction(&mut transaction)
        .reschedule("q", "c", again.due);
    assert!(
        matches!(moved, Ok(RescheduleAnswer::Moved { to, .. }) if to == again.due),
        "{moved:?}"
    );
    let cancelled = bench
        .store
        .in_transaction(&mut transaction)
        .cancel("q", "c");
    assert!(cancelled.expect("it is accepted").is_cancelled());
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "a b");
    let mut transaction = bench.client.transaction().expect("it begins");
    let cancelled = bench
        .store
        .in_transaction(&mut transaction)
        .cancel("q", "b")
        .expect("it is accepted");
    assert!(
        matches!(cancelled, CancelAnswer::Cancelled { due, .. } if due == first.due),
        "{cancelled:?}"
    );
    let absent = bench
        .store
        .in_transaction(&mut transaction)
        .cancel("q", "c")
        .expect("it is accepted");
    assert_eq!(absent, CancelAnswer::NotFound);
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "a");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn bad_arguments_leave_the_transaction_as_it_is() {
    let mut bench = bench();
    let mut transaction = bench.client.transaction().expect("it begins");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("", "a", MINUTE, &1);
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, "\0");
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    let refused =
        bench
            .store
            .in_transaction(&mut transaction)
            .schedule("q", "a", Duration::MAX, &1);
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .schedule_if_absent("q", "", MINUTE, &1);
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .reschedule("q", "a", Duration::MAX);
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .cancel("q", &"k".repeat(513));
    assert!(matches!(refused, Err(CallError::Invalid(_))), "{refused:?}");
    bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, &1)
        .expect("it goes on");
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "a");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_aborted_transaction_is_a_clear_error() {
    let mut bench = bench();
    let run = bench.run("a");
    let mut transaction = bench.client.transaction().expect("it begins");
    transaction
        .execute("select 1 / 0", &[])
        .expect_err("it fails");
    let refused = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "b", MINUTE, &1);
    let refused = refused.expect_err("the transaction was aborted");
    assert!(
        refused.to_string().contains("roll the transaction back"),
        "{refused}"
    );
    let refused = transaction
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect_err("the transaction was aborted");
    assert!(
        refused.to_string().contains("roll the transaction back"),
        "{refused}"
    );
    assert!(
        !matches!(refused, CompleteError::Fenced | CompleteError::Retry(_)),
        "{refused:?}"
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_run_ends_with_the_transaction_that_has_its_effect() {
    let mut bench = bench();
    let run = bench.run("a");
    let mut transaction = bench.client.transaction().expect("it begins");
    (&mut transaction)
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect("it is held");
    transaction.rollback().expect("it ends");
    // Rolled back: it is still held, and a second try ends it.
    assert!(bench.claim("a").is_empty());
    let mut transaction = bench.client.transaction().expect("it begins");
    (&mut transaction)
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect("it is held");
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "");
    assert_eq!(bench.settle(&run), Settled::Fenced);
    let mut transaction = bench.client.transaction().expect("it begins");
    let again = (&mut transaction).complete(&Completion::of("tourbillon", ME, &run));
    assert_eq!(again, Err(CompleteError::Fenced));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_run_of_a_node_that_is_gone_is_fenced() {
    let mut bench = bench();
    let run = bench.run("a");
    bench.connection.leave(ME).expect("the store answers");
    let mut transaction = bench.client.transaction().expect("it begins");
    assert_eq!(
        (&mut transaction).complete(&Completion::of("tourbillon", ME, &run)),
        Err(CompleteError::Fenced)
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_settlement_does_not_wait_for_the_transaction_of_a_user() {
    let mut bench = bench();
    let run = bench.run("a");
    let mut client = bench.database.client();
    let mut transaction = client.transaction().expect("it begins");
    (&mut transaction)
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect("it is held");
    assert_eq!(bench.settle(&run), Settled::Locked);
    transaction.commit().expect("it ends");
    assert_eq!(bench.settle(&run), Settled::Fenced);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn locks_of_a_user_hold_up_only_their_own_keys() {
    let mut bench = bench();
    let schedule = |key: &str| Call {
        queue: "q".into(),
        key: key.into(),
        action: Action::Schedule {
            when: DueAt::After(Duration::ZERO),
            payload: "1".into(),
        },
    };
    bench.call("old", schedule("old").action);
    let mut client = bench.database.client();
    let mut transaction = client.transaction().expect("it begins");
    // One row that is changed, and one that is inserted.
    for key in ["old", "new"] {
        bench
            .store
            .in_transaction(&mut transaction)
            .schedule("q", key, MINUTE, &2)
            .expect("it is accepted");
    }
    let calls: Vec<Call> = ["a", "new", "b", "old", "z"].map(schedule).into();
    let answers = bench.connection.write(&calls).expect("the store answers");
    for (call, answer) in calls.iter().zip(&answers) {
        match &*call.key {
            "new" | "old" => {
                let error = answer.as_ref().expect_err("it is locked");
                assert!(matches!(error, StoreError::Locked(_)), "{error:?}");
                assert!(error.to_string().contains("lock"), "{error}");
            }
            _ => assert!(matches!(answer, Ok(Answer::Scheduled { .. })), "{answer:?}"),
        }
    }
    // Neither is the locked row claimed, nor does the claim wait.
    assert!(bench.claim("old").is_empty());
    assert_eq!(bench.claim("a").len(), 1);
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "a b new old z");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_conflict_of_serializable_transactions_is_to_be_tried_again() {
    let mut bench = bench();
    let run = bench.run("a");
    let mut client = bench.database.client();
    let builder = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let mut transaction = builder.start().expect("it begins");
    transaction
        .query("select 1 from tourbillon.node", &[])
        .expect("it has a snapshot now");
    // Another transaction changes the row after the snapshot.
    bench.call("a", Action::Cancel);
    let conflict = (&mut transaction)
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect_err("it can't be serialized");
    assert!(matches!(conflict, CompleteError::Retry(_)), "{conflict:?}");
    transaction.rollback().expect("it ends");
    let builder = client
        .build_transaction()
        .isolation_level(IsolationLevel::Serializable);
    let mut transaction = builder.start().expect("it begins");
    (&mut transaction)
        .complete(&Completion::of("tourbillon", ME, &run))
        .expect("it is held");
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_snapshot_does_not_find_a_timer_that_is_younger() {
    let mut bench = bench();
    let mut client = bench.database.client();
    let builder = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let mut transaction = builder.start().expect("it begins");
    transaction
        .query("select 1 from tourbillon.node", &[])
        .expect("it has a snapshot now");
    bench.run("a");
    let cancelled = bench
        .store
        .in_transaction(&mut transaction)
        .cancel("q", "a")
        .expect("it is accepted");
    assert_eq!(cancelled, CancelAnswer::NotFound);
    // To insert it is a conflict, which ends.
    let conflict = bench
        .store
        .in_transaction(&mut transaction)
        .schedule("q", "a", MINUTE, &1);
    assert!(
        matches!(conflict, Err(CallError::Unavailable(_))),
        "{conflict:?}"
    );
    transaction.rollback().expect("it ends");
    let builder = client
        .build_transaction()
        .isolation_level(IsolationLevel::Serializable);
    let mut transaction = builder.start().expect("it begins");
    transaction
        .query("select 1 from tourbillon.node", &[])
        .expect("it has a snapshot now");
    bench.run("b");
    let conflict = bench
        .store
        .in_transaction(&mut transaction)
        .schedule_if_absent("q", "b", MINUTE, &1);
    assert!(
        matches!(conflict, Err(CallError::Unavailable(_))),
        "{conflict:?}"
    );
}

#[test]
#[cfg(feature = "cron")]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_schedule_is_made_with_the_order_or_not_at_all() {
    let mut bench = bench();
    let hourly = tourbillon_durable::Cron::new("@hourly", "UTC").expect("it is good");
    for commits in [false, true] {
        let mut tx = bench.client.transaction().expect("it begins");
        let scheduled = bench
            .store
            .in_transaction(&mut tx)
            .schedule("remind", "7", hourly.clone(), &7)
            .expect("it is accepted");
        match commits {
            true => tx.commit().expect("it ends"),
            false => tx.rollback().expect("it ends"),
        }
        let timer = bench.connection.get("remind", "7").expect("it reads");
        assert_eq!(timer.is_some(), commits);
        if let Some(timer) = timer {
            let due = std::time::SystemTime::from(timer.due);
            assert_eq!(due, scheduled.due);
            assert_eq!(hourly.times_after(due - MINUTE).next(), Some(due));
            let meta: serde_json::Value = timer.meta.expect("it has one").parse().expect("JSON");
            assert_eq!(meta["cron"]["expression"], "@hourly");
            assert!(meta["cron"]["declared"].is_null());
        }
    }
    // A time takes the place of the schedule, within a transaction too.
    let mut tx = bench.client.transaction().expect("it begins");
    let once = bench
        .store
        .in_transaction(&mut tx)
        .schedule("remind", "7", MINUTE, &8)
        .expect("it is accepted");
    assert!(once.replaced.is_some());
    tx.commit().expect("it ends");
    let timer = bench.connection.get("remind", "7").expect("it reads");
    assert_eq!(timer.expect("it is there").meta, None);
}
