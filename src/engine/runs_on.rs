//! Where an engine runs: its executor, and whose threads serve it.

#[cfg(any(test, feature = "test-util"))]
use super::TickerState;
use super::{Engine, EngineParts, ExecutorKind, Frontend, Server};
use crate::clock::Clock;
#[cfg(any(test, feature = "test-util"))]
use crate::clock::ManualClock;
use crate::config::{Config, Valid};
use crate::error::BuildError;
use crate::executor::Executor;
#[cfg(any(test, feature = "test-util"))]
use crate::executor::PoolWorkers;
use crate::runtime::{NotServed, Runtime, Threads, ThreadsConfig, of_process};
use crate::sync::Arc;

/// What a builder was told about it.
pub(crate) struct RunsOn {
    executor_kind: ExecutorKind,
    choice: Choice,
}

enum Choice {
    /// Nothing was said.
    Usual,
    Own,
    On(Runtime),
}

/// The result of a build without threads, and what moves its clock.
#[cfg(any(test, feature = "test-util"))]
pub(crate) type BuiltStepped<F> = ((Arc<Server<F>>, Vec<TickerState>), ManualClock);

impl RunsOn {
    pub(crate) fn new() -> Self {
        RunsOn {
            executor_kind: ExecutorKind::Pool,
            choice: Choice::Usual,
        }
    }

    pub(crate) fn on_pool(&mut self) {
        self.executor_kind = ExecutorKind::Pool;
    }

    pub(crate) fn inline(&mut self) {
        self.executor_kind = ExecutorKind::Inline;
    }

    pub(crate) fn on_executor(&mut self, executor: Box<dyn Executor>) {
        self.executor_kind = ExecutorKind::Foreign(executor);
    }

    pub(crate) fn on_runtime(&mut self, runtime: &Runtime) {
        self.choice = Choice::On(runtime.clone());
    }

    pub(crate) fn on_own_threads(&mut self) {
        self.choice = Choice::Own;
    }

    /// Returns the runtime on which the engine runs, or `None` for threads of its own.
    fn runtime(&self, config: &Config, clock: &Clock) -> Result<Option<Runtime>, BuildError> {
        let is_inline = matches!(self.executor_kind, ExecutorKind::Inline);
        match &self.choice {
            Choice::On(_) if is_inline => Err(BuildError::NotOnRuntime),
            Choice::On(runtime) => Ok(Some(runtime.clone())),
            // Workers of its own go by its own clock, and a test moves that one.
            Choice::Usual
                if !is_inline && config.workers.is_none() && clock.as_manual().is_none() =>
            {
                of_process()
            }
            Choice::Usual | Choice::Own => Ok(None),
        }
    }

    /// Starts the threads of one engine.
    fn start_own(&self, config: &Valid, clock: &Clock) -> Result<Arc<Threads>, BuildError> {
        let (workers, max_workers) = match self.executor_kind {
            ExecutorKind::Inline => (0, 0),
            ExecutorKind::Pool | ExecutorKind::Foreign(_) => (config.workers, config.max_running),
        };
        let threads = Threads::start(ThreadsConfig {
            name: "tb".to_owned(),
            stack_size: None,
            tickers: config.shards,
            workers,
            max_workers,
            quiet: config.quiet,
            clock: clock.clone(),
        });
        threads.map_err(BuildError::Spawn)
    }
}

impl<F: Frontend> Engine<F> {
    /// Validates the options, and builds an engine that runs.
    pub(crate) fn build(
        runs_on: RunsOn,
        config: &Config,
        frontend: F,
    ) -> Result<Arc<Server<F>>, BuildError> {
        let clock = config.own_clock();
        let cores = num_cpus::get();
        let runtime = runs_on.runtime(config, &clock)?;
        let shares_workers = runtime.is_some();
        let (config, threads) = match runtime {
            Some(runtime) => {
                let threads = Arc::clone(runtime.threads());
                (config.validate_on(threads.tickers(), cores)?, threads)
            }
            None => {
                let config = config.validate(cores)?;
                let threads = runs_on.start_own(&config, &clock)?;
                (config, threads)
            }
        };
        let parts = EngineParts {
            config,
            clock,
            executor_kind: runs_on.executor_kind,
            seed: None,
            stepped: false,
            workers: Arc::clone(threads.workers()),
            shares_workers,
        };
        let (server, ticker_states) = Engine::assemble(parts, frontend);
        match Engine::start(&server, ticker_states, threads) {
            Ok(()) => Ok(server),
            Err(NotServed::Ended) => Err(BuildError::RuntimeEnded),
            Err(NotServed::Forked) => Err(BuildError::Forked),
        }
    }

    /// Validates the options, and builds an engine that a test steps.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn build_stepped(
        runs_on: RunsOn,
        config: &Config,
        seed: u64,
        frontend: F,
    ) -> Result<BuiltStepped<F>, BuildError> {
        let (clock, hand) = config.stepped_clock();
        let config = config.validate(num_cpus::get())?;
        // None of these has a thread: the driver steps worker slots.
        let workers = PoolWorkers::new(config.workers, usize::MAX, config.quiet, clock.clone());
        let parts = EngineParts {
            config,
            clock,
            executor_kind: runs_on.executor_kind,
            seed: Some(seed),
            stepped: true,
            workers: Arc::new(workers),
            shares_workers: false,
        };
        Ok((Engine::assemble(parts, frontend), hand))
    }
}

impl std::fmt::Debug for RunsOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunsOn").finish_non_exhaustive()
    }
}
