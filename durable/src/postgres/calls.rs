//! The calls of a connection, as statements.

use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::postgres::failure::{Effect, Failure};
use crate::postgres::link::Link;
use crate::postgres::wire::{Json, Span, Time};
use crate::store::{
    Action, Answer, Beat, Call, Claim, Claimed, ClaimedRun, Connection, DeadLetter, Epoch, Horizon,
    Look, NewNode, Offset, Outcome, Page, QueueCounts, Refusal, Revived, Run, Seen, SeenNode,
    Settle, Settled, Sight, StoreError, Timer, When,
};
use crate::sync::Arc;
use crate::time::StoreTime;

const WRITE: &str = "select n, answer, due, other, shard, running, attempt \
     from tourbillon.write_1($1, $2, $3, $4, $5, $6, $7, $8)";

const PAYLOAD_ERRORS: &str = "select tourbillon.payload_errors_1($1)";

/// The columns of a [`Timer`]. A row that a gone node has left behind cancelled is none.
macro_rules! timer {
    ($from:literal) => {
        concat!(
            "select t.queue, t.key, t.due, t.planned, t.attempt, t.fails, t.crashes, \
             case when l.live then t.claimed end, t.cancelled, t.next_due, t.payload::text ",
            $from
        )
    };
}

const GET: &str = timer!(
    "from tourbillon.timer t cross join lateral (select t.claim is not null and exists ( \
     select from tourbillon.node d where d.epoch = t.claim and d.gone is null) as live) l \
     where t.queue = $1 and t.key = $2 and (l.live or not t.cancelled)"
);

/// Each shard is in order, and has no more of the page than the page has rows.
const LIST: &str = timer!(
    "from generate_series(0, 63) s(shard) cross join lateral ( \
     select t.queue, t.key, t.due, t.planned, t.attempt, t.fails, t.crashes, t.claim, t.claimed, \
     t.cancelled, t.next_due, t.payload, l.live from tourbillon.timer t \
     cross join lateral (select t.claim is not null and exists ( \
     select from tourbillon.node d where d.epoch = t.claim and d.gone is null) as live) l \
     where t.queue = $1 and t.shard = s.shard and t.due >= greatest($2::timestamptz, $4) and t.due < $3 \
     and ($4::timestamptz is null or (t.due, t.key) > ($4, $5)) and (l.live or not t.cancelled) \
     order by t.due, t.key limit $6) t cross join lateral (select t.live) l \
     order by t.due, t.key limit $6"
);

const COUNTS: &str = "with now as materialized (select clock_timestamp() as now), timers as ( \
     select t.queue, \
     count(*) filter (where not l.live and t.due > (select now from now)) as waiting, \
     count(*) filter (where not l.live and t.due <= (select now from now)) as overdue, \
     count(*) filter (where l.live) as running \
     from tourbillon.timer t cross join lateral (select t.claim is not null and exists ( \
     select from tourbillon.node d where d.epoch = t.claim and d.gone is null) as live) l \
     where l.live or not t.cancelled group by t.queue \
     ), letters as (select d.queue, count(*) as dead from tourbillon.dead d group by d.queue \
     ), paused as (select q.name as queue from tourbillon.queue q where q.paused) \
     select queue, coalesce(t.waiting, 0), coalesce(t.overdue, 0), coalesce(t.running, 0), \
     coalesce(d.dead, 0), p.queue is not null \
     from timers t full join letters d using (queue) full join paused p using (queue) order by queue";

const DEAD: &str = "select d.id, d.queue, d.key, d.planned, d.at, d.attempt, d.fails, d.crashes, \
     d.error, d.payload::text from tourbillon.dead d where d.queue = $1 and d.id > $2 \
     order by d.id limit $3";

const REVIVE: &str = "select answer, queue, key from tourbillon.revive_1($1, $2)";

const PAUSE: &str = "insert into tourbillon.queue (name, paused) values ($1, $2) \
     on conflict (name) do update set paused = excluded.paused";

const JOIN: &str =
    "insert into tourbillon.node (epoch, name, queues) values ($1, $2, $3) on conflict do nothing";

/// The time of the statement was taken before the number of its transaction.
const BEAT: &str = "update tourbillon.node set beat = beat + 1 where epoch = $1 and gone is null \
     returning clock_timestamp(), statement_timestamp(), pg_current_xact_id()::text::bigint";

