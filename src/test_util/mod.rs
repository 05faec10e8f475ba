//! A scheduler that a test drives from its own thread. It has no threads and never waits, and the
//! same seed gives the same interleaving again.
//!
//! The API is that of production: the same [`Handle`], and the same builder with
//! [`build_stepped`](crate::SchedulerBuilder::build_stepped) instead of `build`. Time passes only
//! in [`advance`](Stepped::advance) and its siblings. Tasks run inside these calls, on the calling
//! thread. Each call returns when nothing is due and nothing runs any more.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::Scheduler;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<&str>::builder().build_stepped(42)?;
//! let timers = scheduler.handle();
//! timers.schedule("b", Duration::from_secs(2), |_| ())?;
//! timers.schedule("a", Duration::from_secs(1), |_| ())?;
//!
//! assert!(scheduler.advance(Duration::from_millis(999)).is_empty());
//! let fired = scheduler.advance(Duration::from_secs(2));
//! let keys: Vec<_> = fired.iter().map(|fired| fired.key).collect();
//! assert_eq!(keys, ["a", "b"]);
//! # Ok(())
//! # }
//! ```
//!
//! [`SteppedMap`] is the same for an [`ExpiryMap`](crate::ExpiryMap), and [`SteppedTimer`] for a
//! [`Timer`](crate::Timer). [`SteppedTimer::run_until`] runs a future, and moves the clock to the
//! next deadline when it waits. [`Together`] moves several drivers of one program on one clock.
//! With the feature `tokio`, each of them can follow the paused clock of tokio instead:
//! `follow_tokio`, in a `#[tokio::test(start_paused = true)]`.

mod driver;
#[cfg(feature = "tokio")]
mod follow;
mod map;
mod timer;
mod together;

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

pub use map::SteppedMap;
pub use timer::SteppedTimer;
pub use together::{Drive, Together};

use driver::{Driver, Steps};

use crate::clock::ManualClock;
use crate::engine::Shutdown;
use crate::error::BuildError;
pub use crate::scheduler::Fired;
use crate::scheduler::{
    Handle, RandomState, Report, Scheduler, SchedulerBuilder, SchedulerFrontend,
};
use crate::sync::Arc;
use crate::tick::Time;

/// A scheduler without threads; see the [module](self).
///
/// One thread drives it at a time. It is not `Sync`, but its handles are. Calling `advance` and its
/// siblings from inside a task panics.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// let scheduler = Scheduler::<&str>::builder().build_stepped(42)?;
/// let timers = scheduler.handle();
/// timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// assert_eq!(scheduler.advance(Duration::from_secs(1))[0].key, "a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stepped<K, S = RandomState> {
    driver: Driver<SchedulerFrontend<K, S>>,
    scheduler: Arc<Scheduler<K, S>>,
}

/// The option that builds a [`Stepped`].
impl<K, S> SchedulerBuilder<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Builds a scheduler without threads, driven by the calling thread; see
    /// the [module](self). `seed` decides how shards and workers interleave, and how
    /// [`RandomState`] hashes. A custom hasher has to give the same hashes in every run by itself.
    ///
    /// The clock starts at [`Time::ZERO`](crate::Time::ZERO), unless a manual clock was given. Then
    /// that clock is used.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    #[doc(alias("mock", "fake", "virtual_time"))]
    pub fn build_stepped(self, seed: u64) -> Result<Stepped<K, S>, BuildError> {
        let ((server, ticker_states), hand) = self.stepped_parts(seed)?;
        Ok(Stepped {
            scheduler: Arc::new(Scheduler::of(Arc::clone(&server))),
            driver: Driver::new(server, ticker_states, hand, seed),
        })
    }
}

