//! A poll, as its statement.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tourbillon_postgres::Effect;

use super::link::Link;
use super::rows::{Lists, complete, one, snapshot};
use super::statements::{OPEN_WRITES, POLL};
use super::values::small;
use super::wire::{Span, Time};
use crate::store::{Offset, Poll, StoreError, StoreSnapshot, StoreTime};

/// A span that leads from now to a time that the server can show. No timer is that old.
pub(super) const LONGEST_BACK: Duration = Duration::from_secs(6_000 * 365 * 86_400);

/// The least time of the server.
const FIRST: StoreTime = StoreTime::from_micros(i64::MIN);

/// Makes a poll.
pub(super) fn poll(
    link: &mut Link,
    lists: &mut Lists,
    poll: &Poll,
) -> Result<StoreSnapshot, StoreError> {
    let ranges = &poll.ranges;
    let queues: Vec<&str> = ranges.iter().map(|range| &*range.queue).collect();
    let shards: Vec<i16> = ranges.iter().map(|range| small(range.shard)).collect();
    let marks: Vec<Time> = ranges.iter().map(|range| mark(range.mark)).collect();
    let (ahead, overdue): (Vec<Span>, Vec<Span>) =
        ranges.iter().map(|range| spans(range.until)).unzip();
    let seen: Vec<i64> = ranges.iter().map(|range| one_more(range.limit)).collect();
    let bands = &poll.bands;
    let band_shards: Vec<i16> = bands.iter().map(|band| small(band.shard)).collect();
    let band_marks: Vec<Time> = bands.iter().map(|band| mark(band.mark)).collect();
    let (band_ahead, band_overdue): (Vec<Span>, Vec<Span>) =
        bands.iter().map(|band| spans(band.until)).unzip();
    let band_seen: Vec<i64> = bands.iter().map(|band| one_more(band.limit)).collect();
    let (known, numbers) = lists.known();
    let values: [&(dyn ToSql + Sync); 14] = [
        &poll.epoch.0,
        &queues,
        &shards,
        &marks,
        &ahead,
        &overdue,
        &seen,
        &band_shards,
        &band_marks,
        &band_ahead,
        &band_overdue,
        &band_seen,
        &known,
        &numbers,
    ];
    let (open, rows) = match poll.complete {
        true => {
            let (open, rows) = link.read_both(OPEN_WRITES, POLL, &values)?;
            (Some(complete(one(&open)?)), rows)
        }
        false => (None, link.query(Effect::Reads, POLL, &values)?),
    };
    Ok(StoreSnapshot {
        complete: open,
        ..snapshot(poll, &rows, lists)
    })
}

fn mark(mark: Option<StoreTime>) -> Time {
    Time(mark.unwrap_or(FIRST))
}

/// How far a range goes ahead of the clock, and how far it stays behind it.
fn spans(until: Offset) -> (Span, Span) {
    match until {
        Offset::Ahead(span) => (Span(span), Span(Duration::ZERO)),
        Offset::Overdue(span) => (Span(Duration::ZERO), Span(span.min(LONGEST_BACK))),
    }
}

/// One more timer than is wanted, which shows that the limit has cut the range.
fn one_more(limit: u32) -> i64 {
    i64::from(limit) + 1
}
