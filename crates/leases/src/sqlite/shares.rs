//! What each call does to the rows of a name that is shared or held with permits. The head of
//! `store/mode.rs` has the rules.

use std::time::Duration;

use rusqlite::{Result, Row};

use super::base::{
    LONGEST_RESERVATION, Rows, SEVERAL, SHORTEST_INTERVAL, SharedRow, interval, reservation, time,
};
use super::clock::micros;
use crate::store::{Acquired, Claim, Holder, Holding, Mode, Outcome, Released, Renewal};

/// That a caller in another mode waits is written again only after so many microseconds, since it asks
/// many times a second.
const SAME_ASK: i64 = 100_000;

/// The holders of a name.
struct Holders {
    live: u32,
    /// When the first and the last of their leases end.
    first: i64,
    last: i64,
}

impl SharedRow {
    /// Until when a caller in another mode counts as waiting, if there is one.
    fn is_waited_for(&self, now: i64) -> Option<i64> {
        // If the clock was set back, a moment in the future does not count.
        let asked = self.asked.filter(|asked| *asked <= now)?;
        let until = asked.saturating_add(micros(Claim::RECENT));
        (now < until).then_some(until)
    }

    /// Until when a claim can't be granted, if it can't be now.
    fn in_the_way(&self, claim: &Claim<'_>, holders: &Holders, now: i64) -> Option<i64> {
        if claim.mode != self.mode {
            return Some(holders.last);
        }
        if let Some(recent) = self.is_waited_for(now) {
            return Some(recent.min(holders.last));
        }
        if !self.has_room(holders.live) {
            return Some(holders.first);
        }
        // Nor does a reservation that is longer than any release makes it.
        let longest = now.saturating_add(micros(LONGEST_RESERVATION));
        let reserved = self.reserved;
        let reserved = reserved.filter(|until| (now + 1..=longest).contains(until))?;
        (!(self.is_own_turn && claim.is_due())).then_some(reserved)
    }

    fn has_room(&self, holders: u32) -> bool {
        match self.mode {
            Mode::Permit { of } => holders < of,
            _ => true,
        }
    }
}

