//! The interface between the machine and its shell: options, inputs and commands.

use std::time::Duration;

use crate::store::schedule::NamedSchedules;
use crate::store::{
    Beat, Claim, Claimed, ClaimedRun, Connection, Epoch, NewNode, Outcome, Poll, Run, Settle,
    Settled, StoreError, StoreSnapshot, StoreTime,
};
use crate::sync::Arc;

/// The time since the node was made, by the local clock that is never set.
pub(crate) type Mono = Duration;

/// The place of a timer: its queue, by its number, and its key.
pub(super) type Place = (usize, Box<str>);

/// The options of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The name in the table of nodes, for people.
    pub(crate) name: String,
    /// How long a node may be silent before others take its timers.
    pub(crate) node_lease: Duration,
    /// The time between two polls.
    pub(crate) poll_interval: Duration,
    /// The queues that it handles.
    pub(crate) queues: Vec<QueueConfig>,
    /// The schedules that its program names.
    pub(crate) schedules: NamedSchedules,
    /// The greatest number of parts that are all awake. With more of them those sleep that have
    /// nothing due.
    pub(crate) most_awake: usize,
    /// For epochs and for the choice of shards. The same seed makes the same node.
    pub(crate) seed: u64,
}

/// The options of one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueConfig {
    pub(crate) name: Arc<str>,
    /// The greatest number of runs at one time on this node.
    pub(crate) running: usize,
    /// The greatest number of runs that start within a second on this node.
    pub(crate) pace: Option<u32>,
    /// A timer whose nodes died this often becomes a dead letter.
    pub(crate) crash_limit: u32,
}

/// A message to a node.
#[derive(Debug)]
pub(crate) enum Input {
    /// The moment of [`Node::next_wake`] has come. It is harmless at any time.
    Wake,
    /// The answer to a [`Command::Ask`].
    Reply {
        /// The number of the call.
        id: u64,
        result: Result<Reply, StoreError>,
    },
    /// Timers that were scheduled just now and are due soon. They are hints: the claim decides.
    Near(Vec<Near>),
    /// A run that was started has ended.
    Finished { run: Run, outcome: Outcome },
    /// The doorbell of the store rang: timers of this queue, or of any queue, may be due soon.
    Rang(Option<Arc<str>>),
    /// A queue was paused or resumed by this process; others learn it from their next poll.
    PollNow,
    /// No more claims. After the grace, runs that have not ended are left to the other nodes.
    Stop { grace: Duration },
}

/// A timer that is due soon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Near {
    pub(crate) queue: Arc<str>,
    pub(crate) key: Box<str>,
    pub(crate) shard: u16,
    pub(crate) due: StoreTime,
    /// The length of its payload. `None` if only its due time is known.
    pub(crate) bytes: Option<u64>,
}

/// An order of the node to its shell.
#[derive(Debug)]
pub(crate) enum Command {
    /// A call to the store, whose answer comes as an [`Input::Reply`] with this number. The calls
    /// of one lane are made in their order. No lane has more than one call under way.
    Ask { id: u64, call: StoreCall },
    /// A run to start. Its end comes as an [`Input::Finished`].
    Start(ClaimedRun),
    /// Everything has ended. It is the last command.
    Stopped(Stopped),
}

/// How a node has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stopped {
    /// The runs that had not ended when the grace was over.
    pub(crate) unfinished: usize,
}

/// The connections of a node: each lane has one, so that renewals wait for no claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Lane {
    /// Joins, beats, polls, ends of nodes.
    Watch,
    /// Claims.
    Claims,
    /// Settlements.
    Settles,
}

impl Lane {
    pub(crate) const ALL: [Lane; 3] = [Lane::Watch, Lane::Claims, Lane::Settles];
}

/// A call to the store.
#[derive(Clone, Debug)]
pub(crate) enum StoreCall {
    Join(NewNode),
    Beat(Epoch),
    Poll(Poll),
    DeclareGone {
        asking: Epoch,
        epoch: Epoch,
        beat: i64,
    },
    Leave(Epoch),
    Claim(Claim),
    Settle(Settle),
}

/// The answer to a [`StoreCall`].
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Joined,
    Beat(Option<Beat>),
    Snapshot(StoreSnapshot),
    DeclaredGone(bool),
    Left,
    Claimed(Claimed),
    Settled(Vec<Result<Settled, StoreError>>),
}

impl StoreCall {
    pub(crate) fn lane(&self) -> Lane {
        match self {
            StoreCall::Claim(_) => Lane::Claims,
            StoreCall::Settle(_) => Lane::Settles,
            _ => Lane::Watch,
        }
    }

    /// Makes the call.
    pub(crate) fn make(&self, connection: &mut dyn Connection) -> Result<Reply, StoreError> {
        Ok(match self {
            StoreCall::Join(node) => {
                connection.join(node)?;
                Reply::Joined
            }
            StoreCall::Beat(epoch) => Reply::Beat(connection.beat(*epoch)?),
            StoreCall::Poll(poll) => Reply::Snapshot(connection.poll(poll)?),
            StoreCall::DeclareGone {
                asking,
                epoch,
                beat,
            } => Reply::DeclaredGone(connection.declare_gone(*asking, *epoch, *beat)?),
            StoreCall::Leave(epoch) => {
                connection.leave(*epoch)?;
                Reply::Left
            }
            StoreCall::Claim(claim) => Reply::Claimed(connection.claim(claim)?),
            StoreCall::Settle(settle) => Reply::Settled(connection.settle(settle)?),
        })
    }
}
