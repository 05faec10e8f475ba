//! The calls that only read.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rusqlite::{OptionalExtension, ToSql};

use super::failure::Failure;
use super::tables::{Tables, payload};
use crate::row;
use crate::store::{
    DeadLetter, DeadPage, Epoch, MOST_COUNTED, PAGE_BYTES, Page, Poll, QueueCounts, Range, SHARDS,
    Seen, SeenNode, StoreError, StoreSnapshot, StoreTime, StoredNode, StoredState, Survey,
    SurveyedPart, Timer, end_of_prefix, schedule,
};
use crate::sync::Arc;

/// Timers of a range that no live claim holds, and those of the node itself. SQLite knows the
/// length of a text without reading it.
const POLL: &str = "
select key, due, generation, attempt, crashes, claim,
       octet_length(payload) + coalesce(octet_length(meta), 0)
from tourbillon_timer
where queue = ?1 and shard = ?2 and due >= ?3 and due < ?4
  and (claim is null or claim = ?5
       or claim not in (select epoch from tourbillon_node where gone is null))
order by due, key limit ?6";

/// The timers of a shard of all queues, as `POLL` shows them.
const SURVEY: &str = "
select queue, due
from tourbillon_timer
where shard + 0 = ?1 and due >= ?2 and due < ?3
  and (claim is null or claim = ?4
       or claim not in (select epoch from tourbillon_node where gone is null))
order by due limit ?5";

const NODES: &str =
    "select epoch, beat, queues from tourbillon_node where gone is null order by epoch";

/// Whether the schedule of a timer is paused.
macro_rules! paused {
    () => {
        "(json_type(meta, '$.cron.expression') is not null and coalesce(json_type(meta, '$.cron.paused') = 'true', 0))"
    };
}

