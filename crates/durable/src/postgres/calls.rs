//! The calls of a connection, as statements.

use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tourbillon_postgres::Effect;

use super::failure::Failure;
use super::guess::Guess;
use super::link::Link;
use super::polls::{self, LONGEST_BACK};
use super::rows::{
    Lists, each, meta, number, one, ordinal, ordinal_of, refused, run, time, timer, unsigned,
};
use super::statements::{
    BEAT, CLAIM, CLAIM_EACH, COUNTS, DEAD, DEAD_ALL, DECLARE_GONE, DISCARD, DISCARD_OLD, FORGET,
    GET, JOIN, LEAVE, LIST, LIST_ALL, LIST_KEYS, NODES, NUMBER, OLD_NODES, PAUSE, PAUSE_SCHEDULE,
    REVIVE, ROW, SETTLE, SETTLE_EACH,
};
use super::values::{SentEnds, int, order, text};
use super::wire::{Span, Time};
use crate::store::schedule::{names_of_json, names_to_json};
use crate::store::{
    self, Answer, Beat, Beats, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch,
    FoundRow, Horizon, MOST_COUNTED, NewNode, Page, Poll, QueueCounts, RefusedClaim, Revived, Run,
    Settle, Settled, StoreError, StoreSnapshot, StoredNode, StoredState, Timer, Wanted,
    end_of_prefix,
};
use crate::sync::Arc;

/// How long the rows of old nodes are looked for. It is far below the time between two beats.
const FORGET_LIMIT: Duration = Duration::from_millis(500);

/// A page ends when it has so many bytes of payloads.
const PAGE_BYTES: i64 = store::PAGE_BYTES as i64;

/// A connection to a PostgreSQL server.
#[derive(Debug)]
pub(super) struct PostgresConnection {
    pub(super) link: Link,
    pub(super) guess: Guess,
    lists: Lists,
}

impl PostgresConnection {
    pub(super) fn new(link: Link) -> Self {
        PostgresConnection {
            link,
            guess: Guess::default(),
            lists: Lists::default(),
        }
    }
}

impl PostgresConnection {
    /// Whether the server accepts no writes at all, since it has no numbers for transactions any
    /// more.
    pub(super) fn is_at_its_limit(&mut self) -> bool {
        let asked = self.link.query(Effect::Reads, NUMBER, &[]);
        asked.is_err_and(|failure| failure.is_limit())
    }

    /// Writes a batch of `count` rows by one statement, and by the other one, row by row, if that
    /// fails.
    fn together_or_each(
        &mut self,
        together: &'static str,
        one_by_one: &'static str,
        values: &[&(dyn ToSql + Sync)],
        count: usize,
    ) -> Result<Vec<Row>, Failure> {
        match self.link.query(Effect::Writes, together, values) {
            Err(reason) if reason.is_limit() && self.is_at_its_limit() => Err(reason),
            Err(reason) if count > 0 && reason.may_be_of_one_row() => {
                let result = self.link.query(Effect::Writes, one_by_one, values);
                each(result, reason, count)
            }
            result => result,
        }
    }

    /// A statement has found no row of a node that is not gone. An error if that is the sign of an
    /// older database.
    fn is_gone(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        let rows = self.rows(ROW, &[&epoch.0])?;
        let row = one(&rows)?;
        let found = row.get::<_, Option<i64>>(1).map(|beat| FoundRow {
            beat,
            gone: row.get(2),
        });
        self.beats().found(epoch, found, time(row, 0))
    }

    fn beats(&self) -> &Beats {
        &self.link.settings().beats
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
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.beats().are_right()?;
        let (order, mut answers) = (order(calls), vec![None; calls.len()]);
        let mut result = self.write_some(calls, &order, false, true, &mut answers);
        // What others have locked goes alone and waits for them, but not for all of them in turn.
        let start = Instant::now();
        let patience = self.link.settings().lock_limit * 2;
        for index in order {
            if result.is_ok() && answers[index].is_none() {
                let wait = start.elapsed() < patience;
                // Without an answer the row was inserted or deleted between two steps.
                for _ in 0..3 {
                    result = self.write_some(calls, &[index], wait, true, &mut answers);
                    if result.is_err() || answers[index].is_some() || start.elapsed() >= patience {
                        break;
                    }
                }
            }
        }
        all(answers, result)
    }