impl Rows<'_> {
    /// The holders whose leases go on, or `None` if there is none.
    fn holders(&self, name: &str) -> Result<Option<Holders>> {
        let asked = "select count(*), min(ends), max(ends) from tourbillon_lease_share
            where name = ?1 and ends > ?2 having count(*) > 0";
        self.first(asked, (name, self.now), |row| {
            let (live, first, last) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Holders { live, first, last })
        })
    }

    /// Removes the holders of a name, whose leases have run out.
    pub(super) fn forget_shares(&self, name: &str) -> Result<()> {
        let forget = "delete from tourbillon_lease_share where name = ?1";
        self.change(forget, [name]).map(drop)
    }

    /// Makes the row of a name with its first holder.
    pub(super) fn begin(&self, claim: &Claim<'_>, token: i64) -> Result<(Acquired, bool)> {
        let row = "insert or replace into tourbillon_lease(name, mode, token, ends)
            values (?1, ?2, ?3, ?4)";
        let ends = self.after(claim.lease);
        self.change(row, (claim.name, claim.mode.number(), token, ends))?;
        let granted = self.add(claim, token, 0)?;
        Ok((granted, claim.mode != Mode::Permit { of: 1 }))
    }

    fn add(&self, claim: &Claim<'_>, token: i64, place: u32) -> Result<Acquired> {
        let add = "insert or ignore into
            tourbillon_lease_share(name, secret, owner, place, token, ends, data)
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let (secret, ends) = (claim.secret.reveal(), self.after(claim.lease));
        let (name, owner, data) = (claim.name, claim.owner, claim.data);
        let values = (name, secret, owner, place, token, ends, data);
        Ok(match self.change(add, values)? {
            true => Acquired::Granted {
                token: token.unsigned_abs(),
                place,
            },
            // The secret was used before, and its place stays taken for a rest.
            false => Acquired::Held {
                remaining: SHORTEST_INTERVAL,
            },
        })
    }

    /// Notes that no lease ends later.
    fn lasts(&self, name: &str, ends: i64) -> Result<()> {
        let last = "update tourbillon_lease set ends = ?2 where name = ?1 and ends < ?2";
        self.change(last, (name, ends)).map(drop)
    }

    /// Answers a claim for a shared name, or returns `None` if all leases have run out. Also returns
    /// whether others may join.
    pub(super) fn join(
        &self,
        claim: &Claim<'_>,
        shared: &SharedRow,
    ) -> Result<Option<(Acquired, bool)>> {
        let (name, secret, ends) = (claim.name, claim.secret.reveal(), self.after(claim.lease));
        let Some(holders) = self.holders(name)? else {
            return Ok(None);
        };
        if claim.mode == shared.mode {
            // The same secret again, as for a name that is held by one alone.
            let again = "update tourbillon_lease_share set ends = max(ends, ?3)
                where name = ?1 and secret = ?2 and ends > ?4 and not released
                returning token, place";
            let values = (name, secret, ends, self.now);
            let again = self.first(again, values, |row| {
                let (token, place): (i64, u32) = (row.get(0)?, row.get(1)?);
                let token = token.unsigned_abs();
                Ok(Acquired::Granted { token, place })
            })?;
            if let Some(granted) = again {
                self.lasts(name, ends)?;
                // The answer before, which wakes the next one, may be lost.
                return Ok(Some((granted, shared.has_room(holders.live))));
            }
        }
        if let Some(until) = shared.in_the_way(claim, &holders, self.now) {
            if let Some(since) = self
                .longer_wait(claim, shared.since)
                .filter(|_| claim.waits)
            {
                let note = "update tourbillon_lease set waiter = ?2, since = ?3 where name = ?1";
                self.change(note, (name, self.own, since))?;
            }
            if self.asks(claim, shared) {
                let note = "update tourbillon_lease set asker = ?2, asked = ?3 where name = ?1";
                // Whoever leaves takes back what its store alone has noted.
                let is_shared = shared.is_waited_for(self.now).is_some() && !self.is_own(shared);
                let asker = if is_shared { SEVERAL } else { self.own };
                self.change(note, (name, asker, self.now))?;
            }
            return Ok(Some((self.refused(claim, until), false)));
        }
        let clear = "delete from tourbillon_lease_share where name = ?1 and ends <= ?2";
        self.change(clear, (name, self.now))?;
        let (token, place) = match shared.mode {
            Mode::Permit { .. } => {
                let token = self.next_token()?;
                let row = "update tourbillon_lease set token = ?2, turn = null, reserved = null
                    where name = ?1";
                self.change(row, (name, token))?;
                (token, self.lowest_place(name)?)
            }
            _ => (shared.token, 0),
        };
        let granted = self.add(claim, token, place)?;
        if shared.is_own_wait && !claim.waited.is_zero() {
            // The wait that is noted for this store may be over now. Others of it note theirs when they ask
            // again.
            let over = "update tourbillon_lease set waiter = null, since = null where name = ?1";
            self.change(over, [name])?;
        }
        self.lasts(name, ends)?;
        let room = matches!(granted, Acquired::Granted { .. });
        Ok(Some((granted, room && shared.has_room(holders.live + 1))))
    }

    /// The same if nothing has to be written for that, or else `None`.
    pub(super) fn look_at_shares(
        &self,
        claim: &Claim<'_>,
        shared: &SharedRow,
    ) -> Result<Option<Acquired>> {
        let Some(holders) = self.holders(claim.name)? else {
            return Ok(None);
        };
        let own = "select 1 from tourbillon_lease_share where name = ?1 and secret = ?2";
        let is_own = self.first(own, (claim.name, claim.secret.reveal()), |_| Ok(()))?;
        let notes = self.longer_wait(claim, shared.since).is_some() || self.asks(claim, shared);
        let until = shared.in_the_way(claim, &holders, self.now);
        let until = until.filter(|_| is_own.is_none() && !notes);
        Ok(until.map(|until| self.refused(claim, until)))
    }

    /// Whether callers of this store alone wait, of those in another mode.
    fn is_own(&self, shared: &SharedRow) -> bool {
        shared.asker.as_deref() == Some(self.own)
    }

    /// Whether it has to be noted that a caller in another mode waits.
    fn asks(&self, claim: &Claim<'_>, shared: &SharedRow) -> bool {
        let noted = shared
            .asked
            .is_some_and(|asked| (0..SAME_ASK).contains(&(self.now - asked)))
            && (self.is_own(shared) || shared.asker.as_deref() == Some(SEVERAL));
        claim.waits && claim.mode != shared.mode && !noted
    }

    fn refused(&self, claim: &Claim<'_>, until: i64) -> Acquired {
        let remaining = time(until - self.now);
        let longest = match claim.waits {
            true => interval(claim.waited),
            false => Duration::MAX,
        };
        Acquired::Held {
            remaining: remaining.min(longest),
        }
    }

    fn lowest_place(&self, name: &str) -> Result<u32> {
        let asked = "select place from tourbillon_lease_share where name = ?1 order by place";
        let mut statement = self.db.prepare_cached(asked)?;
        let mut rows = statement.query([name])?;
        let mut free = 0;
        while let Some(row) = rows.next()? {
            if row.get::<_, u32>(0)? != free {
                break;
            }
            free += 1;
        }
        Ok(free)
    }

    pub(super) fn renew_share(&self, renewal: &Renewal<'_>) -> Result<Outcome> {
        let renew = "update tourbillon_lease_share
            set ends = case when ?4 then max(ends, ?3) else ?3 end, holds = ?5
            where name = ?1 and secret = ?2 and ends > ?6 and not released";
        let (name, ends) = (renewal.name, self.after(renewal.lease));
        let values = (
            name,
            renewal.secret.reveal(),
            ends,
            renewal.never_shortens,
            renewal.holds,
            self.now,
        );
        if !self.change(renew, values)? {
            return Ok(Outcome::NotHeld);
        }
        self.lasts(name, ends)?;
        Ok(Outcome::Renewed)
    }

    /// Releases the place of one holder, or shortens its lease to the rest that it stays taken.
    pub(super) fn release_share(&self, held: &Holding<'_>) -> Result<Released> {
        let (name, secret) = (held.name, held.secret.reveal());
        if !held.rest.is_zero() {
            let rest = "update tourbillon_lease_share
                set owner = owner || ' (released)', released = 1, ends = ?3
                where name = ?1 and secret = ?2 and ends > ?4 and not released";
            let ends = self.after(held.rest);
            if !self.change(rest, (name, secret, ends, self.now))? {
                return Ok(Released::NotHeld);
            }
            self.lasts(name, ends)?;
            return Ok(Released::Released);
        }
        let free = "delete from tourbillon_lease_share
            where name = ?1 and secret = ?2 and not released returning ends";
        let Some(ends) = self.first(free, (name, secret), |row| row.get::<_, i64>(0))? else {
            return Ok(Released::NotHeld);
        };
        let in_time = ends > self.now;
        let asked = "select mode, since, asked from tourbillon_lease where name = ?1";
        let read = |row: &Row<'_>| {
            let (mode, since) = (Mode::of_number(row.get(0)?), row.get(1)?);
            let (token, reserved, is_own_turn, asked) = (0, None, false, row.get(2)?);
            let (asker, is_own_wait) = (None, false);
            Ok(SharedRow {
                mode,
                token,
                since,
                is_own_wait,
                asked,
                asker,
                reserved,
                is_own_turn,
            })
        };
        let Some(shared) = self.first(asked, [name], read)? else {
            return Ok(Released::NotHeld);
        };
        let since = shared.since.filter(|_| in_time);
        let waited = since.map_or(Duration::ZERO, |since| time(self.now.saturating_sub(since)));
        let is_due = waited >= Claim::TURN;
        let until = self.after(reservation(waited));
        if self.holders(name)?.is_some() {
            // A reader that goes makes no room, since there was room before.
            let is_waited_for = shared.is_waited_for(self.now).is_some();
            if is_due && shared.mode != Mode::Shared && !is_waited_for {
                let reserve = "update tourbillon_lease set turn = waiter, reserved = ?2,
                    waiter = null, since = null where name = ?1";
                self.change(reserve, (name, until))?;
            }
        } else if shared.mode != Mode::Exclusive {
            self.forget_shares(name)?;
            if is_due {
                let reserve = "update tourbillon_lease set mode = 0, ends = ?2, since = null,
                    asker = null, asked = null, turn = null, reserved = null where name = ?1";
                self.change(reserve, (name, until))?;
            } else {
                self.change("delete from tourbillon_lease where name = ?1", [name])?;
            }
        }
        Ok(match in_time {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    /// The holder of a shared name whose lease ends last.
    pub(super) fn last_of(&self, name: &str, mode: Mode) -> Result<Option<Holder>> {
        let asked = "select count(*) over (), owner, token, ends, data from tourbillon_lease_share
            where name = ?1 and ends > ?2 order by ends desc limit 1";
        self.first(asked, (name, self.now), |row| {
            let holders: u32 = row.get(0)?;
            let holders = usize::try_from(holders).unwrap_or(usize::MAX);
            Ok(self.shown(row)?.in_mode(mode, holders))
        })
    }
}
