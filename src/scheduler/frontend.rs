//! The keyed front end of the engine: a closure per key.

use std::hash::BuildHasher;
use std::time::Duration;

use super::answers::TimerId;
use super::firing::Firing;
use super::handle::Handle;
use super::task::{Rounds, Task};
use crate::clock::ClaimReading;
use crate::engine::{Engine, Frontend, FrontendTypes, RunInfo, RunOutcome};
use crate::job::catch_panic;
use crate::shard::Start;
use crate::sync::Arc;
#[cfg(any(test, feature = "test-util"))]
use crate::sync::Mutex;
#[cfg(feature = "tokio")]
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tick::Time;

/// A task that panicked, as [`SchedulerBuilder::on_panic`](crate::SchedulerBuilder::on_panic)
/// receives it.
///
/// # Examples
///
/// ```
/// use tourbillon::{Scheduler, TaskPanic};
///
/// fn log(panic: &TaskPanic<'_, u64>) {
///     eprintln!("task {}, due at {:?}: {}", panic.key, panic.deadline, panic.message);
/// }
/// let scheduler = Scheduler::<u64>::builder().on_panic(log).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TaskPanic<'a, K> {
    /// The key under which the task was scheduled.
    pub key: &'a K,
    /// When the task was due.
    pub deadline: Time,
    /// The message of the panic.
    pub message: &'a str,
}

pub(crate) type OnPanic<K> = Box<dyn Fn(&TaskPanic<'_, K>) + Send + Sync>;

#[cfg(any(test, feature = "test-util"))]
/// A run, as the test kit records it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// let timer = timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// let fired = scheduler.advance(Duration::from_secs(5));
/// assert_eq!((fired[0].key, fired[0].id), ("a", timer.id));
/// assert_eq!(fired[0].at, timer.deadline);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired<K> {
    /// The key that ran.
    pub key: K,
    /// The arming that ran.
    pub id: TimerId,
    /// When the task was due.
    pub deadline: Time,
    /// When the task started.
    pub at: Time,
}

/// The state of the keyed front end besides the engine.
pub(crate) struct SchedulerFrontend<K, S> {
    pub(crate) hasher: S,
    pub(crate) on_panic: Option<OnPanic<K>>,
    #[cfg(feature = "tracing")]
    pub(crate) show_key: Option<crate::trace::ShowKey<K>>,
    /// A round that is late by less than this is never missed.
    pub(crate) least_grace: Duration,
    /// Set before the first task that is a future is armed.
    #[cfg(feature = "tokio")]
    pub(crate) spawns: AtomicBool,
    /// The runs so far, in a scheduler that a test steps.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) log: Option<Mutex<Vec<Fired<K>>>>,
}

impl<K, S> SchedulerFrontend<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the view that the task gets of its run. In a scheduler that a test steps, this clones
    /// the key, which is user code.
    #[inline]
    fn begin<'a>(handle: &'a Handle<K, S>, info: &RunInfo<'a, K>) -> Firing<'a, K, S> {
        let firing = Firing {
            handle,
            key: info.key,
            id: TimerId {
                tag: handle.engine().tag(),
                stripe: info.stripe,
                entry: info.id,
            },
            deadline: info.deadline,
            started: info.started,
        };
        #[cfg(any(test, feature = "test-util"))]
        if let Some(log) = &handle.engine().frontend.log {
            Self::record(log, &firing);
        }
        firing
    }

    /// Records a run.
    #[cfg(any(test, feature = "test-util"))]
    #[inline(never)]
    fn record(log: &Mutex<Vec<Fired<K>>>, firing: &Firing<'_, K, S>) {
        log.lock().push(Fired {
            key: firing.key.clone(),
            id: firing.id,
            deadline: firing.deadline,
            at: firing.started,
        });
    }

    /// Calls `on_panic`, which is user code.
    pub(super) fn tell_panic(handle: &Handle<K, S>, key: &K, deadline: Time, message: &str) {
        #[cfg(feature = "tracing")]
        handle.engine().tell_panic(key, message);
        if let Some(tell) = &handle.engine().frontend.on_panic {
            tell(&TaskPanic {
                key,
                deadline,
                message,
            });
        }
    }

    /// Looks at the calendar of a task. Returns `None` if the run is a round, and else when to look
    /// again, or that the calendar has panicked.
    #[inline(never)]
    fn look(
        handle: &Handle<K, S>,
        info: &RunInfo<'_, K>,
        task: &mut Task<K, S>,
    ) -> Option<Result<Option<Time>, ()>> {
        let looked = catch_panic(|| {
            let cadence = task.calendar()?;
            let is_round = cadence.look(info.deadline, info.started);
            (!is_round).then(|| cadence.next_look(handle.now()))
        });
        match looked {
            Ok(next) => next.map(Ok),
            Err(message) => {
                let _ = catch_panic(|| Self::panicked(handle, info, &message));
                Some(Err(()))
            }
        }
    }

    /// Runs a round, and decides when the next one is due.
    #[inline(never)]
    fn run_round(
        handle: &Handle<K, S>,
        info: &RunInfo<'_, K>,
        mut task: Task<K, S>,
    ) -> RunOutcome<Task<K, S>> {
        // The closure only borrows the task, so a panic does not destroy it.
        let round = catch_panic(|| task.round(&Self::begin(handle, info)));
        let mut panicked = round.is_err();
        if let Err(message) = round {
            let _ = catch_panic(|| Self::panicked(handle, info, &message));
        }
        let ended = handle.now();
        // A schedule function is user code. Without its answer there is no further round.
        let asked = catch_panic(|| task.cadence()?.next(info.deadline, ended));
        panicked |= asked.is_err();
        let next = asked.unwrap_or_else(|message| {
            let _ = catch_panic(|| Self::panicked(handle, info, &message));
            None
        });
        RunOutcome::Repeat {
            panicked,
            payload: task,
            next,
        }
    }
}