impl<K, S> Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a handle, which any thread may use.
    #[must_use]
    pub fn handle(&self) -> Handle<K, S> {
        self.scheduler.handle()
    }

    /// Returns the scheduler, for code that owns one. Dropping this driver closes it.
    ///
    /// Only a scheduler that [follows tokio](Self::follow_tokio) is shut down by its own
    /// [`shutdown`](Scheduler::shutdown). Otherwise the driver's [`shutdown`](Self::shutdown) does
    /// it, since no time passes by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let stepped = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let scheduler = stepped.scheduler();
    /// scheduler.handle().schedule("a", Duration::from_secs(1), |_| ())?;
    /// assert_eq!(stepped.advance(Duration::from_secs(1)).len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn scheduler(&self) -> Arc<Scheduler<K, S>> {
        Arc::clone(&self.scheduler)
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.driver.now()
    }

    /// Returns the clock, to set it by hand. Setting it runs nothing by itself;
    /// [`settle`](Self::settle) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// scheduler.clock().advance(Duration::from_secs(1));
    /// assert_eq!(scheduler.settle().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.driver.hand().clone()
    }

    /// Returns a future that drives the scheduler by the clock of the present tokio runtime, for
    /// tests under `#[tokio::test(start_paused = true)]`; needs the feature `tokio`. Spawn it, and
    /// use the scheduler as in production. While all tasks wait, tokio's clock jumps to the next
    /// deadline, whether it is one of tokio or one of the scheduler.
    ///
    /// From this call on, the clock of the scheduler moves with tokio's clock. tokio stops at whole
    /// milliseconds, so a deadline between two of them is late by less than one. If tokio's clock
    /// is not paused, the scheduler runs in real time. Several drivers can follow one runtime.
    ///
    /// Tasks run inside the poll of this future, so they must not block. Await what the handles can
    /// wait for: a call that blocks would wait in vain.
    ///
    /// The future ends with a shutdown of the [`scheduler`](Self::scheduler), which can be awaited.
    /// Dropping the future closes the scheduler.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a tokio runtime. The future panics in a runtime without
    /// timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tourbillon::Shutdown;
    ///
    /// let stepped = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let (scheduler, timers) = (stepped.scheduler(), stepped.handle());
    /// tokio::spawn(stepped.follow_tokio());
    ///
    /// let (send, paid) = tokio::sync::oneshot::channel();
    /// let mut send = Some(send);
    /// timers.schedule("order 4711", Duration::from_secs(900), move |_| {
    ///     let _ = send.take().expect("one run").send("reminded");
    /// })?;
    /// assert_eq!(paid.await?, "reminded");
    /// assert!(scheduler.shutdown(Shutdown::HandBack).await.handed_back.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn follow_tokio(self) -> impl Future<Output = ()> + Send + 'static {
        let (following, scheduler) = (follow::follow(self.driver), self.scheduler);
        async move {
            following.await;
            // Dropping the last handle of a scheduler closes it.
            drop(scheduler);
        }
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(2), |_| ())?;
    /// assert!(scheduler.advance(Duration::from_secs(1)).is_empty());
    /// assert_eq!(scheduler.advance(Duration::from_secs(1)).len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance(&self, by: Duration) -> Vec<Fired<K>> {
        self.advance_to(self.now() + by)
    }

    /// Lets time pass until `to`, and stops at every time at which something is due. So each timer
    /// runs at its own tick, and timers that it schedules run in their turn. Returns the runs since
    /// the last call that returned runs, in their order. If `to` is in the past, this only runs what
    /// is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let armed = scheduler.handle().schedule("a", Duration::from_secs(1), |_| ())?;
    /// assert_eq!(scheduler.advance_to(armed.deadline)[0].key, "a");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to(&self, to: Time) -> Vec<Fired<K>> {
        self.driver.advance_to(to);
        self.take_log()
    }

    /// Lets time pass until a task runs, and runs everything that is due then. Returns `None` if
    /// nothing pending will ever run.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(3600), |_| ())?;
    /// let fired = scheduler.advance_to_next().expect("a timer is pending");
    /// assert_eq!(fired[0].key, "a");
    /// assert_eq!(scheduler.advance_to_next(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to_next(&self) -> Option<Vec<Fired<K>>> {
        let mut fired = Vec::new();
        self.driver
            .advance_until(|| {
                fired = self.take_log();
                !fired.is_empty()
            })
            .then_some(fired)
    }

    /// Polls `future` until it is ready, and returns its output. When nothing is left to do and the
    /// future waits, time moves to the next deadline at once.
    ///
    /// The future has to wait for something of this scheduler, or of the same thread. Nothing waits
    /// for other threads, so that every run is the same. Other drivers do not move; see
    /// [`Together`]. A future that wakes itself in each poll, or waits beside a task that repeats
    /// without end, keeps this call busy.
    ///
    /// The next call that returns runs also returns those of this call.
    ///
    /// # Panics
    ///
    /// Panics if the future would wait forever: it is not woken, and nothing pending will ever be
    /// due. Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{Scheduler, Time};
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let (send, answer) = tokio::sync::oneshot::channel();
    /// scheduler.handle().schedule("a", Duration::from_secs(3), move |_| {
    ///     let _ = send.send(7);
    /// })?;
    /// assert_eq!(scheduler.run_until(answer)?, 7);
    /// assert_eq!(scheduler.now(), Time::ZERO + Duration::from_secs(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.run_until(future)
    }

    /// Sets the clock to `to` without stopping in between, as if every thread had slept meanwhile.
    /// Then runs everything that is due, and returns the runs as [`settle`](Self::settle) does. `to`
    /// may be in the past.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// // As if the machine had been suspended for an hour.
    /// let fired = scheduler.jump_to(scheduler.now() + Duration::from_secs(3600));
    /// assert_eq!(fired[0].at.since(fired[0].deadline), Duration::from_secs(3599));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn jump_to(&self, to: Time) -> Vec<Fired<K>> {
        self.driver.hand().set(to);
        self.settle()
    }

    /// Runs everything that is due now, and returns the runs since the last call that returned
    /// runs.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::ZERO, |_| ())?;
    /// assert_eq!(scheduler.settle().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn settle(&self) -> Vec<Fired<K>> {
        self.driver.settle();
        self.take_log()
    }

    /// Takes the record of the runs so far.
    fn take_log(&self) -> Vec<Fired<K>> {
        let log = self.driver.server().engine().frontend.log.as_ref();
        log.map(|log| std::mem::take(&mut *log.lock()))
            .unwrap_or_default()
    }

    /// Shuts down, and lets time pass where the mode waits for it. A second call returns an empty
    /// report.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Scheduler, Shutdown};
    ///
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// assert_eq!(scheduler.shutdown(Shutdown::HandBack).handed_back.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn shutdown(&self, mode: Shutdown) -> Report<K, S> {
        Report::of(self.driver.shut_down(mode))
    }
}

impl<K, S> fmt::Debug for Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepped")
            .field("now", &self.now())
            .field("engine", self.driver.server().engine())
            .finish_non_exhaustive()
    }
}
