//! The effect of each call on a timer: the protocol as functions without I/O.
//!
//! **It is no public interface before 1.0**, so its documentation is hidden: any release may change
//! it.
//!
//! ```text
//!              schedule                claim                         settle: Done
//!  (no row) --------------> waiting --------------> held by a node ---------------> (no row)
//!      ^                     |  ^  ^                 |   |      |
//!      |       cancel        |  |  '-- Retry, Again, '   |      '-- Dead --> dead letter
//!      '---------------------'  |      GiveBack          |
//!                               '------------------------'
//!                                the node is gone: counts as waiting
//! ```
//!
//! While a node holds a timer, `schedule` writes a *successor* beside it, and `cancel` marks it.
//! The end of the run then puts the successor in its place, or deletes it.
//!
//! - **ROW-1** Only a held row has a successor or the mark of a cancel, and never both.
//! - **ROW-2** A new due time is never in the past, so that nobody has to look behind a mark.
//! - **ROW-3** Every call decides first what a gone node has left behind: a successor takes its
//!   place, and a cancelled timer is deleted. The claim counts the crash.

pub(crate) mod shard;

use std::time::Duration;

use crate::store::{Action, Answer, Epoch, Outcome, Settled, StoreTime, Timer};

/// A timer as a row of the table, without its primary key, which is queue and key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The shard.
    pub shard: u16,
    /// When it is due next.
    pub due: StoreTime,
    /// When it was due first, before retries.
    pub planned: StoreTime,
    /// A number that no other timer of this key has had.
    pub generation: i64,
    /// The number of claims so far.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose node died.
    pub crashes: u32,
    /// The node that holds it, live or not.
    pub claim: Option<Hold>,
    /// Whether it was cancelled while it was held.
    pub cancelled: bool,
    /// The payload, as JSON.
    pub payload: Box<str>,
    /// The timer that takes its place at the end of the run.
    pub successor: Option<Successor>,
}

/// A claim on a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The node.
    pub epoch: Epoch,
    /// Since when.
    pub since: StoreTime,
}

/// A timer that was scheduled while one of the same key was held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Successor {
    /// When it is due.
    pub due: StoreTime,
    /// Its generation.
    pub generation: i64,
    /// Its payload, as JSON.
    pub payload: Box<str>,
}

/// A change of the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    Keep,
    /// This row, in the place of the one that may be there.
    Put(Row),
    /// The row is to be deleted.
    Delete,
    /// The row is to be deleted, and a dead letter with this error to be written.
    Bury(Row, String),
}

/// What the store knows at the moment of a call.
pub struct StoreContext<'a> {
    /// The store's clock.
    pub now: StoreTime,
    /// Whether a claim of this epoch is live.
    pub is_live: &'a dyn Fn(Epoch) -> bool,
    /// Returns a generation that was never returned before.
    pub generation: &'a mut dyn FnMut() -> i64,
}

impl std::fmt::Debug for StoreContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreContext")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// The state of a row, after the end of a claim of a gone node.
enum RowState {
    /// There is no row.
    Absent,
    /// No live node holds the timer, and the table has this row. A claim in it is that of a gone
    /// node, whose crash was not counted yet.
    Free(Row),
    /// No live node holds the timer. It was the successor of a gone node's run, and is not written
    /// yet.
    Promoted(Row),
    /// A live node holds the timer.
    Held(Row, Hold),
}

fn state_of(row: Option<Row>, context: &StoreContext<'_>) -> RowState {
    let Some(row) = row else {
        return RowState::Absent;
    };
    let Some(hold) = row.claim else {
        return RowState::Free(row);
    };
    if (context.is_live)(hold.epoch) {
        return RowState::Held(row, hold);
    }
    if row.cancelled {
        return RowState::Absent;
    }
    match row.successor {
        Some(successor) => RowState::Promoted(promoted(row.shard, successor, context.now)),
        None => RowState::Free(row),
    }
}

/// The successor as a timer of its own.
fn promoted(shard: u16, successor: Successor, now: StoreTime) -> Row {
    Row {
        // The planned time stays, for whoever asks how late the run is.
        due: successor.due.max(now),
        planned: successor.due,
        ..fresh(
            shard,
            successor.due,
            successor.generation,
            successor.payload,
        )
    }
}

