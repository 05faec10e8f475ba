//! Timers as rows of the tables, within one transaction.

use rusqlite::{Connection, OptionalExtension};

use super::failure::Failure;
use super::schema::Meta;
use crate::row::{Change, Hold, Moment, Row, Successor};
use crate::store::Epoch;
use crate::sync::Arc;
use crate::time::StoreTime;

/// The tables within one transaction, at one moment.
pub(super) struct Tables<'c> {
    pub(super) connection: &'c Connection,
    /// The store's clock, read when the transaction had its lock or its snapshot.
    pub(super) now: StoreTime,
    /// The epochs that were asked for, and whether they are live.
    known: Vec<(Epoch, bool)>,
    /// The counter of generations as it was read, and as it is now.
    counter: (i64, i64),
    /// 16 random bits of this transaction.
    salt: i64,
}

/// What has to be known of a row to write what changes only.
#[derive(Clone, Copy)]
pub(super) struct Before {
    due: StoreTime,
    planned: StoreTime,
    generation: i64,
    cancelled: bool,
    succeeded: bool,
}

impl Before {
    pub(super) fn of(row: &Row) -> Self {
        Before {
            due: row.due,
            planned: row.planned,
            generation: row.generation,
            cancelled: row.cancelled,
            succeeded: row.successor.is_some(),
        }
    }

    /// Whether the row differs from this one in its run at most. Within a generation the payload
    /// stays.
    fn differs_in_run_only(&self, row: &Row) -> bool {
        self.due == row.due
            && self.planned == row.planned
            && self.generation == row.generation
            && self.cancelled == row.cancelled
            && !self.succeeded
            && row.successor.is_none()
    }
}

const READ: &str = "
select shard, due, planned, generation, attempt, fails, crashes, claim, since, cancelled, payload,
       next_due, next_generation, next_payload
from tourbillon_timer where queue = ?1 and key = ?2";

