//! The checked options, on their way from a builder to the start.

use std::time::Duration;

use super::handler::Handler;
use super::layer::Layer;
use super::queue_options::QueueOptions;
use super::run_event::RunEvent;
#[cfg(feature = "cron")]
use crate::calls::Invalid;
use crate::events::Listener;
#[cfg(feature = "cron")]
use crate::store::schedule::CronSchedule;
use crate::store::{NamedSchedules, Store};
use crate::sync::{Arc, RunsOn};

/// A closure of the user, which returns the trace context of the caller.
pub(crate) type TraceContext = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The options of all.
pub(crate) struct Plan {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: String,
    /// The label `name` of metrics.
    pub(crate) label: String,
    pub(crate) node_lease: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) payload_limit: usize,
    pub(crate) keep_dead_for: Duration,
    pub(crate) listener: Option<Listener>,
    pub(crate) run_listener: Option<Listener<RunEvent>>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) trace_context: Option<TraceContext>,
    pub(crate) runs_on: RunsOn,
    /// The local clock, if a test moves it and lets the node work.
    #[cfg(feature = "test-util")]
    pub(crate) hand: Option<tourbillon::ManualClock>,
    pub(crate) queues: Vec<QueuePlan>,
    /// The schedules that the program has by name.
    #[cfg(feature = "cron")]
    pub(crate) named: Vec<Named>,
    /// Their names, which the node tells.
    pub(crate) schedules: NamedSchedules,
}

#[cfg(feature = "cron")]
impl Plan {
    /// Takes the schedules, and leaves their names.
    pub(crate) fn take_named(&mut self) -> Vec<Named> {
        for named in &self.named {
            let keys = self.schedules.entry(named.queue.clone()).or_default();
            keys.insert(named.key.clone());
        }
        std::mem::take(&mut self.named)
    }
}

/// A schedule that the program has by name.
#[cfg(feature = "cron")]
pub(crate) struct Named {
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) schedule: CronSchedule,
    pub(crate) payload: Result<Box<str>, Invalid>,
}

/// A queue with its handler.
pub(crate) struct QueuePlan {
    pub(crate) name: Arc<str>,
    pub(crate) options: QueueOptions,
    pub(crate) handler: Handler,
}
