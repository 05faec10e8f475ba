//! The options of one queue.

use std::time::Duration;

use super::late::Late;
use super::retry::RetryPolicy;
use crate::events::QueueCounters;
use crate::sync::Arc;

/// The options that a [`QueueBuilder`](crate::QueueBuilder) sets, and the numbers of the queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueOptions {
    pub(crate) retry: RetryPolicy,
    pub(crate) late: Late,
    pub(crate) running: usize,
    pub(crate) pace: Option<u32>,
    pub(crate) crash_limit: u32,
    /// From which length on a run is reported.
    pub(crate) slow_after: Option<Duration>,
    /// They are here since each run has the options. The start sets them.
    pub(crate) counters: Arc<QueueCounters>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            retry: RetryPolicy::default(),
            late: Late::default(),
            running: 64,
            pace: None,
            crash_limit: 10,
            slow_after: None,
            counters: Arc::default(),
        }
    }
}

impl QueueOptions {
    /// Says what is wrong with the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.retry.check()?;
        if !(1..=10_000).contains(&self.running) {
            return Err(format!(
                "{} runs at one time: choose between 1 and 10,000",
                self.running
            ));
        }
        if self.pace == Some(0) {
            return Err("a pace of 0 runs a second: choose at least 1, or set none".to_owned());
        }
        if self.crash_limit == 0 {
            return Err("a crash limit of 0: choose at least 1".to_owned());
        }
        Ok(())
    }
}
