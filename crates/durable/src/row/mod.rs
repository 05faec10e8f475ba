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
//! While a node holds a timer, `schedule` writes the new timer over it: due times and payload are
//! those of the timer that *follows* the run. Generation, attempt and claim stay those of the run,
//! whose node has its payload. `cancel` marks the row, and takes the due time of a timer that
//! followed from it. The end of the run then frees the timer that follows, or deletes the row.
//!
//! - **ROW-1** Only a held row has a timer that follows, or the mark of a cancel, and never both.
//! - **ROW-2** A timer that comes back to be polled is not due in the past, so that nobody has to
//!   look behind a mark. The end of a run moves the timer that follows it, if need be. Only what a
//!   gone node has left behind stays where it is.
//! - **ROW-3** Every call decides first what a gone node has left behind. A timer that follows
//!   counts as new: it waits for its own due time, and the run that it followed counts as replaced,
//!   as a waiting timer would be. Its crash is nobody's. A cancelled timer is deleted. Otherwise
//!   the run was not finished, and the claim counts the crash.
//! - **ROW-4** A run that was claimed and never started, since the answer was lost, starts only if
//!   it was neither followed nor cancelled. Otherwise its payload is not there any more, or nobody
//!   wants it. The node gives it back, and the end of the run does the rest. It finds the row by its
//!   due time. So one that was scheduled for later is found then, and one that was cancelled is due
//!   at once.

mod pause;
pub(crate) mod shard;
mod step;

use std::time::Duration;

use self::pause::held_back;
pub use self::pause::pause;
use self::step::{marked, step_to, stepped};
use crate::store::{
    Action, Answer, Epoch, Outcome, Payload, Settled, StoreTime, StoredState, Timer, schedule,
};

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
    /// Whether it was scheduled while it was held: due times and payload are those of the timer
    /// that follows the run.
    pub follows: bool,
    /// What it carries.
    pub payload: Payload,
}

/// A claim on a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The node.
    pub epoch: Epoch,
    /// Since when.
    pub since: StoreTime,
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
    /// A dead letter is to be written for an occurrence of a schedule, with its own key and meta, and
    /// the timer goes on as another row.
    BuryThen {
        /// The occurrence.
        dead: Row,
        /// Why.
        error: String,
        /// The row, in the place of the one that is there.
        row: Row,
    },
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
    /// No live node holds the timer. A claim in the row is that of a gone node, of which nothing was
    /// decided yet: see [`freed`].
    Free(Row),
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
    match row.cancelled {
        true => RowState::Absent,
        false => RowState::Free(row),
    }
}

/// The timer without a claim. One that followed a run is a new one.
fn freed(row: Row, context: &mut StoreContext<'_>) -> Row {
    match row.follows {
        true => Row {
            planned: row.planned,
            ..fresh(row.shard, row.due, (context.generation)(), row.payload)
        },
        false => Row { claim: None, ..row },
    }
}

