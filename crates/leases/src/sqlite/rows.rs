//! What each call does to the rows, within a transaction.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use super::clock::micros;
use crate::store::{
    Acquired, Claim, Detach, Detached, HeldLock, Holder, Holding, LockPage, LockPaging, Outcome,
    Released, Renewal, Resume, Resumed,
};

/// Each grant whose token is a multiple of this number deletes all rows whose lease has run out.
const SWEEP: i64 = 1_024;

/// A wait replaces the noted one only if it began at least this many microseconds earlier. A
/// smaller difference may come from reading the clock twice.
const SAME_WAIT: i64 = 5_000;

/// The shortest time in which a waiting caller asks again.
pub(super) const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// A transaction of one store, at one time.
pub(super) struct Rows<'a> {
    pub(super) db: &'a Connection,
    /// In microseconds.
    pub(super) now: i64,
    /// By which the rows know the store.
    pub(super) own: &'a str,
}

/// How long until a waiting caller asks again. Nobody announces the releases of other processes.
fn interval(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST_INTERVAL, Duration::from_millis(50))
}

/// How long a name is reserved for the store whose caller has waited longest. That is longer than
/// the [`interval`] in which this caller asks.
fn reservation(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(25), Duration::from_millis(75))
}

fn time(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl Rows<'_> {
    /// The first row of a statement.
    fn first<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.db.prepare_cached(sql)?;
        statement.query_row(values, read).optional()
    }

    /// Carries out a statement, and returns whether there was a row for it.
    fn change(&self, sql: &str, values: impl Params) -> Result<bool> {
        Ok(self.db.prepare_cached(sql)?.execute(values)? > 0)
    }

    fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(micros(time))
    }

    /// Grants a name, or says how long it is held or reserved.
    pub(super) fn grant(&self, claim: &Claim<'_>) -> Result<Acquired> {
        let (name, secret, ends) = (claim.name, claim.secret.reveal(), self.after(claim.lease));
        // The same secret again: the call was repeated, or arrives late. It must not shorten what was
        // extended meanwhile.
        let again = "update tourbillon_lease set ends = max(ends, ?3)
            where name = ?1 and secret = ?2 and ends > ?4 returning token";
        let token = self.first(again, (name, secret, ends, self.now), |row| row.get(0))?;
        if let Some(token) = token {
            return Ok(granted(token));
        }
        if let Some((remaining, note)) = self.taken(claim)? {
            if let Some(since) = note {
                let note = "update tourbillon_lease set waiter = ?2, since = ?3 where name = ?1";
                self.change(note, (name, self.own, since))?;
            }
            return Ok(Acquired::Held { remaining });
        }
        let next = "update tourbillon_lease_state set token = token + 1 returning token";
        let token: i64 = self
            .db
            .prepare_cached(next)?
            .query_row((), |row| row.get(0))?;
        let grant =
            "insert or replace into tourbillon_lease(name, owner, secret, token, ends, data)
            values (?1, ?2, ?3, ?4, ?5, ?6)";
        self.change(grant, (name, claim.owner, secret, token, ends, claim.data))?;
        if token % SWEEP == 0 {
            self.change("delete from tourbillon_lease where ends <= ?1", [self.now])?;
        }
        Ok(granted(token))
    }

    /// Says how long a name is held or reserved, if nothing has to be written for that.
    pub(super) fn look(&self, claim: &Claim<'_>) -> Result<Option<Acquired>> {
        Ok(match self.taken(claim)? {
            Some((remaining, None)) => Some(Acquired::Held { remaining }),
            _ => None,
        })
    }

    /// Returns `None` if the claim can get the name. Otherwise returns how long the name is held or
    /// reserved, and when the wait of the claim began if that has to be noted.
    fn taken(&self, claim: &Claim<'_>) -> Result<Option<(Duration, Option<i64>)>> {
        let asked = "select ends, owner is null, waiter is ?2, since from tourbillon_lease
            where name = ?1 and ends > ?3 and secret is not ?4";
        let read = |row: &Row<'_>| {
            let (until, since): (i64, Option<i64>) = (row.get(0)?, row.get(3)?);
            let (is_reserved, is_own): (bool, bool) = (row.get(1)?, row.get(2)?);
            Ok((until, is_reserved, is_own, since))
        };
        let values = (claim.name, self.own, self.now, claim.secret.reveal());
        let Some((until, is_reserved, is_own, noted)) = self.first(asked, values, read)? else {
            return Ok(None);
        };
        if is_reserved && is_own && claim.is_due() {
            return Ok(None);
        }
        let remaining = time(until - self.now);
        if !claim.waits {
            return Ok(Some((remaining, None)));
        }
        let since = self.now.saturating_sub(micros(claim.waited));
        // The release decides by the longest wait whether it reserves the name, and for whom.
        let waits_longer = noted.is_none_or(|noted| since <= noted.saturating_sub(SAME_WAIT));
        let note = (!is_reserved && waits_longer).then_some(since);
        Ok(Some((remaining.min(interval(claim.waited)), note)))
    }

    /// Ends the reservation of a name for this store, in which nobody waits any more.
    pub(super) fn leave(&self, name: &str) -> Result<()> {
        let free = "delete from tourbillon_lease where name = ?1 and waiter = ?2 and owner is null";
        self.change(free, (name, self.own))?;
        let forget = "update tourbillon_lease set waiter = null, since = null
            where name = ?1 and waiter = ?2";
        self.change(forget, (name, self.own))?;
        Ok(())
    }

    pub(super) fn renew(&self, renewal: &Renewal<'_>) -> Result<Outcome> {
        let renew = "update tourbillon_lease
            set ends = case when ?4 then max(ends, ?3) else ?3 end, holds = ?5
            where name = ?1 and secret = ?2 and ends > ?6";
        let (secret, ends) = (renewal.secret.reveal(), self.after(renewal.lease));
        let values = (
            renewal.name,
            secret,
            ends,
            renewal.never_shortens,
            renewal.holds,
            self.now,
        );
        Ok(match self.change(renew, values)? {
            true => Outcome::Renewed,
            false => Outcome::NotHeld,
        })
    }

    /// Releases a name, or shortens its lease to the rest that it stays locked.
    pub(super) fn release(&self, held: &Holding<'_>) -> Result<Released> {
        let (name, secret) = (held.name, held.secret.reveal());
        let asked = "select ends, since from tourbillon_lease where name = ?1 and secret = ?2";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let row: Option<(i64, Option<i64>)> = self.first(asked, (name, secret), read)?;
        let Some((ends, since)) = row else {
            return Ok(Released::NotHeld);
        };
        let in_time = ends > self.now;
        let waited = since.map_or(Duration::ZERO, |since| time(self.now.saturating_sub(since)));
        // Neither has a secret, so that a renewal which arrives later does not find its lease.
        if in_time && !held.rest.is_zero() {
            let rest = "update tourbillon_lease set owner = owner || ' (released)', secret = null,
                ends = ?2, ticket = null, detached = null, terms = null where name = ?1";
            self.change(rest, (name, self.after(held.rest)))?;
        } else if in_time && waited >= Claim::TURN {
            let reserve = "update tourbillon_lease set owner = null, secret = null, ends = ?2,
                data = '', since = null, ticket = null, detached = null, terms = null where name = ?1";
            self.change(reserve, (name, self.after(reservation(waited))))?;
        } else {
            self.change("delete from tourbillon_lease where name = ?1", [name])?;
        }
        Ok(match in_time {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    pub(super) fn detach(&self, detach: &Detach<'_>) -> Result<Detached> {
        let sql = "update tourbillon_lease set ticket = ?3, detached = ?4, terms = ?5
            where name = ?1 and secret = ?2 and ends > ?6";
        let (secret, ticket) = (detach.secret.reveal(), detach.ticket.reveal());
        let lease = micros(detach.lease);
        let values = (detach.name, secret, ticket, lease, detach.terms, self.now);
        Ok(match self.change(sql, values)? {
            true => Detached::Detached,
            false => Detached::NotHeld,
        })
    }

    /// Uses up a ticket, and gives the name to another owner.
    pub(super) fn resume(&self, resume: &Resume<'_>) -> Result<Option<Resumed>> {
        let (name, secret) = (resume.name, resume.secret.reveal());
        let take = "update tourbillon_lease
            set owner = ?3, secret = ?4, data = ?5, holds = 1, ticket = null
            where name = ?1 and ticket = ?2 and ends > ?6";
        let values = (
            name,
            resume.ticket.reveal(),
            resume.owner,
            secret,
            resume.data,
            self.now,
        );
        self.change(take, values)?;
        // The same secret already, also if the call is repeated since its answer was lost. It must not
        // shorten what was extended meanwhile.
        let prolong = "update tourbillon_lease
            set ends = max(ends, min(detached, 9223372036854775807 - ?3) + ?3)
            where name = ?1 and secret = ?2 and detached is not null and ends > ?3
            returning token, terms";
        self.first(prolong, (name, secret, self.now), |row| {
            let token: i64 = row.get(0)?;
            Ok(Resumed::new(token.unsigned_abs(), row.get(1)?))
        })
    }

    pub(super) fn holder(&self, name: &str) -> Result<Option<Holder>> {
        let asked = "select name, owner, token, ends, data from tourbillon_lease
            where name = ?1 and owner is not null and ends > ?2";
        let held = self.first(asked, (name, self.now), |row| self.held(row))?;
        Ok(held.map(|held| held.holder))
    }

    fn held(&self, row: &Row<'_>) -> Result<HeldLock> {
        let (token, ends): (i64, i64) = (row.get(2)?, row.get(3)?);
        let remaining = time(ends - self.now);
        let holder = Holder::new(row.get(1)?, token.unsigned_abs(), remaining);
        let data: String = row.get(4)?;
        Ok(HeldLock::new(row.get(0)?, holder.with_data(data)))
    }

    /// A page of the names that are held, in the order of the file. It ends early at `end`.
    pub(super) fn page(&self, prefix: &str, paging: &LockPaging, end: Instant) -> Result<LockPage> {
        let after = paging.after.as_deref().filter(|after| *after >= prefix);
        let asked = "select name, owner, token, ends, data, owner is not null and ends > ?3
            from tourbillon_lease where name >= ?1 and name is not ?2 order by name";
        let mut statement = self.db.prepare_cached(asked)?;
        let mut rows = statement.query((after.unwrap_or(prefix), after, self.now))?;
        let (mut locks, mut last) = (Vec::new(), None);
        while let Some(row) = rows.next()? {
            let (name, is_held): (String, bool) = (row.get(0)?, row.get(5)?);
            if !name.starts_with(prefix) {
                break;
            }
            let is_full = is_held && locks.len() >= paging.limit.max(1);
            if is_full || last.is_some() && Instant::now() >= end {
                return Ok(page(locks, last, paging));
            }
            if is_held {
                locks.push(self.held(row)?);
            }
            last = Some(name);
        }
        Ok(page(locks, None, paging))
    }
}

/// A file may have another order than that of UTF-8.
fn page(mut locks: Vec<HeldLock>, next: Option<String>, paging: &LockPaging) -> LockPage {
    locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    LockPage::new(locks, next, paging)
}

fn granted(token: i64) -> Acquired {
    Acquired::granted(token.unsigned_abs())
}
