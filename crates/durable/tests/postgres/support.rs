//! What a support person reads and types in `psql`.

use kit::wait;
use tourbillon_durable::store::{
    Claim, Connection, Epoch, NewNode, Outcome, Settle, Settlement, Store, StoreTime, Wanted,
};
use tourbillon_durable::{Due, Durable, Postgres};

use crate::cluster::{self, Database};

const NODE: Epoch = Epoch(7);

/// What a query prints.
fn ok(database: &Database, sql: &str) -> String {
    database
        .psql(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn schedule(database: &Database, queue: &str, key: &str, delay: &str) {
    let sql = format!("select tourbillon.schedule('{queue}', '{key}', interval '{delay}', '1')");
    ok(database, &sql);
}

fn node(database: &Database) -> Box<dyn Connection> {
    let store = Postgres::connect(&database.url()).expect("the cluster answers");
    let mut connection = store.connect().expect("the cluster answers");
    let node = NewNode {
        epoch: NODE,
        name: "shop-1".into(),
        queues: vec!["q".into()],
        schedules: Default::default(),
    };
    connection.join(&node).expect("joined");
    connection
}

/// Starts runs of these keys, and ends them with this outcome if there is one.
fn run(connection: &mut dyn Connection, keys: &[&str], outcome: Option<&Outcome>) {
    let wanted = keys.iter().map(|key| Wanted {
        queue: "q".into(),
        key: (*key).into(),
        crash_limit: 10,
    });
    let claim = Claim {
        epoch: NODE,
        deadline: StoreTime::LATEST,
        timers: wanted.collect(),
        adopt: Vec::new(),
    };
    let runs = connection.claim(&claim).expect("an answer").runs;
    assert_eq!(runs.len(), keys.len());
    let Some(outcome) = outcome else { return };
    let settlements = runs.into_iter().map(|run| Settlement {
        run: run.run,
        outcome: outcome.clone(),
    });
    let settle = Settle {
        epoch: NODE,
        settlements: settlements.collect(),
    };
    connection.settle(&settle).expect("an answer");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn views_show_timers_letters_queues_and_nodes() {
    let database = cluster::lent();
    let mut connection = node(&database);
    for (key, delay) in [
        ("runs", "0"),
        ("followed", "0"),
        ("dead", "0"),
        ("late", "0"),
        ("waits", "1 h"),
    ] {
        schedule(&database, "q", key, delay);
    }
    run(
        &mut *connection,
        &["dead"],
        Some(&Outcome::Dead("broken".into())),
    );
    run(&mut *connection, &["runs", "followed"], None);
    schedule(&database, "q", "followed", "1 h");
    schedule(&database, "stopped", "k", "0");
    ok(&database, "select tourbillon.pause('stopped')");
    let timers = "select queue, key, state, node, running_since is not null, follows, attempt from tourbillon.timers order by 1, 2";
    assert_eq!(
        ok(&database, timers),
        "q|followed|running|shop-1|t|t|1\nq|late|overdue||f|f|0\nq|runs|running|shop-1|t|f|1\n\
         q|waits|waiting||f|f|0\nstopped|k|paused||f|f|0"
    );
    let letters = "select queue, key, error, has_timer, payload from tourbillon.dead_letters";
    assert_eq!(ok(&database, letters), "q|dead|broken|f|1");
    schedule(&database, "q", "dead", "1 h");
    assert_eq!(ok(&database, letters), "q|dead|broken|t|1");
    let queues = "select queue, paused, pending, first_due <= clock_timestamp(), running, dead from tourbillon.queues order by 1";
    assert_eq!(ok(&database, queues), "q|f|3|t|2|1\nstopped|t|1|t|0|0");
    let nodes =
        "select name, queues, silent_for < interval '1 min', gone is null from tourbillon.nodes";
    assert_eq!(ok(&database, nodes), "shop-1|{q}|t|t");
    // What a node that is gone has left behind runs again.
    connection.leave(NODE).expect("it leaves");
    let left = "select key, state, node, attempt from tourbillon.timers where key in ('followed', 'runs') order by 1";
    assert_eq!(ok(&database, left), "followed|waiting||0\nruns|overdue||1");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn functions_pause_hurry_revive_and_discard() {
    let database = cluster::lent();
    let mut connection = node(&database);
    schedule(&database, "q", "a", "0");
    schedule(&database, "q", "b", "0");
    run(
        &mut *connection,
        &["a", "b"],
        Some(&Outcome::Dead("broken".into())),
    );
    let ids = ok(
        &database,
        "select id from tourbillon.dead_letters order by id",
    );
    let (a, b) = ids.split_once('\n').expect("two letters");
    schedule(&database, "q", "a", "1 h");
    assert_eq!(
        ok(&database, &format!("select tourbillon.revive({a})")),
        "exists"
    );
    let hurried = "select result, due <= clock_timestamp() from tourbillon.run_now('q', 'a')";
    assert_eq!(ok(&database, hurried), "moved|t");
    assert_eq!(ok(&database, &hurried.replace("'a'", "'z'")), "not found|");
    assert_eq!(
        ok(&database, &format!("select tourbillon.revive({b})")),
        "revived"
    );
    assert_eq!(
        ok(&database, &format!("select tourbillon.revive({b})")),
        "not found"
    );
    assert_eq!(
        ok(&database, &format!("select tourbillon.discard({a})")),
        "t"
    );
    assert_eq!(
        ok(&database, &format!("select tourbillon.discard({a})")),
        "f"
    );
    let revived = "select key, state from tourbillon.timers order by 1";
    assert_eq!(ok(&database, revived), "a|overdue\nb|overdue");
    ok(
        &database,
        "select tourbillon.pause('q'); select tourbillon.pause('q')",
    );
    assert_eq!(ok(&database, revived), "a|paused\nb|paused");
    assert!(connection.counts().expect("it counts")[0].paused);
    ok(
        &database,
        "select tourbillon.resume('q'); select tourbillon.resume('unknown')",
    );
    assert_eq!(ok(&database, revived), "a|overdue\nb|overdue");
    for bad in ["''", "null", "repeat('x', 65)"] {
        for function in ["pause", "resume"] {
            let error = database.psql(&format!("select tourbillon.{function}({bad})"));
            let error = error.expect_err("no such queue can be");
            assert!(error.contains("a queue has 1 to 64 bytes"), "{error}");
        }
    }
    // All timers of a customer at one time.
    schedule(&database, "q", "customer:7:1", "1 h");
    schedule(&database, "q", "customer:7:2", "1 h");
    let all = "from tourbillon.timers t cross join lateral tourbillon.VERB(t.queue, t.key) r where starts_with(t.key, 'customer:7:')";
    let hurried = format!("select r.result {}", all.replace("VERB", "run_now"));
    assert_eq!(ok(&database, &hurried), "moved\nmoved");
    let cancelled = format!("select r.result {}", all.replace("VERB", "cancel"));
    assert_eq!(ok(&database, &cancelled), "cancelled\ncancelled");
    assert_eq!(ok(&database, &cancelled), "");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_person_who_reads_and_one_who_helps_need_these_rights() {
    let database = cluster::lent();
    schedule(&database, "q", "k", "1 h");
    let grants = "drop role if exists reader; drop role if exists helper; create role reader login; create role helper login; \
        grant usage on schema tourbillon to reader, helper; \
        grant select on tourbillon.timers, tourbillon.dead_letters, tourbillon.queues, tourbillon.nodes, \
          tourbillon.schedules to reader, helper; \
        grant select, insert, update, delete on tourbillon.timer, tourbillon.dead, tourbillon.queue to helper; \
        grant select on tourbillon.node to helper";
    ok(&database, grants);
    for view in ["timers", "dead_letters", "queues", "nodes", "schedules"] {
        let sql = format!("select count(*) >= 0 from tourbillon.{view}");
        assert_eq!(
            database.psql_as("reader", &sql).as_deref(),
            Ok("t"),
            "{view}"
        );
    }
    let verbs = [
        "run_now('q', 'k')",
        "pause('q')",
        "resume('q')",
        "pause('q', 'k')",
        "resume('q', 'k')",
        "revive(1)",
        "discard(1)",
        "cancel('q', 'k')",
    ];
    for verb in verbs {
        let sql = format!("select tourbillon.{verb}");
        let refused = database.psql_as("reader", &sql).expect_err("it only reads");
        assert!(refused.contains("permission denied"), "{refused}");
        database.psql_as("helper", &sql).expect("it may");
    }
    ok(
        &database,
        "drop owned by reader, helper; drop role reader, helper",
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn policies_of_rows_hold_for_functions_and_not_for_views() {
    let database = cluster::database();
    let mut connection = node(&database);
    for queue in ["mail", "pay-by"] {
        schedule(&database, queue, "k", "1 h");
        schedule(&database, queue, "dead", "0");
        let run = format!(
            "insert into tourbillon.dead (id, queue, key, gen, planned, at, attempt, fails, crashes, error, payload)
             select {}, queue, key, gen, planned, due, 1, 1, 0, 'broken', payload from tourbillon.timer
             where queue = '{queue}' and key = 'dead'",
            queue.len()
        );
        ok(&database, &run);
    }
    let grants = "create role mail_reader login; create role mail_helper login; \
        grant usage on schema tourbillon to mail_reader, mail_helper; \
        grant select on tourbillon.timers, tourbillon.dead_letters, tourbillon.queues, tourbillon.nodes \
          to mail_reader, mail_helper; \
        grant select, insert, update, delete on tourbillon.timer, tourbillon.dead, tourbillon.queue to mail_helper; \
        grant select on tourbillon.node to mail_helper; \
        alter table tourbillon.timer enable row level security; \
        alter table tourbillon.dead enable row level security; \
        alter table tourbillon.node enable row level security; \
        alter table tourbillon.queue enable row level security; \
        create policy mail on tourbillon.timer to mail_reader, mail_helper using (queue = 'mail'); \
        create policy mail on tourbillon.dead to mail_reader, mail_helper using (queue = 'mail'); \
        create policy mail on tourbillon.queue to mail_reader, mail_helper using (name = 'mail'); \
        create policy mail on tourbillon.node to mail_reader, mail_helper using (true)";
    ok(&database, grants);
    let as_role = |role: &str, sql: &str| database.psql_as(role, sql);
    // The views read as their owner, whom no policy concerns.
    for role in ["mail_reader", "mail_helper"] {
        for (view, rows) in [
            ("timers", "4"),
            ("dead_letters", "2"),
            ("queues", "2"),
            ("nodes", "1"),
        ] {
            let count = format!("select count(*) from tourbillon.{view}");
            assert_eq!(as_role(role, &count).as_deref(), Ok(rows), "{role} {view}");
        }
    }
    // Views of the administrator's own show a part. No function of the reader's gets the other rows.
    let own = "create schema support; grant usage on schema support to mail_reader; \
        create view support.timers with (security_barrier) as select * from tourbillon.timers where queue = 'mail'; \
        grant select on support.timers to mail_reader; \
        revoke all on all tables in schema tourbillon from mail_reader";
    ok(&database, own);
    let mine = "select string_agg(distinct queue, ',') from support.timers";
    assert_eq!(as_role("mail_reader", mine).as_deref(), Ok("mail"));
    let all = as_role("mail_reader", "select count(*) from tourbillon.timers");
    assert!(all.expect_err("it may not").contains("permission denied"));
    // The functions act as their caller: a timer that a policy hides is not found.
    for (verb, answers) in [
        (
            "(tourbillon.run_now(QUEUE, 'k')).result",
            ["moved", "not found"],
        ),
        (
            "(tourbillon.cancel(QUEUE, 'k')).result",
            ["cancelled", "not found"],
        ),
        ("tourbillon.discard(length(QUEUE))", ["t", "f"]),
    ] {
        for (queue, answer) in ["'mail'", "'pay-by'"].iter().zip(answers) {
            let sql = format!("select {}", verb.replace("QUEUE", queue));
            assert_eq!(as_role("mail_helper", &sql).as_deref(), Ok(answer), "{sql}");
        }
    }
    let paused = as_role("mail_helper", "select tourbillon.pause('mail')");
    paused.expect("it may");
    for sql in [
        "select tourbillon.pause('pay-by')",
        "select tourbillon.schedule('pay-by', 'new', interval '1 h', '1')",
    ] {
        let refused = as_role("mail_helper", sql).expect_err("a policy forbids it");
        assert!(refused.contains("row-level security policy"), "{refused}");
    }
    // A process does not work with a part of the rows.
    ok(
        &database,
        "grant select, insert, update, delete on all tables in schema tourbillon to mail_helper",
    );
    let refused = Postgres::connect(&database.url_of("mail_helper")).map(drop);
    let refused = refused.expect_err("it would not see all rows").to_string();
    assert!(refused.contains("bypassrls"), "{refused}");
    connection.leave(NODE).expect("it leaves");
    ok(
        &database,
        "drop owned by mail_reader, mail_helper; drop role mail_reader, mail_helper",
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn two_nodes_delete_old_letters_beside_each_other() {
    let database = cluster::lent();
    let start = || {
        let store = Postgres::connect(&database.url()).expect("the cluster answers");
        let timers = Durable::builder(store).handle("other", |_: &Due<()>| ());
        timers.start().expect("it starts")
    };
    let letters = "insert into tourbillon.dead (id, queue, key, gen, planned, at, attempt, fails, crashes, error, payload)
        select i, 'q', 'old ' || i, 1, at, at, 1, 1, 0, 'broken', '1'::jsonb
        from generate_series(1, 250) i, (select now() - interval '31 days') a(at)
        union all select 1000, 'q', 'young', 1, now(), now(), 1, 1, 0, 'broken', '1'::jsonb";
    ok(&database, letters);
    let nodes = [start(), start()];
    let left =
        "select string_agg(key, ',') from (select key from tourbillon.dead order by id limit 2) d";
    wait::until("the old ones are gone", || ok(&database, left) == "young");
    for node in nodes {
        let stats = node.stats();
        assert_eq!(
            (stats.store_errors, stats.refused, stats.stopped_work),
            (0, 0, 0)
        );
    }
}

/// The part of the guide that follows a heading has one block of SQL.
fn statements(heading: &str) -> Vec<&'static str> {
    let guide = include_str!("../../src/guide/support.md");
    let (_, part) = guide.split_once(heading).expect("the guide has it");
    let (_, block) = part.split_once("```sql\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let lines = block.lines().filter(|line| !line.starts_with("--"));
    lines.collect()
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_statements_of_the_guide_do_what_it_says() {
    let database = cluster::lent();
    let mut connection = node(&database);
    for key in ["order:7", "customer:7:a", "customer:7:b"] {
        schedule(&database, "pay-by", key, "1 h");
    }
    schedule(&database, "q", "k", "0");
    run(&mut *connection, &["k"], Some(&Outcome::Dead("no".into())));
    ok(&database, "update tourbillon.dead set queue = 'webhook'");
    let printed = statements("## PostgreSQL")
        .into_iter()
        .map(|sql| ok(&database, sql));
    let printed: Vec<String> = printed.collect();
    assert_eq!(printed[1], "customer:7:a|moved\ncustomer:7:b|moved");
    assert_eq!(printed[2], "customer:7:a|cancelled\ncustomer:7:b|cancelled");
    assert!(printed[3].starts_with("moved|"), "{printed:?}");
    assert!(
        printed.iter().any(|line| line.ends_with("|revived")),
        "{printed:?}"
    );
    assert!(
        printed.last().expect("nodes").starts_with("shop-1|{q}|"),
        "{printed:?}"
    );
}
