//! The tables and functions in the database: made when there are none, and checked by every
//! connection.

use std::borrow::Cow;
use std::time::Duration;

use tokio_postgres::{Client, Error};
use tourbillon_postgres::failure::message;
use tourbillon_postgres::{Effect, check_server};

use super::failure::{GRANTS, of_connection, refusal};
use crate::store::{Form, Namespace, REMEDY, StoreError};

/// The version of the tables that this version of the crate makes and knows.
const VERSION: i32 = 1;

/// How long a connection may take to make and check the tables.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = concat!(include_str!("functions.sql"), include_str!("users.sql"));

/// All statements that make version 1, for databases where programs must not make tables.
pub(super) const ALL: &str = concat!(
    "create schema if not exists tourbillon;\n",
    include_str!("tables.sql"),
    include_str!("functions.sql"),
    include_str!("users.sql")
);

/// Names all columns that this version uses.
const COLUMNS: &str = "select t.queue, t.key, t.shard, t.due, t.planned, t.gen, t.attempt, t.fails, t.crashes, \
     t.bytes, t.claim, t.claimed, t.cancelled, t.follows, t.payload, t.meta, \
     d.id, d.queue, d.key, d.gen, d.planned, d.at, d.attempt, d.fails, d.crashes, d.error, d.bytes, d.payload, d.meta, \
     n.epoch, n.name, n.queues, n.schedules, n.list, n.beat, n.beat_at, n.joined, n.gone, q.name, q.paused \
     from tourbillon.timer t, tourbillon.dead d, tourbillon.node n, tourbillon.queue q";

/// The schema of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Schema {
    namespace: Namespace,
    /// Whether its clock is one that a test moves.
    #[cfg(feature = "test-util")]
    has_test_clock: bool,
}

/// The clock of a schema that a test has made: a table with its time. Functions and statements read
/// it in the place of the server's clock.
#[cfg(feature = "test-util")]
const TEST_CLOCK: &str = "create table tourbillon.test_clock (at timestamptz not null);
     insert into tourbillon.test_clock values (now());
     create function tourbillon.test_time() returns timestamptz language sql volatile
     as 'select at from tourbillon.test_clock'";

/// Texts with the name alone: the channel of the doorbell, and the setting that lets functions ring
/// it. Then the name of the schema before what is in it, also within a text that names a table, and
/// alone.
const FORMS: [Form; 5] = [
    Form {
        before: "'",
        after: "'",
        quote: "",
    },
    Form {
        before: "'",
        after: ".notify'",
        quote: "",
    },
    Form {
        before: "",
        after: ".",
        quote: "\"",
    },
    Form {
        before: "schema ",
        after: "",
        quote: "\"",
    },
    Form {
        before: "exists ",
        after: "",
        quote: "\"",
    },
];

impl Schema {
    /// Checks the name of a schema.
    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        Ok(Schema {
            namespace: Namespace::new("schema", name)?,
            #[cfg(feature = "test-util")]
            has_test_clock: false,
        })
    }

    /// The same with a clock that a test moves.
    #[cfg(feature = "test-util")]
    pub(super) fn with_test_clock(self, has_test_clock: bool) -> Self {
        Schema {
            has_test_clock,
            ..self
        }
    }

    #[cfg(feature = "test-util")]
    pub(super) fn has_test_clock(&self) -> bool {
        self.has_test_clock
    }

    pub(super) fn name(&self) -> &str {
        self.namespace.name()
    }

    /// Puts the name of the schema in the place of `tourbillon` in a statement.
    pub(super) fn fill<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        #[cfg(feature = "test-util")]
        if self.has_test_clock {
            let mut sql = sql.to_owned();
            for clock in ["clock_timestamp()", "statement_timestamp()"] {
                sql = sql.replace(clock, "tourbillon.test_time()");
            }
            return Cow::Owned(self.namespace.fill(&sql, &FORMS).into_owned());
        }
        self.namespace.fill(sql, &FORMS)
    }
}