/// One statement, so that all of it is of one snapshot. Kinds of rows: 0 the clock and the snapshot, 1
/// a node, 2 a paused queue, 3 a timer. The clock is read once; as a function in the condition it would
/// be read for each row, and never be a bound of the index.
pub(super) const LOOK: &str = "with clock as materialized (select clock_timestamp() as now), \
     me as materialized (select exists ( \
     select from tourbillon.node where epoch = $1 and gone is null) as live) \
     select 0, 0::bigint, null::text, (select now from clock), \
     pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 0, 0, false, null::text[] \
     union all \
     select 1, d.beat, null, null, d.epoch, 0, 0, false, d.queues from tourbillon.node d where d.gone is null \
     union all \
     select 2, 0, q.name, null, 0, 0, 0, false, null from tourbillon.queue q where q.paused \
     union all \
     select 3, r.n, t.key, t.due, t.gen, t.attempt, t.crashes, t.mine, null \
     from unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::interval[], $6::interval[], $7::bigint[]) \
     with ordinality r(queue, shard, mark, ahead, overdue, seen, n) cross join lateral ( \
     select t.key, t.due, t.gen, t.attempt, t.crashes, \
     coalesce(t.claim = $1 and (select live from me), false) as mine \
     from tourbillon.timer t where t.queue = r.queue and t.shard = r.shard and t.due >= r.mark \
     and t.due < (select now from clock) + r.ahead - r.overdue \
     and (t.claim is null or t.claim = $1 or not exists ( \
     select from tourbillon.node d where d.epoch = t.claim and d.gone is null)) \
     order by t.due limit r.seen) t";

const CLAIM: &str = "select kind, n, at, number, gen, attempt, due, planned, fails, crashes, payload, \
     statement_timestamp() from tourbillon.claim_1($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const SETTLE: &str =
    "select n, answer from tourbillon.settle_1($1, $2, $3, $4, $5, $6, $7, $8, false)";

const DECLARE_GONE: &str = "select tourbillon.declare_gone_1($1, $2, $3)";

const OLD_NODES: &str = "select exists (select from tourbillon.node \
     where gone < clock_timestamp() - interval '1 day')";

/// A claim of an epoch that is not in the table counts as none, so the row may go when no claim of it
/// is left, and none can be made by a node that is gone.
const FORGET: &str = "delete from tourbillon.node d where d.gone < clock_timestamp() - interval '1 day' \
     and not exists (select from tourbillon.timer t where t.claim = d.epoch)";

const LEAVE: &str =
    "update tourbillon.node set gone = clock_timestamp() where epoch = $1 and gone is null";

/// A span that leads from now to a time that the server can show. No timer is that old.
const LONGEST_BACK: Duration = Duration::from_secs(6_000 * 365 * 86_400);

/// The least time of the server.
const FIRST: StoreTime = StoreTime::from_micros(i64::MIN);

/// A connection to a PostgreSQL server.
#[derive(Debug)]
pub(super) struct PostgresConnection {
    link: Link,
}

impl PostgresConnection {
    pub(super) fn new(link: Link) -> Self {
        PostgresConnection { link }
    }
}

type Answers = [Option<Result<Answer, Refusal>>];

impl PostgresConnection {
    /// Carries out some of the calls, which are given by their indices in the order of queue and key.
    fn write_some(
        &mut self,
        calls: &[Call],
        some: &[usize],
        wait: bool,
        answers: &mut Answers,
    ) -> Result<(), Failure> {
        if some.is_empty() {
            return Ok(());
        }
        let error = match self.send(calls, some, wait) {
            Ok(rows) => {
                for row in rows {
                    let index = some[ordinal(&row)];
                    answers[index] = answer(&row)?.map(Ok);
                }
                return Ok(());
            }
            Err(error) => error,
        };
        if !error.is_bad_value() && !error.is_locked() {
            return Err(error);
        }
        let [alone] = some else {
            if error.is_bad_value() {
                let bad = self.refuse_payloads(calls, some, answers)?;
                if bad > 0 {
                    let is_good = |index: &&usize| answers[**index].is_none();
                    let good: Vec<usize> = some.iter().filter(is_good).copied().collect();
                    return self.write_some(calls, &good, wait, answers);
                }
            }
            // Somebody inserts one of the keys at this moment, or one of the values is bad in a way
            // that can't be found out.
            let (one, other) = some.split_at(some.len() / 2);
            self.write_some(calls, one, wait, answers)?;
            return self.write_some(calls, other, wait, answers);
        };
        if error.is_bad_value() {
            answers[*alone] = Some(Err(Refusal(error.error.to_string())));
        }
        // A locked row stays without an answer.
        Ok(())
    }

