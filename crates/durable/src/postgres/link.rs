//! One connection to a server: blocking calls with time limits, reconnects, and errors of the
//! server as those of a store.
//!
//! The client is an asynchronous one, driven by a runtime of the connection's own on the thread
//! that makes the call. So a call can end when the server does not answer any more. It must not be
//! made on a thread of another runtime.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::failure::{Effect, Failure, ends_connection, is_of_key, lost, message, refusal};
use super::hosts::Hosts;
use super::schema::{self, Schema};
use super::session::Session;
use crate::store::{Beats, REMEDY, StoreError};
use crate::sync::{Arc, OnceLock, Origin};

/// The settings that all connections of a store share.
pub(super) struct Settings {
    /// The store belongs to the process that opened it.
    pub(super) origin: Origin,
    pub(super) hosts: Hosts,
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
            .field("hosts", &self.hosts.names())
            .field("database", &self.hosts.database())
            .field("schema", &self.schema.name())
            .field("statement_limit", &self.statement_limit)
            .field("lock_limit", &self.lock_limit)
            .field("scan_limit", &self.scan_limit)
            .field("notify", &self.notify)
            .field("listen", &self.listen)
            .finish()
    }
}

/// How long the answer may take beyond the limit of the server, before the connection is given up.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How often a statement is sent again that the server has ended in favour of another one.
const TRIES: usize = 5;

/// A connection, which is opened when it is used and again after it was lost.
pub(super) struct Link {
    settings: Arc<Settings>,
    open: Option<Open>,
    // Dropped last: the connection's task runs on it.
    runtime: Runtime,
}

struct Open {
    client: Client,
    statements: HashMap<&'static str, Statement>,
}

