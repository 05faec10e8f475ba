//! The calls of a store: their values, and what the answers mean.

use std::time::{Duration, Instant};

use tourbillon_postgres::Row;
use tourbillon_postgres::tokio_postgres::types::FromSql;

use super::PostgresInner;
use super::failure::GRANTS;
use super::lines::{Purpose, Values};
use super::statements::Sql;
use crate::store::{
    Acquired, Claim, Detach, Detached, HeldLock, Holder, Holding, LONGEST_NAME, LockPage,
    LockPaging, Mode, Outcome, Released, Renewal, Resume, Resumed, StoreError,
};

/// A wait that is longer counts as one of this time.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

/// The answer to a grant that leaves room for others (SHARE-4). Those in other processes have heard of the
/// release before, and each process wakes its next caller itself.
const ROOM: i16 = 4;

/// How many rows a step of a list looks at.
const STEP: i64 = 5_000;

/// Values of a statement, each on the heap: a call goes on when its future is dropped.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as $crate::postgres::lines::Value),*]
    };
}
pub(super) use values;

/// Rounds up to microseconds: the server's lease must not end before the caller's.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// The time that an answer names.
pub(super) fn time(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A number of holders.
fn count(holders: i64) -> usize {
    usize::try_from(holders).unwrap_or(usize::MAX)
}

/// The error of an answer in another form. It does not show the answer, which may contain secrets.
/// The call may have been executed.
fn strange() -> StoreError {
    StoreError::Unavailable("an answer that none of the functions gives".to_owned())
}

/// The error of one item of a batch.
fn locked() -> StoreError {
    StoreError::Unavailable(
        "another transaction has locked the row of this name (55P03), perhaps one that somebody has left \
         open"
        .to_owned(),
    )
}

/// A column of a row.
fn get<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|_| strange())
}

/// The only row of an answer.
fn only(rows: &[Row]) -> Result<&Row, StoreError> {
    match rows {
        [row] => Ok(row),
        _ => Err(strange()),
    }
}

/// One text of each item.
fn texts<'a, T: 'a>(
    items: impl IntoIterator<Item = &'a T>,
    text: impl Fn(&'a T) -> &'a str,
) -> Vec<String> {
    let items = items.into_iter();
    items.map(|item| text(item).to_owned()).collect()
}

/// Puts the answers to the items that were sent in their places, beside the refusals of the others.
fn in_places<T>(
    checked: Vec<Result<(), StoreError>>,
    answers: impl IntoIterator<Item = Result<T, StoreError>>,
) -> Vec<Result<T, StoreError>> {
    let mut answers = answers.into_iter();
    let place = |checked: Result<(), StoreError>| {
        checked.and_then(|()| {
            answers
                .next()
                .unwrap_or_else(|| Err(StoreError::no_answer()))
        })
    };
    checked.into_iter().map(place).collect()
}

/// The items that can be sent.
fn sent<'a, T>(batch: &'a [T], checked: &[Result<(), StoreError>]) -> Vec<&'a T> {
    let items = batch.iter().zip(checked);
    let good = items.filter(|(_, checked)| checked.is_ok());
    good.map(|(item, _)| item).collect()
}

impl PostgresInner {
    /// Checks a name, and texts that are stored beside it.
    fn valid_name(name: &str, texts: &[&str]) -> Result<(), StoreError> {
        let why = if name.is_empty() {
            "an empty name".to_owned()
        } else if name.len() > LONGEST_NAME {
            format!(
                "a name of {} bytes: choose one of at most {LONGEST_NAME}",
                name.len()
            )
        } else if name.contains('\0') {
            "a name with a zero byte, which PostgreSQL can't keep".to_owned()
        } else if texts.iter().any(|text| text.contains('\0')) {
            "data with a zero byte, which PostgreSQL can't keep".to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::Refused(why))
    }

    /// Checks the length of a lease.
    fn valid_lease(&self, lease: Duration) -> Result<(), StoreError> {
        let longest = self.options.longest_lease;
        let why = if lease.is_zero() {
            "a lease of zero".to_owned()
        } else if lease > longest {
            format!("a lease of {lease:?}: this store was built for {longest:?} at most")
        } else {
            return Ok(());
        };
        Err(StoreError::Refused(why))
    }

    /// The longest lease that the server has to know, or 0 if that of others may differ.
    fn own_longest(&self) -> i64 {
        match self.options.durable || self.options.longest_lease_changes {
            true => 0,
            false => micros(self.options.longest_lease),
        }
    }