fn fresh(shard: u16, due: StoreTime, generation: i64, payload: Payload) -> Row {
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
        follows: false,
        payload,
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
            // What a gone node has left is for the next claim to decide.
            RowState::Free(row) => (Change::Keep, exists(&row, false)),
            RowState::Held(row, _) => (Change::Keep, exists(&row, true)),
        },
        Action::Declare { when, payload } => {
            let due = when.due(context.now);
            declare(state, shard, due, payload, context)
        }
        Action::Reschedule { when } => {
            let to = when.due(context.now);
            reschedule(state, was_there, to, context)
        }
        Action::Cancel => cancel(state, was_there, context.now),
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
    payload: Payload,
    context: &mut StoreContext<'_>,
) -> (Change, Answer) {
    let (row, replaced, running) = match state {
        RowState::Absent => {
            let row = fresh(shard, due, (context.generation)(), payload);
            (row, None, false)
        }
        RowState::Free(old) => {
            let row = fresh(old.shard, due, (context.generation)(), payload);
            (row, Some(old.due), false)
        }
        RowState::Held(row, _) => {
            let replaced = row.follows.then_some(row.due);
            let row = Row {
                due,
                planned: due,
                cancelled: false,
                follows: true,
                payload,
                ..row
            };
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

fn declare(
    state: RowState,
    shard: u16,
    due: StoreTime,
    payload: Payload,
    context: &mut StoreContext<'_>,
) -> (Change, Answer) {
    let (row, runs) = match &state {
        RowState::Absent => return schedule(state, shard, due, payload, context),
        RowState::Free(row) => (row, false),
        RowState::Held(row, _) => (row, true),
    };
    let (new, old) = (payload.meta.as_ref(), row.payload.meta.as_ref());
    let same_payload = row.payload.json == payload.json;
    // One that was cancelled during its run is wanted again.
    if !row.cancelled && schedule::stays(new, old, same_payload) {
        return (Change::Keep, exists(row, runs));
    }
    // What follows a run knows of it already.
    let mut meta = schedule::inherit(new, old, runs && !row.follows);
    if row.cancelled {
        // It was paused before that.
        meta = schedule::with_pause(meta.as_ref(), false).or(meta);
    }
    let is_paused = schedule::is_paused(meta.as_ref());
    let (change, answer) = schedule(state, shard, due, Payload { meta, ..payload }, context);
    match change {
        Change::Put(row) if is_paused => (Change::Put(held_back(row)), answer),
        change => (change, answer),
    }
}

fn reschedule(
    state: RowState,
    was_there: bool,
    to: StoreTime,
    context: &mut StoreContext<'_>,
) -> (Change, Answer) {
    let (row, from, running) = match state {
        RowState::Absent => return (absent(was_there), Answer::NotFound),
        RowState::Held(row, hold) if !row.follows => return (Change::Keep, runs(&row, hold)),
        RowState::Held(row, _) => {
            let from = row.due;
            (row, from, true)
        }
        RowState::Free(row) => {
            let from = row.due;
            let row = Row {
                fails: 0,
                crashes: 0,
                ..freed(row, context)
            };
            (row, from, false)
        }
    };
    let answer = Answer::Moved {
        from,
        to,
        shard: row.shard,
        running,
    };
    let row = Row {
        due: to,
        planned: to,
        ..row
    };
    (Change::Put(row), answer)
}

fn cancel(state: RowState, was_there: bool, now: StoreTime) -> (Change, Answer) {
    match state {
        RowState::Absent => (absent(was_there), Answer::NotFound),
        RowState::Free(row) => (Change::Delete, Answer::Cancelled { due: row.due }),
        RowState::Held(row, hold) if row.cancelled => (Change::Keep, runs(&row, hold)),
        RowState::Held(mut row, hold) => {
            let answer = runs(&row, hold);
            if std::mem::take(&mut row.follows) {
                (row.due, row.planned) = (now, now);
            }
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
pub fn claim(row: Row, epoch: Epoch, crash_limit: u32, context: &mut StoreContext<'_>) -> Claiming {
    let row = match state_of(Some(row), context) {
        RowState::Absent => return Claiming::Not(Change::Delete),
        RowState::Held(..) => return Claiming::Not(Change::Keep),
        RowState::Free(row) => row,
    };
    let (was_left, has_crashed) = (row.claim.is_some(), row.claim.is_some() && !row.follows);
    let mut row = freed(row, context);
    if has_crashed {
        row.crashes += 1;
        // Only a node knows how a schedule goes on. It gets the run, and gives it up without a start.
        if row.crashes >= crash_limit && !schedule::is_schedule(row.payload.meta.as_ref()) {
            let times = row.crashes;
            let error = format!("the process that ran it ended {times} times during the run");
            return Claiming::Not(Change::Bury(row, error));
        }
    }
    if was_left && schedule::is_paused(row.payload.meta.as_ref()) {
        row = held_back(row);
    }
    if row.due > context.now {
        // What was decided about a gone node's claim is written all the same.
        let change = match was_left {
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

/// Whether a run that the fence has let through may still start, if it has not (ROW-4).
#[must_use]
pub fn may_start(row: &Row) -> bool {
    !row.cancelled && !row.follows
}

/// Ends a run that the fence has let through.
pub fn settle(row: Row, outcome: &Outcome, context: &mut StoreContext<'_>) -> (Change, Settled) {
    // It may have been paused or resumed since it was claimed.
    let is_paused = !row.follows && schedule::is_paused(row.payload.meta.as_ref());
    let (change, settled) = end(row, outcome, context);
    let change = match change {
        Change::Put(row) if is_paused => Change::Put(held_back(row)),
        Change::BuryThen { dead, error, row } if is_paused => Change::BuryThen {
            dead,
            error,
            row: held_back(row),
        },
        change => change,
    };
    (change, settled)
}

fn end(row: Row, outcome: &Outcome, context: &mut StoreContext<'_>) -> (Change, Settled) {
    if row.cancelled {
        return (Change::Delete, Settled::Ended);
    }
    if row.follows {
        // The planned time stays, for whoever asks how late the run is.
        let due = row.due.max(context.now);
        let row = freed(Row { due, ..row }, context);
        return (Change::Put(row), Settled::Ended);
    }
    match outcome {
        Outcome::Done => match schedule::ended(row.payload.meta.as_ref()) {
            Some(meta) => (Change::Put(marked(&row, meta, context)), Settled::Waits),
            None => (Change::Delete, Settled::Ended),
        },
        Outcome::Next(next) => {
            let next = stepped(&row, next, context);
            (Change::Put(next), Settled::Waits)
        }
        Outcome::Step(run) => match step_to(&row, run, context.now) {
            Ok(row) => (Change::Put(row), Settled::Stepped),
            Err(instead) => end(row, &instead, context),
        },
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
            let next = schedule::ended(row.payload.meta.as_ref());
            let next = next.map(|meta| marked(&row, meta, context));
            (buried(row, error, next), Settled::Buried)
        }
        Outcome::DeadThen(error, next) => {
            let next = stepped(&row, next, context);
            (buried(row, error, Some(next)), Settled::Buried)
        }
    }
}

fn buried(row: Row, error: &str, next: Option<Row>) -> Change {
    let dead = Row {
        fails: row.fails + 1,
        claim: None,
        ..row
    };
    let error = error.to_owned();
    match next {
        Some(row) => Change::BuryThen { dead, error, row },
        None => Change::Bury(dead, error),
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
    payload: Payload,
    context: &mut StoreContext<'_>,
) -> Option<Row> {
    match state_of(row, context) {
        RowState::Absent => {
            let generation = (context.generation)();
            Some(fresh(shard, context.now, generation, payload))
        }
        RowState::Free(_) | RowState::Held(..) => None,
    }
}

/// Returns the timer that users read. `None` if a gone node has left it behind cancelled.
///
/// A row that a gone node holds is shown as a timer that does not run: the one that it ran, or the
/// one that follows, which has not run yet. The next call that writes counts the crash.
///
/// `live_node` returns the name of a node, unless it is gone.
#[must_use]
pub fn timer(
    queue: &str,
    key: &str,
    row: &Row,
    is_paused: bool,
    now: StoreTime,
    live_node: &dyn Fn(Epoch) -> Option<String>,
) -> Option<Timer> {
    let hold = row
        .claim
        .and_then(|hold| Some((hold.since, live_node(hold.epoch)?)));
    if row.cancelled && hold.is_none() {
        return None;
    }
    let is_new = row.follows && hold.is_none();
    let count = |count| if is_new { 0 } else { count };
    let state = match hold {
        Some(_) => StoredState::Running,
        None => {
            let is_paused = is_paused || schedule::is_paused(row.payload.meta.as_ref());
            StoredState::of_idle(is_paused, row.due, now)
        }
    };
    let (running, node) = hold.unzip();
    Some(Timer {
        queue: queue.to_owned(),
        key: key.to_owned(),
        due: row.due,
        planned: row.planned,
        attempt: count(row.attempt),
        fails: count(row.fails),
        crashes: count(row.crashes),
        state,
        running,
        node,
        cancelled: row.cancelled,
        follows: row.follows && !is_new,
        payload: row.payload.json.clone().into(),
        meta: row.payload.meta.clone(),
    })
}

#[cfg(test)]
mod sides;
#[cfg(test)]
mod tests;
