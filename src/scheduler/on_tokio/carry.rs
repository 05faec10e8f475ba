//! The spawned future: it polls the user's future and completes the run at its end.
//!
//! The run is completed when the [`Carry`] is dropped, in this order:
//!
//! 1. The user's future is dropped. So a thread or task that waits for the run's end finds it gone.
//! 2. A repeating task becomes the successor of the run, or is dropped.
//! 3. The run is completed.
//!
//! A round can end in three ways, and each decides what follows:
//!
//! | end | next round |
//! |---|---|
//! | the future was ready | as its output says |
//! | the future or the closure that makes it panicked | as the period says for panics |
//! | the runtime dropped the future before it was ready | none: such a runtime has ended |

use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime;

use super::super::frontend::SchedulerFrontend;
use super::super::repeat::{Cadence, Next, RoundInfo};
use super::super::task::Task;
use super::AsyncFiring;
use super::round::AsyncRound;
use crate::engine::Detached;
use crate::job::catch_panic;
#[cfg(feature = "tracing")]
use crate::trace::RunSpan;

/// A future of the user.
pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A repeating task whose rounds are futures.
pub(super) trait AsyncRounds<K, S>: Send {
    /// Makes the future of a round; user code.
    fn make(&mut self, round: AsyncRound<K, S>) -> Boxed<Next>;

    fn cadence(&mut self) -> &mut Cadence;

    fn into_task(self: Box<Self>) -> Task<K, S>;
}

/// What the spawned future is at present.
enum Carried {
    /// The future of a task that runs once.
    Once(Boxed<()>),
    /// A round whose future is not made yet.
    Begins(RoundInfo),
    Round(Boxed<Next>),
    /// The future is ready, has panicked or was dropped.
    Gone,
}

/// How a round has ended.
enum RoundEnd {
    /// The future was dropped before it was ready.
    Unfinished,
    Answered(Next),
    Panicked,
}

/// The repetition that a round belongs to.
struct Repetition<K, S> {
    task: Box<dyn AsyncRounds<K, S>>,
    end: RoundEnd,
}

struct Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    carried: Carried,
    /// `None` for a task that runs once.
    repetition: Option<Repetition<K, S>>,
    told: AsyncFiring<K, S>,
    /// Made by the first poll, since a ticker may have spawned the future. Taken out while the
    /// future is polled. It ends before the run.
    #[cfg(feature = "tracing")]
    span: Option<RunSpan>,
    run: Option<Detached<SchedulerFrontend<K, S>>>,
}

/// Spawns the future of a task that runs once.
pub(super) fn spawn_once<K, S>(
    runtime: &runtime::Handle,
    told: AsyncFiring<K, S>,
    detached: Option<&mut bool>,
    future: Boxed<()>,
) where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    spawn(runtime, told, detached, Carried::Once(future), None);
}

/// Spawns a round, with its number and the number of rounds that were missed before it.
pub(super) fn spawn_round<K, S>(
    runtime: &runtime::Handle,
    told: AsyncFiring<K, S>,
    progress: RoundInfo,
    detached: Option<&mut bool>,
    task: Box<dyn AsyncRounds<K, S>>,
) where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    let repetition = Repetition {
        task,
        end: RoundEnd::Unfinished,
    };
    let begins = Carried::Begins(progress);
    spawn(runtime, told, detached, begins, Some(repetition));
}

/// Takes the run over, unless it belongs to another task, and spawns its future.
fn spawn<K, S>(
    runtime: &runtime::Handle,
    told: AsyncFiring<K, S>,
    detached: Option<&mut bool>,
    carried: Carried,
    repetition: Option<Repetition<K, S>>,
) where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    // A task that another task's run has called does not own that run, and leaves it alone.
    let run = detached.map(|detached| {
        let engine = told.handle.engine();
        let run = Detached::new(engine, told.id.stripe, told.id.entry);
        *detached = true;
        run
    });
    // The join handle is not needed: the dropped `Carry` completes the run.
    drop(runtime.spawn(Carry {
        carried,
        repetition,
        told,
        run,
        #[cfg(feature = "tracing")]
        span: None,
    }));
}

impl<K, S> Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Executes a part of the run, which is user code. A panic is reported and ends the run.
    fn proceed<R>(&mut self, part: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let tell = |carry: &Self, message: &str| {
            let told = &carry.told;
            SchedulerFrontend::tell_panic(&told.handle, &told.key, told.deadline, message);
        };
        let ended = Detached::proceed_catching(self, |carry| &mut carry.run, part, tell);
        if ended.is_none()
            && let Some(repetition) = &mut self.repetition
        {
            repetition.end = RoundEnd::Panicked;
        }
        ended
    }

    /// Decides what follows a round, and leaves that to the end of the run.
    fn end_round(&mut self) {
        let Some(Repetition { mut task, end }) = self.repetition.take() else {
            return;
        };
        let next = match end {
            RoundEnd::Unfinished => None,
            RoundEnd::Answered(_) | RoundEnd::Panicked => {
                if let RoundEnd::Answered(answer) = end {
                    task.cadence().end_round(answer);
                }
                let (deadline, ended) = (self.told.deadline, self.told.handle.now());
                // A schedule function is user code. Without its answer there is no further round.
                self.proceed(|_| task.cadence().next(deadline, ended))
                    .flatten()
            }
        };
        match &mut self.run {
            Some(run) => run.set_next(task.into_task(), next),
            // The round was part of another run, and nothing follows.
            None => {
                let _ = catch_panic(|| drop(task));
            }
        }
    }
}

impl<K, S> Drop for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.proceed(|carry| carry.carried = Carried::Gone);
        self.end_round();
    }
}

impl<K, S> Future for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let poll = |carry: &mut Self| {
            // Made here, so that the closure runs on the runtime.
            if let (&Carried::Begins(progress), Some(repetition)) =
                (&carry.carried, &mut carry.repetition)
            {
                let round = AsyncRound {
                    firing: carry.told.clone(),
                    progress,
                };
                carry.carried = Carried::Round(repetition.task.make(round));
            }
            let polled = match &mut carry.carried {
                Carried::Once(future) => future.as_mut().poll(context),
                Carried::Round(future) => future.as_mut().poll(context).map(|answer| {
                    if let Some(repetition) = &mut carry.repetition {
                        repetition.end = RoundEnd::Answered(answer);
                    }
                }),
                Carried::Begins(_) | Carried::Gone => Poll::Ready(()),
            };
            // Dropped here, where a panic of the drop counts as a panic of the run.
            if polled.is_ready() {
                carry.carried = Carried::Gone;
            }
            polled
        };
        let carry = self.get_mut();
        #[cfg(feature = "tracing")]
        if carry.span.is_some() || crate::trace::hears_spans() {
            let make = || {
                let told = &carry.told;
                let lateness = told.started.since(told.deadline);
                told.handle.engine().run_span(&told.key, lateness)
            };
            let span = carry.span.take().unwrap_or_else(make);
            let polled = span.within(|| carry.proceed(poll));
            carry.span = Some(span);
            return polled.unwrap_or(Poll::Ready(()));
        }
        // After a panic there is nothing left to poll.
        carry.proceed(poll).unwrap_or(Poll::Ready(()))
    }
}

/// The key is moved, never pinned.
impl<K, S> Unpin for Carry<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
}
