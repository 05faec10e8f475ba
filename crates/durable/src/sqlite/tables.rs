//! Timers as rows of the tables, within one transaction.

use rusqlite::{CachedStatement, Connection, OptionalExtension};

use super::failure::Failure;
use super::schema::{self, Prefix};
use crate::row::{Change, Hold, Row, StoreContext, shard};
use crate::store::{Epoch, FoundRow, Meta, Payload, StoreTime, schedule};
use crate::sync::Arc;

/// The tables within one transaction, at one moment.
pub(super) struct Tables<'c> {
    connection: &'c Connection,
    prefix: &'c Prefix,
    /// The store's clock, read when the transaction had its lock or its snapshot.
    pub(super) now: StoreTime,
    /// The epochs that were asked for, and whether they are live.
    known: Vec<(Epoch, bool)>,
    /// The next generation. The first one of a transaction is random, since a counter in the file
    /// could be behind the rows that are there, in a copy of the file or of the rows.
    generation: i64,
}

/// The values of a row before a change. Only columns with another value are written.
#[derive(Clone, Copy)]
pub(super) struct Before {
    /// Where the row lies in the table.
    id: i64,
    due: StoreTime,
    planned: StoreTime,
    generation: i64,
    cancelled: bool,
    follows: bool,
    /// Whether all columns are to be written.
    whole: bool,
}

impl Before {
    fn new(id: i64, row: &Row) -> Self {
        Before {
            id,
            due: row.due,
            planned: row.planned,
            generation: row.generation,
            cancelled: row.cancelled,
            follows: row.follows,
            whole: false,
        }
    }

    /// For a change of what the timer carries within its generation.
    pub(super) fn whole(self) -> Self {
        Before {
            whole: true,
            ..self
        }
    }

    /// Whether the row differs from this one in its run at most. Within a generation the payload
    /// stays, unless another timer follows the run.
    fn differs_in_run_only(&self, row: &Row) -> bool {
        !self.whole
            && self.due == row.due
            && self.planned == row.planned
            && self.generation == row.generation
            && self.cancelled == row.cancelled
            && !self.follows
            && !row.follows
    }
}

const READ: &str = "
select rowid, shard, due, planned, generation, attempt, fails, crashes, claim, since, cancelled, follows, payload, meta
from tourbillon_timer where queue = ?1 and key = ?2";

const INSERT: &str = "
insert into tourbillon_timer(queue, key, shard, due, planned, generation, attempt, fails, crashes,
    claim, since, cancelled, follows, payload, meta)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

const UPDATE: &str = "
update tourbillon_timer
set shard = ?2, due = ?3, planned = ?4, generation = ?5, attempt = ?6, fails = ?7, crashes = ?8,
    claim = ?9, since = ?10, cancelled = ?11, follows = ?12, payload = ?13, meta = ?14
where rowid = ?1";

/// It leaves the index of due times alone.
const UPDATE_RUN: &str = "
update tourbillon_timer
set attempt = ?2, fails = ?3, crashes = ?4, claim = ?5, since = ?6
where rowid = ?1";

const DELETE: &str = "delete from tourbillon_timer where rowid = ?1";

const BURY: &str = "
insert into tourbillon_dead(queue, key, planned, at, attempt, fails, crashes, error, payload, meta, shard)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

const IS_LIVE: &str = "select 1 from tourbillon_node where epoch = ?1 and gone is null";

