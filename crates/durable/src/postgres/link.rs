//! One connection to the timers: statements of this crate on the tables of a schema, and what their
//! failures mean for a store.

use std::fmt;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use tourbillon_postgres::{Connector, Effect, Open, Session};

use super::failure::{Failure, of_connection};
use super::schema::{self, Schema};
use crate::store::{Beats, REMEDY, StoreError};
use crate::sync::{Arc, OnceLock};

/// The settings that all connections of a store share.
pub(super) struct Settings {
    /// The store belongs to the process that opened it.
    pub(super) connector: Connector,
    /// Where the tables and functions are.
    pub(super) schema: Schema,
    /// The server ends a statement that takes longer.
    pub(super) statement_limit: Duration,
    /// The server ends a statement that waits longer for a lock.
    pub(super) lock_limit: Duration,
    /// The limit of the calls that read a whole table.
    pub(super) scan_limit: Duration,
    /// The identity of the tables, once a connection has seen it.
    pub(super) identity: OnceLock<i64>,
    pub(super) beats: Beats,
    /// Whether timers that are due soon are announced by `NOTIFY`.
    pub(super) notify: bool,
    /// Whether nodes listen to these announcements.
    pub(super) listen: bool,
    /// Whether the first connection makes the tables if there are none.
    pub(super) create_tables: bool,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the configuration's password.
        f.debug_struct("Settings")
            .field("hosts", &self.connector.hosts())
            .field("database", &self.connector.database())
            .field("schema", &self.schema.name())
            .field("statement_limit", &self.statement_limit)
            .field("lock_limit", &self.lock_limit)
            .field("scan_limit", &self.scan_limit)
            .field("notify", &self.notify)
            .field("listen", &self.listen)
            .finish()
    }
}

/// How often a statement is sent again that the server has ended in favour of another one.
const TRIES: usize = 5;

/// A connection, which is opened when it is used and again after it was lost.
pub(super) struct Link {
    settings: Arc<Settings>,
    link: tourbillon_postgres::Link,
}

