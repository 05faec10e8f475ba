//! The SQL functions, as programs of other languages call them.

use std::time::Duration;

use tourbillon_durable::store::{
    Answer, Claim, Epoch, NewNode, Outcome, Settle, Settled, Settlement, Store, StoreError, Wanted,
};
use tourbillon_durable::{DueAt, Postgres};

use crate::cluster::{self, Database};

fn database() -> cluster::Lent {
    cluster::lent()
}

/// What a query prints.
fn ok(database: &Database, sql: &str) -> String {
    database
        .psql(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The code and the text of the error.
fn error(database: &Database, sql: &str) -> String {
    match database.psql(sql) {
        Ok(printed) => panic!("{sql}: {printed}"),
        Err(error) => error,
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn psql_schedules_moves_and_cancels() {
    let database = database();
    let scheduled = "select replaced is null, running, due - clock_timestamp() between interval '14 min 50 s' and interval '15 min' \
                     from tourbillon.schedule('pay-by', 'order:7', interval '15 min', '{\"order\":7}')";
    assert_eq!(ok(&database, scheduled), "t|f|t");
    assert_eq!(ok(&database, scheduled), "f|f|t");
    let moved = "select result, due - clock_timestamp() between interval '29 min 50 s' and interval '30 min', attempt is null \
                 from tourbillon.reschedule('pay-by', 'order:7', interval '30 min')";
    assert_eq!(ok(&database, moved), "moved|t|t");
    let at = "select due from tourbillon.schedule('pay-by', 'order:7', timestamptz '2100-01-01 00:00+00', '7')";
    assert!(ok(&database, at).starts_with("2100-01-01"));
    let at = "select result, moved_from - due from tourbillon.reschedule('pay-by', 'order:7', timestamptz '2099-12-31 00:00+00')";
    assert_eq!(ok(&database, at), "moved|1 day");
    let stored = ok(
        &database,
        "select queue, key, payload from tourbillon.timer",
    );
    assert_eq!(stored, "pay-by|order:7|7");
    let cancel = "select result, due is not null from tourbillon.cancel('pay-by', 'order:7')";
    assert_eq!(ok(&database, cancel), "cancelled|t");
    assert_eq!(ok(&database, cancel), "not found|f");
    assert_eq!(
        ok(&database, &moved.replace("order:7", "order:8")),
        "not found||t"
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_timer_is_scheduled_if_absent_after_a_delay_and_at_a_time() {
    let database = database();
    let absent = |key: &str, when: &str| {
        let sql = format!(
            "select scheduled, due, running from tourbillon.schedule_if_absent('q', '{key}', {when}, '7')"
        );
        ok(&database, &format!("set timezone = 'UTC'; {sql}"))
    };
    let at = "timestamptz '2100-01-01 00:00+00'";
    assert_eq!(absent("a", at), "t|2100-01-01 00:00:00+00|f");
    for when in [at, "timestamptz '2001-01-01 00:00+00'", "interval '1 s'"] {
        assert_eq!(absent("a", when), "f|2100-01-01 00:00:00+00|f", "{when}");
    }
    let payload = "select payload, planned = due from tourbillon.timer where key = 'a'";
    assert_eq!(ok(&database, payload), "7|t");
    let past = "select scheduled, due between clock_timestamp() - interval '5 s' and clock_timestamp() \
                from tourbillon.schedule_if_absent('q', 'b', timestamptz '2001-01-01 00:00+00', '7')";
    assert_eq!(ok(&database, past), "t|t");
    for (when, expected) in [
        ("null::timestamptz", "finite and not null"),
        ("timestamptz 'infinity'", "finite and not null"),
        ("timestamptz '10000-01-01'", "after the year 9999"),
    ] {
        let call = format!("select tourbillon.schedule_if_absent('q', 'c', {when}, '7')");
        let error = error(&database, &call);
        assert!(error.contains(expected), "{when}: {error}");
    }
    assert_eq!(ok(&database, "select count(*) from tourbillon.timer"), "2");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_meta_is_an_object_of_up_to_eight_kilobytes() {
    let database = database();
    for (function, when) in [
        ("schedule", "interval '1 h'"),
        ("schedule", "timestamptz '2100-01-01'"),
        ("schedule_if_absent", "interval '1 h'"),
        ("schedule_if_absent", "timestamptz '2100-01-01'"),
    ] {
        let call = |meta: &str| {
            format!("select from tourbillon.{function}('q', 'k', {when}, '7', meta => {meta})")
        };
        ok(&database, "delete from tourbillon.timer");
        // jsonb has its own order of keys, and the last one of two that are equal.
        ok(&database, &call(r#"'{"bb":1, "a":2,"a":3}'"#));
        let stored = "select meta, bytes from tourbillon.timer";
        assert_eq!(ok(&database, stored), r#"{"a": 3, "bb": 1}|18"#);
        let deep = |depth: usize| {
            format!(
                "'{}{{}}{}'",
                r#"{"a":"#.repeat(depth - 1),
                "}".repeat(depth - 1)
            )
        };
        let long = |bytes: usize| format!("jsonb_build_object('k', repeat('x', {bytes} - 9))");
        ok(&database, &call(&deep(127)));
        ok(&database, &call(&long(8192)));
        for (bad, expected) in [
            ("'[]'", "is a JSON object, not array"),
            ("'null'", "is a JSON object, not null"),
            ("'1'", "is a JSON object, not number"),
            ("'{'", "22P02"),
            (r#"'{"a":"\u0000"}'"#, "22P05"),
            (&*deep(128), "at most 127 levels"),
            (&*long(8193), "at most 8192 bytes as text, not 8193"),
        ] {
            let error = error(&database, &call(bad));
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }
    // Whoever writes the table gets no other one into it.
    let error = error(&database, "update tourbillon.timer set meta = '[]'");
    assert!(error.contains("timer_meta_check"), "{error}");
}

/// What the guide to transactions says about the type of the third argument.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_third_argument_has_a_type_or_a_name() {
    let database = database();
    let payload = |function: &str| match function {
        "reschedule" => "",
        _ => ", payload => '7'",
    };
    for function in ["schedule", "schedule_if_absent", "reschedule"] {
        for when in [
            "interval '15 min'",
            "'15 min'::interval",
            "make_interval(mins => 15)",
            "delay => '15 min'",
            "timestamptz '2100-01-01 09:00+01'",
            "'2100-01-01 09:00+01'::timestamptz",
            "now() + interval '15 min'",
            "at => '2100-01-01 09:00+01'",
        ] {
            let call = format!(
                "tourbillon.{function}('q', 'k', {when}{})",
                payload(function)
            );
            ok(&database, &format!("select * from {call}"));
        }
        for when in ["'15 min'", "'2100-01-01 09:00+01'"] {
            let call = format!(
                "tourbillon.{function}('q', 'k', {when}{})",
                payload(function)
            );
            let error = error(&database, &format!("select * from {call}"));
            assert!(error.contains("42725"), "{call}: {error}");
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_due_time_in_the_past_is_now_and_a_day_has_24_hours() {
    let database = database();
    let past = "select due between clock_timestamp() - interval '5 s' and clock_timestamp() \
                from tourbillon.schedule('q', 'k', timestamptz '2001-01-01 00:00+00', '1')";
    assert_eq!(ok(&database, past), "t");
    // In this zone a night of the next year has 23 hours.
    let days = "set timezone = 'Europe/Berlin'; \
                select extract(epoch from due - clock_timestamp()) between 365 * 86400 - 5 and 365 * 86400 \
                from tourbillon.schedule('q', 'k', interval '365 days', '1')";
    assert_eq!(ok(&database, days), "t");
    let nights = "set timezone = 'Europe/Berlin'; \
                  select bool_and(extract(epoch from s.due - clock_timestamp()) between n * 86400 - 5 and n * 86400) \
                  from generate_series(1, 366) n, tourbillon.schedule('q', 'k', n * interval '1 day', '1') s";
    assert_eq!(ok(&database, nights), "t");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn bad_arguments_are_refused_and_nothing_is_stored() {
    let database = database();
    let long_queue = format!("'{}', 'k', interval '1 s', '1'", "q".repeat(65));
    let long_key = format!("'q', '{}', interval '1 s', '1'", "k".repeat(513));
    let large = format!(
        "'q', 'k', interval '1 s', to_jsonb('{}'::text)",
        "x".repeat(70_000)
    );
    let deep = format!(
        "'q', 'k', interval '1 s', '{}{}'",
        "[".repeat(128),
        "]".repeat(128)
    );
    let cases = [
        ("'', 'k', interval '1 s', '1'", "1 to 64 bytes, not 0"),
        ("null, 'k', interval '1 s', '1'", "1 to 64 bytes, not null"),
        (long_queue.as_str(), "1 to 64 bytes, not 65"),
        ("'q', '', interval '1 s', '1'", "1 to 512 bytes, not 0"),
        (long_key.as_str(), "1 to 512 bytes, not 513"),
        ("'q', 'k', interval '1 month', '1'", "the length of a month"),
        ("'q', 'k', interval '1 year', '1'", "the length of a month"),
        (
            "'q', 'k', interval '1 year -1 month', '1'",
            "the length of a month",
        ),
        ("'q', 'k', interval '-1 s', '1'", "negative"),
        ("'q', 'k', interval '1 day -25 hours', '1'", "negative"),
        (
            "'q', 'k', interval '4000000 days', '1'",
            "after the year 9999",
        ),
        ("'q', 'k', null::interval, '1'", "finite and not null"),
        ("'q', 'k', null::timestamptz, '1'", "finite and not null"),
        (
            "'q', 'k', timestamptz 'infinity', '1'",
            "finite and not null",
        ),
        (
            "'q', 'k', timestamptz '-infinity', '1'",
            "finite and not null",
        ),
        (
            "'q', 'k', timestamptz '10000-01-01', '1'",
            "after the year 9999",
        ),
        ("'q', 'k', interval '1 s', null", "must not be null"),
        ("'q', 'k', interval '1 s', '\"\\u0000\"'", "22P05"),
        ("'q', 'k', interval '1 s', '\"\\ud800\"'", "22P02"),
        ("'q', 'k', interval '1 s', '{'", "22P02"),
        (large.as_str(), "at most 65536 bytes"),
        (deep.as_str(), "at most 127 levels"),
    ];
    for (arguments, expected) in cases {
        let error = error(
            &database,
            &format!("select tourbillon.schedule({arguments})"),
        );
        assert!(error.contains(expected), "{arguments}: {error}");
    }
    let deep = format!(
        "'q', 'k', interval '1 s', '{}{}'",
        "[".repeat(127),
        "]".repeat(127)
    );
    ok(&database, &format!("select tourbillon.schedule({deep})"));
    ok(&database, "select tourbillon.cancel('q', 'k')");
    for call in [
        "reschedule('q', 'k', interval '1 month')",
        "reschedule('', 'k', interval '1 s')",
        "cancel('q', '')",
    ] {
        error(&database, &format!("select tourbillon.{call}"));
    }
    assert_eq!(ok(&database, "select count(*) from tourbillon.timer"), "0");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn names_are_values_and_never_statements() {
    let database = database();
    let hostile = "'); drop table tourbillon.timer; --";
    let quoted = hostile.replace('\'', "''");
    ok(
        &database,
        &format!("select tourbillon.schedule('{quoted}', '{quoted}', interval '1 h', '1')"),
    );
    let stored = ok(&database, "select queue from tourbillon.timer");
    assert_eq!(stored, hostile);
    // Nor do the objects of the caller stand in for those of the server.
    let shadowed = "create schema evil; \
        create function evil.clock_timestamp() returns timestamptz language sql as $$ select timestamptz '2000-01-01' $$; \
        set search_path = evil, pg_catalog; \
        select due > timestamptz '2020-01-01' from tourbillon.schedule('q', 'k', interval '1 s', '1'); drop schema evil cascade";
    assert_eq!(ok(&database, shadowed), "t");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_that_only_schedules_needs_little() {
    let database = database();
    let grants = "drop role if exists caller; create role caller login; grant usage on schema tourbillon to caller; \
        grant select, insert, update, delete on tourbillon.timer to caller; grant select on tourbillon.node to caller";
    ok(&database, grants);
    let as_caller = |sql: &str| database.psql_as("caller", sql);
    as_caller("select tourbillon.schedule('q', 'k', interval '1 h', '1')").expect("it may");
    as_caller("select tourbillon.reschedule('q', 'k', interval '2 h')").expect("it may");
    as_caller("select tourbillon.cancel('q', 'k')").expect("it may");
    as_caller("select * from tourbillon.dead").expect_err("it may not");
    // It is not enough for a node, which says what is missing.
    let refused = Postgres::connect(&database.url_of("caller")).expect_err("it lacks rights");
    let text = refused.to_string();
    assert!(
        !refused.may_pass() && text.contains("permission denied"),
        "{text}"
    );
    ok(&database, "grant select on tourbillon.meta to caller");
    let refused = Postgres::connect(&database.url_of("caller")).expect_err("it lacks rights");
    let text = refused.to_string();
    assert!(
        text.contains("select on tourbillon.dead") && text.contains("insert on tourbillon.node"),
        "{text}"
    );
    ok(
        &database,
        "grant select, insert, update, delete on all tables in schema tourbillon to caller",
    );
    Postgres::connect(&database.url_of("caller")).expect("these are the documented grants");
    ok(&database, "drop owned by caller; drop role caller");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_run_shows_in_the_answers_and_ends_by_complete() {
    let database = database();
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let node = NewNode {
        epoch: Epoch(5),
        name: "n".to_owned(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("the store answers");
    let claim = |now| Claim {
        epoch: Epoch(5),
        deadline: now,
        timers: vec![Wanted {
            queue: "q".into(),
            key: "k".into(),
            crash_limit: 3,
        }],
        adopt: Vec::new(),
    };
    ok(
        &database,
        "select tourbillon.schedule('q', 'k', interval '0', '1')",
    );
    let beat = connection
        .beat(Epoch(5))
        .expect("the store answers")
        .expect("it lives");
    let deadline = beat.now + Duration::from_secs(3_600);
    let run = connection
        .claim(&claim(deadline))
        .expect("the store answers")
        .runs
        .remove(0)
        .run;
    let moved = ok(
        &database,
        "select result, due is null, attempt, since is not null from tourbillon.reschedule('q', 'k', interval '1 h')",
    );
    assert_eq!(moved, "running|t|1|t");
    let running = ok(
        &database,
        "select replaced is null, running from tourbillon.schedule('q', 'k', interval '1 h', '2')",
    );
    assert_eq!(running, "t|t");
    let cancelled = ok(
        &database,
        "select result, due is null, attempt, since is not null from tourbillon.cancel('q', 'k')",
    );
    assert_eq!(cancelled, "running|t|1|t");
    ok(
        &database,
        "select tourbillon.schedule('q', 'k', interval '0', '3')",
    );
    let complete = |attempt| {
        format!(
            "select tourbillon.complete('q', 'k', {}, 5, {attempt})",
            run.generation
        )
    };
    assert_eq!(ok(&database, &complete(2)), "f");
    assert_eq!(ok(&database, &complete(1)), "t");
    assert_eq!(ok(&database, &complete(1)), "f");
    // The one that followed is there, and the settlement of the run is fenced.
    let settle = Settle {
        epoch: Epoch(5),
        settlements: vec![Settlement {
            run,
            outcome: Outcome::Done,
        }],
    };
    assert_eq!(
        connection.settle(&settle).expect("the store answers"),
        [Ok(Settled::Fenced)]
    );
    let next = connection
        .claim(&claim(deadline))
        .expect("the store answers")
        .runs
        .remove(0);
    assert_eq!((&*next.payload, next.run.attempt), ("3", 1));
}

/// The text of the answer is in the words of the documentation.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn one_bad_payload_of_a_batch_fails_alone() {
    use tourbillon_durable::store::{Action, Call};
    let database = database();
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let calls: Vec<Call> = (0..100)
        .map(|number| Call {
            queue: "q".into(),
            key: format!("k{number}").into(),
            action: Action::Schedule {
                when: DueAt::After(Duration::from_secs(60)),
                // The shells of users refuse such payloads. A number may still be too large.
                payload: match number {
                    17 => "\"\\u0000\"".into(),
                    63 => "1e400000".into(),
                    _ => number.to_string().into(),
                },
            },
        })
        .collect();
    let answers = connection.write(&calls).expect("the store answers");
    for (number, answer) in answers.iter().enumerate() {
        match (number, answer) {
            (17 | 63, Err(StoreError::Refused(why))) => assert!(!why.is_empty()),
            (17 | 63, answer) => panic!("{number}: {answer:?}"),
            (_, answer) => assert!(
                matches!(answer, Ok(Answer::Scheduled { .. })),
                "{number}: {answer:?}"
            ),
        }
    }
    assert_eq!(ok(&database, "select count(*) from tourbillon.timer"), "98");
}
