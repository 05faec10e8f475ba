//! The options of a scheduler. `build` checks everything and names the offending value.

use std::fmt;
use std::hash::BuildHasher;
use std::marker::PhantomData;

use super::Scheduler;
use super::frontend::{OnPanic, SchedulerFrontend, TaskPanic};
use super::hasher::RandomState;
use crate::config::Config;
#[cfg(any(test, feature = "test-util"))]
use crate::engine::BuiltStepped;
use crate::engine::{Engine, RunsOn};
use crate::error::BuildError;
use crate::options::engine_options;
#[cfg(any(test, feature = "test-util"))]
use crate::sync::Mutex;
#[cfg(feature = "tokio")]
use crate::sync::atomic::AtomicBool;

/// Options of a [`Scheduler`], with defaults that fit most uses.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{BuildError, Scheduler};
///
/// # fn main() -> Result<(), BuildError> {
/// let scheduler = Scheduler::<u64>::builder()
///     .tick(Duration::from_millis(10))
///     .shards(1)
///     .workers(2)
///     .max_pending(1_000_000)
///     .build()?;
/// # drop(scheduler);
/// let error = Scheduler::<u64>::builder().tick(Duration::ZERO).build().unwrap_err();
/// assert!(matches!(error, BuildError::Tick(_)));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct SchedulerBuilder<K, S = RandomState> {
    config: Config,
    hasher: S,
    runs_on: RunsOn,
    on_panic: Option<OnPanic<K>>,
    #[cfg(feature = "tracing")]
    show_key: Option<crate::trace::ShowKey<K>>,
    keys: PhantomData<fn(K)>,
}

impl<K> SchedulerBuilder<K> {
    pub(super) fn new() -> Self {
        SchedulerBuilder {
            config: Config::new(),
            hasher: RandomState::default(),
            runs_on: RunsOn::new(),
            on_panic: None,
            #[cfg(feature = "tracing")]
            show_key: None,
            keys: PhantomData,
        }
    }
}

impl<K, S> SchedulerBuilder<K, S> {
    engine_options!();

    /// Sets the hasher of the keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use tourbillon::Scheduler;
    ///
    /// let scheduler = Scheduler::<String>::builder().hasher(RandomState::new()).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasher<S2>(self, hasher: S2) -> SchedulerBuilder<K, S2> {
        SchedulerBuilder {
            config: self.config,
            hasher,
            runs_on: self.runs_on,
            on_panic: self.on_panic,
            #[cfg(feature = "tracing")]
            show_key: self.show_key,
            keys: PhantomData,
        }
    }

    /// Shows the keys in spans and warnings of the crate `tracing`, as their `Debug` writes them. By
    /// default they are not shown, since keys may be secrets, such as those of sessions. Needs the
    /// feature `tracing`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Scheduler;
    ///
    /// let scheduler = Scheduler::<u64>::builder()
    ///     .trace_keys()
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub fn trace_keys(mut self) -> Self
    where
        K: fmt::Debug,
    {
        self.show_key = Some(K::fmt);
        self
    }

    /// Sets a handler for tasks that panicked. It is called on the thread that ran the task. The
    /// panic is caught and counted in any case, and the panic hook has printed it before.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Scheduler;
    ///
    /// let scheduler = Scheduler::<String>::builder()
    ///     .on_panic(|panic| eprintln!("the task of {} panicked: {}", panic.key, panic.message))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, tell: impl Fn(&TaskPanic<'_, K>) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Box::new(tell));
        self
    }
}

impl<K, S> SchedulerBuilder<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Starts the threads and returns the scheduler.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that is not allowed, or why a thread did not start.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{BuildError, Scheduler};
    ///
    /// let scheduler = Scheduler::<u64>::builder().workers(2).build()?;
    /// let refused = Scheduler::<u64>::builder().workers(0).build();
    /// assert!(matches!(refused, Err(BuildError::Workers(0))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(self) -> Result<Scheduler<K, S>, BuildError> {
        let (runs_on, config, frontend) = self.parts(false);
        Ok(Scheduler::of(Engine::build(runs_on, &config, frontend)?))
    }

    /// Makes the parts of a scheduler without threads, and its clock.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn stepped_parts(
        mut self,
        seed: u64,
    ) -> Result<BuiltStepped<SchedulerFrontend<K, S>>, BuildError> {
        // Only the default hasher can be seeded.
        if let Some(hasher) = (&mut self.hasher as &mut dyn std::any::Any).downcast_mut() {
            *hasher = RandomState::seeded(seed);
        }
        let (runs_on, config, frontend) = self.parts(true);
        Engine::build_stepped(runs_on, &config, seed, frontend)
    }

    fn parts(self, _stepped: bool) -> (RunsOn, Config, SchedulerFrontend<K, S>) {
        let frontend = SchedulerFrontend {
            #[cfg(feature = "tokio")]
            spawns: AtomicBool::new(false),
            hasher: self.hasher,
            on_panic: self.on_panic,
            #[cfg(feature = "tracing")]
            show_key: self.show_key,
            // Every start may be late by one tick and by the wake-up of its ticker.
            least_grace: self.config.tick.saturating_mul(2),
            #[cfg(any(test, feature = "test-util"))]
            log: _stepped.then(|| Mutex::new(Vec::new())),
        };
        (self.runs_on, self.config, frontend)
    }
}

impl<K, S> fmt::Debug for SchedulerBuilder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
