//! Calls of users: sent together, and each for itself where one of them may be the reason of a
//! failure.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tourbillon_postgres::Effect;

use super::calls::PostgresConnection;
use super::failure::Failure;
use super::rows::{answer, each, ordinal, refused};
use super::statements::{PAYLOAD_ERRORS, WRITE, WRITE_EACH};
use super::values::{SentCalls, parts};
use crate::store::{Answer, Call, StoreError};

/// The number of parts that calls go in if one of them is locked by an insert.
const PARTS: usize = 8;

/// The answers so far.
type Answers = [Option<Result<Answer, StoreError>>];

impl PostgresConnection {
    /// Carries out some of the calls, which are given by their indices in the order of queue and
    /// key. Locked ones are left without an answer, with some of their neighbours if one of the
    /// keys is being inserted: a statement ends at the first such key after 20 ms. So a list of
    /// calls `is_whole` at first, is divided once, and waits for at most [`PARTS`] such keys and
    /// one more.
    pub(super) fn write_some(
        &mut self,
        calls: &[Call],
        some: &[usize],
        wait: bool,
        is_whole: bool,
        answers: &mut Answers,
    ) -> Result<(), Failure> {
        if some.is_empty() {
            return Ok(());
        }
        let error = match self.send(calls, some, wait) {
            Ok(rows) => {
                for row in rows {
                    let index = some[ordinal(&row)];
                    answers[index] = match answer(&row) {
                        Ok(answer) => answer.map(Ok),
                        Err(failure) => Some(Err(failure.error)),
                    };
                }
                return Ok(());
            }
            Err(error) => error,
        };
        match some {
            [alone] if error.is_bad_value() && !error.is_limit() => {
                answers[*alone] = Some(Err(StoreError::Refused(error.error.to_string())));
                Ok(())
            }
            _ if error.is_limit() || error.is_bad_value() => {
                self.write_good(calls, some, wait, is_whole, error, answers)
            }
            // Somebody inserts one of the keys at this moment.
            [_, _, ..] if error.is_locked() && is_whole => {
                for part in some.chunks(some.len().div_ceil(PARTS)) {
                    self.write_some(calls, part, wait, false, answers)?;
                }
                Ok(())
            }
            _ if error.is_locked() => Ok(()),
            [_, _, ..] if error.may_be_of_one_row() => self.write_each(calls, some, error, answers),
            // The others are not sent any more, or have their answers.
            _ => Err(fail_all(some, error, answers)),
        }
    }

    /// Carries out calls that have failed since a payload is bad or too much for the server. Those
    /// payloads are found first, so that the good calls still go in one statement.
    fn write_good(
        &mut self,
        calls: &[Call],
        some: &[usize],
        wait: bool,
        is_whole: bool,
        reason: Failure,
        answers: &mut Answers,
    ) -> Result<(), Failure> {
        let (good, others) = self.without_bad_payloads(calls, some, answers)?;
        if others {
            return self.write_some(calls, &good, wait, is_whole, answers);
        }
        // To send each call for itself would be more work for a server that has no room.
        if reason.is_limit() && self.is_at_its_limit() {
            return Err(fail_all(some, reason, answers));
        }
        self.write_each(calls, some, reason, answers)
    }

    /// Carries out calls that have failed together, each for itself. `reason` is why they have.
    fn write_each(
        &mut self,
        calls: &[Call],
        some: &[usize],
        reason: Failure,
        answers: &mut Answers,
    ) -> Result<(), Failure> {
        let notify = self.link.settings().notify;
        let sent = SentCalls::new(calls, some);
        let [queues, keys, actions, delays, times, payloads, metas] = sent.values();
        let values = [
            queues, keys, actions, delays, times, payloads, metas, &notify,
        ];
        let result = self.link.query(Effect::Writes, WRITE_EACH, &values);
        let rows = match each(result, reason, some.len()) {
            Ok(rows) => rows,
            Err(failure) => return Err(fail_all(some, failure, answers)),
        };
        for row in &rows {
            let index = some[ordinal(row)];
            answers[index] = match refused(row) {
                Some((_, error)) => Some(Err(error)),
                None => answer(row)?.map(Ok),
            };
        }
        Ok(())
    }

    fn send(&mut self, calls: &[Call], some: &[usize], wait: bool) -> Result<Vec<Row>, Failure> {
        let notify = self.link.settings().notify;
        let sent = SentCalls::new(calls, some);
        let [queues, keys, actions, delays, times, payloads, metas] = sent.values();
        let link = &mut self.link;
        let mut send = |new: bool| {
            let values: [&(dyn ToSql + Sync); 10] = [
                queues, keys, actions, delays, times, payloads, metas, &wait, &notify, &new,
            ];
            match new {
                true => link.try_query(Effect::Writes, WRITE, &values),
                false => link.query(Effect::Writes, WRITE, &values),
            }
        };
        let may_be_new = !wait && sent.actions.iter().all(|action| *action <= 1);
        if may_be_new && self.guess.is_new() {
            let result = send(true);
            // An insert waits for a transaction that has changed the row. The search for known keys
            // does not.
            let fails = |failure: &Failure| failure.is_conflict() || failure.is_locked();
            let was_wrong = result.as_ref().is_err_and(fails);
            self.guess.learn(!was_wrong);
            if !was_wrong {
                return result;
            }
        }
        send(false)
    }

    /// Refuses the calls whose payloads the server does not take. Returns the others, and whether
    /// they are fewer.
    fn without_bad_payloads(
        &mut self,
        calls: &[Call],
        some: &[usize],
        answers: &mut Answers,
    ) -> Result<(Vec<usize>, bool), Failure> {
        let bad = self.refuse_payloads(calls, some, answers)?;
        let is_good = |index: &&usize| answers[**index].is_none();
        let good = some.iter().filter(is_good).copied().collect();
        Ok((good, bad > 0))
    }

    /// Refuses the calls whose payloads the server does not take, and returns their number.
    fn refuse_payloads(
        &mut self,
        calls: &[Call],
        some: &[usize],
        answers: &mut Answers,
    ) -> Result<usize, Failure> {
        let texts = some.iter().flat_map(|index| {
            let (.., payload, meta) = parts(&calls[*index].action);
            let texts = payload.into_iter().chain(meta);
            texts.map(|text| (*index, text.0))
        });
        let (with, payloads): (Vec<usize>, Vec<&str>) = texts.unzip();
        let rows = self
            .link
            .query(Effect::Reads, PAYLOAD_ERRORS, &[&payloads])?;
        let errors: Vec<Option<String>> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let mut bad = 0;
        for (index, error) in with.into_iter().zip(errors) {
            if let Some(error) = error {
                bad += 1;
                answers[index] = Some(Err(StoreError::Refused(error)));
            }
        }
        Ok(bad)
    }
}

/// Answers calls with the failure that they share, and returns it.
fn fail_all(some: &[usize], failure: Failure, answers: &mut Answers) -> Failure {
    for index in some {
        answers[*index] = Some(Err(failure.error.clone()));
    }
    failure
}