impl Link {
    /// Connects, and checks the server and the tables. They are created if there are none.
    pub(super) fn connect(settings: Arc<Settings>) -> Result<Self, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            StoreError::Unavailable(format!("no runtime for a connection: {error}"))
        })?;
        let mut link = Link {
            settings,
            open: None,
            runtime,
        };
        link.reopen()?;
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
        let settings = session(&self.settings).statements();
        self.batch(&settings)?;
        rows
    }

    /// Runs statements without values.
    pub(super) fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        let limit = self.settings.statement_limit + GRACE;
        self.ready()?;
        let client = &self.open()?.client;
        let work = async { tokio::time::timeout(limit, client.batch_execute(sql)).await };
        let result = self.runtime.block_on(work);
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
        let open = self.open()?;
        let identity = self.settings.identity.get();
        let values = &with_identity(values, &identity)[..];
        let known = open.statements.get(sql).cloned();
        let (client, schema) = (&open.client, &self.settings.schema);
        let work = async {
            let statement = match known {
                Some(statement) => statement,
                None => client.prepare(&schema.fill(sql)).await?,
            };
            let rows = client.query(&statement, values).await?;
            Ok::<_, Error>((statement, rows))
        };
        let limited = async { tokio::time::timeout(limit + GRACE, work).await };
        let result = self.runtime.block_on(limited);
        let (statement, rows) = self.ended(effect, result)?;
        if let Some(open) = &mut self.open {
            open.statements.insert(sql, statement);
        }
        Ok(rows)
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
        let limit = self.settings.statement_limit;
        self.ready()?;
        let open = self.open()?;
        let identity = self.settings.identity.get();
        let values = &with_identity(values, &identity)[..];
        let known = [first, second].map(|sql| open.statements.get(sql).cloned());
        let (client, schema) = (&open.client, &self.settings.schema);
        let work = async {
            let [a, b] = known;
            let a = match a {
                Some(statement) => statement,
                None => client.prepare(&schema.fill(first)).await?,
            };
            let b = match b {
                Some(statement) => statement,
                None => client.prepare(&schema.fill(second)).await?,
            };
            let both = (
                client.query(&a, &[]).await?,
                client.query(&b, values).await?,
            );
            Ok::<_, Error>((a, b, both))
        };
        let limited = async { tokio::time::timeout(limit + GRACE, work).await };
        let result = self.runtime.block_on(limited);
        let (a, b, both) = self.ended(Effect::Reads, result)?;
        if let Some(open) = &mut self.open {
            open.statements.insert(first, a);
            open.statements.insert(second, b);
        }
        Ok(both)
    }

    /// Opens the connection again if it has ended while nobody used it.
    fn ready(&mut self) -> Result<(), Failure> {
        // The connection's task notices its end here, before anything is sent.
        self.runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        match &self.open {
            Some(open) if !open.client.is_closed() => Ok(()),
            _ => self.reopen().map_err(Failure::of),
        }
    }

    fn open(&self) -> Result<&Open, Failure> {
        self.open.as_ref().ok_or_else(|| {
            Failure::of(StoreError::Unavailable(
                "the connection has ended".to_owned(),
            ))
        })
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.open = None;
        let session = session(&self.settings);
        let connect = self.settings.hosts.connect(&session, "", |_, _| ());
        let (client, _task) = self.runtime.block_on(connect)?;
        let settings = &self.settings;
        let (known, create) = (settings.identity.get(), settings.create_tables);
        let check = schema::check(&client, &settings.schema, known, create);
        let limited = async { tokio::time::timeout(schema::LIMIT, check).await };
        match self.runtime.block_on(limited) {
            Ok(checked) => {
                let found = checked?;
                // Several connections may be the first one at the same time.
                if *self.settings.identity.get_or_init(|| found) != found {
                    return Err(schema::replaced());
                }
            }
            Err(_) => {
                let why = format!("the tables could not be checked within {:?}", schema::LIMIT);
                return Err(StoreError::Unavailable(why));
            }
        }
        self.open = Some(Open {
            client,
            statements: HashMap::new(),
        });
        Ok(())
    }

    /// Whether the tables are gone that were there when the connection was made.
    fn are_removed(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let asked = schema::exists(&open.client, &self.settings.schema);
            let limited = async { tokio::time::timeout(schema::LIMIT, asked).await };
            matches!(self.runtime.block_on(limited), Ok(Ok(false)))
        })
    }

    /// Sorts out how a call has ended, and gives up a connection that is of no more use.
    fn ended<T>(
        &mut self,
        effect: Effect,
        result: Result<Result<T, Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Failure> {
        let error = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(_) => {
                self.open = None;
                let why = "no answer within the time limit".to_owned();
                return Err(lost(effect, why));
            }
        };
        let Some(code) = error.code().cloned() else {
            self.open = None;
            return Err(lost(effect, message(&error)));
        };
        let is_taken = is_of_key(&error, self.settings.schema.name());
        let error = match code.code() {
            // Something else may be missing: one table of several, or one that a trigger of the
            // user's names.
            "3F000" | "42P01" | "42883" if self.are_removed() => {
                let why = message(&error);
                StoreError::Replaced(format!(
                    "{why}: the tables of the timers were removed; {REMEDY}"
                ))
            }
            _ => refusal(effect, &code, message(&error)),
        };
        if ends_connection(&code) {
            self.open = None;
        }
        Err(Failure {
            code: Some(code),
            is_taken,
            error,
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("settings", &self.settings)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
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
/// from reading tables as a whole while it has no statistics. Policies that hide rows are an error.
fn session(settings: &Settings) -> Session {
    let fixed = [
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
        ("default_transaction_deferrable", "off"),
        ("timezone", "UTC"),
        ("search_path", "pg_catalog, pg_temp"),
        ("row_security", "off"),
        ("client_min_messages", "warning"),
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("max_parallel_workers_per_gather", "0"),
    ];
    let limits = [
        ("statement_timeout", settings.statement_limit),
        ("lock_timeout", settings.lock_limit),
        (
            "idle_in_transaction_session_timeout",
            settings.statement_limit,
        ),
    ];
    let limits = limits.map(|(name, limit)| (name, limit.as_millis().to_string()));
    let fixed = fixed.map(|(name, value)| (name, value.to_owned()));
    Session::new(limits.into_iter().chain(fixed))
}