    fn send(&mut self, calls: &[Call], some: &[usize], wait: bool) -> Result<Vec<Row>, Failure> {
        let notify = self.link.settings().notify;
        let of = |index: &usize| &calls[*index];
        let queues: Vec<&str> = some.iter().map(|index| &*of(index).queue).collect();
        let keys: Vec<&str> = some.iter().map(|index| &*of(index).key).collect();
        let parts = || some.iter().map(|index| parts(&of(index).action));
        let actions: Vec<i16> = parts().map(|(action, ..)| action).collect();
        let delays: Vec<Option<Span>> = parts().map(|(_, delay, ..)| delay).collect();
        let times: Vec<Option<Time>> = parts().map(|(_, _, at, _)| at).collect();
        let payloads: Vec<Option<Json<'_>>> = parts().map(|(.., payload)| payload).collect();
        let values: [&(dyn ToSql + Sync); 8] = [
            &queues, &keys, &actions, &delays, &times, &payloads, &wait, &notify,
        ];
        self.link.query(Effect::Writes, WRITE, &values)
    }

    /// Refuses the calls whose payloads the server does not take, and returns their number.
    fn refuse_payloads(
        &mut self,
        calls: &[Call],
        some: &[usize],
        answers: &mut Answers,
    ) -> Result<usize, Failure> {
        let payload = |index: &usize| parts(&calls[*index].action).3.map(|payload| payload.0);
        let with: Vec<usize> = some
            .iter()
            .copied()
            .filter(|index| payload(index).is_some())
            .collect();
        let payloads: Vec<&str> = with.iter().filter_map(payload).collect();
        let rows = self
            .link
            .query(Effect::Reads, PAYLOAD_ERRORS, &[&payloads])?;
        let errors: Vec<Option<String>> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let mut bad = 0;
        for (index, error) in with.into_iter().zip(errors) {
            if let Some(error) = error {
                bad += 1;
                answers[index] = Some(Err(Refusal(error)));
            }
        }
        Ok(bad)
    }

    fn rows(
        &mut self,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        Ok(self.link.query(Effect::Reads, sql, values)?)
    }
}

impl Connection for PostgresConnection {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, Refusal>>, StoreError> {
        let mut order: Vec<usize> = (0..calls.len()).collect();
        order.sort_unstable_by(|a, b| place(&calls[*a]).cmp(&place(&calls[*b])));
        let mut answers: Vec<Option<Result<Answer, Refusal>>> = vec![None; calls.len()];
        let mut result = self.write_some(calls, &order, false, &mut answers);
        // What others have locked goes alone and waits for them, but not for all of them in turn.
        let start = Instant::now();
        let patience = self.link.settings().lock_limit * 2;
        for index in order {
            if result.is_ok() && answers[index].is_none() {
                let wait = start.elapsed() < patience;
                // Without an answer the row was inserted or deleted between two steps.
                for _ in 0..3 {
                    result = self.write_some(calls, &[index], wait, &mut answers);
                    if result.is_err() || answers[index].is_some() || start.elapsed() >= patience {
                        break;
                    }
                }
            }
        }
        if let Err(failure) = result {
            // Each part is a commit of its own.
            let carried_out = answers.iter().flatten().any(Result::is_ok);
            return Err(match (carried_out, failure.error) {
                (true, error) => StoreError::Unknown(error.to_string()),
                (false, error) => error,
            });
        }
        let answers = answers.into_iter().map(|answer| {
            answer.unwrap_or_else(|| {
                Err(Refusal(
                    "another transaction holds the lock of the timer's row: end that transaction"
                        .to_owned(),
                ))
            })
        });
        Ok(answers.collect())
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        let rows = self.rows(GET, &[&queue, &key])?;
        Ok(rows.first().map(timer))
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        let (from, until) = (Time(page.from), Time(page.until));
        let after = page.after.as_ref();
        let due = after.map(|(due, _)| Time(*due));
        let key = after.map(|(_, key)| key.as_str());
        let limit = i64::from(page.limit);
        let rows = self.rows(LIST, &[&page.queue, &from, &until, &due, &key, &limit])?;
        Ok(rows.iter().map(timer).collect())
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        let rows = self.link.scan(Effect::Reads, COUNTS, &[])?;
        let counts = rows.iter().map(|row| QueueCounts {
            queue: row.get(0),
            waiting: unsigned(row.get(1)),
            overdue: unsigned(row.get(2)),
            running: unsigned(row.get(3)),
            dead: unsigned(row.get(4)),
            paused: row.get(5),
        });
        Ok(counts.collect())
    }

