//! How timers run that are due: the threads around the state machine of `node`, the lanes by which
//! it calls the store, and the life of each run, from its claim to its end.
//!
//! May use `node`, `client`, `calls`, `events` and `store`. What a user sets for a queue is here,
//! too: [`RetryPolicy`], [`Late`], the handlers, and the layers around them.

mod due;
mod end;
mod ending;
mod handler;
mod lanes;
mod late;
mod layer;
mod node_lease;
mod notifications;
mod occurrence;
mod plan;
mod queue_options;
mod retry;
mod run_event;
mod run_info;
mod shell;
mod signs;
#[cfg(feature = "tracing")]
mod span;
mod task;
mod token;

pub use due::Due;
pub use ending::{Ending, IntoEnding};
pub(crate) use handler::Handler;
pub use late::Late;
pub(crate) use layer::Layer;
pub use layer::{NextLayer, Ran};
#[cfg(feature = "test-util")]
pub(crate) use node_lease::NodeLease;
pub(crate) use node_lease::{LocalClock, StoreClock};
#[cfg(feature = "cron")]
pub(crate) use plan::Named;
pub(crate) use plan::{Plan, QueuePlan, TraceContext};
pub(crate) use queue_options::QueueOptions;
pub use retry::RetryPolicy;
pub use run_event::{RunEvent, RunOutcome};
pub use run_info::RunInfo;
#[cfg(feature = "test-util")]
pub(crate) use shell::Rest;
pub(crate) use shell::{Message, NodeEnd, NodeParts, NodeSender, start};
pub(crate) use signs::NodeSigns;
#[cfg(feature = "test-util")]
pub(crate) use task::is_within_any;
pub(crate) use task::{Runs, is_within};
pub use token::Token;
