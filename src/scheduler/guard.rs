//! A guard that cancels a timer when it is dropped. It is optional, since most timers outlive the
//! call that made them.

use std::fmt;
use std::hash::BuildHasher;

use super::answers::{Cancel, TimerId};
use super::handle::Handle;
use super::hasher::RandomState;
use crate::shard::{is_under_lock, when_unlocked};

/// Cancels one arming when it is dropped; see [`Handle::cancel_on_drop`].
///
/// A guard may be dropped anywhere. If user code drops it under a lock of this crate, for example
/// in [`ExpiryMap::update`](crate::ExpiryMap::update), the thread cancels the arming after that
/// lock is released and before the call returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Scheduler;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// {
///     let timeout = timers.schedule("request", Duration::from_secs(5), |_| ())?;
///     let _answered = timers.cancel_on_drop(timeout.id);
///     // .. the request is answered, or the caller gives up ..
/// }
/// assert!(timers.is_empty());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard cancels the timer"]
pub struct CancelGuard<K, S = RandomState>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    handle: Handle<K, S>,
    id: Option<TimerId>,
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a guard that cancels the timer when it is dropped. For a repeating timer, this ends
    /// the repetition if the guard is dropped before the round with this id has ended. Later it
    /// does nothing; to end a repetition at any time, cancel by key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let timer = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// let guard = timers.cancel_on_drop(timer.id);
    /// drop(guard);
    /// assert!(!timers.contains("request 7"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "RAII")]
    #[must_use = "dropping the guard cancels the timer"]
    pub fn cancel_on_drop(&self, id: TimerId) -> CancelGuard<K, S> {
        CancelGuard {
            handle: self.clone(),
            id: Some(id),
        }
    }
}

impl<K, S> CancelGuard<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Keeps the timer and drops the guard.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let timer = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// timers.cancel_on_drop(timer.id).disarm();
    /// assert!(timers.contains("request 7"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disarm(mut self) {
        self.id = None;
    }

    /// Cancels the timer now and returns the result.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn cancel(mut self) -> Cancel {
        let Some(id) = self.id else {
            return Cancel::NotFound;
        };
        let answer = self.handle.by_id(id).cancel();
        // Disarmed only after the call, and not under a lock: if the call panics or does nothing,
        // the drop has to cancel.
        if !is_under_lock() {
            self.id = None;
        }
        answer
    }
}

impl<K, S> Drop for CancelGuard<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        // The usual case, without a clone of the handle.
        if !is_under_lock() {
            self.handle.by_id(id).cancel();
            return;
        }
        let handle = self.handle.clone();
        when_unlocked(move || {
            handle.by_id(id).cancel();
        });
    }
}

impl<K, S> fmt::Debug for CancelGuard<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelGuard").field(&self.id).finish()
    }
}
