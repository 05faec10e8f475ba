//! The connections for calls. Each carries any number of calls at a time, which the server answers
//! in their order. They are opened when they are needed.
//!
//! Renewals, and batches of releases in the background, have a connection of their own: a batch of
//! some thousand acquires must not delay them.
//!
//! - **LINE-1** A call without an answer at its limit gives its connection up, if nothing was
//!   answered on it since the call was sent, and at least half of its limit was left then. So a
//!   dead connection costs the calls that are under way on it, and no later ones. A connection that has
//!   just been made is not given up too soon. A call that is dropped at its limit counts, too.
//! - **LINE-2** Whoever waits for a connection gets the failure of the attempt that was under way. So
//!   many callers do not make many attempts, one after the other. After a failure that may pass, the
//!   next attempt begins after a pause.

use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};
use tourbillon_postgres::failure::ends_connection;
use tourbillon_postgres::tokio_postgres::types::ToSql;
use tourbillon_postgres::tokio_postgres::{Client, Error, Row, Statement};
use tourbillon_postgres::{Connector, Driven, Session};

use super::failure::{names_what_is_missing, of_answer, of_connection};
use super::statements::{STATEMENTS, Sql, WARM};
use super::tables::{CHECK_LIMIT, Schema, Tables};
use crate::remote::Limit;
use crate::store::StoreError;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, OnceLock};

/// A connection that was idle for so long is opened anew: something in between may have forgotten
/// it.
const IDLE: Duration = Duration::from_secs(60);

/// The pause after an attempt to connect that has failed.
const PAUSE: Duration = Duration::from_millis(50);

/// A value of a statement.
pub(super) type Value = Box<dyn ToSql + Sync + Send>;

/// All values of a statement.
pub(super) type Values = Vec<Value>;

/// Which calls a connection carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Renewals, and batches of releases.
    Background,
    Callers,
}

/// All connections for the calls of a store.
pub(super) struct Lines {
    pub(super) connector: Connector,
    pub(super) tables: Tables,
    session: Session,
    /// The first one is for the background.
    places: Vec<LinePlace>,
}

/// The place of a connection, which may not be open.
#[derive(Default)]
struct LinePlace {
    /// The number of calls that are under way.
    busy: AtomicUsize,
    state: AsyncMutex<LineState>,
}

#[derive(Default)]
struct LineState {
    line: Option<Arc<Line>>,
    /// When the last attempt to connect has failed, and why.
    failed: Option<(Instant, StoreError)>,
}

impl LineState {
    /// Returns the connection if it can be used.
    fn usable(&self) -> Option<Arc<Line>> {
        self.line.as_ref().filter(|line| line.is_usable()).cloned()
    }
}

