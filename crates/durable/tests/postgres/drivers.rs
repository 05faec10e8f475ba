//! The published statements, through a client that knows nothing of the crate.

use std::time::{Duration, Instant, SystemTime};

use tourbillon_durable::{CompleteError, Due, Postgres, RetryPolicy};

use crate::transactions::bench;

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_statements_schedule_move_and_cancel_with_plain_parameters() {
    let mut bench = bench();
    let mut transaction = bench.client.transaction().expect("it begins");
    let start = Instant::now();
    let row = transaction
        .query_one(
            Postgres::SCHEDULE,
            &[
                &"q",
                &"a",
                &60.0,
                &"{\"order\":7}",
                &"{\"tenant\":\"acme\"}",
            ],
        )
        .expect("it is accepted");
    let due: SystemTime = row.get("due");
    assert_eq!(row.get::<_, Option<SystemTime>>("replaced"), None);
    assert!(!row.get::<_, bool>("running"));
    let row = transaction
        .query_one(Postgres::RESCHEDULE, &[&"q", &"a", &0.25])
        .expect("it is accepted");
    assert_eq!(row.get::<_, &str>("result"), "moved");
    assert_eq!(row.get::<_, SystemTime>("moved_from"), due);
    let took = start.elapsed();
    let ahead = due.duration_since(row.get("due")).expect("it was later");
    // Each of them counts from its own moment. A clock of the machine may be set by a little
    // meanwhile.
    let (most, little) = (Duration::from_millis(59_750), Duration::from_millis(100));
    assert!(
        ahead <= most && ahead + took + little > most,
        "{ahead:?} in {took:?}"
    );
    let moved: SystemTime = row.get("due");
    let row = transaction
        .query_one(
            Postgres::SCHEDULE_IF_ABSENT,
            &[&"q", &"a", &60.0, &"[]", &None::<&str>],
        )
        .expect("it is accepted");
    assert!(!row.get::<_, bool>("scheduled"));
    assert_eq!(row.get::<_, SystemTime>("due"), moved);
    let row = transaction
        .query_one(Postgres::CANCEL, &[&"q", &"a"])
        .expect("it is accepted");
    assert_eq!(row.get::<_, &str>("result"), "cancelled");
    let row = transaction
        .query_one(Postgres::CANCEL, &[&"q", &"a"])
        .expect("it is accepted");
    assert_eq!(row.get::<_, &str>("result"), "not found");
    let row = transaction
        .query_one(
            Postgres::SCHEDULE_IF_ABSENT,
            &[&"q", &"b", &60.0, &"null", &None::<&str>],
        )
        .expect("it is accepted");
    assert!(row.get::<_, bool>("scheduled") && !row.get::<_, bool>("running"));
    transaction.commit().expect("it ends");
    assert_eq!(bench.timers(), "b");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_statements_take_text_and_refuse_bad_values_with_the_documented_codes() {
    let bench = bench();
    // As a driver sends them that has text alone.
    let run = |statement: &str, values: &str| {
        let sql = format!("prepare s as {statement}; execute s({values})");
        bench.database.psql(&sql)
    };
    let scheduled = run(Postgres::SCHEDULE, "'q', 'a', '1.5', '[1]', null");
    assert!(
        scheduled.as_ref().is_ok_and(|row| row.ends_with("||f")),
        "{scheduled:?}"
    );
    let refused = [
        (Postgres::SCHEDULE, "'', 'a', '1', '1', null", "22023"),
        (Postgres::SCHEDULE, "'q', 'a', '-1', '1', null", "22023"),
        (Postgres::SCHEDULE, "'q', 'a', 'nan', '1', null", "22008"),
        (Postgres::SCHEDULE, "'q', 'a', '1e12', '1', null", "22008"),
        (Postgres::SCHEDULE, "'q', 'a', '1', '{', null", "22P02"),
        (Postgres::SCHEDULE, "'q', 'a', '1', '1', '{'", "22P02"),
        (Postgres::SCHEDULE, "'q', 'a', '1', '1', '[]'", "22023"),
        (
            Postgres::SCHEDULE_IF_ABSENT,
            "'q', 'a', '1', '1', '1'",
            "22023",
        ),
        (Postgres::SCHEDULE, "'q', 'a', '1', null, null", "22004"),
        (Postgres::SCHEDULE, "'q', 'a', null, '1', null", "22023"),
        (
            Postgres::SCHEDULE_IF_ABSENT,
            "'q', '', '1', '1', null",
            "22023",
        ),
        (
            Postgres::SCHEDULE_IF_ABSENT,
            "'q', 'a', '-1', '1', null",
            "22023",
        ),
        (
            Postgres::SCHEDULE_IF_ABSENT,
            "'q', 'a', '1', null, null",
            "22004",
        ),
        (Postgres::RESCHEDULE, "'q', 'a', 'inf'", "22008"),
        (Postgres::CANCEL, "null, 'a'", "22023"),
    ];
    for (statement, values, code) in refused {
        let error = run(statement, values).expect_err(values);
        assert!(error.contains(code), "{values}: {error}");
    }
    let completed = run(Postgres::COMPLETE, "'q', 'a', '1', '2', '3', null, null");
    assert_eq!(completed.as_deref(), Ok("f"));
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_plain_statement_ends_a_run_exactly_once() {
    let bench = bench();
    let url = bench.database.url();
    let effect = move |due: &Due<i32>| -> Result<(), Failed> {
        let mut client = postgres::Client::connect(&url, postgres::NoTls)?;
        let mut transaction = client.transaction()?;
        transaction.execute("insert into effects values ($1)", &[due.payload()])?;
        let run = due.completion();
        if due.attempt() == 2 {
            // Another run of the same timer: it is no longer there.
            let attempt = run.attempt - 1;
            let row = transaction.query_one(
                Postgres::COMPLETE,
                &[
                    &run.queue,
                    &run.key,
                    &run.generation,
                    &run.epoch,
                    &attempt,
                    &run.next,
                    &run.next_meta,
                ],
            )?;
            assert!(!row.get::<_, bool>("completed"));
            return Err("no run of this node's".into());
        }
        let row = transaction.query_one(
            Postgres::COMPLETE,
            &[
                &run.queue,
                &run.key,
                &run.generation,
                &run.epoch,
                &run.attempt,
                &run.next,
                &run.next_meta,
            ],
        )?;
        if !row.get::<_, bool>("completed") {
            return Err(CompleteError::Fenced.into());
        }
        match due.attempt() {
            1 => transaction.rollback()?,
            _ => transaction.commit()?,
        }
        Ok(())
    };
    let timers = bench
        .node_with_effects()
        .handle("effects", effect)
        .retry(
            RetryPolicy::exponential(Duration::from_millis(1)..=Duration::from_millis(5))
                .attempts(5),
        )
        .start()
        .expect("the node starts");
    // The first run is not committed, and the second one fails.
    bench.has_one_effect_after_failures(&timers, 2);
}