    fn too_short(&self, others: i64) -> StoreError {
        let (own, others) = (self.options.longest_lease, time(others));
        let schema = self.own.get().map_or("", |own| own.lines.schema().name());
        StoreError::Refused(format!(
            "a store with the schema {schema} and a longest lease of {others:?} has used this database, and \
             this one was built for {own:?}: build all of them with the same longest_lease. To change \
             it, see PostgresStoreBuilder::longest_lease_changes"
        ))
    }

    pub(super) async fn acquire_now(
        &self,
        batch: &[Claim<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let valid = |claim: &Claim<'_>| {
            Self::valid_name(claim.name, &[claim.owner, claim.data])?;
            claim.has_permits()?;
            self.valid_lease(claim.lease)
        };
        let checked: Vec<_> = batch.iter().map(valid).collect();
        let claims = sent(batch, &checked);
        if claims.is_empty() {
            return Ok(in_places(checked, []));
        }
        let each = || claims.iter().copied();
        let values = values![
            texts(each(), |claim| claim.name),
            texts(each(), |claim| claim.owner),
            texts(each(), |claim| claim.secret.reveal()),
            each().map(|claim| micros(claim.lease)).collect::<Vec<_>>(),
            each().map(|claim| claim.waits).collect::<Vec<_>>(),
            each()
                .map(|claim| micros(claim.waited.min(LONGEST_WAIT)))
                .collect::<Vec<_>>(),
            texts(each(), |claim| claim.data),
            each().map(|claim| claim.mode.number()).collect::<Vec<_>>(),
            self.ear.own().to_owned(),
            self.own_longest(),
            !self.options.durable,
        ];
        let rows = self
            .call(Purpose::Callers, limit, Sql::Claim, values)
            .await?;
        let row = only(&rows)?;
        let (answers, numbers): (Vec<i16>, Vec<i64>) = (get(row, 0)?, get(row, 1)?);
        let places: Option<Vec<i32>> = get(row, 2)?;
        for (claim, answer) in claims.iter().zip(&answers) {
            if *answer == ROOM {
                self.ear.wait_queue.released(claim.name);
            }
        }
        let place = |at: usize| {
            let place = places.as_ref().and_then(|places| places.get(at));
            place.and_then(|place| u32::try_from(*place).ok())
        };
        let answers = answers.into_iter().zip(numbers).enumerate();
        let answers = answers.map(|(at, (answer, number))| match answer {
            0 => Ok(Acquired::Held {
                remaining: time(number),
            }),
            1 | ROOM if number > 0 => Ok(Acquired::Granted {
                token: number.unsigned_abs(),
                place: place(at).unwrap_or(0),
            }),
            2 => Err(StoreError::Restarted { wait: time(number) }),
            3 => Err(self.too_short(number)),
            _ => Err(strange()),
        });
        Ok(in_places(checked, answers))
    }

    pub(super) async fn leave_now(&self, name: &str, limit: Duration) -> Result<(), StoreError> {
        if self.own.is_forked() {
            return Err(StoreError::Forked);
        }
        Self::valid_name(name, &[])?;
        // The name is reserved for this store, and others of this store still wait for it.
        if self.ear.wait_queue.waits_for(name) {
            return Ok(());
        }
        let values = values![name.to_owned(), self.ear.own().to_owned()];
        let left = self.call(Purpose::Callers, limit, Sql::Leave, values).await;
        // Those who have come meanwhile ask again, since what they have noted is gone.
        self.ear.wait_queue.released(name);
        left.map(drop)
    }

    pub(super) async fn renew_now(
        &self,
        batch: &[Renewal<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        let valid = |renewal: &Renewal<'_>| {
            Self::valid_name(renewal.name, &[])?;
            self.valid_lease(renewal.lease)
        };
        let checked: Vec<_> = batch.iter().map(valid).collect();
        let renewals = sent(batch, &checked);
        let mut renewed = Vec::new();
        if !renewals.is_empty() {
            let each = || renewals.iter().copied();
            let holds = |renewal: &Renewal<'_>| i32::try_from(renewal.holds).unwrap_or(i32::MAX);
            let values = values![
                texts(each(), |renewal| renewal.name),
                texts(each(), |renewal| renewal.secret.reveal()),
                each()
                    .map(|renewal| micros(renewal.lease))
                    .collect::<Vec<_>>(),
                each().map(holds).collect::<Vec<_>>(),
                each()
                    .map(|renewal| renewal.never_shortens)
                    .collect::<Vec<_>>(),
                each()
                    .map(|renewal| renewal.mode.number())
                    .collect::<Vec<_>>(),
            ];
            renewed = self
                .flags(Purpose::Background, limit, Sql::Renew, values)
                .await?;
        }
        let renewed = renewed
            .into_iter()
            .map(|renewed| renewed.ok_or_else(locked));
        let outcomes = in_places(checked, renewed).into_iter();
        let outcome = |renewed: Result<bool, StoreError>| match renewed {
            Ok(true) => Outcome::Renewed,
            Ok(false) => Outcome::NotHeld,
            Err(error) => Outcome::Failed(error),
        };
        Ok(outcomes.map(outcome).collect())
    }