/// Counts a call while it is under way.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn of(place: &'a LinePlace) -> Self {
        // Relaxed: the number only spreads the calls. One of them runs at a time.
        place.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&place.busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Relaxed: as above.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lines {
    pub(super) fn new(
        connector: Connector,
        tables: Tables,
        session: Session,
        connections: usize,
    ) -> Self {
        Lines {
            connector,
            tables,
            session,
            places: (0..=connections).map(|_| LinePlace::default()).collect(),
        }
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.tables.schema
    }

    /// The settings of the sessions.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Makes a call.
    pub(super) async fn call(
        self: &Arc<Self>,
        purpose: Purpose,
        limit: Limit,
        sql: Sql,
        values: Values,
    ) -> Result<Vec<Row>, StoreError> {
        if limit.is_near() {
            return Err(StoreError::unanswered(limit.whole()));
        }
        let place = self.choose(purpose);
        let _busy = Busy::of(&self.places[place]);
        let line = self.line(place, limit).await?;
        if limit.is_near() {
            return Err(StoreError::unanswered(limit.whole()));
        }
        let asked = Asked::of(&line, limit);
        let answer = timeout(limit.left(), line.ask(sql, self.schema(), &values)).await;
        drop(asked);
        match answer {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                let is_over = |code| ends_connection(code) || names_what_is_missing(code);
                if error.code().is_none_or(is_over) {
                    line.give_up();
                }
                Err(of_answer(error))
            }
            Err(_) => Err(StoreError::unanswered(limit.whole())),
        }
    }

    /// The place with the fewest calls. Without many calls at a time it is always the same one.
    fn choose(&self, purpose: Purpose) -> usize {
        // Relaxed: as in `Busy`.
        let busy = |at: &usize| self.places[*at].busy.load(Ordering::Relaxed);
        match purpose {
            Purpose::Background => 0,
            Purpose::Callers => (1..self.places.len()).min_by_key(busy).unwrap_or(0),
        }
    }

    /// Returns an open connection.
    async fn line(self: &Arc<Self>, at: usize, limit: Limit) -> Result<Arc<Line>, StoreError> {
        if let Ok(state) = self.places[at].state.try_lock()
            && let Some(line) = state.usable()
        {
            return Ok(line);
        }
        // A task of its own: a call with a short limit must not end an attempt that takes longer.
        let (lines, asked) = (Arc::clone(self), Instant::now());
        let connect = tokio::spawn(async move { lines.connected(at, asked, limit).await });
        match timeout(limit.left(), connect).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_)) => Err(StoreError::Unavailable(
                "the attempt to connect has panicked".to_owned(),
            )),
            Err(_) => Err(StoreError::Unavailable(format!(
                "no connection within {:?}",
                limit.whole()
            ))),
        }
    }

    /// Waits for its turn to connect, and connects.
    async fn connected(
        &self,
        at: usize,
        asked: Instant,
        limit: Limit,
    ) -> Result<Arc<Line>, StoreError> {
        let mut state = self.places[at].state.lock().await;
        if let Some(line) = state.usable() {
            return Ok(line);
        }
        match &state.failed {
            // LINE-2
            Some((at, error)) if *at >= asked || error.may_pass() && at.elapsed() < PAUSE => {
                return Err(error.clone());
            }
            _ if limit.is_near() => return Err(StoreError::unanswered(limit.whole())),
            _ => {}
        }
        state.line = None;
        match self.open().await {
            Ok(line) => {
                let line = Arc::new(line);
                state.line = Some(Arc::clone(&line));
                Ok(line)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Line, StoreError> {
        let opened = self.connector.open(&self.session, "", |_, _| ()).await;
        let (client, driven) = opened.map_err(of_connection)?;
        let line = Line::new(client, driven);
        let ready = async {
            self.tables.check(&line.client).await?;
            let warm = line.client.batch_execute(&self.schema().fill(WARM)).await;
            // A role that may only read is no error here. Each call reports the right that it lacks.
            match warm {
                Err(error) if error.code().is_none() => Err(of_answer(error)),
                _ => Ok(()),
            }
        };
        match timeout(CHECK_LIMIT, ready).await {
            Ok(checked) => checked.map(|()| line),
            Err(_) => Err(StoreError::Unavailable(format!(
                "a new connection could not be checked within {CHECK_LIMIT:?}"
            ))),
        }
    }
}

/// A call that was sent. If this is dropped at its limit, it may give its connection up (LINE-1).
struct Asked<'a> {
    line: &'a Line,
    /// The number of answers before.
    answered: u64,
    limit: Limit,
    had_time: bool,
}

impl<'a> Asked<'a> {
    fn of(line: &'a Line, limit: Limit) -> Self {
        Asked {
            line,
            // Relaxed, here and below: the runtime runs one call at a time.
            answered: line.answered.load(Ordering::Relaxed),
            limit,
            had_time: limit.left() >= limit.whole() / 2,
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // Relaxed: as above.
        let is_silent = self.line.answered.load(Ordering::Relaxed) == self.answered;
        if is_silent && self.had_time && self.limit.is_near() {
            self.line.give_up();
        }
    }
}

/// An open connection with its prepared statements.
struct Line {
    client: Client,
    /// The drop ends the connection.
    driven: Mutex<Option<Driven>>,
    statements: [OnceLock<Statement>; STATEMENTS],
    /// The number of answers.
    answered: AtomicU64,
    is_given_up: AtomicBool,
    used: Mutex<Instant>,
}

impl Line {
    fn new(client: Client, driven: Driven) -> Self {
        Line {
            client,
            driven: Mutex::new(Some(driven)),
            statements: [const { OnceLock::new() }; STATEMENTS],
            answered: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
        }
    }

    fn is_usable(&self) -> bool {
        // Relaxed: the runtime runs one call at a time.
        !self.is_given_up.load(Ordering::Relaxed)
            && !self.client.is_closed()
            && self.used.lock().elapsed() < IDLE
    }

    /// Closes the connection, whatever else is under way on it.
    fn give_up(&self) {
        // Relaxed: as above.
        self.is_given_up.store(true, Ordering::Relaxed);
        drop(self.driven.lock().take());
    }

    async fn ask(&self, mut sql: Sql, schema: &Schema, values: &Values) -> Result<Vec<Row>, Error> {
        let answer = loop {
            *self.used.lock() = Instant::now();
            let answer = self.ask_prepared(sql, schema, values).await;
            let error = answer.as_ref().err();
            if error.is_none_or(|error| error.code().is_some()) {
                // Relaxed: as above.
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            let error = error.and_then(Error::as_db_error);
            match error.and_then(|error| sql.after(error)) {
                Some(again) => sql = again,
                None => break answer,
            }
        };
        *self.used.lock() = Instant::now();
        answer
    }

    async fn ask_prepared(
        &self,
        sql: Sql,
        schema: &Schema,
        values: &Values,
    ) -> Result<Vec<Row>, Error> {
        let known = &self.statements[sql as usize];
        let statement = match known.get() {
            Some(statement) => statement.clone(),
            None => {
                let made = self.client.prepare(&schema.fill(sql.text())).await?;
                // Relaxed: as above.
                self.answered.fetch_add(1, Ordering::Relaxed);
                // Two calls may have prepared it at one time. Each uses its own.
                let _ = known.set(made.clone());
                made
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value as _).collect();
        self.client.query(&statement, &values).await
    }
}
