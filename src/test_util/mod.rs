//! A scheduler that a test drives from its own thread: no thread of its own, no waiting, and the
//! same interleaving again with the same seed.
//!
//! The API is that of production: the same [`Handle`], the same builder, with
//! [`build_stepped`](crate::Builder::build_stepped) instead of `build`. Time passes only in
//! [`advance`](Stepped::advance) and its siblings, and tasks run in there, on the calling thread.
//! Each call returns when everything is settled: nothing due is left, nothing runs.
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
//! [`SteppedMap`] is the same for an [`ExpiryMap`](crate::ExpiryMap).

mod driver;
mod map;

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

pub use map::SteppedMap;

use driver::Driver;

use crate::clock::ManualClock;
use crate::engine::Shutdown;
use crate::error::BuildError;
pub use crate::scheduler::Fired;
use crate::scheduler::{Builder, Handle, Keyed, RandomState, Report};
use crate::sync::Arc;
use crate::tick::Time;

/// A scheduler without threads; see the [module](self).
///
/// It is driven by one thread at a time and is not `Sync`; its handles are. Calling `advance` and
/// its siblings from inside a task panics.
pub struct Stepped<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    driver: Driver<Keyed<K, S>>,
    handle: Handle<K, S>,
}

/// How a [`Stepped`] is built.
impl<K, S> Builder<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Builds a scheduler without threads, driven by the calling thread; see
    /// the [module](self). `seed` decides how shards and workers interleave, and how
    /// [`RandomState`] hashes; a hasher of your own has to be the same in every run by itself.
    ///
    /// The clock starts at [`Time::ZERO`](crate::Time::ZERO), unless a manual clock was given:
    /// then that one is used.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_stepped(self, seed: u64) -> Result<Stepped<K, S>, BuildError> {
        let ((server, seats), hand) = self.stepped_parts(seed)?;
        Ok(Stepped {
            handle: Handle::new(Arc::clone(server.engine())),
            driver: Driver::new(server, seats, hand, seed),
        })
    }
}

impl<K, S> Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// A handle, for any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<K, S> {
        self.handle.clone()
    }

    /// The moment that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.driver.now()
    }

    /// The hand of the clock. Moving it fires nothing by itself; [`settle`](Self::settle) does.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.driver.hand().clone()
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance(&self, by: Duration) -> Vec<Fired<K>> {
        self.advance_to(self.now() + by)
    }

    /// Lets the time pass until `to`, stopping at every moment at which something is due: each
    /// timer runs at its own tick, what it schedules runs in its turn, and the result is in the
    /// order of the runs. A moment that has passed changes nothing but settles.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn advance_to(&self, to: Time) -> Vec<Fired<K>> {
        self.driver.advance_to(to);
        self.take_log()
    }

    /// Lets the time pass until something runs, and settles. `None` if nothing is pending that
    /// ever will.
    ///
    /// # Panics
    ///
    /// From inside a task.
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

    /// Sets the clock to `to` without stopping in between, as if every thread had slept through,
    /// and settles. Also backwards.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn jump_to(&self, to: Time) -> Vec<Fired<K>> {
        self.driver.hand().set(to);
        self.settle()
    }

    /// Runs everything that is due at this moment, and returns what ran since the last call that
    /// returned runs.
    ///
    /// # Panics
    ///
    /// From inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn settle(&self) -> Vec<Fired<K>> {
        self.driver.settle();
        self.take_log()
    }

    fn take_log(&self) -> Vec<Fired<K>> {
        let log = self.driver.server().engine().face.log.as_ref();
        log.map(|log| std::mem::take(&mut *log.lock()))
            .unwrap_or_default()
    }

    /// Shuts down, letting the time pass where the mode waits for it. A second call returns an
    /// empty report.
    ///
    /// # Panics
    ///
    /// From inside a task.
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
