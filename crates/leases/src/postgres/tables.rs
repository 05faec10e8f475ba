//! The tables and functions in the database: made when there are none, and checked by every
//! connection.

use std::borrow::Cow;
use std::time::Duration;

use tourbillon_postgres::check_server;
use tourbillon_postgres::tokio_postgres::types::{ToSql, Type};
use tourbillon_postgres::tokio_postgres::{Client, Error, Row};

use super::failure::{STANDBY, no_usage, of_answer, of_connection, shown};
use crate::store::StoreError;
use crate::sync::Mutex;

/// The version of the tables that this version of the crate makes and knows.
const SCHEMA_VERSION: i32 = 1;

/// The schema unless an option names another one. All statements of the crate are written for it.
pub(super) const DEFAULT: &str = "tourbillon_leases";

/// The longest name of a schema. With it a channel has a name that fits, too.
const LONGEST: usize = 48;

const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = include_str!("functions.sql");

/// How long a connection may take to make and check the tables.
pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(30);

/// A value and its type.
type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

/// The schema of a store, whose name no quotes and no case can change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Schema(String);

impl Schema {
    /// Checks the name, and returns why it can't be used.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let is_good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let why = if name.is_empty() || name.len() > LONGEST {
            format!("has {} bytes: choose one of 1 to {LONGEST}", name.len())
        } else if !name.bytes().all(is_good) || name.as_bytes()[0].is_ascii_digit() {
            "may have the letters a to z, digits and underscores alone, and no digit in front"
                .to_owned()
        } else if name.starts_with("pg_") || name == "information_schema" {
            "belongs to the database itself".to_owned()
        } else {
            return Ok(Schema(name.to_owned()));
        };
        Err(why)
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Puts the name in the place of [`DEFAULT`] in a statement: before a dot, in a text of its own,
    /// and where a schema is made. Some names are words of SQL, so they are quoted.
    pub(super) fn fill<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        if self.0 == DEFAULT {
            return Cow::Borrowed(sql);
        }
        let places = [
            (format!("{DEFAULT}."), format!("\"{}\".", self.0)),
            (format!("'{DEFAULT}'"), format!("'{}'", self.0)),
            (
                format!("schema {DEFAULT}"),
                format!("schema \"{}\"", self.0),
            ),
            (
                format!("exists {DEFAULT}"),
                format!("exists \"{}\"", self.0),
            ),
        ];
        let fill = |sql: String, (from, to): &(String, String)| sql.replace(from, to);
        Cow::Owned(places.iter().fold(sql.to_owned(), fill))
    }

    /// All statements that make the tables and functions.
    pub(super) fn statements(&self) -> String {
        let create = self.fill("create schema if not exists tourbillon_leases;\n\n");
        [create, self.fill(TABLES), "\n".into(), self.fill(FUNCTIONS)].concat()
    }
}

/// What each connection checks.
pub(super) struct Tables {
    pub(super) schema: Schema,
    /// The longest lease of the store, in us.
    pub(super) longest: i64,
    /// Whether the first connection makes the tables if there are none.
    pub(super) create: bool,
    /// Whether no server ever lacks a commit.
    pub(super) durable: bool,
    /// By what the process knows the tables again, once a connection has seen them.
    identity: Mutex<Option<i64>>,
}

impl Tables {
    pub(super) fn new(schema: Schema, longest: i64, create: bool, durable: bool) -> Self {
        Tables {
            schema,
            longest,
            create,
            durable,
            identity: Mutex::new(None),
        }
    }

