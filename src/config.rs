//! Validation of options: every bound with its default and its reason.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::clock::Clock;
#[cfg(any(test, feature = "test-util"))]
use crate::clock::ManualClock;
use crate::error::BuildError;
use crate::tick::TickSize;

/// Shortest tick. Shorter ones would wrap the wheel's range within hours, and cost more than they
/// bring.
const TICK_MIN: Duration = Duration::from_micros(1);
/// Longest tick.
const TICK_MAX: Duration = Duration::from_secs(60);
/// Greatest number of threads of one kind: more than any known machine needs.
pub(crate) const THREADS_MAX: usize = 1_024;
/// Greatest number of stripes, which are chosen by 16 bits of the hash.
const STRIPES_MAX: usize = 1 << 16;
/// Default number of stripes: 128 stripes gave two threads 1.6 to 3 times the throughput of one
/// lock per shard.
const STRIPES_DEFAULT: usize = 128;
/// Default number of stripes for each core, where that is more.
const STRIPES_PER_CORE: usize = 8;
/// Default greatest number of workers. A design with more blocked tasks in one pool should be
/// reconsidered.
const MAX_WORKERS_DEFAULT: usize = 64;

/// How long an extra worker stays without work: long enough that not every burst starts threads.
pub(crate) const EXTRA_WORKER_QUIET: Duration = Duration::from_secs(10);

/// The options that a builder collects.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) tick: Duration,
    pub(crate) shards: Option<usize>,
    pub(crate) stripes: Option<usize>,
    pub(crate) workers: Option<usize>,
    pub(crate) max_running: Option<usize>,
    pub(crate) max_pending: Option<usize>,
    /// Expirations per second.
    pub(crate) pace: Option<u32>,
    pub(crate) clock: Option<Clock>,
    pub(crate) shutdown_limit: Duration,
    pub(crate) quiet: Duration,
    pub(crate) backlog: usize,
    pub(crate) injector: usize,
    /// For metrics.
    pub(crate) name: Option<String>,
    /// From which duration on a task is reported.
    #[cfg(feature = "tracing")]
    pub(crate) slow_task: Option<Duration>,
}

impl Config {
    pub(crate) fn new() -> Self {
        Config {
            tick: Duration::from_millis(1),
            shards: None,
            stripes: None,
            workers: None,
            max_running: None,
            max_pending: None,
            pace: None,
            clock: None,
            shutdown_limit: Duration::from_secs(30),
            quiet: EXTRA_WORKER_QUIET,
            // A deque that only thieves empty never shrinks; 65,536 tickets are 512 KiB.
            backlog: 65_536,
            injector: 65_536,
            name: None,
            #[cfg(feature = "tracing")]
            slow_task: None,
        }
    }

    /// Returns the clock of a scheduler with threads.
    #[cfg(not(loom))]
    pub(crate) fn own_clock(&self) -> Clock {
        self.clock.clone().unwrap_or_else(Clock::fast)
    }

    /// Returns the clock of a scheduler that a test steps, and what moves it. A manual clock that
    /// was given is shared with the test.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn stepped_clock(&self) -> (Clock, ManualClock) {
        let given = self.clock.as_ref();
        if let Some((clock, hand)) = given.and_then(|clock| Some((clock, clock.as_manual()?))) {
            return (clock.clone(), hand);
        }
        let hand = ManualClock::new();
        (Clock::manual(&hand), hand)
    }

    /// Checks all options for threads that others use, too: `tickers` of them are tickers.
    #[cfg(not(loom))]
    pub(crate) fn validate_on(&self, tickers: usize, cores: usize) -> Result<Valid, BuildError> {
        if self.workers.is_some() {
            return Err(BuildError::WorkersOfRuntime);
        }
        let shards = self.shards.or(Some(tickers));
        // So many may run at a time, whatever the number of workers.
        let workers = Some(1);
        let config = Config {
            shards,
            workers,
            ..self.clone()
        };
        config.validate(cores)
    }

    /// Checks all options, and fills in the defaults for a machine with this many cores.
    pub(crate) fn validate(&self, cores: usize) -> Result<Valid, BuildError> {
        let cores = cores.clamp(1, THREADS_MAX);
        if !(TICK_MIN..=TICK_MAX).contains(&self.tick) {
            return Err(BuildError::Tick(self.tick));
        }
        let shards = self.shards.unwrap_or(cores);
        if !(1..=THREADS_MAX).contains(&shards) {
            return Err(BuildError::Shards(shards));
        }
        // Every shard needs a stripe. Both numbers are checked together, since either may be the
        // wrong one.
        let stripes = self.stripes.unwrap_or_else(|| {
            STRIPES_DEFAULT
                .max(STRIPES_PER_CORE * cores)
                .max(shards)
                .next_power_of_two()
        });
        if !stripes.is_power_of_two() || stripes < shards || stripes > STRIPES_MAX {
            return Err(BuildError::Stripes { stripes, shards });
        }
        let most = self.max_running.unwrap_or(usize::MAX);
        let workers = self.workers.unwrap_or_else(|| cores.min(most).max(1));
        if !(1..=THREADS_MAX).contains(&workers) {
            return Err(BuildError::Workers(workers));
        }
        // Not fewer than `workers`, which may be above the default.
        let max_running = self
            .max_running
            .unwrap_or_else(|| MAX_WORKERS_DEFAULT.max(workers));
        if max_running < workers || max_running > THREADS_MAX {
            return Err(BuildError::MaxRunning {
                max_running,
                workers,
            });
        }
        if self.max_pending == Some(0) {
            return Err(BuildError::MaxPending);
        }
        let pace = match self.pace.map(NonZeroU32::new) {
            Some(None) => return Err(BuildError::Pace),
            pace => pace.flatten(),
        };
        // The range check above makes this conversion succeed.
        let nanos = u64::try_from(self.tick.as_nanos()).map_err(|_| BuildError::Tick(self.tick))?;
        Ok(Valid {
            tick: TickSize::from_nanos(nanos),
            shards,
            stripes,
            workers,
            max_running,
            max_pending: self.max_pending,
            pace,
            shutdown_limit: self.shutdown_limit,
            quiet: self.quiet,
            backlog: self.backlog,
            injector: self.injector,
            name: self.name.clone(),
            #[cfg(feature = "tracing")]
            slow_task: self.slow_task,
        })
    }
}