    fn dead(&mut self, queue: &str, after: i64, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = self.rows(DEAD, &[&queue, &after, &i64::from(limit)])?;
        let letters = rows.iter().map(|row| DeadLetter {
            id: row.get(0),
            queue: row.get(1),
            key: row.get(2),
            planned: time(row, 3),
            at: time(row, 4),
            attempt: number(row, 5),
            fails: number(row, 6),
            crashes: number(row, 7),
            error: row.get(8),
            payload: row.get(9),
        });
        Ok(letters.collect())
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        let notify = self.link.settings().notify;
        let rows = self
            .link
            .query(Effect::Writes, REVIVE, &[&letter, &notify])?;
        let row = one(&rows)?;
        Ok(match row.get::<_, i16>(0) {
            0 => Revived::Revived {
                queue: row.get(1),
                key: row.get(2),
            },
            1 => Revived::Exists,
            _ => Revived::NotFound,
        })
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.link.query(Effect::Writes, PAUSE, &[&queue, &paused])?;
        Ok(())
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        let queues: Vec<&str> = node.queues.iter().map(|queue| &**queue).collect();
        let name = text(&node.name);
        self.link
            .query(Effect::Writes, JOIN, &[&node.epoch.0, &name, &queues])?;
        Ok(())
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        let rows = self.link.query(Effect::Writes, BEAT, &[&epoch.0])?;
        Ok(rows.first().map(|row| Beat {
            now: time(row, 0),
            horizon: Some(Horizon {
                number: unsigned(row.get(2)),
                at: time(row, 1),
            }),
        }))
    }

