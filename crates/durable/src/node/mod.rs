//! The node: what decides when timers are polled, claimed, run and settled.
//!
//! It is a state machine without threads, clock or I/O. Its *inputs* are the answers of the store,
//! the ends of runs, hints of timers that are due soon, rings of the store's doorbell, and the
//! time. Its *commands* are calls to the store and starts of runs. The shell around it has the
//! threads and the connections, and a simulation drives the very same machine. The same seed and
//! the same inputs give the same commands.
//!
//! Times here are [`Mono`]: the time since the start of the node, by a clock of this machine that
//! nobody sets. What is due is decided by the store.
//!
//! # States
//!
//! ```text
//!            Joined              good beat                 Stop              Left
//!  outside ---------> joined -----------------> holds ------------> stops ---------> ended
//!     ^                  ^   a good beat | ^ the lease               |
//!     |                  '---------------' '-- is over              | the grace and up to 5 s
//!     '---- a beat or a claim says "gone": another epoch            '-------> ended
//! ```
//!
//! A timer, as the node sees it:
//!
//! ```text
//!  seen or hinted -> upcoming -> in a claim --> waits --> runs --> ended --> settled
//!                       ^          |   |                              ^        |
//!                       |  not due |   | not returned: forgotten      '--------'
//!                       '----------'   '--> the next poll               locked, or no answer
//! ```
//!
//! # Membership
//!
//! A node *joins* with a random epoch, and increments its *beat* each fifth of the lease.
//!
//! - **NODE-1** The lease counts from the sending of the last beat that the store has confirmed.
//!   When it is over, no run starts and no claim is sent. The next good beat begins another lease.
//! - **NODE-2** A claim carries a deadline by the store's clock that is not later than the end of
//!   the lease it was sent in. So a claim that was held up does nothing.
//! - **NODE-3** A node declares another one gone only if it has seen the same beat for longer than
//!   the lease, by its own clock and through five good beats of its own. A failed beat and a pause
//!   of its own begin the observation anew. So what stops all nodes makes none of them gone.
//! - **NODE-4** A node that is gone begins a new epoch. The ends of its old runs are dropped: their
//!   claims count as none. Until they have ended they still take up room in their queues.
//!
//! # Polls
//!
//! A node *polls* its shards each interval, two intervals ahead. Rendezvous hashing ranks the
//! nodes that handle a queue for each of its shards. The first is the owner. The next two take what
//! is 1.5 and 3 intervals overdue. A node whose next beat is overdue has no rank, so the others
//! take its shards at once, until it beats again. Nor has one that joined less than one and a half
//! beats ago, which does not know yet whose beats are overdue. Each poll reads one more shard
//! whole, in turn, unless that takes long. All this only saves work: any node may claim any timer.
//!
//! - **NODE-5** A queue has its own budget. A node knows a bounded number of its timers, whatever
//!   is stored, and polls of other queues do not depend on that number. When a node has claimed
//!   half of the timers that it may know, and there are more, it polls again at once. It does so
//!   only if a claim of the queue has succeeded in the meantime, so that locked rows cause no loop.
//!   That poll goes on where the last one was cut. It shows no timers that are due before, so it
//!   sets no mark and adopts nothing.
//! - **NODE-6** A mark is not later than any timer that a poll could find. See the module `marks`.
//! - **NODE-7** A snapshot is of one moment: a claim that is missing from its rows since a live
//!   node holds it belongs to one of its nodes. A node that is missing from a snapshot drops all
//!   marks, as what it had claimed may be older than they are.
//! - **NODE-15** A ring of the store's doorbell makes the node poll at once its own shards of
//!   the queue that rang. Between two such polls lie at least 20 ms, so a storm of rings costs 50
//!   polls a second at most. A shard with an overdue backlog is left out. A lost ring costs nothing
//!   but time: the polls of each interval go on.
//!
//! - **NODE-17** With more than 1,024 parts, which are shards of queues, a part sleeps while it has
//!   nothing due within three intervals. A poll then does not ask for it. The bands of the poll
//!   tell which parts have timers, and these wake. One whose timer is due before the next poll is
//!   polled at once. See the module `sleep`.
//!
//! # Claims and runs
//!
//! - **NODE-8** A claim is sent when a lower bound of the store's clock has reached the due time.
//!   The store decides. If a claim does not return a timer, the node keeps it if it was not due
//!   yet, and otherwise forgets it. The next poll finds it again if it is still there. That poll of
//!   its shard shows more timers, two for each forgotten one, so that locked rows do not hide the
//!   timers behind them. This holds for up to 2,000 such rows of a queue. A timer that the store
//!   refuses is claimed again less and less often, up to once in 30 s, unless it was moved since.
//! - **NODE-9** A row that the node has claimed and does not hold is adopted after two polls in a
//!   row that saw the same generation and attempt, with no claim of that key under way from the
//!   sending of each poll to its answer. See the module `adoption`. The shards of a lost claim are
//!   polled, whoever owns them, until nothing is in doubt. A row that was cancelled or scheduled
//!   meanwhile is given back instead (ROW-4). One that was scheduled for later shows at that time.
//! - **NODE-10** A key that the node holds is neither claimed nor adopted again until its end is
//!   settled. So a node never has two runs of one key in one epoch.
//! - **NODE-16** A claim and a call that settles carry payloads of 2 MiB at most, or one. So a
//!   queue with huge payloads holds up the others for the time of one call. A queue that found no
//!   room in a claim is the first one of the next claim. The store tells the length of each payload
//!   in a poll. A timer that this process has moved, and that no poll has shown since, counts as
//!   much as the queue's timers had on the average. After a claim that adopts runs, the next one
//!   takes due timers first.
//! - **NODE-11** A timer with two crashes or more is claimed alone, and only one such run goes on
//!   at a time on a node. So it takes no neighbours with it.
//! - **NODE-12** An end is asked for until it is answered, and is fenced by epoch, generation and
//!   attempt. It frees its room at once. One whose row is locked is asked for less and less often,
//!   up to once an interval, and one that the store refuses up to once in 30 s. Neither holds up
//!   another one: if a call fails as a whole, the next ones are smaller. With too many ends of a
//!   queue unsettled, nothing more of that queue is claimed.
//!
//! # The end
//!
//! - **NODE-13** A node that stops claims nothing, gives back what has not started, and lets the
//!   others know at once that it handles no queue: they do not wait for its shards during the
//!   grace. It keeps its lease until its runs have ended, or the grace is over. Then it leaves, and
//!   its claims count as none.
//! - **NODE-14** A lane whose call failed pauses, up to one interval. Nothing here spins: each
//!   wake-up is later than now, or something is sent.

mod adoption;
mod claims;
mod clock;
mod interface;
mod lane;
mod load;
mod machine;
mod marks;
mod membership;
mod numbers;
mod polls;
mod queue;
mod replies;
mod runs;
mod shards;
mod sleep;
mod stopping;
#[cfg(test)]
mod tests;
mod throttle;
mod upcoming;

#[allow(unused_imports, reason = "the shell uses them")]
pub(crate) use interface::{
    Command, Input, Lane, Mono, Near, NodeConfig, QueueConfig, Reply, Stopped, StoreCall,
};
pub(crate) use machine::Node;
pub(crate) use sleep::MOST_AWAKE;