fn fresh(shard: u16, due: StoreTime, generation: i64, payload: Box<str>) -> Row {
    Row {
        shard,
        due,
        planned: due,
        generation,
        attempt: 0,
        fails: 0,
        crashes: 0,
        claim: None,
        cancelled: false,
        payload,
        successor: None,
    }
}

/// Carries out the call of a user on the row of its key. `shard` is the one that the key belongs
/// to.
pub fn apply(
    row: Option<Row>,
    shard: u16,
    action: Action,
    context: &mut StoreContext<'_>,
) -> (Change, Answer) {
    let was_there = row.is_some();
    let state = state_of(row, context);
    match action {
        Action::Schedule { when, payload } => {
            let due = when.due(context.now);
            schedule(state, shard, due, payload, context)
        }
        Action::ScheduleIfAbsent { when, payload } => match state {
            RowState::Absent => {
                let due = when.due(context.now);
                schedule(RowState::Absent, shard, due, payload, context)
            }
            // A gone node's claim is left for the next claim, which counts the crash.
            RowState::Free(row) => (Change::Keep, exists(&row, false)),
            RowState::Promoted(row) => {
                let answer = exists(&row, false);
                (Change::Put(row), answer)
            }
            RowState::Held(row, _) => (Change::Keep, exists(&row, true)),
        },
        Action::Reschedule { when } => {
            let to = when.due(context.now);
            reschedule(state, was_there, to)
        }
        Action::Cancel => cancel(state, was_there),
    }
}

fn exists(row: &Row, running: bool) -> Answer {
    let due = row.due;
    Answer::Exists { due, running }
}

fn schedule(
    state: RowState,
    shard: u16,
    due: StoreTime,
    payload: Box<str>,
    context: &mut StoreContext<'_>,
) -> (Change, Answer) {
    let generation = (context.generation)();
    let (row, replaced, running) = match state {
        RowState::Absent => (fresh(shard, due, generation, payload), None, false),
        RowState::Free(old) | RowState::Promoted(old) => (
            fresh(old.shard, due, generation, payload),
            Some(old.due),
            false,
        ),
        RowState::Held(mut row, _) => {
            let replaced = row.successor.take().map(|old| old.due);
            row.successor = Some(Successor {
                due,
                generation,
                payload,
            });
            row.cancelled = false;
            (row, replaced, true)
        }
    };
    let answer = Answer::Scheduled {
        due,
        shard: row.shard,
        replaced,
        running,
    };
    (Change::Put(row), answer)
}

fn reschedule(state: RowState, was_there: bool, to: StoreTime) -> (Change, Answer) {
    match state {
        RowState::Absent => (absent(was_there), Answer::NotFound),
        RowState::Free(mut row) | RowState::Promoted(mut row) => {
            let answer = Answer::Moved {
                from: row.due,
                to,
                shard: row.shard,
                running: false,
            };
            row.due = to;
            row.planned = to;
            row.fails = 0;
            row.crashes = 0;
            row.claim = None;
            (Change::Put(row), answer)
        }
        RowState::Held(mut row, hold) => match &mut row.successor {
            Some(successor) => {
                let answer = Answer::Moved {
                    from: successor.due,
                    to,
                    shard: row.shard,
                    running: true,
                };
                successor.due = to;
                (Change::Put(row), answer)
            }
            None => (Change::Keep, runs(&row, hold)),
        },
    }
}

fn cancel(state: RowState, was_there: bool) -> (Change, Answer) {
    match state {
        RowState::Absent => (absent(was_there), Answer::NotFound),
        RowState::Free(row) | RowState::Promoted(row) => {
            (Change::Delete, Answer::Cancelled { due: row.due })
        }
        RowState::Held(row, hold) if row.cancelled => (Change::Keep, runs(&row, hold)),
        RowState::Held(mut row, hold) => {
            let answer = runs(&row, hold);
            row.successor = None;
            row.cancelled = true;
            (Change::Put(row), answer)
        }
    }
}

/// The change that leaves no row. A row is deleted if it is there: a timer that was cancelled
/// during a run of a node that is gone now.
fn absent(was_there: bool) -> Change {
    match was_there {
        true => Change::Delete,
        false => Change::Keep,
    }
}

fn runs(row: &Row, hold: Hold) -> Answer {
    Answer::Running {
        attempt: row.attempt,
        since: hold.since,
    }
}

/// The effect of a claim on a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claiming {
    /// The node may run it. This row is to be written.
    Run(Row),
    /// It is not to be run. This is to be written.
    Not(Change),
}

