//! How timers run that are due: the threads around the state machine of `node`, the lanes by which
//! it calls the store, and the life of each run, from its claim to its end.
//!
//! May use `node`, `client`, `calls`, `events` and `store`. What a user sets for a queue is here,
//! too: [`RetryPolicy`], [`Late`], and the handlers.

mod due;
mod ending;
mod handler;
mod lanes;
mod late;
mod node_lease;
mod notifications;
mod plan;
mod queue_options;
mod retry;
mod shell;
mod signs;
mod task;

pub use due::{Due, Token};
pub use ending::{Ending, IntoEnding};
pub(crate) use handler::Handler;
pub use late::Late;
pub(crate) use node_lease::{LocalClock, StoreClock};
pub(crate) use plan::{Plan, QueuePlan};
pub(crate) use queue_options::QueueOptions;
pub use retry::RetryPolicy;
pub(crate) use shell::{Message, NodeEnd, NodeParts, NodeSender, start};
pub(crate) use signs::NodeSigns;
pub(crate) use task::{Runs, is_within};
