//! The calls of a store on the file.

use std::time::{Duration, Instant};

use rusqlite::OptionalExtension;

use super::failure::Failure;
use super::link::Link;
use super::reading;
use super::tables::{self, Before, Tables};
use crate::row::{self, Change, Claiming, Row, shard};
use crate::store::{
    Answer, Beat, Call, Claim, Claimed, ClaimedRun, Connection, DeadLetter, DeadPage, Epoch,
    NewNode, Page, Poll, QueueCounts, RefusedClaim, Revived, Run, Settle, Settled, Settlement,
    StoreError, StoreSnapshot, StoreTime, StoredNode, Timer, schedule,
};
use crate::sync::Arc;

/// How long the row of a node that is gone is kept at least.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// A connection to the file.
pub(super) struct SqliteConnection(pub(super) Link);

impl SqliteConnection {
    /// A statement has found no row of a node that is not gone. An error if that is the sign of an
    /// older file.
    fn is_gone(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        let (row, now) = self
            .0
            .read(|tables| Ok((tables.node(epoch)?, tables.now)))?;
        let found = self.0.beats().found(epoch, row, now);
        found.map_err(|error| self.0.named(error))
    }

    fn claim_some(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        match self.0.try_write(|tables| claim_timers(tables, claim)) {
            Err(failure) if failure.may_be_of_one_row() => {}
            result => return result.map_err(Failure::before_commit),
        }
        // One of them can't be claimed, or adopted.
        let part = |timers, adopt| Claim {
            timers,
            adopt,
            ..*claim
        };
        let timers = claim.timers.iter();
        let timers = timers.map(|wanted| part(vec![wanted.clone()], Vec::new()));
        let adopted = claim.adopt.iter();
        let adopted = adopted.map(|run| part(Vec::new(), vec![run.clone()]));
        let parts: Vec<Claim> = timers.chain(adopted).collect();
        let answers = self.0.write_rows(&parts, claim_timers)?;
        let mut claimed = Claimed::default();
        for (part, answer) in parts.into_iter().zip(answers) {
            match answer {
                Ok(one) => {
                    claimed.gone |= one.gone;
                    claimed.now = claimed.now.max(one.now);
                    claimed.dead += one.dead;
                    claimed.runs.extend(one.runs);
                    claimed.over.extend(one.over);
                }
                Err(error) => claimed
                    .refused
                    .extend(part.timers.into_iter().map(|wanted| RefusedClaim {
                        queue: wanted.queue,
                        key: wanted.key,
                        error: error.clone(),
                    })),
            }
        }
        if claimed.now == StoreTime::default() {
            // Not one could be claimed, so none has told the time.
            claimed.now = self.0.read(|tables| Ok(tables.now))?;
        }
        Ok(claimed)
    }
}