const INSERT: &str = "
insert into tourbillon_timer(queue, key, shard, due, planned, generation, attempt, fails, crashes,
    claim, since, cancelled, payload, next_due, next_generation, next_payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";

const UPDATE: &str = "
update tourbillon_timer
set shard = ?3, due = ?4, planned = ?5, generation = ?6, attempt = ?7, fails = ?8, crashes = ?9,
    claim = ?10, since = ?11, cancelled = ?12, payload = ?13,
    next_due = ?14, next_generation = ?15, next_payload = ?16
where queue = ?1 and key = ?2";

/// It leaves the index of due times alone.
const UPDATE_RUN: &str = "
update tourbillon_timer
set attempt = ?3, fails = ?4, crashes = ?5, claim = ?6, since = ?7
where queue = ?1 and key = ?2";

const DELETE: &str = "delete from tourbillon_timer where queue = ?1 and key = ?2";

const BURY: &str = "
insert into tourbillon_dead(queue, key, planned, at, attempt, fails, crashes, error, payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

const IS_LIVE: &str = "select 1 from tourbillon_node where epoch = ?1 and gone is null";

impl<'c> Tables<'c> {
    pub(super) fn new(connection: &'c Connection, meta: &Meta, now: StoreTime) -> Self {
        Tables {
            connection,
            now,
            known: Vec::new(),
            counter: (meta.counter, meta.counter),
            salt: meta.salt,
        }
    }

    /// Reads a row. Whether its holder is live is known afterwards.
    pub(super) fn row(&mut self, queue: &str, key: &str) -> Result<Option<Row>, Failure> {
        let mut statement = self.connection.prepare_cached(READ)?;
        let row = statement.query_row((queue, key), from_sql).optional()?;
        if let Some(hold) = row.as_ref().and_then(|row| row.claim) {
            self.is_live(hold.epoch)?;
        }
        Ok(row)
    }

    /// Whether a claim of this epoch is live.
    pub(super) fn is_live(&mut self, epoch: Epoch) -> Result<bool, Failure> {
        if let Some((_, live)) = self.known.iter().find(|(known, _)| *known == epoch) {
            return Ok(*live);
        }
        let live = self.connection.prepare_cached(IS_LIVE)?.exists([epoch.0])?;
        self.known.push((epoch, live));
        Ok(live)
    }

    /// Whether a claim of this epoch, which belongs to a row that was read, is live.
    pub(super) fn is_known_live(&self, epoch: Epoch) -> bool {
        self.known.contains(&(epoch, true))
    }

    /// Lets one of the functions of [`row`](crate::row) decide. Epochs of rows that were read are known.
    pub(super) fn decide<T>(&mut self, decide: impl FnOnce(&mut Moment<'_>) -> T) -> T {
        let known = &self.known;
        let (counter, salt) = (&mut self.counter.1, self.salt);
        let mut moment = Moment {
            now: self.now,
            is_live: &|epoch| known.contains(&(epoch, true)),
            generation: &mut || {
                *counter += 1;
                // The counter makes it new in this file. The random bits make it new when an older
                // copy of the file was put in its place, and the counter has gone back.
                (*counter << 16) | salt
            },
        };
        decide(&mut moment)
    }

    /// Writes a change to the row of a key.
    pub(super) fn change(
        &self,
        queue: &str,
        key: &str,
        before: Option<Before>,
        change: &Change,
    ) -> Result<(), rusqlite::Error> {
        match change {
            Change::Keep => Ok(()),
            Change::Put(row) => self.put(queue, key, before, row),
            Change::Delete => self.delete(queue, key),
            Change::Bury(row, error) => {
                self.connection.prepare_cached(BURY)?.execute((
                    queue,
                    key,
                    row.planned.as_micros(),
                    self.now.as_micros(),
                    row.attempt,
                    row.fails,
                    row.crashes,
                    error.as_str(),
                    &*row.payload,
                ))?;
                self.delete(queue, key)
            }
        }
    }

    fn put(
        &self,
        queue: &str,
        key: &str,
        before: Option<Before>,
        row: &Row,
    ) -> Result<(), rusqlite::Error> {
        let claim = row.claim.map(|hold| hold.epoch.0);
        let since = row.claim.map(|hold| hold.since.as_micros());
        if before.is_some_and(|before| before.differs_in_run_only(row)) {
            self.connection.prepare_cached(UPDATE_RUN)?.execute((
                queue,
                key,
                row.attempt,
                row.fails,
                row.crashes,
                claim,
                since,
            ))?;
            return Ok(());
        }
        let sql = if before.is_some() { UPDATE } else { INSERT };
        let next = row.successor.as_ref();
        self.connection.prepare_cached(sql)?.execute((
            queue,
            key,
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
            &*row.payload,
            next.map(|next| next.due.as_micros()),
            next.map(|next| next.generation),
            next.map(|next| &*next.payload),
        ))?;
        Ok(())
    }

    fn delete(&self, queue: &str, key: &str) -> Result<(), rusqlite::Error> {
        self.connection
            .prepare_cached(DELETE)?
            .execute((queue, key))?;
        Ok(())
    }

    /// The queues that are paused, by name.
    pub(super) fn paused(&self) -> Result<Vec<String>, Failure> {
        let sql = "select name from tourbillon_queue where paused order by name";
        let mut statement = self.connection.prepare_cached(sql)?;
        let names = statement.query_map((), |row| row.get(0))?;
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// Writes what the transaction has to leave behind. It is the last call before the commit.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let (was, is) = self.counter;
        if was != is {
            let sql = "update tourbillon_meta set counter = ?1 where id = 1";
            self.connection.prepare_cached(sql)?.execute([is])?;
        }
        Ok(())
    }
}

fn from_sql(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let time = |index| row.get(index).map(StoreTime::from_micros);
    let claim = match row.get::<_, Option<i64>>(7)? {
        Some(epoch) => Some(Hold {
            epoch: Epoch(epoch),
            since: time(8)?,
        }),
        None => None,
    };
    let successor = match row.get::<_, Option<i64>>(11)? {
        Some(due) => Some(Successor {
            due: StoreTime::from_micros(due),
            generation: row.get(12)?,
            payload: row.get(13)?,
        }),
        None => None,
    };
    Ok(Row {
        shard: row.get(0)?,
        due: time(1)?,
        planned: time(2)?,
        generation: row.get(3)?,
        attempt: row.get(4)?,
        fails: row.get(5)?,
        crashes: row.get(6)?,
        claim,
        cancelled: row.get(9)?,
        payload: row.get(10)?,
        successor,
    })
}

/// The names of queues, as they are kept in the table of nodes.
pub(super) fn names_to_json(names: &[Arc<str>]) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    serde_json::to_string(&names).expect("names are text")
}