impl<K, S> FrontendTypes for SchedulerFrontend<K, S> {
    type Key = K;
    type Payload = Task<K, S>;
    type Access = Handle<K, S>;
}

impl<K, S> Frontend for SchedulerFrontend<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    #[cfg(feature = "tracing")]
    const KIND: &'static str = "scheduler";

    #[cfg(feature = "tracing")]
    fn show_key(&self) -> Option<crate::trace::ShowKey<K>> {
        self.show_key
    }

    #[cfg(feature = "tokio")]
    fn has_light(&self) -> bool {
        // Relaxed: the ticker that finds it late looks again.
        self.spawns.load(Ordering::Relaxed)
    }

    fn is_light(task: &Task<K, S>) -> bool {
        task.only_spawns()
    }

    const LIGHT: bool = cfg!(feature = "tokio");

    fn access(engine: &Arc<Engine<Self>>) -> Handle<K, S> {
        Handle::new(Arc::clone(engine))
    }

    fn start(task: &mut Task<K, S>, deadline: Time, present: &mut ClaimReading<'_>) -> Start {
        task.start(deadline, present)
    }

    fn prefetch(task: &mut Task<K, S>) {
        task.prefetch();
    }

    /// Runs the task once, even if it could run again.
    fn run(handle: &Handle<K, S>, info: &RunInfo<'_, K>, task: Task<K, S>) {
        task.run(&Self::begin(handle, info));
    }

    #[inline]
    fn run_to_its_end(
        handle: &Handle<K, S>,
        info: &RunInfo<'_, K>,
        mut task: Task<K, S>,
    ) -> RunOutcome<Task<K, S>> {
        let rounds = task.rounds();
        if rounds == Rounds::ByCalendar
            && let Some(next) = Self::look(handle, info, &mut task)
        {
            return RunOutcome::Repeat {
                panicked: next.is_err(),
                payload: task,
                next: next.unwrap_or_default(),
            };
        }
        if rounds == Rounds::Here || (rounds == Rounds::ByCalendar && task.cadence().is_some()) {
            return Self::run_round(handle, info, task);
        }
        // Set out here, since a task may detach its run and panic afterwards.
        let mut detached = false;
        let ended = catch_panic(|| task.run_once(&Self::begin(handle, info), &mut detached));
        let panicked = ended.is_err();
        if let Err(message) = ended {
            let _ = catch_panic(|| Self::panicked(handle, info, &message));
        }
        if detached {
            RunOutcome::Detached
        } else {
            RunOutcome::Done { panicked }
        }
    }

    fn panicked(handle: &Handle<K, S>, info: &RunInfo<'_, K>, message: &str) {
        Self::tell_panic(handle, info.key, info.deadline, message);
    }
}
