//! The step of a schedule from one occurrence to another.

use std::time::Duration;

use super::{Row, StoreContext, fresh};
use crate::store::{ClaimedRun, Meta, Next, Outcome, Payload, StoreTime, schedule};

/// The timer of a schedule at its next occurrence.
pub(super) fn stepped(row: &Row, next: &Next, context: &mut StoreContext<'_>) -> Row {
    let due = next.due.max(context.now);
    let payload = payload(row, &next.meta);
    Row {
        planned: next.due,
        ..fresh(row.shard, due, (context.generation)(), payload)
    }
}

/// The timer of a schedule whose occurrence has ended, and whose next one nobody has told.
pub(super) fn marked(row: &Row, meta: Meta, context: &mut StoreContext<'_>) -> Row {
    let due = context.now;
    stepped(row, &Next { due, meta }, context)
}

/// The timer of a schedule that its node still holds, for a later occurrence than the one that it was
/// claimed for. Generation and attempt stay, so that the call can be repeated. Otherwise the end that
/// the run has instead.
pub(super) fn step_to(row: &Row, run: &ClaimedRun, now: StoreTime) -> Result<Row, Outcome> {
    let own = row.payload.meta.as_ref();
    let meta = run.payload.meta.as_ref();
    let Some(meta) = meta.filter(|_| schedule::is_schedule(own)) else {
        return Err(Outcome::GiveBack(Duration::ZERO));
    };
    let due = run.due;
    // It may have been paused since the claim, or the clock was set back.
    if due > now || schedule::is_paused(own) {
        let meta = meta.clone();
        return Err(Outcome::Next(Box::new(Next { due, meta })));
    }
    Ok(Row {
        due,
        planned: due,
        payload: payload(row, meta),
        ..row.clone()
    })
}

/// What the timer carries with this meta. It is paused as it is now, and not as it was when the run
/// began.
fn payload(row: &Row, meta: &Meta) -> Payload {
    let paused = schedule::is_paused(row.payload.meta.as_ref());
    let changed = match schedule::is_paused(Some(meta)) == paused {
        true => None,
        false => schedule::with_pause(Some(meta), paused),
    };
    Payload {
        json: row.payload.json.clone(),
        meta: Some(changed.unwrap_or_else(|| meta.clone())),
    }
}
