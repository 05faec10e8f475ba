//! The calls that only read.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::tables::{Tables, payload};
use crate::row;
use crate::store::{
    DeadLetter, Epoch, PAGE_BYTES, Page, Poll, QueueCounts, Range, SHARDS, Seen, SeenNode,
    StoreError, StoreSnapshot, StoreTime, Survey, SurveyedPart, Timer,
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

/// Keys of one shard in the order of their due times, after the last one of the page before.
const LIST: &str = "
select due, key
from tourbillon_timer
where queue = ?1 and shard = ?2 and due >= ?3 and due < ?4 and (due, key) > (?5, ?6)
  and not (cancelled and claim not in (select epoch from tourbillon_node where gone is null))
order by due, key limit ?7";

const COUNTS: &str = "
select queue, sum(held), sum(not held and due <= ?1), sum(not held and due > ?1), min(due) filter (where not held)
from (select queue, due, cancelled,
             claim is not null
                 and claim in (select epoch from tourbillon_node where gone is null) as held
      from tourbillon_timer)
where held or not cancelled
group by queue";

const DEAD: &str = "
select id, queue, key, planned, at, attempt, fails, crashes, error, payload, meta
from tourbillon_dead where queue = ?1 and id > ?2 order by id limit ?3";

pub(super) fn timer(
    tables: &mut Tables<'_>,
    queue: &str,
    key: &str,
) -> Result<Option<Timer>, Failure> {
    let row = tables.row(queue, key)?;
    Ok(row.and_then(|(_, row)| row::timer(queue, key, &row, &|epoch| tables.is_known_live(epoch))))
}

pub(super) fn list(tables: &mut Tables<'_>, page: &Page) -> Result<Vec<Timer>, Failure> {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let first = (StoreTime::from_micros(i64::MIN), String::new());
    let (last_due, last_key) = page.after.as_ref().unwrap_or(&first);
    let from = page.from.max(*last_due);
    let mut found: Vec<(i64, String)> = Vec::new();
    {
        let mut statement = tables.prepare(LIST)?;
        for shard in 0..SHARDS {
            let mut rows = statement.query((
                &page.queue,
                shard,
                from.as_micros(),
                page.until.as_micros(),
                last_due.as_micros(),
                last_key,
                page.limit,
            ))?;
            while let Some(row) = rows.next()? {
                found.push((row.get(0)?, row.get(1)?));
            }
            // The page has no more of all shards than its limit.
            found.sort_unstable();
            found.truncate(limit);
        }
    }
    let mut timers = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for (_, key) in found {
        if bytes >= PAGE_BYTES {
            break;
        }
        let timer = timer(tables, &page.queue, &key)?;
        bytes += timer.as_ref().map_or(0, |timer| timer.payload.len() as u64);
        timers.extend(timer);
    }
    Ok(timers)
}

pub(super) fn counts(tables: &mut Tables<'_>) -> Result<Vec<QueueCounts>, Failure> {
    let mut counts: BTreeMap<String, QueueCounts> = BTreeMap::new();
    let mut statement = tables.prepare(COUNTS)?;
    let mut rows = statement.query([tables.now.as_micros()])?;
    while let Some(row) = rows.next()? {
        let counts = counts.entry(row.get(0)?).or_default();
        counts.running = count(row, 1)?;
        counts.overdue = count(row, 2)?;
        counts.waiting = count(row, 3)?;
        let oldest: Option<i64> = row.get(4)?;
        counts.oldest = oldest.map(|micros| StoreTime::from_micros(micros).into());
    }
    let sql = "select queue, count(*) from tourbillon_dead group by queue";
    let mut statement = tables.prepare(sql)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        counts.entry(row.get(0)?).or_default().dead = count(row, 1)?;
    }
    for queue in tables.paused()? {
        counts.entry(queue).or_default().paused = true;
    }
    let named = counts
        .into_iter()
        .map(|(queue, counts)| QueueCounts { queue, ..counts });
    Ok(named.collect())
}

fn count(row: &rusqlite::Row<'_>, index: usize) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(index)?.unsigned_abs())
}

pub(super) fn dead(
    tables: &mut Tables<'_>,
    queue: &str,
    after: i64,
    limit: u32,
) -> Result<Vec<DeadLetter>, Failure> {
    let mut statement = tables.prepare(DEAD)?;
    let letters = statement.query_map((queue, after, limit), |row| {
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
    Ok(page.collect::<Result<_, _>>()?)
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
        let queues: Vec<String> = serde_json::from_str(&queues).map_err(|error| {
            StoreError::Refused(format!("the queues of a node can't be read: {error}"))
        })?;
        nodes.push(SeenNode {
            epoch: Epoch(row.get(0)?),
            beat: row.get(1)?,
            queues: queues.into(),
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
        for (sql, parameters) in [(POLL, 6), (LIST, 7)] {
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
