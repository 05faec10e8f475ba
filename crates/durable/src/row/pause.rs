//! The pause of a schedule: a mark in the meta of its timer, which is due at the end of all times.

use super::{Change, Row, StoreContext};
use crate::store::{Payload, StoreTime, schedule};

/// The timer of a paused schedule. The planned time stays, and is the due time again when it is
/// resumed.
pub(super) fn held_back(row: Row) -> Row {
    let due = StoreTime::LATEST;
    Row { due, ..row }
}

/// Pauses or resumes the schedule of a timer. `None` if it has none. The end of a run that is under
/// way looks at the mark, and so does the claim of what a gone node has left behind.
pub fn pause(row: Option<Row>, paused: bool, context: &StoreContext<'_>) -> Option<Change> {
    let row = row.filter(|row| !row.cancelled)?;
    let meta = schedule::with_pause(row.payload.meta.as_ref(), paused)?;
    if schedule::is_paused(row.payload.meta.as_ref()) == paused {
        return Some(Change::Keep);
    }
    let due = match row.claim {
        Some(_) if !row.follows => row.due,
        _ if paused => StoreTime::LATEST,
        _ if row.due == StoreTime::LATEST => row.planned.max(context.now),
        _ => row.due,
    };
    let payload = Payload {
        meta: Some(meta),
        ..row.payload
    };
    Some(Change::Put(Row {
        due,
        payload,
        ..row
    }))
}
