//! What a support person reads and types in `psql`.

use tourbillon_durable::Postgres;
use tourbillon_durable::store::{
    Claim, Connection, Epoch, NewNode, Outcome, Settle, Settlement, Store, StoreTime, Wanted,
};

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
        grant select on tourbillon.timers, tourbillon.dead_letters, tourbillon.queues, tourbillon.nodes to reader, helper; \
        grant select, insert, update, delete on tourbillon.timer, tourbillon.dead, tourbillon.queue to helper; \
        grant select on tourbillon.node to helper";
    ok(&database, grants);
    for view in ["timers", "dead_letters", "queues", "nodes"] {
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