    fn look(&mut self, look: &Look) -> Result<Sight, StoreError> {
        let ranges = &look.ranges;
        let queues: Vec<&str> = ranges.iter().map(|range| &*range.queue).collect();
        let shards: Vec<i16> = ranges.iter().map(|range| small(range.shard)).collect();
        let marks: Vec<Time> = ranges
            .iter()
            .map(|range| Time(range.mark.unwrap_or(FIRST)))
            .collect();
        let (ahead, overdue): (Vec<Span>, Vec<Span>) = ranges
            .iter()
            .map(|range| match range.until {
                Offset::Ahead(span) => (Span(span), Span(Duration::ZERO)),
                Offset::Overdue(span) => (Span(Duration::ZERO), Span(span.min(LONGEST_BACK))),
            })
            .unzip();
        // One more, which shows that the limit has cut the range.
        let seen: Vec<i64> = ranges
            .iter()
            .map(|range| i64::from(range.limit) + 1)
            .collect();
        let values: [&(dyn ToSql + Sync); 7] = [
            &look.epoch.0,
            &queues,
            &shards,
            &marks,
            &ahead,
            &overdue,
            &seen,
        ];
        let rows = self.rows(LOOK, &values)?;
        Ok(sight(look, &rows))
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        let mut wanted: Vec<_> = claim.timers.iter().collect();
        wanted.sort_unstable_by(|a, b| (&a.queue, &a.key).cmp(&(&b.queue, &b.key)));
        wanted.dedup_by(|a, b| (&a.queue, &a.key) == (&b.queue, &b.key));
        let queues: Vec<&str> = wanted.iter().map(|wanted| &*wanted.queue).collect();
        let keys: Vec<&str> = wanted.iter().map(|wanted| &*wanted.key).collect();
        let limits: Vec<i32> = wanted
            .iter()
            .map(|wanted| int(wanted.crash_limit))
            .collect();
        let adopt = &claim.adopt;
        let adopt_queues: Vec<&str> = adopt.iter().map(|run| &*run.queue).collect();
        let adopt_keys: Vec<&str> = adopt.iter().map(|run| &*run.key).collect();
        let generations: Vec<i64> = adopt.iter().map(|run| run.generation).collect();
        let attempts: Vec<i32> = adopt.iter().map(|run| int(run.attempt)).collect();
        let deadline = Time(claim.deadline);
        let values: [&(dyn ToSql + Sync); 9] = [
            &claim.epoch.0,
            &deadline,
            &queues,
            &keys,
            &limits,
            &adopt_queues,
            &adopt_keys,
            &generations,
            &attempts,
        ];
        let rows = self.link.query(Effect::Writes, CLAIM, &values)?;
        let mut claimed = Claimed::default();
        for row in &rows {
            let n = row.get::<_, i64>(1);
            match row.get::<_, i16>(0) {
                0 => {
                    claimed.now = time(row, 2);
                    claimed.gone = n != 0;
                    claimed.horizon = (n == 0).then(|| Horizon {
                        number: unsigned(row.get(3)),
                        at: time(row, 11),
                    });
                }
                1 => {
                    let wanted = wanted[ordinal_of(n)];
                    claimed.runs.push(run(row, &wanted.queue, &wanted.key));
                }
                2 => {
                    let adopted = &adopt[ordinal_of(n)];
                    claimed.runs.push(run(row, &adopted.queue, &adopted.key));
                }
                _ => claimed.dead += 1,
            }
        }
        Ok(claimed)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Settled>, StoreError> {
        let all = &settle.settlements;
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&all[*a].run, &all[*b].run);
            (&a.queue, &a.key).cmp(&(&b.queue, &b.key))
        });
        let runs = || order.iter().map(|index| &all[*index].run);
        let queues: Vec<&str> = runs().map(|run| &*run.queue).collect();
        let keys: Vec<&str> = runs().map(|run| &*run.key).collect();
        let generations: Vec<i64> = runs().map(|run| run.generation).collect();
        let attempts: Vec<i32> = runs().map(|run| int(run.attempt)).collect();
        let ends = || order.iter().map(|index| end(&all[*index].outcome));
        let outcomes: Vec<i16> = ends().map(|(outcome, ..)| outcome).collect();
        let delays: Vec<Span> = ends().map(|(_, delay, _)| delay).collect();
        let errors: Vec<Option<String>> = ends().map(|(.., error)| error).collect();
        let values: [&(dyn ToSql + Sync); 8] = [
            &settle.epoch.0,
            &queues,
            &keys,
            &generations,
            &attempts,
            &outcomes,
            &delays,
            &errors,
        ];
        let rows = self.link.query(Effect::Writes, SETTLE, &values)?;
        let mut settled = vec![Settled::Locked; all.len()];
        for row in &rows {
            settled[order[ordinal(row)]] = match row.get::<_, i16>(1) {
                0 => Settled::Ended,
                1 => Settled::Waits,
                2 => Settled::Buried,
                3 => Settled::Fenced,
                _ => Settled::Locked,
            };
        }
        Ok(settled)
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        let values: [&(dyn ToSql + Sync); 3] = [&asking.0, &epoch.0, &beat];
        let rows = self.link.query(Effect::Writes, DECLARE_GONE, &values)?;
        let declared = one(&rows)?.get(0);
        let rows = self.rows(OLD_NODES, &[])?;
        if one(&rows)?.get(0) {
            // A huge table may take longer than the limit. The rows of old nodes do no harm.
            let _ = self.link.scan(Effect::Writes, FORGET, &[]);
        }
        Ok(declared)
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.link.query(Effect::Writes, LEAVE, &[&epoch.0])?;
        Ok(())
    }
}

// === values of calls ===

/// Where a call lies in the order in which rows are locked.
fn place(call: &Call) -> (&str, &str) {
    (&call.queue, &call.key)
}