impl<'c> Tables<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        prefix: &'c Prefix,
        meta: &schema::MetaRow,
        now: StoreTime,
    ) -> Self {
        Tables {
            connection,
            prefix,
            now,
            known: Vec::new(),
            generation: meta.random,
        }
    }

    /// Reads a row. Whether its holder is live is known afterwards.
    pub(super) fn row(&mut self, queue: &str, key: &str) -> Result<Option<(Before, Row)>, Failure> {
        let mut statement = self.prepare(READ)?;
        let found = statement.query_row((queue, key), |row| Ok((row.get(0)?, from_sql(row)?)));
        let Some((id, row)) = found.optional()? else {
            return Ok(None);
        };
        if let Some(hold) = row.claim {
            self.is_live(hold.epoch)?;
        }
        Ok(Some((Before::new(id, &row), row)))
    }

    /// Whether a claim of this epoch is live.
    pub(super) fn is_live(&mut self, epoch: Epoch) -> Result<bool, Failure> {
        if let Some((_, live)) = self.known.iter().find(|(known, _)| *known == epoch) {
            return Ok(*live);
        }
        let live = self.prepare(IS_LIVE)?.exists([epoch.0])?;
        self.known.push((epoch, live));
        Ok(live)
    }

    /// Whether a node is in the table, gone or not.
    pub(super) fn node(&self, epoch: Epoch) -> Result<Option<FoundRow>, Failure> {
        let sql = "select beat, gone is not null from tourbillon_node where epoch = ?1";
        let row = self.prepare(sql)?.query_row([epoch.0], |row| {
            Ok(FoundRow {
                beat: row.get(0)?,
                gone: row.get(1)?,
            })
        });
        Ok(row.optional()?)
    }

    /// Returns a statement of the connection's cache.
    pub(super) fn prepare(&self, sql: &str) -> Result<CachedStatement<'c>, rusqlite::Error> {
        self.connection.prepare_cached(&self.prefix.fill(sql))
    }

    /// Lets one of the functions of [`row`](crate::row) decide. Epochs of rows that were read are
    /// known.
    pub(super) fn decide<T>(&mut self, decide: impl FnOnce(&mut StoreContext<'_>) -> T) -> T {
        let known = &self.known;
        let next = &mut self.generation;
        let mut context = StoreContext {
            now: self.now,
            is_live: &|epoch| known.contains(&(epoch, true)),
            generation: &mut || {
                *next = next.wrapping_add(1) & i64::MAX;
                *next
            },
        };
        decide(&mut context)
    }

    /// Writes a change to the row of a key.
    pub(super) fn change(
        &self,
        queue: &str,
        key: &str,
        before: Option<Before>,
        change: &Change,
    ) -> Result<(), rusqlite::Error> {
        match (change, before) {
            (Change::Put(row), Some(before)) => self.update(before, row),
            (Change::Put(row), None) => self.insert(queue, key, row),
            (Change::Delete, Some(before)) => self.delete(before),
            (Change::Bury(row, error), before) => {
                self.bury(queue, key, row, row.payload.meta.as_ref(), error)?;
                before.map_or(Ok(()), |before| self.delete(before))
            }
            (Change::BuryThen { dead, error, row }, before) => {
                let (letter, meta) = schedule::letter(key, dead.payload.meta.as_ref());
                self.bury(queue, &letter, dead, meta.as_ref(), error)?;
                match before {
                    Some(before) => self.update(before, row),
                    None => self.insert(queue, key, row),
                }
            }
            (Change::Keep, _) | (Change::Delete, None) => Ok(()),
        }
    }

    fn bury(
        &self,
        queue: &str,
        key: &str,
        row: &Row,
        meta: Option<&Meta>,
        error: &str,
    ) -> Result<(), rusqlite::Error> {
        self.prepare(BURY)?.execute((
            queue,
            key,
            row.planned.as_micros(),
            self.now.as_micros(),
            row.attempt,
            row.fails,
            row.crashes,
            error,
            &*row.payload,
            meta.map(Meta::as_str),
            shard::of_key(key),
        ))?;
        Ok(())
    }

    fn insert(&self, queue: &str, key: &str, row: &Row) -> Result<(), rusqlite::Error> {
        self.prepare(INSERT)?.execute((
            queue,
            key,
            row.shard,
            row.due.as_micros(),
            row.planned.as_micros(),
            row.generation,
            row.attempt,
            row.fails,
            row.crashes,
            row.claim.map(|hold| hold.epoch.0),
            row.claim.map(|hold| hold.since.as_micros()),
            row.cancelled,
            row.follows,
            &*row.payload,
            row.payload.meta.as_ref().map(Meta::as_str),
        ))?;
        Ok(())
    }

    fn update(&self, before: Before, row: &Row) -> Result<(), rusqlite::Error> {
        let claim = row.claim.map(|hold| hold.epoch.0);
        let since = row.claim.map(|hold| hold.since.as_micros());
        if before.differs_in_run_only(row) {
            let mut statement = self.prepare(UPDATE_RUN)?;
            statement.execute((before.id, row.attempt, row.fails, row.crashes, claim, since))?;
            return Ok(());
        }
        self.prepare(UPDATE)?.execute((
            before.id,
            row.shard,
            row.due.as_micros(),
            row.planned.as_micros(),
            row.generation,
            row.attempt,
            row.fails,
            row.crashes,
            claim,
            since,
            row.cancelled,
            row.follows,
            &*row.payload,
            row.payload.meta.as_ref().map(Meta::as_str),
        ))?;
        Ok(())
    }

    fn delete(&self, before: Before) -> Result<(), rusqlite::Error> {
        self.prepare(DELETE)?.execute([before.id])?;
        Ok(())
    }

    /// Whether a queue is paused.
    pub(super) fn is_paused(&self, queue: &str) -> Result<bool, Failure> {
        let sql = "select 1 from tourbillon_queue where name = ?1 and paused";
        Ok(self.prepare(sql)?.exists([queue])?)
    }

    /// The name of a node that is not gone.
    pub(super) fn live_node(&self, epoch: Epoch) -> Result<Option<String>, Failure> {
        let sql = "select name from tourbillon_node where epoch = ?1 and gone is null";
        let name = self.prepare(sql)?.query_row([epoch.0], |row| row.get(0));
        Ok(name.optional()?)
    }

    /// The queues that are paused, by name.
    pub(super) fn paused(&self) -> Result<Vec<String>, Failure> {
        let sql = "select name from tourbillon_queue where paused order by name";
        let mut statement = self.prepare(sql)?;
        let names = statement.query_map((), |row| row.get(0))?;
        Ok(names.collect::<Result<_, _>>()?)
    }
}

fn from_sql(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let time = |index| row.get(index).map(StoreTime::from_micros);
    let claim = match row.get::<_, Option<i64>>(8)? {
        Some(epoch) => Some(Hold {
            epoch: Epoch(epoch),
            since: time(9)?,
        }),
        None => None,
    };
    Ok(Row {
        shard: row.get(1)?,
        due: time(2)?,
        planned: time(3)?,
        generation: row.get(4)?,
        attempt: row.get(5)?,
        fails: row.get(6)?,
        crashes: row.get(7)?,
        claim,
        cancelled: row.get(10)?,
        follows: row.get(11)?,
        payload: payload(row, 12)?,
    })
}

/// A payload, and the meta in the column after it.
pub(super) fn payload(row: &rusqlite::Row<'_>, first: usize) -> Result<Payload, rusqlite::Error> {
    let meta: Option<Box<str>> = row.get(first + 1)?;
    Ok(Payload {
        json: row.get(first)?,
        meta: meta.map(Meta::of_json),
    })
}

/// The names of queues, as they are kept in the table of nodes.
pub(super) fn names_to_json(names: &[Arc<str>]) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    serde_json::to_string(&names).expect("names are text")
}