/// What a timer must be to be in a list, beside its due time and its key: `?7` is a state of
/// [`StoredState`], or nothing.
macro_rules! shown {
    () => {
        concat!("
  and not (cancelled and claim not in (select epoch from tourbillon_node where gone is null))
  and case ?7
      when 'running' then claim in (select epoch from tourbillon_node where gone is null)
      when 'paused' then queue in (select name from tourbillon_queue where paused) or ", paused!(), "
      when 'overdue' then due <= ?8 and queue not in (select name from tourbillon_queue where paused) and not ", paused!(), "
      when 'waiting' then due > ?8 and queue not in (select name from tourbillon_queue where paused) and not ", paused!(), "
      else 1 end
  and (not ?13 or json_type(meta, '$.cron.expression') is not null)
  and (?7 is null or ?7 = 'running' or claim is null
       or claim not in (select epoch from tourbillon_node where gone is null))
order by due, queue, key limit ?9")
    };
}

/// Timers of one shard of a queue in the order of their due times, after the last one of the page
/// before.
const LIST_QUEUE: &str = concat!(
    "
select due, queue, key
from tourbillon_timer
where queue = ?1 and shard = ?2 and due >= ?3 and due < ?4 and (due, queue, key) > (?5, ?10, ?6) and ?11 is not null and ?12 is not null",
    shown!()
);

/// The same of all queues.
const LIST_ALL: &str = concat!(
    "
select due, queue, key
from tourbillon_timer
where ?1 is null and shard + 0 = ?2 and due >= ?3 and due < ?4 and (due, queue, key) > (?5, ?10, ?6) and ?11 is not null and ?12 is not null",
    shown!()
);

/// The timers of a queue with a prefix, of all shards.
const LIST_PREFIX: &str = concat!(
    "
select due, queue, key
from tourbillon_timer
where queue = ?1 and ?2 = 0 and key >= ?11 and key < ?12 and due >= ?3 and due < ?4
  and (due, queue, key) > (?5, ?10, ?6)",
    shown!()
);

/// The names of all queues that have timers, or dead letters.
const QUEUES: &str = "
with recursive
t(queue) as (select min(queue) from tourbillon_timer union all
    select (select min(queue) from tourbillon_timer where queue > t.queue) from t where t.queue is not null),
d(queue) as (select min(queue) from tourbillon_dead union all
    select (select min(queue) from tourbillon_dead where queue > d.queue) from d where d.queue is not null)
select queue from t where queue is not null union select queue from d where queue is not null";

/// The timers of a shard in a span of time that no live node has claimed.
const COUNT: &str = "
select count(*) from (select 1 from tourbillon_timer
where queue = ?1 and shard = ?2 and due > ?3 and due <= ?4
  and (claim is null or not cancelled and claim not in (select epoch from tourbillon_node where gone is null))
limit ?5)";

const FIRST: &str = "
select due from tourbillon_timer where queue = ?1 and shard = ?2
  and (claim is null or not cancelled and claim not in (select epoch from tourbillon_node where gone is null))
order by due limit 1";

const RUNNING: &str = "
select count(*) from (select 1 from tourbillon_timer
where queue = ?1 and claim in (select epoch from tourbillon_node where gone is null) limit ?2)";

const COUNT_DEAD: &str = "
select count(*) from (select 1 from tourbillon_dead where queue = ?1 limit ?2)";

const DEAD: &str = "
select id, queue, key, planned, at, attempt, fails, crashes, error, payload, meta
from tourbillon_dead where queue = ?1 and id > ?2 and substr(key, 1, length(?3)) = ?3 and at <= ?4
order by id limit ?5";

const DEAD_ALL: &str = "
select id, queue, key, planned, at, attempt, fails, crashes, error, payload, meta
from tourbillon_dead where ?1 is null and id > ?2 and substr(key, 1, length(?3)) = ?3 and at <= ?4
order by id limit ?5";

pub(super) fn timer(
    tables: &mut Tables<'_>,
    queue: &str,
    key: &str,
) -> Result<Option<Timer>, Failure> {
    let Some((_, row)) = tables.row(queue, key)? else {
        return Ok(None);
    };
    let is_paused = tables.is_paused(queue)?;
    let node = row.claim.map(|hold| tables.live_node(hold.epoch));
    let node = node.transpose()?.flatten();
    Ok(row::timer(queue, key, &row, is_paused, tables.now, &|_| {
        node.clone()
    }))
}

pub(super) fn list(tables: &mut Tables<'_>, page: &Page) -> Result<Vec<Timer>, Failure> {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let mut found: Vec<(i64, String, String)> = Vec::new();
    match (&page.queue, page.prefix.is_empty()) {
        (queue, true) => {
            for shard in 0..SHARDS {
                let sql = match queue {
                    Some(_) => LIST_QUEUE,
                    None => LIST_ALL,
                };
                find(tables, sql, queue.as_deref(), shard, page, &mut found)?;
                // The page has no more of all shards than its limit.
                found.sort_unstable();
                found.truncate(limit);
            }
        }
        (Some(queue), false) => find(tables, LIST_PREFIX, Some(queue), 0, page, &mut found)?,
        (None, false) => {
            for queue in queues(tables)? {
                find(tables, LIST_PREFIX, Some(&queue), 0, page, &mut found)?;
                found.sort_unstable();
                found.truncate(limit);
            }
        }
    }
    let mut timers = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for (_, queue, key) in found {
        if bytes >= PAGE_BYTES {
            break;
        }
        let timer = timer(tables, &queue, &key)?;
        bytes += timer.as_ref().map_or(0, |timer| timer.payload.len() as u64);
        timers.extend(timer);
    }
    Ok(timers)
}

/// Adds the timers of a page that a statement finds.
fn find(
    tables: &Tables<'_>,
    sql: &str,
    queue: Option<&str>,
    shard: u16,
    page: &Page,
    found: &mut Vec<(i64, String, String)>,
) -> Result<(), Failure> {
    let first = (
        StoreTime::from_micros(i64::MIN),
        String::new(),
        String::new(),
    );
    let (last_due, last_queue, last_key) = page.after.as_ref().unwrap_or(&first);
    let mut statement = tables.prepare(sql)?;
    let mut values: Vec<&dyn ToSql> = Vec::with_capacity(13);
    let (mut from, mut until) = (page.from.max(*last_due), page.until);
    // So that the index is read no further than the state reaches.
    let soon = tables.now + Duration::from_micros(1);
    match page.state {
        Some(StoredState::Overdue) => until = until.min(soon),
        Some(StoredState::Waiting) => from = from.max(soon),
        _ => {}
    }
    let (from, until, last_due) = (from.as_micros(), until.as_micros(), last_due.as_micros());
    let now = tables.now.as_micros();
    let state = page.state.map(StoredState::as_str);
    let end = end_of_prefix(&page.prefix);
    values.extend::<[&dyn ToSql; 11]>([
        &queue,
        &shard,
        &from,
        &until,
        &last_due,
        last_key,
        &state,
        &now,
        &page.limit,
        last_queue,
        &page.prefix,
    ]);
    values.push(&end);
    values.push(&page.schedules);
    let mut rows = statement.query(&*values)?;
    while let Some(row) = rows.next()? {
        found.push((row.get(0)?, row.get(1)?, row.get(2)?));
    }
    Ok(())
}

/// The names of all queues that have timers, or dead letters.
fn queues(tables: &Tables<'_>) -> Result<Vec<String>, Failure> {
    let mut statement = tables.prepare(QUEUES)?;
    let names = statement.query_map((), |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

pub(super) fn counts(tables: &mut Tables<'_>) -> Result<Vec<QueueCounts>, Failure> {
    let mut counts: BTreeMap<String, QueueCounts> = BTreeMap::new();
    for queue in queues(tables)? {
        let of_queue = count_queue(tables, &queue)?;
        // What a gone node has left behind cancelled is nothing.
        if of_queue != QueueCounts::default() {
            counts.insert(queue, of_queue);
        }
    }
    for queue in tables.paused()? {
        counts.entry(queue).or_default().paused = true;
    }
    let named = counts
        .into_iter()
        .map(|(queue, counts)| QueueCounts { queue, ..counts });
    Ok(named.collect())
}

fn count_queue(tables: &Tables<'_>, queue: &str) -> Result<QueueCounts, Failure> {
    const MINUTE: Duration = Duration::from_secs(60);
    let now = tables.now;
    let mut statement = tables.prepare(COUNT)?;
    let mut count = |from: StoreTime, until: StoreTime| -> Result<u64, Failure> {
        let mut counted = 0;
        for shard in 0..SHARDS {
            let left = most(MOST_COUNTED - counted);
            let values = (queue, shard, from.as_micros(), until.as_micros(), left);
            counted += statement.query_row(values, |row| number(row, 0))?;
            if counted >= MOST_COUNTED {
                break;
            }
        }
        Ok(counted)
    };
    let overdue = count(StoreTime::from_micros(i64::MIN), now)?;
    let within_minute = count(now, now + MINUTE)?;
    let within_ten_minutes = count(now, now + 10 * MINUTE)?;
    let waiting = count(now, StoreTime::from_micros(i64::MAX))?;
    let mut statement = tables.prepare(FIRST)?;
    let mut oldest: Option<i64> = None;
    for shard in 0..SHARDS {
        let due = statement.query_row((queue, shard), |row| row.get(0));
        oldest = due.optional()?.into_iter().chain(oldest).min();
    }
    let count = |sql| -> Result<u64, Failure> {
        let mut statement = tables.prepare(sql)?;
        Ok(statement.query_row((queue, most(MOST_COUNTED)), |row| number(row, 0))?)
    };
    Ok(QueueCounts {
        waiting,
        within_minute,
        within_ten_minutes,
        overdue,
        running: count(RUNNING)?,
        oldest: oldest.map(|micros| StoreTime::from_micros(micros).into()),
        dead: count(COUNT_DEAD)?,
        ..QueueCounts::default()
    })
}

/// A limit for SQLite, whose numbers have a sign.
fn most(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(row: &rusqlite::Row<'_>, index: usize) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(index)?.unsigned_abs())
}

pub(super) fn dead(tables: &mut Tables<'_>, page: &DeadPage) -> Result<Vec<DeadLetter>, Failure> {
    let latest = page.older_than.map(|age| tables.now.back_by(age));
    let latest = latest.map_or(i64::MAX, StoreTime::as_micros);
    let mut statement = tables.prepare(match &page.queue {
        Some(_) => DEAD,
        None => DEAD_ALL,
    })?;
    let values = (&page.queue, page.after, &page.prefix, latest, page.limit);
    let letters = statement.query_map(values, |row| {
        Ok(DeadLetter {
            id: row.get(0)?,
            queue: row.get(1)?,
            key: row.get(2)?,
            planned: StoreTime::from_micros(row.get(3)?),
            at: StoreTime::from_micros(row.get(4)?),
            attempt: row.get(5)?,
            fails: row.get(6)?,
            crashes: row.get(7)?,
            error: row.get(8)?,
            has_timer: false,
            payload: row.get(9)?,
            meta: payload(row, 9)?.meta,
        })
    })?;
    let mut bytes = 0;
    let page = letters.take_while(|letter| {
        let is_in = bytes < PAGE_BYTES;
        bytes += letter
            .as_ref()
            .map_or(0, |letter| letter.payload.len() as u64);
        is_in
    });
    let mut page: Vec<DeadLetter> = page.collect::<Result<_, _>>()?;
    for letter in &mut page {
        letter.has_timer = timer(tables, &letter.queue, &letter.key)?.is_some();
    }
    Ok(page)
}

pub(super) fn stored_nodes(tables: &mut Tables<'_>) -> Result<Vec<StoredNode>, Failure> {
    let sql = "select epoch, name, queues, joined, beat_at, gone, schedules from tourbillon_node order by joined, epoch";
    let mut statement = tables.prepare(sql)?;
    let mut rows = statement.query(())?;
    let mut nodes = Vec::new();
    let time = |micros| SystemTime::from(StoreTime::from_micros(micros));
    while let Some(row) = rows.next()? {
        nodes.push(StoredNode {
            id: row.get(0)?,
            name: row.get(1)?,
            queues: names_of_json(&row.get::<_, String>(2)?)?,
            joined: time(row.get(3)?),
            silent_for: tables.now.since(StoreTime::from_micros(row.get(4)?)),
            gone: row.get::<_, Option<i64>>(5)?.map(time),
            schedules: schedule::names_of_json(&row.get::<_, String>(6)?),
        });
    }
    Ok(nodes)
}

/// The names of queues, as they are kept in the table of nodes.
fn names_of_json(json: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(json).map_err(|error| {
        StoreError::Refused(format!("the queues of a node can't be read: {error}"))
    })
}

pub(super) fn poll(tables: &mut Tables<'_>, poll: &Poll) -> Result<StoreSnapshot, Failure> {
    let mut snapshot = StoreSnapshot {
        now: tables.now,
        nodes: nodes(tables)?,
        paused: tables.paused()?,
        // A tree of SQLite has no dead entries that a mark would spare.
        complete: None,
        ..StoreSnapshot::default()
    };
    // The claims of a node that is gone count as none, its own ones too.
    let live = tables.is_live(poll.epoch)?;
    let mut statement = tables.prepare(POLL)?;
    for (index, range) in poll.ranges.iter().enumerate() {
        let mut rows = statement.query((
            &*range.queue,
            range.shard,
            range.mark.map_or(i64::MIN, StoreTime::as_micros),
            range.until.from(tables.now).as_micros(),
            poll.epoch.0,
            // One more than wanted, to see whether the limit cuts.
            i64::from(range.limit) + 1,
        ))?;
        let mut left = range.limit;
        while let Some(row) = rows.next()? {
            if left == 0 {
                snapshot.cut.push(index);
                break;
            }
            left -= 1;
            match seen(range, row, poll.epoch, live) {
                Ok(seen) => snapshot.rows.push(seen),
                Err(error @ rusqlite::Error::SqliteFailure(..)) => return Err(error.into()),
                // A key that is no text, which no call writes. It must not hide the others.
                Err(_) => {}
            }
        }
    }
    snapshot.survey = Some(survey(tables, poll)?);
    Ok(snapshot)
}

fn survey(tables: &Tables<'_>, poll: &Poll) -> Result<Survey, Failure> {
    let mut survey = Survey::default();
    let mut statement = tables.prepare(SURVEY)?;
    for (index, band) in poll.bands.iter().enumerate() {
        let mut rows = statement.query((
            band.shard,
            band.mark.map_or(i64::MIN, StoreTime::as_micros),
            band.until.from(tables.now).as_micros(),
            poll.epoch.0,
            // One more than wanted, to see whether the limit cuts.
            i64::from(band.limit) + 1,
        ))?;
        let mut left = band.limit;
        let mut firsts: BTreeMap<Box<str>, StoreTime> = BTreeMap::new();
        while let Some(row) = rows.next()? {
            if left == 0 {
                survey.cut.push(index);
                break;
            }
            left -= 1;
            let due = StoreTime::from_micros(row.get(1)?);
            match row.get(0) {
                Ok(queue) => {
                    firsts.entry(queue).or_insert(due);
                }
                Err(error @ rusqlite::Error::SqliteFailure(..)) => return Err(error.into()),
                // A queue that is no text, which no call writes.
                Err(_) => {}
            }
        }
        let parts = firsts.into_iter().map(|(queue, first)| SurveyedPart {
            band: index,
            queue,
            first,
        });
        survey.parts.extend(parts);
    }
    Ok(survey)
}

fn seen(
    range: &Range,
    row: &rusqlite::Row<'_>,
    epoch: Epoch,
    live: bool,
) -> Result<Seen, rusqlite::Error> {
    let claim: Option<i64> = row.get(5)?;
    Ok(Seen {
        queue: Arc::clone(&range.queue),
        key: row.get(0)?,
        shard: range.shard,
        due: StoreTime::from_micros(row.get(1)?),
        generation: row.get(2)?,
        attempt: row.get(3)?,
        crashes: row.get(4)?,
        mine: live && claim == Some(epoch.0),
        bytes: row.get::<_, i64>(6)?.unsigned_abs(),
    })
}

fn nodes(tables: &Tables<'_>) -> Result<Vec<SeenNode>, Failure> {
    let mut statement = tables.prepare(NODES)?;
    let mut rows = statement.query(())?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let queues: String = row.get(2)?;
        nodes.push(SeenNode {
            epoch: Epoch(row.get(0)?),
            beat: row.get(1)?,
            queues: names_of_json(&queues)?.into(),
        });
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::super::schema::{self, Prefix};
    use super::*;
    use rusqlite::Connection;

    /// A poll of a queue reads no overdue timers of other queues and shards, and a page of a list
    /// does not read the timers before it.
    #[test]
    fn polls_and_lists_go_straight_to_their_part_of_the_index() {
        let connection = Connection::open_in_memory().expect("a connection");
        schema::migrate(&connection, &Prefix::default(), schema::MIGRATIONS).expect("tables");
        for (sql, parameters) in [(POLL, 6), (LIST_QUEUE, 13)] {
            let mut statement = connection
                .prepare(&format!("explain query plan {sql}"))
                .expect("a statement");
            let values = rusqlite::params_from_iter(vec![1; parameters]);
            let lines = statement.query_map(values, |row| row.get::<_, String>(3));
            let lines: Result<Vec<_>, _> = lines.expect("a plan").collect();
            let plan = lines.expect("a plan").join("; ");
            let wanted = "tourbillon_timer_due (queue=? AND shard=? AND due>? AND due<?)";
            assert!(plan.contains(wanted), "{plan}");
            assert!(!plan.contains("SCAN tourbillon_timer"), "{plan}");
            assert!(!plan.contains("TEMP"), "{plan}");
        }
    }
}