/// The number of an action, and what belongs to it.
pub(super) fn parts(action: &Action) -> (i16, Option<Span>, Option<Time>, Option<Json<'_>>) {
    let (number, when, payload) = match action {
        Action::Schedule { when, payload } => (0, Some(when), Some(Json(payload))),
        Action::ScheduleIfAbsent { when, payload } => (1, Some(when), Some(Json(payload))),
        Action::Reschedule { when } => (2, Some(when), None),
        Action::Cancel => (3, None, None),
    };
    match when {
        Some(When::In(span)) => (number, Some(Span(*span)), None, payload),
        Some(When::At(time)) => (number, None, Some(Time(*time)), payload),
        None => (number, None, None, payload),
    }
}

/// The number of an outcome, and what belongs to it.
fn end(outcome: &Outcome) -> (i16, Span, Option<String>) {
    match outcome {
        Outcome::Done => (0, Span(Duration::ZERO), None),
        Outcome::Again(after) => (1, Span(*after), None),
        Outcome::Retry(after) => (2, Span(*after), None),
        Outcome::Dead(error) => (3, Span(Duration::ZERO), Some(text(error))),
        Outcome::GiveBack(after) => (4, Span(*after), None),
    }
}

/// Text that the server can keep.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

// === values of rows ===

fn one(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first()
        .ok_or_else(|| StoreError::Unknown("the server has sent no row".to_owned()))
}

fn time(row: &Row, column: usize) -> StoreTime {
    row.get::<_, Time>(column).0
}

fn number(row: &Row, column: usize) -> u32 {
    u32::try_from(row.get::<_, i32>(column)).unwrap_or(0)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The index that belongs to the first column, which counts from 1.
fn ordinal(row: &Row) -> usize {
    ordinal_of(row.get(0))
}

fn ordinal_of(n: i64) -> usize {
    usize::try_from(n - 1).unwrap_or(usize::MAX)
}

/// The answer to a call: none if the row was locked.
fn answer(row: &Row) -> Result<Option<Answer>, Failure> {
    let kind = row.get::<_, i16>(1);
    written(kind, row, 2).map_err(|error| Failure { code: None, error })
}

/// Reads an answer, whose columns begin with the new due time.
pub(super) fn written(kind: i16, row: &Row, first: usize) -> Result<Option<Answer>, StoreError> {
    let due = || row.get::<_, Option<Time>>(first).map(|time| time.0);
    let other = || row.get::<_, Option<Time>>(first + 1).map(|time| time.0);
    let shard = || u16::try_from(row.get::<_, i16>(first + 2)).unwrap_or(0);
    let running = || row.get(first + 3);
    let attempt = || row.get::<_, Option<i32>>(first + 4);
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

fn timer(row: &Row) -> Timer {
    let optional = |column| row.get::<_, Option<Time>>(column).map(|time| time.0);
    Timer {
        queue: row.get(0),
        key: row.get(1),
        due: time(row, 2),
        planned: time(row, 3),
        attempt: number(row, 4),
        fails: number(row, 5),
        crashes: number(row, 6),
        running: optional(7),
        cancelled: row.get(8),
        next_due: optional(9),
        payload: row.get(10),
    }
}

fn run(row: &Row, queue: &Arc<str>, key: &str) -> ClaimedRun {
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
        payload: row.get::<_, String>(10).into_boxed_str(),
    }
}

fn sight(look: &Look, rows: &[Row]) -> Sight {
    let mut sight = Sight::default();
    let mut read = vec![0_u32; look.ranges.len()];
    for row in rows {
        match row.get::<_, i32>(0) {
            0 => {
                sight.now = time(row, 3);
                sight.complete_below = Some(unsigned(row.get(4)));
            }
            1 => sight.nodes.push(SeenNode {
                epoch: Epoch(row.get(4)),
                beat: row.get(1),
                queues: row.get(8),
            }),
            2 => sight.paused.push(row.get(2)),
            _ => {
                let index = ordinal_of(row.get(1));
                let range = &look.ranges[index];
                if read[index] == range.limit {
                    sight.cut.push(index);
                    continue;
                }
                read[index] += 1;
                sight.rows.push(Seen {
                    queue: Arc::clone(&range.queue),
                    key: row.get::<_, String>(2).into_boxed_str(),
                    shard: range.shard,
                    due: time(row, 3),
                    generation: row.get(4),
                    attempt: number(row, 5),
                    crashes: number(row, 6),
                    mine: row.get(7),
                });
            }
        }
    }
    sight
}
