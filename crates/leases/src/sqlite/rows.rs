//! What each call does to the rows, within a transaction.

use std::time::{Duration, Instant};

use rusqlite::{Result, Row};

use super::base::{Rows, SharedRow, interval, reservation, time};
use super::clock::micros;
use crate::store::{
    Acquired, Claim, Detach, Detached, HeldLock, Holder, Holding, LockPage, LockPaging, Mode,
    Outcome, Released, Renewal, Resume, Resumed,
};

/// Each grant whose token is a multiple of this number deletes all rows whose lease has run out.
const SWEEP: i64 = 1_024;

/// What is known of a name.
enum FoundName {
    /// `Some` with its mode if there are holders whose leases have run out.
    Free(Mode),
    /// Held by somebody alone, or reserved, for so long. The moment is when the wait of the claim began,
    /// if that has to be noted.
    Taken(Duration, Option<i64>),
    Shared(SharedRow),
}

impl Rows<'_> {
    /// Grants a name, or says how long it is held or reserved. Also returns whether others may join the
    /// holder.
    pub(super) fn grant(&self, claim: &Claim<'_>) -> Result<(Acquired, bool)> {
        let (name, secret, ends) = (claim.name, claim.secret.reveal(), self.after(claim.lease));
        // The same secret again: the call was repeated, or arrives late. It must not shorten what was
        // extended meanwhile.
        let again = "update tourbillon_lease set ends = max(ends, ?3)
            where name = ?1 and secret = ?2 and ends > ?4 returning token";
        let is_alone = claim.mode == Mode::Exclusive;
        if is_alone {
            let token = self.first(again, (name, secret, ends, self.now), |row| row.get(0))?;
            if let Some(token) = token {
                return Ok((granted(token), false));
            }
        }
        match self.found(claim)? {
            FoundName::Taken(remaining, note) => {
                if let Some(since) = note {
                    let note =
                        "update tourbillon_lease set waiter = ?2, since = ?3 where name = ?1";
                    self.change(note, (name, self.own, since))?;
                }
                return Ok((Acquired::Held { remaining }, false));
            }
            FoundName::Shared(shared) => {
                if let Some(answer) = self.join(claim, &shared)? {
                    return Ok(answer);
                }
                self.forget_shares(name)?;
            }
            // A transaction of a former holder must not find its row.
            FoundName::Free(Mode::Exclusive) => {}
            FoundName::Free(_) => self.forget_shares(name)?,
        }
        let token = self.next_token()?;
        if !is_alone {
            return self.begin(claim, token);
        }
        let grant =
            "insert or replace into tourbillon_lease(name, owner, secret, token, ends, data)
            values (?1, ?2, ?3, ?4, ?5, ?6)";
        self.change(grant, (name, claim.owner, secret, token, ends, claim.data))?;
        Ok((granted(token), false))
    }

    /// Takes the next token. From time to time deletes what has run out.
    pub(super) fn next_token(&self) -> Result<i64> {
        let next = "update tourbillon_lease_state set token = token + 1 returning token";
        let mut next = self.db.prepare_cached(next)?;
        let token: i64 = next.query_row((), |row| row.get(0))?;
        if token % SWEEP == 0 {
            for table in ["tourbillon_lease", "tourbillon_lease_share"] {
                let sweep = format!("delete from {table} where ends <= ?1");
                self.change(&sweep, [self.now])?;
            }
        }
        Ok(token)
    }

    /// Says how long a name is held or reserved, if nothing has to be written for that.
    pub(super) fn look(&self, claim: &Claim<'_>) -> Result<Option<Acquired>> {
        Ok(match self.found(claim)? {
            FoundName::Taken(remaining, None) => Some(Acquired::Held { remaining }),
            FoundName::Shared(shared) => self.look_at_shares(claim, &shared)?,
            _ => None,
        })
    }

    /// Looks whether the claim can get the name.
    fn found(&self, claim: &Claim<'_>) -> Result<FoundName> {
        let asked =
            "select ends, owner is null, waiter is ?2, since, secret is ?3, mode, token, asked,
            turn is ?2, reserved, asker from tourbillon_lease where name = ?1";
        let read = |row: &Row<'_>| {
            let mode = Mode::of_number(row.get(5)?);
            let (until, since): (i64, Option<i64>) = (row.get(0)?, row.get(3)?);
            let (is_reserved, is_own): (bool, bool) = (row.get(1)?, row.get(2)?);
            if until <= self.now || claim.mode == Mode::Exclusive && row.get(4)? {
                return Ok(FoundName::Free(mode));
            }
            if mode != Mode::Exclusive {
                return Ok(FoundName::Shared(SharedRow {
                    mode,
                    token: row.get(6)?,
                    since,
                    is_own_wait: is_own,
                    asked: row.get(7)?,
                    is_own_turn: row.get(8)?,
                    reserved: row.get(9)?,
                    asker: row.get(10)?,
                }));
            }
            if is_reserved && is_own && claim.is_due() {
                return Ok(FoundName::Free(mode));
            }
            let remaining = time(until - self.now);
            if !claim.waits {
                return Ok(FoundName::Taken(remaining, None));
            }
            let note = self.longer_wait(claim, since).filter(|_| !is_reserved);
            Ok(FoundName::Taken(
                remaining.min(interval(claim.waited)),
                note,
            ))
        };
        let values = (claim.name, self.own, claim.secret.reveal());
        let found = self.first(asked, values, read)?;
        Ok(found.unwrap_or(FoundName::Free(Mode::Exclusive)))
    }

    /// Ends the reservation of a name for this store, in which nobody waits any more.
    pub(super) fn leave(&self, name: &str) -> Result<()> {
        let free = "delete from tourbillon_lease
            where name = ?1 and waiter = ?2 and owner is null and mode = 0";
        self.change(free, (name, self.own))?;
        let forget =
            "update tourbillon_lease set since = case when waiter is not ?2 then since end,
            waiter = nullif(waiter, ?2), asked = case when asker is not ?2 then asked end,
            asker = nullif(asker, ?2), reserved = case when turn is not ?2 then reserved end,
            turn = nullif(turn, ?2)
            where name = ?1 and ?2 in (waiter, asker, turn)";
        self.change(forget, (name, self.own))?;
        Ok(())
    }

    pub(super) fn renew(&self, renewal: &Renewal<'_>) -> Result<Outcome> {
        if renewal.mode != Mode::Exclusive {
            return self.renew_share(renewal);
        }
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
        if held.mode != Mode::Exclusive {
            return self.release_share(held);
        }
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
        let asked = "select name, owner, token, ends, data, mode from tourbillon_lease
            where name = ?1 and (owner is not null or mode <> 0) and ends > ?2";
        let held = self.first(asked, (name, self.now), |row| self.held(row))?;
        Ok(held.flatten().map(|held| held.holder))
    }

    /// The holder of a name whose lease ends last. There may be none of a shared name.
    fn held(&self, row: &Row<'_>) -> Result<Option<HeldLock>> {
        let (name, mode): (String, _) = (row.get(0)?, Mode::of_number(row.get(5)?));
        let holder = match mode {
            Mode::Exclusive => Some(self.shown(row)?),
            _ => self.last_of(&name, mode)?,
        };
        Ok(holder.map(|holder| HeldLock::new(name, holder)))
    }

    /// A holder. The first column does not matter.
    pub(super) fn shown(&self, row: &Row<'_>) -> Result<Holder> {
        let (token, ends): (i64, i64) = (row.get(2)?, row.get(3)?);
        let remaining = time(ends - self.now);
        let holder = Holder::new(row.get(1)?, token.unsigned_abs(), remaining);
        Ok(holder.with_data(row.get::<_, String>(4)?))
    }

    /// A page of the names that are held, in the order of the file. It ends early at `end`.
    pub(super) fn page(&self, prefix: &str, paging: &LockPaging, end: Instant) -> Result<LockPage> {
        let after = paging.after.as_deref().filter(|after| *after >= prefix);
        let asked = "select name, owner, token, ends, data, mode,
            (owner is not null or mode <> 0) and ends > ?3 from tourbillon_lease where name >= ?1 and name is not ?2 order by name";
        let mut statement = self.db.prepare_cached(asked)?;
        let mut rows = statement.query((after.unwrap_or(prefix), after, self.now))?;
        let (mut locks, mut last) = (Vec::new(), None);
        while let Some(row) = rows.next()? {
            let (name, is_held): (String, bool) = (row.get(0)?, row.get(6)?);
            if !name.starts_with(prefix) {
                break;
            }
            let is_full = is_held && locks.len() >= paging.limit.max(1);
            if is_full || last.is_some() && Instant::now() >= end {
                return Ok(page(locks, last, paging));
            }
            if is_held {
                locks.extend(self.held(row)?);
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

pub(super) fn granted(token: i64) -> Acquired {
    Acquired::granted(token.unsigned_abs())
}