    fn try_write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.beats().are_right()?;
        let (order, mut answers) = (order(calls), vec![None; calls.len()]);
        let result = self.write_some(calls, &order, false, true, &mut answers);
        all(answers, result)
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.beats().are_right()?;
        let rows = self.rows(GET, &[&queue, &key])?;
        Ok(rows.first().map(timer))
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.beats().are_right()?;
        let (from, until) = (Time(page.from), Time(page.until));
        let after = page.after.as_ref();
        let due = after.map(|(due, ..)| Time(*due));
        let after_queue = after.map(|(_, queue, _)| queue.as_str());
        let after_key = after.map(|(.., key)| key.as_str());
        let limit = i64::from(page.limit);
        let state = page.state.map(StoredState::as_str);
        let end = end_of_prefix(&page.prefix);
        let values: [&(dyn ToSql + Sync); 12] = [
            &page.queue,
            &from,
            &until,
            &due,
            &after_key,
            &limit,
            &PAGE_BYTES,
            &state,
            &after_queue,
            &page.prefix,
            &end,
            &page.schedules,
        ];
        let sql = match (&page.queue, page.prefix.is_empty()) {
            (Some(_), true) => LIST,
            (None, true) => LIST_ALL,
            (_, false) => LIST_KEYS,
        };
        // These may read all timers.
        let reads_much =
            sql == LIST_KEYS || page.schedules || page.state == Some(StoredState::Running);
        let rows = match reads_much {
            true => {
                let limit = self.link.scan_limit();
                self.link.scan(Effect::Reads, sql, &values, limit)?
            }
            false => self.rows(sql, &values)?,
        };
        Ok(rows.iter().map(timer).collect())
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.beats().are_right()?;
        let limit = self.link.scan_limit();
        let most = i64::try_from(MOST_COUNTED).unwrap_or(i64::MAX);
        let rows = self.link.scan(Effect::Reads, COUNTS, &[&most], limit)?;
        let counts = rows.iter().map(|row| QueueCounts {
            queue: row.get(0),
            waiting: unsigned(row.get(1)),
            overdue: unsigned(row.get(2)),
            running: unsigned(row.get(3)).min(MOST_COUNTED),
            dead: unsigned(row.get(4)),
            paused: row.get(5),
            oldest: row.get::<_, Option<Time>>(6).map(|time| time.0.into()),
            within_minute: unsigned(row.get(7)),
            within_ten_minutes: unsigned(row.get(8)),
        });
        Ok(counts.collect())
    }

    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.beats().are_right()?;
        let limit = i64::from(page.limit);
        let age = page.older_than.map(|age| Span(age.min(LONGEST_BACK)));
        let sql = match &page.queue {
            Some(_) => DEAD,
            None => DEAD_ALL,
        };
        let values: [&(dyn ToSql + Sync); 6] = [
            &page.queue,
            &page.after,
            &limit,
            &PAGE_BYTES,
            &page.prefix,
            &age,
        ];
        let rows = self.rows(sql, &values)?;
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
            meta: meta(row, 10),
            has_timer: row.get(11),
        });
        Ok(letters.collect())
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.beats().are_right()?;
        let rows = self.link.query(Effect::Writes, DISCARD, &[&letters])?;
        Ok(unsigned(one(&rows)?.get(0)))
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.beats().are_right()?;
        let age = Span(age.min(LONGEST_BACK));
        let rows = self
            .link
            .query(Effect::Writes, DISCARD_OLD, &[&age, &i64::from(limit)])?;
        Ok(unsigned(one(&rows)?.get(0)))
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.beats().are_right()?;
        let rows = self.rows(NODES, &[])?;
        let nodes = rows.iter().map(|row| StoredNode {
            id: row.get(0),
            name: row.get(1),
            queues: row.get(2),
            joined: time(row, 3).into(),
            silent_for: time(row, 6).since(time(row, 4)),
            gone: row.get::<_, Option<Time>>(5).map(|time| time.0.into()),
            schedules: names_of_json(row.get(7)),
        });
        Ok(nodes.collect())
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.beats().are_right()?;
        let notify = self.link.settings().notify;
        let result = self.link.query(Effect::Writes, REVIVE, &[&letter, &notify]);
        let rows = match result {
            // Its row has met the limit.
            Err(failure) if failure.is_limit() && !self.is_at_its_limit() => {
                return Err(failure.of_the_row());
            }
            result => result?,
        };
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
        self.beats().are_right()?;
        self.link.query(Effect::Writes, PAUSE, &[&queue, &paused])?;
        Ok(())
    }

    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        self.beats().are_right()?;
        let notify = self.link.settings().notify;
        let values: [&(dyn ToSql + Sync); 4] = [&queue, &key, &paused, &notify];
        let result = self.link.query(Effect::Writes, PAUSE_SCHEDULE, &values);
        let rows = match result {
            // Its row has met the limit.
            Err(failure) if failure.is_limit() && !self.is_at_its_limit() => {
                return Err(failure.of_the_row());
            }
            result => result?,
        };
        Ok(one(&rows)?.get(0))
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        let queues: Vec<&str> = node.queues.iter().map(|queue| &**queue).collect();
        let name = text(&node.name);
        self.beats().are_right()?;
        let sent = Instant::now();
        let schedules = names_to_json(&node.schedules);
        let values: [&(dyn ToSql + Sync); 4] = [&node.epoch.0, &name, &queues, &schedules];
        let rows = self.link.query(Effect::Writes, JOIN, &values)?;
        let row = one(&rows)?;
        self.beats()
            .joined(node.epoch, row.get(0), sent, Instant::now(), time(row, 1))
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        let sent = Instant::now();
        let least = self.beats().least(epoch);
        let rows = self.link.query(Effect::Writes, BEAT, &[&epoch.0, &least])?;
        let Some(row) = rows.first() else {
            self.is_gone(epoch)?;
            return Ok(None);
        };
        let now = time(row, 0);
        self.beats()
            .confirmed(epoch, row.get(3), sent, Instant::now(), now);
        Ok(Some(Beat {
            now,
            horizon: Some(Horizon {
                number: unsigned(row.get(2)),
                at: time(row, 1),
            }),
        }))
    }

    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        let snapshot = polls::poll(&mut self.link, &mut self.lists, poll)?;
        self.beats()
            .seen(poll.epoch, snapshot.beat_of(poll.epoch))?;
        Ok(snapshot)
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.beats().are_right()?;
        // In the order in which every statement locks rows, so that no two of them lock each other
        // out. A row that is asked for twice would be answered twice.
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
        let rows = self.together_or_each(CLAIM, CLAIM_EACH, &values, wanted.len())?;
        let claimed = claimed(&rows, &wanted, adopt);
        if claimed.gone {
            self.is_gone(claim.epoch)?;
        }
        Ok(claimed)
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        self.beats().are_right()?;
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
        let ends = SentEnds::new(order.iter().map(|index| &all[*index].outcome));
        let values: [&(dyn ToSql + Sync); 10] = [
            &settle.epoch.0,
            &queues,
            &keys,
            &generations,
            &attempts,
            &ends.outcomes,
            &ends.delays,
            &ends.errors,
            &ends.nexts,
            &ends.metas,
        ];
        let rows = self.together_or_each(SETTLE, SETTLE_EACH, &values, all.len())?;
        let mut settled = vec![Ok(Settled::Locked); all.len()];
        for row in &rows {
            settled[order[ordinal(row)]] = match row.get::<_, i16>(1) {
                0 => Ok(Settled::Ended),
                1 => Ok(Settled::Waits),
                2 => Ok(Settled::Buried),
                3 => Ok(Settled::Fenced),
                4 => Ok(Settled::Locked),
                6 => Ok(Settled::Stepped),
                _ => refused(row).map_or(Ok(Settled::Locked), |(_, error)| Err(error)),
            };
        }
        Ok(settled)
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        self.beats().are_right()?;
        let values: [&(dyn ToSql + Sync); 3] = [&asking.0, &epoch.0, &beat];
        let rows = self.link.query(Effect::Writes, DECLARE_GONE, &values)?;
        let declared = one(&rows)?.get(0);
        let rows = self.rows(OLD_NODES, &[])?;
        if one(&rows)?.get(0) {
            // It reads the whole table, and beats wait for it. So it has little time, and on a huge
            // table the rows of old nodes stay. They do no harm.
            let _ = self.link.scan(Effect::Writes, FORGET, &[], FORGET_LIMIT);
        }
        Ok(declared)
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        // Also on an older database: it is the end of the node there too.
        self.beats().ended(epoch);
        self.link.query(Effect::Writes, LEAVE, &[&epoch.0])?;
        Ok(())
    }

    #[cfg(feature = "test-util")]
    fn set_clock(&mut self, now: crate::store::StoreTime) -> Result<(), StoreError> {
        if !self.link.settings().schema.has_test_clock() {
            return Err(StoreError::Refused(crate::store::NO_CLOCK.to_owned()));
        }
        let now = std::time::SystemTime::from(now);
        self.link
            .query(Effect::Writes, super::statements::SET_CLOCK, &[&now])?;
        Ok(())
    }
}

