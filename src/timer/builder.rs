//! The options of a timer.

use std::fmt;

use super::{Timer, TimerFrontend};
use crate::config::Config;
#[cfg(any(test, feature = "test-util"))]
use crate::engine::BuiltStepped;
use crate::engine::{Engine, RunsOn};
use crate::error::BuildError;
use crate::options::engine_options;

/// Options of a [`Timer`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Timer;
///
/// # fn main() -> Result<(), tourbillon::BuildError> {
/// let timer = Timer::builder().tick(Duration::from_millis(10)).workers(1).build()?;
/// # drop(timer);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct TimerBuilder {
    config: Config,
    runs_on: RunsOn,
}

impl TimerBuilder {
    pub(super) fn new() -> Self {
        TimerBuilder {
            config: Config::new(),
            runs_on: RunsOn::new(),
        }
    }

    engine_options!();

    /// Starts the threads and returns the timer.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that is not allowed, or why a thread did not start.
    pub fn build(self) -> Result<Timer, BuildError> {
        Ok(Timer::of(Engine::build(
            self.runs_on,
            &self.config,
            TimerFrontend,
        )?))
    }

    /// Makes the parts of a timer without threads, and its clock.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn stepped_parts(
        mut self,
        seed: u64,
    ) -> Result<BuiltStepped<TimerFrontend>, BuildError> {
        // The stripe of a timer depends on the number of its thread, which differs from run to run.
        // With a single stripe the order is the same in every run.
        self.config.validate(num_cpus::get())?;
        (self.config.shards, self.config.stripes) = (Some(1), Some(1));
        Engine::build_stepped(self.runs_on, &self.config, seed, TimerFrontend)
    }
}

impl fmt::Debug for TimerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