/// Claims a timer for a node. Its queue is not paused, and the node is not gone.
pub fn claim(row: Row, epoch: Epoch, crash_limit: u32, context: &StoreContext<'_>) -> Claiming {
    let (mut row, mut changed) = match state_of(Some(row), context) {
        RowState::Absent => return Claiming::Not(Change::Delete),
        RowState::Held(..) => return Claiming::Not(Change::Keep),
        RowState::Free(row) => (row, false),
        RowState::Promoted(row) => (row, true),
    };
    if row.claim.take().is_some() {
        changed = true;
        row.crashes += 1;
        if row.crashes >= crash_limit {
            let times = row.crashes;
            let error = format!("the process that ran it ended {times} times during the run");
            return Claiming::Not(Change::Bury(row, error));
        }
    }
    if row.due > context.now {
        // A crash that was counted and a successor that was promoted are written all the same.
        let change = match changed {
            true => Change::Put(row),
            false => Change::Keep,
        };
        return Claiming::Not(change);
    }
    row.claim = Some(Hold {
        epoch,
        since: context.now,
    });
    row.attempt += 1;
    Claiming::Run(row)
}

/// Whether the fence holds: the row is held by this run of this node.
#[must_use]
pub fn is_held(row: &Row, epoch: Epoch, generation: i64, attempt: u32) -> bool {
    row.claim.is_some_and(|hold| hold.epoch == epoch)
        && row.generation == generation
        && row.attempt == attempt
}

/// Ends a run that the fence has let through.
pub fn settle(row: Row, outcome: &Outcome, context: &mut StoreContext<'_>) -> (Change, Settled) {
    if let Some(successor) = row.successor {
        let row = promoted(row.shard, successor, context.now);
        return (Change::Put(row), Settled::Ended);
    }
    if row.cancelled {
        return (Change::Delete, Settled::Ended);
    }
    match outcome {
        Outcome::Done => (Change::Delete, Settled::Ended),
        Outcome::Again(after) => {
            let due = later(context.now, *after);
            let row = fresh(row.shard, due, (context.generation)(), row.payload);
            (Change::Put(row), Settled::Waits)
        }
        Outcome::Retry(after) => {
            let row = Row {
                due: later(context.now, *after),
                fails: row.fails + 1,
                claim: None,
                ..row
            };
            (Change::Put(row), Settled::Waits)
        }
        Outcome::GiveBack(after) => {
            let row = Row {
                due: row.due.max(later(context.now, *after)),
                claim: None,
                ..row
            };
            (Change::Put(row), Settled::Waits)
        }
        Outcome::Dead(error) => {
            let row = Row {
                fails: row.fails + 1,
                claim: None,
                ..row
            };
            (Change::Bury(row, error.clone()), Settled::Buried)
        }
    }
}

fn later(now: StoreTime, span: Duration) -> StoreTime {
    (now + span).min(StoreTime::LATEST)
}

/// Turns a dead letter into the timer of its key, due now. `None` if there is a timer already,
/// which is left as it is.
pub fn revive(
    row: Option<Row>,
    shard: u16,
    payload: Box<str>,
    context: &mut StoreContext<'_>,
) -> Option<Row> {
    match state_of(row, context) {
        RowState::Absent => {
            let generation = (context.generation)();
            Some(fresh(shard, context.now, generation, payload))
        }
        RowState::Free(_) | RowState::Promoted(_) | RowState::Held(..) => None,
    }
}

/// Returns the timer that users read. `None` if a gone node has left it behind cancelled.
///
/// A row that a gone node holds is shown as a timer that does not run, at its place in the table.
/// The next call that writes promotes it and counts the crash. So a list can go through the table
/// in the order of the column `due`.
#[must_use]
pub fn timer(queue: &str, key: &str, row: &Row, is_live: &dyn Fn(Epoch) -> bool) -> Option<Timer> {
    let hold = row.claim.filter(|hold| is_live(hold.epoch));
    if row.cancelled && hold.is_none() {
        return None;
    }
    Some(Timer {
        queue: queue.to_owned(),
        key: key.to_owned(),
        due: row.due,
        planned: row.planned,
        attempt: row.attempt,
        fails: row.fails,
        crashes: row.crashes,
        running: hold.map(|hold| hold.since),
        cancelled: row.cancelled,
        next_due: row.successor.as_ref().map(|successor| successor.due),
        payload: row.payload.clone().into(),
    })
}

#[cfg(test)]
mod tests;