/// Reads the answer to a claim. A row names its timer by its place in the claim, since names may be
/// long and the process has them.
fn claimed(rows: &[Row], wanted: &[&Wanted], adopt: &[Run]) -> Claimed {
    let mut claimed = Claimed::default();
    for row in rows {
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
            3 => claimed.dead += 1,
            5 => claimed.over.push(adopt[ordinal_of(n)].clone()),
            _ => {
                let Some((_, error)) = refused(row) else {
                    continue;
                };
                let wanted = wanted[ordinal_of(n)];
                claimed.refused.push(RefusedClaim {
                    queue: Arc::clone(&wanted.queue),
                    key: wanted.key.clone(),
                    error,
                });
            }
        }
    }
    claimed
}

/// The answers to all calls. Each part of them was a commit of its own, so a failure of one part
/// leaves the answers of the others as they are, and the calls that were not sent are not carried
/// out.
fn all(
    answers: Vec<Option<Result<Answer, StoreError>>>,
    result: Result<(), Failure>,
) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
    let rest = match result {
        Ok(()) => StoreError::Locked(
            "another transaction holds the lock of the timer's row: end that transaction"
                .to_owned(),
        ),
        Err(failure) => {
            let error = failure.error;
            let is_failure =
                |answer: &Option<Result<_, _>>| matches!(answer, Some(Err(why)) if *why == error);
            if answers.iter().all(is_failure) {
                return Err(error);
            }
            match error {
                StoreError::Unknown(why) => StoreError::Unavailable(why),
                error => error,
            }
        }
    };
    let answers = answers.into_iter();
    Ok(answers
        .map(|answer| answer.unwrap_or_else(|| Err(rest.clone())))
        .collect())
}