/// The validated options of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Valid {
    pub(crate) tick: TickSize,
    pub(crate) shards: usize,
    pub(crate) stripes: usize,
    pub(crate) workers: usize,
    pub(crate) max_running: usize,
    pub(crate) max_pending: Option<usize>,
    pub(crate) pace: Option<NonZeroU32>,
    pub(crate) shutdown_limit: Duration,
    pub(crate) quiet: Duration,
    pub(crate) backlog: usize,
    pub(crate) injector: usize,
    /// For metrics.
    pub(crate) name: Option<String>,
    /// From which duration on a task is reported.
    #[cfg(feature = "tracing")]
    pub(crate) slow_task: Option<Duration>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn c117_defaults_follow_the_machine() {
        let valid = Config::new().validate(4).unwrap();
        assert_eq!((valid.shards, valid.workers, valid.max_running), (4, 4, 64));
        assert_eq!(valid.stripes, 128);
        assert_eq!(valid.max_pending, None);
        let large = Config::new().validate(100).unwrap();
        assert_eq!((large.stripes, large.max_running), (1_024, 100));
        let mut one = Config::new();
        one.max_running = Some(1);
        assert_eq!(one.validate(4).unwrap().workers, 1);
    }

    #[test]
    fn on_a_runtime_the_shards_follow_its_tickers_and_the_workers_are_its_own() {
        let valid = Config::new().validate_on(3, 8).unwrap();
        assert_eq!((valid.shards, valid.max_running), (3, 64));
        let mut config = Config::new();
        (config.shards, config.max_running) = (Some(5), Some(1));
        let valid = config.validate_on(3, 8).unwrap();
        assert_eq!((valid.shards, valid.max_running), (5, 1));
        config.workers = Some(1);
        let refused = config.validate_on(3, 8);
        assert!(matches!(refused, Err(BuildError::WorkersOfRuntime)));
    }

    #[test]
    fn c116_every_bound_is_checked_and_named() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::new();
            change(&mut config);
            config.validate(2).unwrap_err().to_string()
        };
        assert!(with(|c| c.tick = Duration::ZERO).contains("tick of 0ns"));
        assert!(with(|c| c.tick = Duration::from_secs(61)).contains("tick of 61s"));
        assert!(with(|c| c.shards = Some(0)).contains("0 shards"));
        assert!(with(|c| c.shards = Some(1_025)).contains("1025 shards"));
        assert!(with(|c| c.stripes = Some(3)).contains("3 stripes"));
        assert!(with(|c| (c.stripes, c.shards) = (Some(2), Some(4))).contains("4 shards"));
        assert!(with(|c| c.stripes = Some(1 << 17)).contains("131072 stripes"));
        assert!(with(|c| c.workers = Some(0)).contains("0 workers"));
        assert!(with(|c| c.max_running = Some(0)).contains("max_running of 0 with 1"));
        let fewer = |c: &mut Config| (c.workers, c.max_running) = (Some(2), Some(1));
        assert!(with(fewer).contains("max_running of 1 with 2"));
        assert!(with(|c| c.max_pending = Some(0)).contains("at most 0 pending"));
        assert!(with(|c| c.pace = Some(0)).contains("pace of 0"));
    }
}
