//! Several schemas beside each other in one database.

use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use tourbillon_durable::StoreError;
use tourbillon_durable::{Due, Durable, Postgres};

use crate::cluster::{self, Database};

const MINUTE: Duration = Duration::from_secs(60);

fn store(database: &Database, schema: &str) -> Postgres {
    let builder = Postgres::builder(&database.url()).expect("a URL");
    // A connection that listens checks the server after three limits, and then the server shows
    // this as its last statement, and not that it listens.
    let builder = builder.statement_limit(MINUTE);
    let store = builder.schema(schema).notify(true).connect();
    store.expect("the cluster answers")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn programs_with_queues_of_one_name_run_their_own_timers_alone() {
    let database = cluster::database();
    let (say, heard) = mpsc::channel();
    // The second name is a word of SQL, and the third one has the default in it.
    let schemas = ["tourbillon", "order", "my_tourbillon"];
    let programs = schemas.map(|schema| {
        let (store, say) = (store(&database, schema), say.clone());
        let url = database.url();
        let run = move |due: &Due<String>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let mut client = postgres::Client::connect(&url, postgres::NoTls)?;
            let mut transaction = client.transaction()?;
            due.complete_in(&mut transaction)?;
            transaction.commit()?;
            say.send(format!("{schema} {}", due.payload()))?;
            Ok(())
        };
        let timers = Durable::builder(store.clone())
            .poll_interval(Duration::from_secs(60))
            .node_lease(Duration::from_secs(600))
            .handle("pay-by", run)
            .start();
        (schema, store, timers.expect("the cluster answers"))
    });
    let listening = "select count(distinct query) from pg_stat_activity \
                     where datname = current_database() and query like '%listen \"%' \
                     and pid <> pg_backend_pid()";
    wait::until("all listen", || {
        database.psql(listening).as_deref() == Ok("3")
    });
    let mut client = database.client();
    // By the node's own process, within a transaction, and by SQL, each in one of the schemas: by
    // the doorbell, since no other poll comes within this test.
    for (schema, store, timers) in &programs {
        let scheduled = timers
            .schedule("pay-by", "a", Duration::ZERO, &format!("own {schema}"))
            .wait();
        scheduled.expect("it is accepted");
        assert_eq!(wait::next(&heard), format!("{schema} own {schema}"));

        let mut transaction = client.transaction().expect("it begins");
        let set = format!("set local \"{schema}\".notify = on");
        transaction.batch_execute(&set).expect("a setting");
        let within = store.in_transaction(&mut transaction).schedule(
            "pay-by",
            "b",
            Duration::ZERO,
            "within",
        );
        within.expect("it is accepted");
        transaction.commit().expect("it ends");
        assert_eq!(wait::next(&heard), format!("{schema} within"));

        let mut transaction = client.transaction().expect("it begins");
        transaction.batch_execute(&set).expect("a setting");
        let schedule = Postgres::in_schema(Postgres::SCHEDULE, schema).expect("a name");
        let row = transaction.query_one(
            &schedule,
            &[&"pay-by", &"c", &0.0, &"\"sql\"", &None::<&str>],
        );
        row.expect("it is accepted");
        transaction.commit().expect("it ends");
        assert_eq!(wait::next(&heard), format!("{schema} sql"));
    }
    for (schema, _, timers) in &programs {
        wait::until("its runs are settled", || {
            ["a", "b", "c"]
                .iter()
                .all(|key| timers.get("pay-by", key).wait() == Ok(None))
        });
        let stats = timers.stats();
        assert_eq!(
            (stats.runs, stats.fenced, stats.failed),
            (3, 0, 0),
            "{schema}"
        );
        // Only its own channel rang.
        assert_eq!(stats.rings, 3, "{schema}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_schema_has_nothing_of_another_one_and_is_dropped_alone() {
    let database = cluster::database();
    store(&database, "shop");
    let foreign = "select count(*) from pg_proc where prosrc ~ '[^ ]tourbillon\\.'
                   union all select count(*) from pg_namespace where nspname = 'tourbillon'";
    assert_eq!(database.psql(foreign).as_deref(), Ok("0\n0"));
    let mail = Durable::builder(store(&database, "mail")).start();
    let mail = mail.expect("the cluster answers");
    mail.schedule("q", "k", MINUTE, "kept")
        .wait()
        .expect("accepted");
    database.psql("drop schema shop cascade").expect("it may");
    assert_eq!(
        mail.schedule("q", "k", MINUTE, "kept")
            .wait()
            .map(|it| it.replaced.is_some()),
        Ok(true)
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_name_that_is_none_is_refused_before_anything_is_sent() {
    for bad in [
        "",
        "Shop",
        "a.b",
        "x\"; drop table orders; --",
        "pg_x",
        "a'b",
        "\u{e4}",
    ] {
        // Nobody listens there.
        let builder = Postgres::builder("postgres://x@127.0.0.1:1/x").expect("a URL");
        let refused = builder.schema(bad).connect();
        assert!(
            matches!(&refused, Err(StoreError::Refused(why)) if why.contains("schema")),
            "{refused:?}"
        );
        assert!(Postgres::in_schema(Postgres::CANCEL, bad).is_err());
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn an_administrator_makes_the_tables_in_an_empty_schema_for_roles_that_may_not() {
    let database = cluster::database();
    let prepare =
        "create role of_shop login; create schema shop; grant usage on schema shop to of_shop";
    database.psql(prepare).expect("a superuser");
    let connect = || {
        let builder = Postgres::builder(&database.url_of("of_shop")).expect("a URL");
        builder.schema("shop").connect()
    };
    assert!(matches!(connect(), Err(StoreError::Refused(_))));
    let all = Postgres::in_schema(Postgres::SCHEMA, "shop").expect("a name");
    database
        .client()
        .batch_execute(&all)
        .expect("an administrator");
    let refused = connect().expect_err("it has no grants yet");
    assert!(
        refused
            .to_string()
            .contains("select, insert, update and delete"),
        "{refused}"
    );
    let grant = "grant select, insert, update, delete on all tables in schema shop to of_shop;
                 grant usage on all sequences in schema shop to of_shop";
    database.psql(grant).expect("an administrator");
    let timers = Durable::builder(connect().expect("it may")).start();
    let timers = timers.expect("it may");
    timers
        .schedule("q", "k", MINUTE, &1)
        .wait()
        .expect("accepted");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_program_that_only_looks_after_timers_makes_no_tables() {
    let database = cluster::lent();
    let connect = |schema: &str| {
        let builder = Postgres::builder(&database.url()).expect("a good URL");
        builder.schema(schema).create_tables(false).connect()
    };
    let refused = connect("nowhere").expect_err("there are none");
    assert!(!refused.may_pass(), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("no tables of timers in the schema nowhere"),
        "{refused}"
    );
    let schemas = "select count(*) from pg_namespace where nspname = 'nowhere'";
    assert_eq!(database.psql(schemas).as_deref(), Ok("0"));
    connect("tourbillon").expect("they are there");
}