    pub(super) async fn release_now(
        &self,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        if self.own.is_forked() {
            return Err(StoreError::Forked);
        }
        let checked: Vec<_> = batch
            .iter()
            .map(|held| Self::valid_name(held.name, &[]))
            .collect();
        let held = sent(batch, &checked);
        let mut released = Ok(Vec::new());
        if !held.is_empty() {
            let each = || held.iter().copied();
            let values = values![
                texts(each(), |held| held.name),
                texts(each(), |held| held.secret.reveal()),
                each().map(|held| micros(held.rest)).collect::<Vec<_>>(),
                each().map(|held| held.mode.number()).collect::<Vec<_>>(),
                self.ear.own().to_owned(),
            ];
            // A single one is waited for by its user.
            let purpose = match batch {
                [_] => Purpose::Callers,
                _ => Purpose::Background,
            };
            released = self.flags(purpose, limit, Sql::GiveBack, values).await;
            // Wake callers of this process. They may have come after the last acquire that was
            // refused, so the release was not announced. Even without an answer the names may be
            // free.
            for held in batch {
                self.ear.wait_queue.released(held.name);
            }
        }
        let released = released?.into_iter().map(|was_held| match was_held {
            Some(true) => Ok(Released::Released),
            Some(false) => Ok(Released::NotHeld),
            None => Err(locked()),
        });
        Ok(in_places(checked, released))
    }

    pub(super) async fn detach_held(
        &self,
        detach: &Detach<'_>,
        limit: Duration,
    ) -> Result<Detached, StoreError> {
        Self::valid_name(detach.name, &[detach.terms])?;
        self.valid_lease(detach.lease)?;
        let values = values![
            detach.name.to_owned(),
            detach.secret.reveal().to_owned(),
            detach.ticket.reveal().to_owned(),
            micros(detach.lease),
            detach.terms.to_owned(),
        ];
        let rows = self
            .call(Purpose::Callers, limit, Sql::Detach, values)
            .await?;
        match get(only(&rows)?, 0)? {
            true => Ok(Detached::Detached),
            false => Ok(Detached::NotHeld),
        }
    }

    pub(super) async fn resume_detached(
        &self,
        resume: &Resume<'_>,
        limit: Duration,
    ) -> Result<Option<Resumed>, StoreError> {
        Self::valid_name(resume.name, &[resume.owner, resume.data])?;
        let longest = self.options.longest_lease;
        let values = values![
            resume.name.to_owned(),
            resume.ticket.reveal().to_owned(),
            resume.owner.to_owned(),
            resume.secret.reveal().to_owned(),
            resume.data.to_owned(),
            micros(longest),
        ];
        let rows = self
            .call(Purpose::Callers, limit, Sql::Resume, values)
            .await?;
        let row = only(&rows)?;
        let number: i64 = get(row, 1)?;
        match get::<i16>(row, 0)? {
            0 => Ok(None),
            1 => Ok(Some(Resumed::new(number.unsigned_abs(), get(row, 2)?))),
            2 => Err(StoreError::Refused(format!(
                "it was detached with a lease of {:?}: this store was built for {longest:?} at most",
                time(number)
            ))),
            _ => Err(strange()),
        }
    }