impl Link {
    /// Connects, and checks the server and the tables. They are created if there are none.
    pub(super) fn connect(settings: Arc<Settings>) -> Result<Self, StoreError> {
        let session = session(&settings);
        let link = tourbillon_postgres::Link::new(settings.connector.clone(), session);
        let mut link = Link {
            link: link.map_err(of_connection)?,
            settings,
        };
        link.ready()?;
        Ok(link)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs a statement, whose rows are few.
    pub(super) fn query(
        &mut self,
        effect: Effect,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let limit = self.settings.statement_limit;
        let mut tries = 1;
        loop {
            let result = self.query_once(effect, sql, values, limit);
            match result {
                Err(failure) if failure.is_conflict() && tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    /// How long a statement that users wait for may read a whole table.
    pub(super) fn scan_limit(&self) -> Duration {
        self.settings.scan_limit
    }

    /// Runs a statement that reads a whole table.
    pub(super) fn scan(
        &mut self,
        effect: Effect,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        self.batch(&format!(
            "set statement_timeout = {}; set enable_seqscan = on; set enable_hashjoin = on",
            limit.as_millis()
        ))?;
        let rows = self.query_once(effect, sql, values, limit);
        let settings = self.link.session().statements();
        self.batch(&settings)?;
        rows
    }

    /// Runs statements without values.
    fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        let limit = self.settings.statement_limit;
        self.ready()?;
        let result = self.link.batch(limit, sql);
        self.ended(Effect::Writes, result)
    }

    /// Sends a statement once: one that the server has ended in favour of another one is not sent
    /// again.
    pub(super) fn try_query(
        &mut self,
        effect: Effect,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let limit = self.settings.statement_limit;
        self.query_once(effect, sql, values, limit)
    }

    fn query_once(
        &mut self,
        effect: Effect,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        self.ready()?;
        let settings = &*self.settings;
        let identity = settings.identity.get();
        let values = &with_identity(values, &identity)[..];
        let text = || settings.schema.fill(sql);
        let result = self.link.query(effect, limit, sql, text, values);
        self.ended(effect, result)
    }

    /// Runs two statements that read, the first one without values, one after the other. The
    /// connection is not opened again between them. Both have the time of one: the next beat waits
    /// for them.
    pub(super) fn read_both(
        &mut self,
        first: &'static str,
        second: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(Vec<Row>, Vec<Row>), Failure> {
        self.ready()?;
        let settings = &*self.settings;
        let (limit, schema) = (settings.statement_limit, &settings.schema);
        let identity = settings.identity.get();
        let values = &with_identity(values, &identity)[..];
        let work = async |open: &mut Open| {
            let a = open.prepare(first, || schema.fill(first)).await?;
            let b = open.prepare(second, || schema.fill(second)).await?;
            let both = (
                open.client().query(&a, &[]).await?,
                open.client().query(&b, values).await?,
            );
            Ok::<_, tokio_postgres::Error>(both)
        };
        let result = self.link.run(Effect::Reads, limit, work);
        self.ended(Effect::Reads, result)
    }

    /// Opens the connection again if it has ended while nobody used it.
    fn ready(&mut self) -> Result<(), Failure> {
        let settings = &*self.settings;
        self.link.ready(schema::LIMIT, async |client: &Client| {
            let checked = check(client, settings).await;
            checked.map_err(Failure::of)
        })
    }

    /// Whether the tables are gone that were there when the connection was made.
    fn are_removed(&self) -> bool {
        let schema = &self.settings.schema;
        let asked = self.link.ask(schema::LIMIT, async |client: &Client| {
            schema::exists(client, schema).await
        });
        matches!(asked, Some(Ok(false)))
    }

    /// Sorts out how a call has ended.
    fn ended<T>(
        &self,
        effect: Effect,
        result: Result<T, tourbillon_postgres::Failure>,
    ) -> Result<T, Failure> {
        result.map_err(|failure| {
            let why = failure.answer().map(tourbillon_postgres::failure::message);
            let mut failure = Failure::of_statement(effect, failure, self.settings.schema.name());
            // Something else may be missing: one table of several, or one that a trigger of the
            // user's names.
            if let Some(why) = why
                && failure.names_what_is_missing()
                && self.are_removed()
            {
                failure.error = StoreError::Replaced(format!(
                    "{why}: the tables of the timers were removed; {REMEDY}"
                ));
            }
            failure
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("settings", &self.settings)
            .field("open", &self.link.is_open())
            .finish_non_exhaustive()
    }
}

/// Checks the server and the tables on a new connection.
async fn check(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let (known, create) = (settings.identity.get(), settings.create_tables);
    let check = schema::check(client, &settings.schema, known, create);
    let Ok(checked) = timeout(schema::LIMIT, check).await else {
        let why = format!("the tables could not be checked within {:?}", schema::LIMIT);
        return Err(StoreError::Unavailable(why));
    };
    let found = checked?;
    // Several connections may be the first one at the same time.
    match *settings.identity.get_or_init(|| found) == found {
        true => Ok(()),
        false => Err(schema::replaced()),
    }
}

/// The values of a statement, with the identity of the tables as the last one.
fn with_identity<'a>(
    values: &[&'a (dyn ToSql + Sync)],
    identity: &'a Option<&i64>,
) -> Vec<&'a (dyn ToSql + Sync)> {
    let mut all = values.to_vec();
    all.push(identity);
    all
}

/// The settings of a session. Every statement of the crate goes by an index, so the planner is kept
/// from reading tables as a whole while it has no statistics.
fn session(settings: &Settings) -> Session {
    Session::usual(settings.statement_limit, settings.lock_limit).and([
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("max_parallel_workers_per_gather", "0"),
    ])
}