impl Connection for SqliteConnection {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.0.is_right()?;
        self.0.write_rows(calls, apply)
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.0.is_right()?;
        self.0.read(|tables| reading::timer(tables, queue, key))
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.0.is_right()?;
        self.0.read(|tables| reading::list(tables, page))
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.0.is_right()?;
        self.0.read(reading::counts)
    }

    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.0.is_right()?;
        self.0.read(|tables| reading::dead(tables, page))
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.0.is_right()?;
        self.0.write(|tables| {
            let mut statement = tables.prepare("delete from tourbillon_dead where id = ?1")?;
            let mut found = 0;
            for letter in letters {
                found += statement.execute([letter])? as u64;
            }
            Ok(found)
        })
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.0.is_right()?;
        // Numbers ascend with time, so this reads no more than it may delete.
        let old = "id in (select id from (select id, at from tourbillon_dead order by id limit ?1) where at <= ?2)";
        let any: bool = self.0.read(|tables| {
            let values = (limit, tables.now.back_by(age).as_micros());
            let sql = format!("select exists (select 1 from tourbillon_dead where {old})");
            Ok(tables.prepare(&sql)?.query_row(values, |row| row.get(0))?)
        })?;
        // A write locks the file, and writes it.
        if !any {
            return Ok(0);
        }
        self.0.write(|tables| {
            let values = (limit, tables.now.back_by(age).as_micros());
            let sql = format!("delete from tourbillon_dead where {old}");
            Ok(tables.prepare(&sql)?.execute(values)? as u64)
        })
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.0.is_right()?;
        self.0.read(reading::stored_nodes)
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.0.is_right()?;
        self.0.write(|tables| revive(tables, letter))
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.0.is_right()?;
        let sql = match paused {
            true => {
                "insert into tourbillon_queue(name, paused) values (?1, 1)
                 on conflict (name) do update set paused = 1"
            }
            false => "delete from tourbillon_queue where name = ?1",
        };
        self.0.write(|tables| {
            tables.prepare(sql)?.execute([queue])?;
            Ok(())
        })
    }

    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        self.0.is_right()?;
        self.0.write(|tables| {
            let (before, row) = tables.row(queue, key)?.unzip();
            let Some(change) = tables.decide(|context| row::pause(row, paused, context)) else {
                return Ok(false);
            };
            tables.change(queue, key, before.map(Before::whole), &change)?;
            Ok(true)
        })
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        let queues = tables::names_to_json(&node.queues);
        let schedules = schedule::names_to_json(&node.schedules);
        self.0.is_right()?;
        let sent = Instant::now();
        let (beat, now) = self.0.write(|tables| {
            let sql = "insert into tourbillon_node(epoch, name, queues, joined, beat_at, schedules)
                       values (?1, ?2, ?3, ?4, ?4, ?5)
                       on conflict (epoch) do update set queues = excluded.queues returning beat";
            let joined = tables.now.as_micros();
            let values = (node.epoch.0, &node.name, &queues, joined, &schedules);
            let beat = tables.prepare(sql)?.query_row(values, |row| row.get(0))?;
            Ok((beat, tables.now))
        })?;
        let beats = self.0.beats();
        let joined = beats.joined(node.epoch, beat, sent, Instant::now(), now);
        joined.map_err(|error| self.0.named(error))
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        let sent = Instant::now();
        let least = self.0.beats().least(epoch);
        let (beat, now) = self.0.write(|tables| {
            // One that is less is of an older file.
            let sql = "update tourbillon_node set beat = beat + 1, beat_at = ?3
                       where epoch = ?1 and gone is null and beat >= ?2 returning beat";
            let mut statement = tables.prepare(sql)?;
            let beat =
                statement.query_row((epoch.0, least, tables.now.as_micros()), |row| row.get(0));
            Ok((beat.optional()?, tables.now))
        })?;
        let beats = self.0.beats();
        match beat {
            // After the commit: what is not committed is not confirmed.
            Some(beat) => beats.confirmed(epoch, beat, sent, Instant::now(), now),
            None => self.is_gone(epoch)?,
        }
        Ok(beat.map(|_| Beat {
            now,
            // A tree of SQLite has no dead entries that a mark would spare.
            horizon: None,
        }))
    }

    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        let snapshot = self.0.read(|tables| reading::poll(tables, poll))?;
        let seen = self
            .0
            .beats()
            .seen(poll.epoch, snapshot.beat_of(poll.epoch));
        seen.map_err(|error| self.0.named(error))?;
        Ok(snapshot)
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.0.is_right()?;
        let claimed = self.claim_some(claim)?;
        if claimed.gone {
            self.is_gone(claim.epoch)?;
        }
        Ok(claimed)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.0.is_right()?;
        self.0
            .write_rows(&settle.settlements, |tables, settlement| {
                match tables.is_live(settle.epoch)? {
                    true => settle_one(tables, settlement, settle.epoch),
                    false => Ok(Settled::Fenced),
                }
            })
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.0.is_right()?;
        self.0.write(|tables| {
            if asking == epoch || !tables.is_live(asking)? {
                return Ok(false);
            }
            let now = tables.now;
            let sql = "update tourbillon_node set gone = ?3
                       where epoch = ?1 and beat = ?2 and gone is null";
            let mut statement = tables.prepare(sql)?;
            let declared = statement.execute((epoch.0, beat, now.as_micros()))?;
            let sql = "delete from tourbillon_node where gone <= ?1
                       and not exists (select 1 from tourbillon_timer where claim = epoch)";
            let mut statement = tables.prepare(sql)?;
            statement.execute([now.back_by(KEPT).as_micros()])?;
            Ok(declared == 1)
        })
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        // Also on an older file: it is the end of the node there too.
        self.0.beats().ended(epoch);
        self.0.write(|tables| {
            let sql = "update tourbillon_node set gone = ?2 where epoch = ?1 and gone is null";
            let mut statement = tables.prepare(sql)?;
            statement.execute((epoch.0, tables.now.as_micros()))?;
            Ok(())
        })
    }

    #[cfg(feature = "test-util")]
    fn set_clock(&mut self, now: StoreTime) -> Result<(), StoreError> {
        self.0.clock().set_for_test(now)
    }
}