/// Checks the server and the tables, and returns their identity. The first connection, which knows
/// none, makes the tables if there are none and `create` says so. A later one never does: a backup may be about to be
/// restored there.
pub(super) async fn check(
    client: &Client,
    schema: &Schema,
    known: Option<&i64>,
    create: bool,
) -> Result<i64, StoreError> {
    check_server(client).await.map_err(of_connection)?;
    if !exists(client, schema).await? {
        if known.is_some() {
            return Err(StoreError::Replaced(format!(
                "the database has no tables of timers any more in the schema {}: it was made anew, or \
                 another server answers; {REMEDY}",
                schema.name()
            )));
        }
        if !create {
            return Err(StoreError::Refused(format!(
                "the database has no tables of timers in the schema {}: is it the right database, and \
                 the right schema?",
                schema.name()
            )));
        }
        let made = make(client, schema).await;
        if made.is_err() {
            // The transaction may still be open. Whatever this answers, the connection is dropped.
            let _ = client.batch_execute("rollback").await;
        }
        made?;
    }
    #[cfg(feature = "test-util")]
    check_test_clock(client, schema).await?;
    let asked = schema.fill("select version, oldest_ok, identity from tourbillon.meta");
    let row = client.query_one(&*asked, &[]).await.map_err(failed)?;
    check_version(row.get(0), row.get(1))?;
    let identity = row.get(2);
    if known.is_some_and(|known| *known != identity) {
        return Err(replaced());
    }
    if known.is_none() {
        check_columns(client, schema).await?;
    }
    check_grants(client, schema).await?;
    Ok(identity)
}

/// Refuses tables whose clock is the server's to a test that wants to move it.
#[cfg(feature = "test-util")]
async fn check_test_clock(client: &Client, schema: &Schema) -> Result<(), StoreError> {
    let asked = "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                 where n.nspname = $1 and c.relname = 'test_clock')";
    let row = match schema.has_test_clock() {
        true => client.query_one(asked, &[&schema.name()]).await,
        false => return Ok(()),
    };
    let row = row.map_err(failed)?;
    match row.get(0) {
        true => Ok(()),
        false => Err(StoreError::Refused(format!(
            "the tables in the schema {} go by the server's clock, which no test can move: name a schema \
             that is the test's own",
            schema.name()
        ))),
    }
}

/// Refuses tables that a version made before the first release, which have the number of this one.
async fn check_columns(client: &Client, schema: &Schema) -> Result<(), StoreError> {
    // The server looks for the columns, and reads no row.
    let prepared = client.prepare(&schema.fill(COLUMNS)).await;
    prepared.map(drop).map_err(|error| match error.code().map(|code| code.code()) {
        Some("42703" | "42P01") => StoreError::Refused(format!(
            "{}: the tables in the schema {} were made by an earlier version of tourbillon-durable; make \
             them anew, in another schema or after you have dropped this one",
            message(&error),
            schema.name()
        )),
        _ => failed(error),
    })
}

/// The tables are other ones than before.
pub(super) fn replaced() -> StoreError {
    StoreError::Replaced(format!(
        "the tables of the timers were made anew, or are those of another database; {REMEDY}"
    ))
}

fn check_version(version: i32, oldest_ok: i32) -> Result<(), StoreError> {
    if oldest_ok > VERSION {
        return Err(StoreError::Refused(format!(
            "the tables of tourbillon have the version {version} and admit programs that know version \
             {oldest_ok} or later, and this one knows version {VERSION}: use a newer version of \
             tourbillon-durable"
        )));
    }
    if version < 1 {
        return Err(StoreError::Refused(format!(
            "the tables of tourbillon have the version {version}, which never existed"
        )));
    }
    Ok(())
}

