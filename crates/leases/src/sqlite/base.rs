//! A transaction, and what its calls have in common.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use super::clock::micros;
use crate::store::{Claim, Mode};

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

/// The row of a name that is shared.
pub(super) struct SharedRow {
    pub(super) mode: Mode,
    /// That of all readers, or the last one of a permit.
    pub(super) token: i64,
    /// When the longest wait began.
    pub(super) since: Option<i64>,
    /// Whether that caller is one of this store.
    pub(super) is_own_wait: bool,
    /// When a waiting caller in another mode has asked last.
    pub(super) asked: Option<i64>,
    /// The store of that caller, or [`SEVERAL`].
    pub(super) asker: Option<String>,
    /// Until when a place is reserved, and whether it is for this store.
    pub(super) reserved: Option<i64>,
    pub(super) is_own_turn: bool,
}

/// See [`reservation`].
pub(super) const LONGEST_RESERVATION: Duration = Duration::from_millis(75);

/// Stands for several stores whose callers wait.
pub(super) const SEVERAL: &str = "*";

/// How long until a waiting caller asks again. Nobody announces the releases of other processes.
pub(super) fn interval(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST_INTERVAL, Duration::from_millis(50))
}

/// How long a name is reserved for the store whose caller has waited longest. That is longer than
/// the [`interval`] in which this caller asks.
pub(super) fn reservation(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(25), LONGEST_RESERVATION)
}

pub(super) fn time(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl Rows<'_> {
    /// The first row of a statement.
    pub(super) fn first<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.db.prepare_cached(sql)?;
        statement.query_row(values, read).optional()
    }

    /// Carries out a statement, and returns whether there was a row for it.
    pub(super) fn change(&self, sql: &str, values: impl Params) -> Result<bool> {
        Ok(self.db.prepare_cached(sql)?.execute(values)? > 0)
    }

    pub(super) fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(micros(time))
    }

    /// Returns when the wait of a claim began, if that was before the wait that is noted. The release
    /// decides by the longest wait whether it reserves the name, and for whom.
    pub(super) fn longer_wait(&self, claim: &Claim<'_>, noted: Option<i64>) -> Option<i64> {
        let since = self.now.saturating_sub(micros(claim.waited));
        let is_longer = noted.is_none_or(|noted| since <= noted.saturating_sub(SAME_WAIT));
        is_longer.then_some(since)
    }
}
