//! A future's view of its round.

use std::hash::BuildHasher;

use super::super::firing::round_view;
use super::super::hasher::RandomState;
use super::super::repeat::RoundInfo;
use super::{AsyncFiring, Cancelled};

/// A round of a repeating task whose rounds are futures: like a [`Round`](crate::Round), but it can
/// be kept. It has the methods of its run, which is an [`AsyncFiring`]. Clones stand for the same
/// round.
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
    pub(super) progress: RoundInfo,
}

impl<K, S> AsyncRound<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the run, for functions that take an [`AsyncFiring`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tourbillon::{AsyncFiring, Next, Period};
    ///
    /// /// Also called by tasks that run once.
    /// async fn report(firing: &AsyncFiring<&'static str>) -> bool {
    ///     *firing.key() == "beat"
    /// }
    /// # let stepped = Scheduler::<&'static str>::builder().build_stepped(1)?;
    /// # let timers = stepped.handle().on_tokio(tokio::runtime::Handle::current());
    /// # tokio::spawn(stepped.follow_tokio());
    /// # let (send, mut known) = tokio::sync::mpsc::unbounded_channel();
    /// timers.repeat("beat", Period::fixed_rate(Duration::from_secs(5)), move |round| {
    ///     let send = send.clone();
    ///     async move {
    ///         let _ = send.send(report(round.firing()).await);
    ///         Next::Stop
    ///     }
    /// })?;
    /// assert_eq!(known.recv().await, Some(true));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn firing(&self) -> &AsyncFiring<K, S> {
        &self.firing
    }

    /// As [`AsyncFiring::cancelled`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{Next, Period, Scheduler};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stepped = Scheduler::<&'static str>::builder().build_stepped(1)?;
    /// # let timers = stepped.handle().on_tokio(tokio::runtime::Handle::current());
    /// # tokio::spawn(stepped.follow_tokio());
    /// # let (send, mut begun) = tokio::sync::mpsc::unbounded_channel();
    /// timers.repeat("poll", Period::fixed_rate(Duration::from_secs(5)), move |round| {
    ///     let send = send.clone();
    ///     async move {
    ///         let _ = send.send(());
    ///         round.cancelled().await; // or in a `select!`, beside the work
    ///         Next::Again
    ///     }
    /// })?;
    /// begun.recv().await;
    /// timers.handle().cancel_and_wait("poll").await?;
    /// assert!(!timers.handle().contains("poll"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancelled(&self) -> Cancelled<K, S> {
        self.firing.cancelled()
    }
}

round_view!(AsyncRound<K, S>, "AsyncRound");

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
