//! A future's view of its round.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use super::super::answers::TimerId;
use super::super::handle::Handle;
use super::super::hasher::RandomState;
use super::{AsyncFiring, Cancelled};
use crate::tick::Time;

/// A round of a repeating task whose rounds are futures: like a [`Round`](crate::Round), but it can
/// be kept. It has the methods of its run,
/// which is an [`AsyncFiring`]. Clones stand for the same round.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// use tourbillon::{AsyncRound, Next, Period};
///
/// async fn beat(round: AsyncRound<&'static str>) -> Next {
///     println!("{}, round {}, {} missed", round.key(), round.number(), round.missed());
///     if round.number() < 5 { Next::Again } else { Next::Stop }
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle().on_tokio(runtime.handle().clone());
/// timers.repeat("beat", Period::fixed_rate(Duration::from_secs(5)), beat)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncRound<K, S = RandomState> {
    pub(super) firing: AsyncFiring<K, S>,
    pub(super) number: u64,
    pub(super) missed: u64,
}

impl<K, S> AsyncRound<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the run, for functions that take an [`AsyncFiring`].
    #[must_use]
    pub fn firing(&self) -> &AsyncFiring<K, S> {
        &self.firing
    }

    /// As [`AsyncFiring::key`].
    #[must_use]
    pub fn key(&self) -> &K {
        self.firing.key()
    }

    /// As [`AsyncFiring::id`]: that of this round alone.
    #[must_use]
    pub fn id(&self) -> TimerId {
        self.firing.id()
    }

    /// As [`AsyncFiring::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.firing.deadline()
    }

    /// As [`AsyncFiring::lateness`].
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.firing.lateness()
    }

    /// As [`AsyncFiring::is_cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.firing.is_cancelled()
    }

    /// As [`AsyncFiring::handle`].
    #[must_use]
    pub fn handle(&self) -> &Handle<K, S> {
        self.firing.handle()
    }

    /// As [`AsyncFiring::cancelled`].
    pub fn cancelled(&self) -> Cancelled<K, S> {
        self.firing.cancelled()
    }

    /// Like [`Round::number`](crate::Round::number).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Like [`Round::missed`](crate::Round::missed).
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl<K, S> Clone for AsyncRound<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        AsyncRound {
            firing: self.firing.clone(),
            ..*self
        }
    }
}

impl<K, S> fmt::Debug for AsyncRound<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRound")
            .field("firing", &self.firing)
            .field("number", &self.number)
            .field("missed", &self.missed)
            .finish()
    }
}