/// Carries out a call of a user.
pub(super) fn apply(tables: &mut Tables<'_>, call: &Call) -> Result<Answer, Failure> {
    let (before, row) = tables.row(&call.queue, &call.key)?.unzip();
    let shard = shard::of_key(&call.key);
    let action = call.action.clone();
    let (change, answer) = tables.decide(|context| row::apply(row, shard, action, context));
    tables.change(&call.queue, &call.key, before, &change)?;
    Ok(answer)
}

fn claim_timers(tables: &mut Tables<'_>, claim: &Claim) -> Result<Claimed, Failure> {
    let mut claimed = Claimed {
        now: tables.now,
        ..Claimed::default()
    };
    if !tables.is_live(claim.epoch)? {
        claimed.gone = true;
        return Ok(claimed);
    }
    if tables.now >= claim.deadline {
        return Ok(claimed);
    }
    let paused = tables.paused()?;
    for wanted in &claim.timers {
        let (queue, key) = (&wanted.queue, &wanted.key);
        if paused.iter().any(|paused| **paused == **queue) {
            continue;
        }
        let Some((before, row)) = tables.row(queue, key)? else {
            continue;
        };
        let decided =
            tables.decide(|context| row::claim(row, claim.epoch, wanted.crash_limit, context));
        let change = match decided {
            Claiming::Run(row) => Change::Put(row),
            Claiming::Not(change) => {
                claimed.dead += u32::from(matches!(change, Change::Bury(..)));
                tables.change(queue, key, Some(before), &change)?;
                continue;
            }
        };
        tables.change(queue, key, Some(before), &change)?;
        if let Change::Put(row) = change {
            claimed.runs.push(run(queue, key, row));
        }
    }
    for adopted in &claim.adopt {
        match held(tables, adopted, claim.epoch)? {
            Some((_, row)) if row::may_start(&row) => {
                claimed.runs.push(run(&adopted.queue, &adopted.key, row));
            }
            Some(_) => claimed.over.push(adopted.clone()),
            None => {}
        }
    }
    Ok(claimed)
}

fn run(queue: &Arc<str>, key: &str, row: Row) -> ClaimedRun {
    ClaimedRun {
        run: Run {
            queue: Arc::clone(queue),
            key: Box::from(key),
            generation: row.generation,
            attempt: row.attempt,
        },
        due: row.due,
        planned: row.planned,
        fails: row.fails,
        crashes: row.crashes,
        stepped: false,
        payload: row.payload,
    }
}

/// The row of a run, if the node still holds it. The node is live.
fn held(
    tables: &mut Tables<'_>,
    run: &Run,
    epoch: Epoch,
) -> Result<Option<(Before, Row)>, Failure> {
    let row = tables.row(&run.queue, &run.key)?;
    Ok(row.filter(|(_, row)| row::is_held(row, epoch, run.generation, run.attempt)))
}

/// Ends a run of a live node.
pub(super) fn settle_one(
    tables: &mut Tables<'_>,
    settlement: &Settlement,
    epoch: Epoch,
) -> Result<Settled, Failure> {
    let run = &settlement.run;
    let Some((before, row)) = held(tables, run, epoch)? else {
        return Ok(Settled::Fenced);
    };
    let (change, settled) = tables.decide(|context| row::settle(row, &settlement.outcome, context));
    tables.change(&run.queue, &run.key, Some(before), &change)?;
    Ok(settled)
}

fn revive(tables: &mut Tables<'_>, letter: i64) -> Result<Revived, Failure> {
    let sql = "select queue, key, payload, meta from tourbillon_dead where id = ?1";
    let mut statement = tables.prepare(sql)?;
    let found = statement.query_row([letter], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            tables::payload(row, 2)?,
        ))
    });
    let Some((queue, key, payload)) = found.optional()? else {
        return Ok(Revived::NotFound);
    };
    let (before, row) = tables.row(&queue, &key)?.unzip();
    let shard = shard::of_key(&key);
    let revived = tables.decide(|context| row::revive(row, shard, payload, context));
    let Some(row) = revived else {
        return Ok(Revived::Exists);
    };
    tables.change(&queue, &key, before, &Change::Put(row))?;
    let sql = "delete from tourbillon_dead where id = ?1";
    tables.prepare(sql)?.execute([letter])?;
    Ok(Revived::Revived { queue, key })
}