    /// Checks the server and the tables, which are made if there are none. If they are those of
    /// another server than before, or other ones than this process knows, nothing is granted from
    /// now on for the longest lease.
    pub(super) async fn check(&self, client: &Client) -> Result<(), StoreError> {
        // First, since it may be a primary soon.
        let row = one(client, "select pg_is_in_recovery()", &[]).await?;
        if row.is_some_and(|row| row.get(0)) {
            return Err(StoreError::Unavailable(STANDBY.to_owned()));
        }
        check_server(client).await.map_err(of_connection)?;
        if !self.exist(client).await? {
            self.make(client).await?;
        }
        // A grant must outlive a crash. So the session keeps this value if somebody changes that of the
        // server. Without standbys `local` and `on` are the same.
        let asked = "select m.version, m.oldest_ok, set_config('synchronous_commit', \
                     case when s.found = 'off' or s.found = 'local' and $1 then 'on' else s.found end, \
                     false) \
                     from tourbillon_leases.meta m, current_setting('synchronous_commit') s (found)";
        let values: [Typed<'_>; 1] = [(&self.durable, Type::BOOL)];
        let row = one(client, &self.schema.fill(asked), &values).await?;
        let row = row.ok_or_else(|| no_row(self.schema.name()))?;
        check_version(row.get(0), row.get(1))?;
        let known = *self.identity.lock();
        let mut found = self.open(client, false).await?;
        if known.is_some_and(|known| known != found) {
            found = self.open(client, true).await?;
        }
        *self.identity.lock() = Some(found);
        Ok(())
    }

    async fn open(&self, client: &Client, lost: bool) -> Result<i64, StoreError> {
        let open = self.schema.fill("select tourbillon_leases.open_1($1, $2)");
        let values: [Typed<'_>; 2] = [(&self.longest, Type::INT8), (&lost, Type::BOOL)];
        let row = one(client, &open, &values).await?;
        Ok(row.ok_or_else(|| no_row(self.schema.name()))?.get(0))
    }

    /// Whether the tables are there. It reads the catalog: naming a table needs rights on its schema.
    async fn exist(&self, client: &Client) -> Result<bool, StoreError> {
        let asked = "select has_schema_privilege(n.oid, 'usage'), exists (select from pg_class c \
                     where c.relnamespace = n.oid and c.relname = 'meta') \
                     from pg_namespace n where n.nspname = $1";
        let name = self.schema.name();
        let Some(row) = one(client, asked, &[(&name, Type::TEXT)]).await? else {
            return Ok(false);
        };
        match (row.get(0), row.get(1)) {
            (true, there) => Ok(there),
            (false, _) => Err(no_usage(self.schema.name())),
        }
    }

    /// Makes the tables. Of several programs that start at one time, one makes them.
    async fn make(&self, client: &Client) -> Result<(), StoreError> {
        let name = self.schema.name();
        // A backup may be about to be restored there.
        if self.identity.lock().is_some() {
            return Err(StoreError::Unavailable(format!(
                "the tables of the leases in the schema {name} are gone, or another server answers: \
                 restore them, or make them by starting a program anew"
            )));
        }
        if !self.create {
            return Err(StoreError::Refused(format!(
                "the database has no tables of leases in the schema {name}: is it the right database, \
                 and the right schema?"
            )));
        }
        let made = self.make_in_transaction(client).await;
        if made.is_err() {
            // The transaction may still be open. Whatever this answers, the connection is dropped.
            let _ = client.batch_execute("rollback").await;
        }
        made
    }

    async fn make_in_transaction(&self, client: &Client) -> Result<(), StoreError> {
        let name = self.schema.name();
        // Each schema has a lock of its own, far from the small numbers that people use.
        let begin = format!(
            "begin; set local lock_timeout = '10s'; set local statement_timeout = '{}s'; \
             select pg_advisory_xact_lock(hashtextextended('{name}', 4611907723819384751))",
            CHECK_LIMIT.as_secs(),
        );
        client.batch_execute(&begin).await.map_err(of_answer)?;
        if !self.exist(client).await? {
            let asked = "select exists (select from pg_namespace where nspname = $1)";
            let row = client.query_one(asked, &[&name]).await.map_err(of_answer)?;
            let has_schema: bool = row.get(0);
            let create = match has_schema {
                true => Cow::Borrowed(""),
                false => self.schema.fill("create schema tourbillon_leases"),
            };
            for sql in [
                create,
                self.schema.fill(TABLES),
                self.schema.fill(FUNCTIONS),
            ] {
                let made = client.batch_execute(&sql).await;
                made.map_err(not_made)?;
            }
        }
        client.batch_execute("commit").await.map_err(of_answer)
    }
}

/// The first row of a statement that is not prepared: that takes one round trip in the place of two.
async fn one(client: &Client, sql: &str, values: &[Typed<'_>]) -> Result<Option<Row>, StoreError> {
    let rows = client.query_typed(sql, values).await.map_err(of_answer)?;
    Ok(rows.into_iter().next())
}

/// Somebody has emptied a table that is never empty.
fn no_row(schema: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "the table meta in the schema {schema} is empty: restore it, or drop the schema and start a \
         program anew"
    ))
}

fn check_version(version: i32, oldest_ok: i32) -> Result<(), StoreError> {
    if oldest_ok > SCHEMA_VERSION {
        return Err(StoreError::Refused(format!(
            "the tables of the leases have the version {version} and admit programs that know version \
             {oldest_ok} or later, and this one knows version {SCHEMA_VERSION}: use a newer version of \
             tourbillon-leases"
        )));
    }
    if version < 1 {
        return Err(StoreError::Refused(format!(
            "the tables of the leases have the version {version}, which never existed"
        )));
    }
    Ok(())
}

fn not_made(error: Error) -> StoreError {
    match error.code().map(|code| code.code()) {
        Some("42501") => StoreError::Refused(format!(
            "{}: the tables of the leases are not there, and the role may not make them; connect once \
             with a role that may create a schema, or run what `PostgresStore::tables_sql` returns",
            shown(&error)
        )),
        _ => of_answer(error),
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
        assert!(check_version(0, 0).is_err());
    }

    #[test]
    fn names_that_quotes_or_case_would_change_are_refused() {
        let long = "x".repeat(LONGEST);
        for good in [DEFAULT, "shop", "_", "a1", "order", &long] {
            assert!(Schema::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(LONGEST + 1);
        for bad in [
            "", "1a", "Shop", "a-b", "a b", "a.b", "a\"b", "a'b", "a\0", "ä", "pg_x", &long,
        ] {
            assert!(Schema::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn another_name_is_put_wherever_the_schema_is_named() {
        let sql = Schema::new("order").expect("a name").statements();
        assert!(!sql.contains(DEFAULT), "{sql}");
        assert!(
            sql.contains("create schema if not exists \"order\";"),
            "{sql}"
        );
        assert!(sql.contains("perform pg_notify('order', "), "{sql}");
        let usual = Schema::new(DEFAULT).expect("a name").statements();
        assert!(
            usual.contains("create table tourbillon_leases.lease ("),
            "{usual}"
        );
    }
}
