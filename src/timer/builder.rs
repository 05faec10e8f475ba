//! The options of a timer.

use std::fmt;

use super::{Timer, TimerFrontend};
use crate::clock::Clock;
#[cfg(any(test, feature = "test-util"))]
use crate::clock::ManualClock;
use crate::config::Config;
use crate::engine::{Engine, EngineParts, ExecutorKind, Server, TickerState};
use crate::error::BuildError;
use crate::options::engine_options;
use crate::sync::Arc;

type BuiltTimer = (Arc<Server<TimerFrontend>>, Vec<TickerState>);

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
    executor_kind: ExecutorKind,
}

impl TimerBuilder {
    pub(super) fn new() -> Self {
        TimerBuilder {
            config: Config::new(),
            executor_kind: ExecutorKind::Pool,
        }
    }

    engine_options!();

    /// Starts the threads and returns the timer.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that is not allowed, or why a thread did not start.
    pub fn build(self) -> Result<Timer, BuildError> {
        let clock = self.config.own_clock();
        let (server, ticker_states) = self.parts(clock, None)?;
        Engine::start(&server, ticker_states).map_err(BuildError::Spawn)?;
        Ok(Timer::of(server))
    }

    /// Makes the parts of a timer without threads, and its clock.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn stepped_parts(
        mut self,
        seed: u64,
    ) -> Result<(BuiltTimer, ManualClock), BuildError> {
        // The stripe of a timer depends on the number of its thread, which differs from run to run.
        // With a single stripe the order is the same in every run.
        self.config.validate(num_cpus::get())?;
        (self.config.shards, self.config.stripes) = (Some(1), Some(1));
        let (clock, hand) = self.config.stepped_clock();
        let built = self.parts(clock, Some(seed))?;
        Ok((built, hand))
    }

    /// Validates the options and assembles the engine.
    fn parts(self, clock: Clock, seed: Option<u64>) -> Result<BuiltTimer, BuildError> {
        Ok(Engine::assemble(
            EngineParts {
                config: self.config.validate(num_cpus::get())?,
                clock,
                executor_kind: self.executor_kind,
                stepped: seed.is_some(),
                seed,
            },
            TimerFrontend,
        ))
    }
}

impl fmt::Debug for TimerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
