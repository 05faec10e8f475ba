//! The values of rows.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tourbillon_postgres::Effect;

use super::failure::{self, Failure, refusal};
use super::wire::Time;
use crate::store::{
    Answer, ClaimedRun, Complete, Epoch, Meta, Payload, Poll, Range, Run, Seen, SeenNode,
    StoreError, StoreSnapshot, StoreTime, StoredState, Survey, SurveyedPart, Timer,
};
use crate::sync::Arc;

/// A row as a driver has it.
pub(super) trait Columns {
    /// The value of a column. It panics if the column has another type, as a driver's own call
    /// does.
    fn value<'a, T: FromSql<'a>>(&'a self, column: usize) -> T;
}

impl Columns for Row {
    fn value<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        self.get(column)
    }
}

pub(super) fn one<R>(rows: &[R]) -> Result<&R, StoreError> {
    rows.first()
        .ok_or_else(|| StoreError::Unknown("the server has sent no row".to_owned()))
}

pub(super) fn time(row: &Row, column: usize) -> StoreTime {
    row.get::<_, Time>(column).0
}

pub(super) fn number(row: &Row, column: usize) -> u32 {
    u32::try_from(row.get::<_, i32>(column)).unwrap_or(0)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The index that belongs to the first column, which counts from 1.
pub(super) fn ordinal(row: &Row) -> usize {
    ordinal_of(row.get(0))
}

pub(super) fn ordinal_of(n: i64) -> usize {
    usize::try_from(n - 1).unwrap_or(usize::MAX)
}

/// The answer to a call: none if the row was locked.
pub(super) fn answer(row: &Row) -> Result<Option<Answer>, Failure> {
    let kind = row.get::<_, i16>(1);
    written(kind, row, 2).map_err(Failure::of)
}

/// Reads an answer, whose columns begin with the new due time.
pub(super) fn written(
    kind: i16,
    row: &impl Columns,
    first: usize,
) -> Result<Option<Answer>, StoreError> {
    let due = || row.value::<Option<Time>>(first).map(|time| time.0);
    let other = || row.value::<Option<Time>>(first + 1).map(|time| time.0);
    let shard = || u16::try_from(row.value::<i16>(first + 2)).unwrap_or(0);
    let running = || row.value(first + 3);
    let attempt = || row.value::<Option<i32>>(first + 4);
    let read = || {
        Some(match kind {
            0 => Answer::Scheduled {
                due: due()?,
                shard: shard(),
                replaced: other(),
                running: running(),
            },
            1 => Answer::Exists {
                due: due()?,
                running: running(),
            },
            2 => Answer::Moved {
                from: other()?,
                to: due()?,
                shard: shard(),
                running: running(),
            },
            3 => Answer::Cancelled { due: due()? },
            4 => Answer::Running {
                attempt: u32::try_from(attempt()?).ok()?,
                since: other()?,
            },
            5 => Answer::NotFound,
            _ => return None,
        })
    };
    match (kind, read()) {
        (6, _) => Ok(None),
        (_, Some(answer)) => Ok(Some(answer)),
        (_, None) => Err(StoreError::Unknown(format!(
            "the server has given an answer of the kind {kind}, which is not known"
        ))),
    }
}

/// Why a row was refused, in the answer of a statement that has carried out a batch row by row.
pub(super) fn refused(row: &Row) -> Option<(SqlState, StoreError)> {
    let code: Option<String> = row.get("code");
    let code = SqlState::from_code(&code?);
    let text: String = row.get("error");
    let why = format!("{text} ({})", code.code());
    let error = match failure::is_limit(&code) {
        // The server itself is below its limits: it was asked before.
        true => StoreError::Refused(why),
        false => refusal(Effect::Writes, &code, why),
    };
    Some((code, error))
}

/// The rows of a statement that has carried out a batch of `count` rows one by one, or why all of
/// them have failed. `reason` is why the batch had failed before.
pub(super) fn each(
    result: Result<Vec<Row>, Failure>,
    reason: Failure,
    count: usize,
) -> Result<Vec<Row>, Failure> {
    let rows = match result {
        Ok(rows) => rows,
        Err(failure) if matches!(failure.error, StoreError::Replaced(_)) => return Err(failure),
        Err(failure) if failure.code.is_some() => return Err(reason),
        Err(failure) => return Err(failure),
    };
    let is_general = |row: &&Row| refused(row).is_some_and(|(code, _)| failure::is_general(&code));
    let general = rows.iter().filter(is_general).count();
    match general == count {
        true => Err(reason),
        false => Ok(rows),
    }
}

pub(super) fn meta(row: &Row, column: usize) -> Option<Meta> {
    let json: Option<String> = row.get(column);
    json.map(Meta::of_json)
}

pub(super) fn timer(row: &Row) -> Timer {
    let optional = |column| row.get::<_, Option<Time>>(column).map(|time| time.0);
    Timer {
        queue: row.get(0),
        key: row.get(1),
        due: time(row, 2),
        planned: time(row, 3),
        attempt: number(row, 4),
        fails: number(row, 5),
        crashes: number(row, 6),
        state: match row.get(12) {
            "running" => StoredState::Running,
            "paused" => StoredState::Paused,
            "overdue" => StoredState::Overdue,
            _ => StoredState::Waiting,
        },
        running: optional(7),
        node: row.get(13),
        cancelled: row.get(8),
        follows: row.get(9),
        payload: row.get(10),
        meta: meta(row, 11),
    }
}

pub(super) fn run(row: &Row, queue: &Arc<str>, key: &str) -> ClaimedRun {
    ClaimedRun {
        run: Run {
            queue: Arc::clone(queue),
            key: Box::from(key),
            generation: row.get(4),
            attempt: number(row, 5),
        },
        due: time(row, 6),
        planned: time(row, 7),
        fails: number(row, 8),
        crashes: number(row, 9),
        stepped: false,
        payload: Payload {
            json: row.get::<_, String>(10).into_boxed_str(),
            meta: meta(row, 12),
        },
    }
}

/// The answer to `OPEN_WRITES`. Without an open transaction every write is in the snapshot, or
/// comes later.
pub(super) fn complete(row: &Row) -> Complete {
    Complete {
        below: row.get::<_, Option<i64>>(1).map_or(u64::MAX, unsigned),
        at: time(row, 0),
    }
}

/// The lists of queues of the nodes, as this connection has read them. A node may handle thousands.
#[derive(Debug, Default)]
pub(super) struct Lists(BTreeMap<Epoch, (i32, Arc<[String]>)>);

impl Lists {
    /// The nodes whose lists are known, and the numbers of these lists.
    pub(super) fn known(&self) -> (Vec<i64>, Vec<i32>) {
        let known = self.0.iter();
        known.map(|(epoch, (list, _))| (epoch.0, *list)).unzip()
    }

    /// The list of a node, which the server sends if it is not known.
    fn take(&mut self, epoch: Epoch, list: i32, sent: Option<Vec<String>>) -> Arc<[String]> {
        if let Some(queues) = sent {
            self.0.insert(epoch, (list, queues.into()));
        }
        let known = self.0.get(&epoch);
        known.map_or_else(|| [].into(), |(_, queues)| Arc::clone(queues))
    }
}

/// A timer that a range of a poll has shown. Its queue and shard are those of the range.
fn seen(row: &Row, range: &Range) -> Seen {
    Seen {
        queue: Arc::clone(&range.queue),
        key: row.get::<_, String>(2).into_boxed_str(),
        shard: range.shard,
        due: time(row, 3),
        generation: row.get(4),
        attempt: number(row, 5),
        crashes: number(row, 6),
        mine: row.get(7),
        bytes: u64::from(number(row, 9)),
    }
}

pub(super) fn snapshot(poll: &Poll, rows: &[Row], lists: &mut Lists) -> StoreSnapshot {
    let mut snapshot = StoreSnapshot::default();
    let mut survey = Survey::default();
    let mut read = vec![0_u32; poll.ranges.len()];
    let mut counted = vec![0_u64; poll.bands.len()];
    for row in rows {
        match row.get::<_, i32>(0) {
            0 => snapshot.now = time(row, 3),
            1 => {
                let epoch = Epoch(row.get(4));
                snapshot.nodes.push(SeenNode {
                    epoch,
                    beat: row.get(1),
                    queues: lists.take(epoch, row.get(5), row.get(8)),
                });
            }
            2 => snapshot.paused.push(row.get(2)),
            3 => {
                let index = ordinal_of(row.get(1));
                let range = &poll.ranges[index];
                // The server sends one row more than the limit, to show that there is more.
                if read[index] == range.limit {
                    snapshot.cut.push(index);
                    continue;
                }
                read[index] += 1;
                snapshot.rows.push(seen(row, range));
            }
            _ => {
                let band = ordinal_of(row.get(1));
                counted[band] += unsigned(row.get(4));
                survey.parts.push(SurveyedPart {
                    band,
                    queue: row.get::<_, String>(2).into_boxed_str(),
                    first: time(row, 3),
                });
            }
        }
    }
    let counted = counted.iter().zip(&poll.bands).enumerate();
    let cut = counted.filter(|(_, (count, band))| **count > u64::from(band.limit));
    survey.cut = cut.map(|(index, _)| index).collect();
    snapshot.survey = Some(survey);
    // A node that is gone never comes back under its epoch.
    lists
        .0
        .retain(|epoch, _| snapshot.nodes.iter().any(|node| node.epoch == *epoch));
    snapshot
}