    pub(super) async fn holder_now(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<Option<Holder>, StoreError> {
        Self::valid_name(name, &[])?;
        let values = values![name.to_owned()];
        let rows = self
            .call(Purpose::Callers, limit, Sql::Holder, values)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let (token, remaining): (i64, i64) = (get(row, 1)?, get(row, 3)?);
        let holder = Holder::new(get(row, 0)?, token.unsigned_abs(), time(remaining));
        let holder = holder.with_data(get::<String>(row, 2)?);
        Ok(Some(holder.in_mode(
            Mode::of_number(get(row, 4)?),
            count(get(row, 5)?),
        )))
    }

    pub(super) async fn list_held(
        &self,
        prefix: &str,
        paging: &LockPaging,
        limit: Duration,
    ) -> Result<LockPage, StoreError> {
        let zero = |text: &str| text.contains('\0');
        if zero(prefix) || paging.after.as_deref().is_some_and(zero) {
            let why = "a prefix or a place with a zero byte, which no name has";
            return Err(StoreError::Refused(why.to_owned()));
        }
        let start = Instant::now();
        let end = behind_all(prefix).unwrap_or_else(|| "\u{10ffff}".repeat(LONGEST_NAME / 4 + 1));
        let most = paging.limit.max(1);
        let after = paging.after.as_deref().filter(|after| *after >= prefix);
        let (mut from, mut with) = (after.unwrap_or(prefix).to_owned(), after.is_none());
        let mut locks = Vec::new();
        loop {
            let values = values![from.clone(), with, end.clone(), STEP];
            let left = limit.saturating_sub(start.elapsed());
            let rows = self.call(Purpose::Callers, left, Sql::List, values).await?;
            let mut looked_at = 0;
            for row in &rows {
                let (name, holders): (String, i64) = (get(row, 0)?, get(row, 6)?);
                let is_held = holders > 0;
                if is_held && locks.len() == most {
                    return Ok(LockPage::new(locks, Some(from), paging));
                }
                if is_held {
                    let (token, remaining): (i64, i64) = (get(row, 2)?, get(row, 4)?);
                    let holder = Holder::new(get(row, 1)?, token.unsigned_abs(), time(remaining));
                    let holder = holder.with_data(get::<String>(row, 3)?);
                    let holder = holder.in_mode(Mode::of_number(get(row, 5)?), count(holders));
                    locks.push(HeldLock::new(name.clone(), holder));
                }
                looked_at = get(row, 7)?;
                (from, with) = (name, false);
            }
            if looked_at < STEP {
                return Ok(LockPage::new(locks, None, paging));
            }
            if start.elapsed() >= limit / 2 {
                return Ok(LockPage::new(locks, Some(from), paging));
            }
        }
    }

    /// How long nothing is granted yet, as an error.
    pub(super) async fn granting(&self, limit: Duration) -> Result<(), StoreError> {
        let rows = self
            .call(Purpose::Callers, limit, Sql::Wait, values![])
            .await?;
        let row = only(&rows)?;
        let (wait, longest): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        if !get::<bool>(row, 2)? {
            return Err(StoreError::Refused(format!("permission denied: {GRANTS}")));
        }
        if self.own_longest() > 0 && self.own_longest() < longest {
            return Err(self.too_short(longest));
        }
        match wait > 0 && !self.options.durable {
            true => Err(StoreError::Restarted { wait: time(wait) }),
            false => Ok(()),
        }
    }

    /// Makes a call that answers a list of flags. There is none for what somebody else has locked.
    async fn flags(
        &self,
        purpose: Purpose,
        limit: Duration,
        sql: Sql,
        values: Values,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let rows = self.call(purpose, limit, sql, values).await?;
        get(only(&rows)?, 0)
    }
}

/// The first text behind all that begin with this one, in the order of their bytes, or `None` if
/// there is none. Then a text that is longer than all names is behind them.
fn behind_all(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The characters of UTF-8 are in the order of their bytes, and some numbers are none.
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_fit() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_secs(30)), 30_000_000);
        assert_eq!(micros(Duration::MAX), i64::MAX);
        assert_eq!(time(-1), Duration::ZERO);
        assert_eq!(time(1_500_000), Duration::from_millis(1_500));
    }

    #[test]
    fn what_lies_behind_a_prefix_is_behind_all_of_its_names() {
        for (prefix, end) in [
            ("", None),
            ("a", Some("b")),
            ("orders/", Some("orders0")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("\u{d7ff}", Some("\u{e000}")),
            ("\u{7f}", Some("\u{80}")),
        ] {
            assert_eq!(behind_all(prefix).as_deref(), end, "{prefix:?}");
            if let Some(end) = end {
                assert!(*prefix < *end && *format!("{prefix}\u{10ffff}") < *end);
            }
        }
    }

    #[test]
    fn refusals_and_answers_get_to_their_places() {
        let refused = || StoreError::Refused("no".to_owned());
        let checked = vec![Err(refused()), Ok(()), Ok(())];
        let batch = [1, 2, 3];
        assert_eq!(sent(&batch, &checked), [&2, &3]);
        let answers = in_places(checked, [Ok(2)]);
        assert_eq!(
            answers,
            [Err(refused()), Ok(2), Err(StoreError::no_answer())]
        );
    }

    #[test]
    fn names_that_no_row_can_have_are_refused() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for (name, data) in [("", ""), (&*long, ""), ("a\0", ""), ("a", "\0")] {
            assert!(PostgresInner::valid_name(name, &[data]).is_err());
        }
        assert!(PostgresInner::valid_name(&long[1..], &["ü"]).is_ok());
    }
}
