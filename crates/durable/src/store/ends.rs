//! Ends of runs, and the store's answers to them.

use std::time::Duration;

use super::{ClaimedRun, Epoch, Next, Run};
use crate::sync::Arc;

/// The ends of runs of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// The node.
    pub epoch: Epoch,
    /// The runs, no two of which concern the same queue and key.
    pub settlements: Vec<Settlement>,
}

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// The run.
    pub run: Run,
    /// Its end.
    pub outcome: Outcome,
}

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded: the timer is deleted. One that has a schedule is due at once, with the mark that
    /// its occurrence has ended.
    Done,
    /// It succeeded, and wants to run again after this span, as a new generation.
    Again(Duration),
    /// It failed, and is to be tried again after this span.
    Retry(Duration),
    /// It failed, and becomes a dead letter with this error. Of a timer that has a schedule the same
    /// holds as for [`Done`](Outcome::Done).
    Dead(String),
    /// It succeeded, and the timer has a schedule: it goes on to the next occurrence.
    Next(Box<Next>),
    /// It failed, and becomes a dead letter with this error. The timer has a schedule, and goes on to
    /// the next occurrence.
    DeadThen(String, Box<Next>),
    /// It has not started, since its occurrence was missed, and a later one is due. The node still
    /// holds the row, as this run of the later occurrence. If that is not due by the store's clock, or
    /// the schedule is paused, the same holds as for [`Next`](Outcome::Next).
    Step(Arc<ClaimedRun>),
    /// It has not started. Others may have it after this span.
    GiveBack(Duration),
}

/// The answer to a [`Settlement`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The timer is deleted, or the one that follows waits.
    Ended,
    /// The timer waits for another run.
    Waits,
    /// The node still holds the timer, for the later occurrence of its schedule.
    Stepped,
    /// The timer is a dead letter.
    Buried,
    /// The run is no longer the node's: nothing was changed.
    Fenced,
    /// Somebody else holds the row's lock: nothing was changed, ask again.
    Locked,
}