/// Whether the tables are there.
pub(super) async fn exists(client: &Client, schema: &Schema) -> Result<bool, StoreError> {
    // Read from the catalog: naming a table needs rights on its schema.
    let asked = "select has_schema_privilege(n.oid, 'usage'), exists (select from pg_class c \
                 where c.relnamespace = n.oid and c.relname = 'meta') \
                 from pg_namespace n where n.nspname = $1";
    let Some(row) = client
        .query_opt(asked, &[&schema.name()])
        .await
        .map_err(failed)?
    else {
        return Ok(false);
    };
    let (usable, there): (bool, bool) = (row.get(0), row.get(1));
    match usable {
        true => Ok(there),
        false => Err(StoreError::Refused(format!(
            "permission denied for the schema {}: {GRANTS}",
            schema.name()
        ))),
    }
}

/// Makes the tables. Of several programs that start at one time, one makes them.
async fn make(client: &Client, schema: &Schema) -> Result<(), StoreError> {
    // Each schema has a lock of its own, far from the small numbers that people use.
    let begin = format!(
        "begin; set local lock_timeout = '10s'; set local statement_timeout = '{}s'; \
         select pg_advisory_xact_lock(hashtextextended('{}', 8389759083399439212))",
        LIMIT.as_secs(),
        schema.name()
    );
    client.batch_execute(&begin).await.map_err(failed)?;
    if !exists(client, schema).await? {
        let asked = "select exists (select from pg_namespace where nspname = $1)";
        let row = client.query_one(asked, &[&schema.name()]).await;
        let row = row.map_err(failed)?;
        let has_schema: bool = row.get(0);
        if !has_schema {
            let create = schema.fill("create schema tourbillon");
            client.batch_execute(&create).await.map_err(not_made)?;
        }
        #[cfg(feature = "test-util")]
        if schema.has_test_clock() {
            let made = client.batch_execute(&schema.fill(TEST_CLOCK)).await;
            made.map_err(not_made)?;
        }
        for sql in [TABLES, FUNCTIONS] {
            let made = client.batch_execute(&schema.fill(sql)).await;
            made.map_err(not_made)?;
        }
    }
    client.batch_execute("commit").await.map_err(failed)
}

async fn check_grants(client: &Client, schema: &Schema) -> Result<(), StoreError> {
    let asked = schema.fill(
        "select string_agg(g.name || ' on tourbillon.' || g.on_what, ', ') from ( \
                 select p.name, t.on_what, has_table_privilege('tourbillon.' || t.on_what, p.name) as has \
                 from unnest(array['timer', 'dead', 'node', 'queue']) t(on_what) \
                 cross join unnest(array['select', 'insert', 'update', 'delete']) p(name)) g \
                 where not g.has",
    );
    let row = client.query_one(&*asked, &[]).await.map_err(failed)?;
    let missing: Option<String> = row.get(0);
    match missing {
        None => Ok(()),
        Some(missing) => Err(StoreError::Refused(format!(
            "the role has no {missing}: {GRANTS}"
        ))),
    }
}

/// An error of the server that says whether the same call may succeed later.
#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
fn failed(error: Error) -> StoreError {
    match error.code() {
        Some(code) => refusal(Effect::Reads, code, message(&error)),
        None => StoreError::Unavailable(message(&error)),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
fn not_made(error: Error) -> StoreError {
    match error.code().map(|code| code.code()) {
        Some("42501") => StoreError::Refused(format!(
            "{}: the tables of tourbillon are not there, and the role may not make them; connect once \
             with a role that may create a schema, or run `Postgres::SCHEMA`",
            message(&error)
        )),
        _ => failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_tables_are_used_while_they_admit_this_version() {
        assert!(check_version(1, 1).is_ok());
        assert!(check_version(5, 1).is_ok());
        let refused = check_version(5, 2).expect_err("version 2 is needed");
        assert!(refused.to_string().contains("newer version"), "{refused}");
    }
}
