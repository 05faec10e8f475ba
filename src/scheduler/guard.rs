//! A guard that cancels on drop; opt-in, since most timers outlive the call that made them.

use std::fmt;
use std::hash::BuildHasher;

use super::answers::{Cancel, TimerId};
use super::handle::Handle;
use super::hasher::RandomState;

/// Cancels one arming when it is dropped; see [`Handle::cancel_on_drop`].
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

impl<K, S> CancelGuard<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) fn new(handle: Handle<K, S>, id: TimerId) -> Self {
        CancelGuard {
            handle,
            id: Some(id),
        }
    }

    /// Lets the timer live on.
    pub fn disarm(mut self) {
        self.id = None;
    }

    /// Cancels now and says what that did.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn cancel(mut self) -> Cancel {
        self.id
            .take()
            .map_or(Cancel::NotFound, |id| self.handle.by_id(id).cancel())
    }
}

impl<K, S> Drop for CancelGuard<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.handle.by_id(id).cancel();
        }
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
