//! Calls on one arming instead of a key.

use std::fmt;
use std::hash::BuildHasher;

use super::answers::{Cancel, PullIn, Reschedule, TimerId, TimerInfo};
use super::handle::Handle;
use super::hasher::RandomState;
use crate::job::drop_catching;
use crate::when::When;

/// Calls on one arming; see [`Handle::by_id`]. They are cheaper than by key, since nothing is
/// hashed.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let first = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
/// let second = timers.schedule("request 7", Duration::from_secs(9), |_| ())?;
/// // The first timer was replaced, so its id finds nothing, although the key is pending.
/// assert_eq!(timers.by_id(first.id).get(), None);
/// assert!(timers.by_id(second.id).cancel().is_cancelled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ById<'a, K, S = RandomState> {
    handle: &'a Handle<K, S>,
    id: TimerId,
}

impl<K, S> ById<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Like [`Handle::reschedule`].
    // Inlined, as usual calls are.
    #[inline(always)]
    pub fn reschedule(&self, when: impl Into<When>) -> Reschedule {
        match self.handle.stripe_of(self.id) {
            Some(stripe) => self
                .handle
                .engine()
                .reschedule_id(stripe, self.id.entry, when.into()),
            None => Reschedule::NotFound,
        }
    }

    /// Like [`Handle::pull_in`].
    pub fn pull_in(&self, when: impl Into<When>) -> PullIn {
        let Some(stripe) = self.handle.stripe_of(self.id) else {
            return PullIn::NotFound;
        };
        // Exact, as in `Handle::pull_in`.
        let (deadline, now) = self.handle.engine().resolve_exactly(when.into());
        self.handle
            .engine()
            .with(stripe, |stripe| {
                stripe.reschedule_id(self.id.entry, deadline, now, true)
            })
            .into()
    }

    /// Like [`Handle::cancel`]. The id of an arming that waits for the end of its key's run cancels
    /// only that arming. The id of the run notifies the run, and does not touch the waiting arming.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let timer = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// assert!(timers.by_id(timer.id).cancel().is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self) -> Cancel {
        let Some(stripe) = self.handle.stripe_of(self.id) else {
            return Cancel::NotFound;
        };
        let mut stripe = self.handle.engine().lock(stripe);
        if let Some((deadline, key, task)) = stripe.cancel_armed_id(self.id.entry) {
            stripe.unlock();
            drop_catching((key, task));
            return Cancel::Cancelled {
                deadline,
                running: false,
            };
        }
        let cancelling = stripe.cancel_run(self.id.entry);
        drop(stripe);
        Handle::<K, S>::answer(cancelling)
    }

    /// Like [`Handle::get`]. An arming that waits for the end of its key's run is reported as
    /// pending.
    #[must_use]
    pub fn get(&self) -> Option<TimerInfo> {
        let stripe = self.handle.stripe_of(self.id)?;
        self.handle
            .engine()
            .shards()
            .peek(stripe, |stripe| stripe.get_id(self.id.entry))
            .map(|entry_info| TimerInfo::new(self.id.tag, self.id.stripe, entry_info))
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a view for calls on one arming instead of a key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let timer = timers.schedule("request 7", Duration::from_secs(5), |_| ())?;
    /// let _ = timers.by_id(timer.id).reschedule(Duration::from_secs(60));
    /// assert_eq!(timers.get("request 7").map(|info| info.id), Some(timer.id));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn by_id(&self, id: TimerId) -> ById<'_, K, S> {
        ById { handle: self, id }
    }

    /// Returns whether a run of this scheduler was cancelled; false when it has ended.
    pub(super) fn is_run_cancelled(&self, run: TimerId) -> bool {
        let shards = self.engine().shards();
        shards.peek(run.stripe as usize, |stripe| stripe.is_cancelled(run.entry))
    }
}

impl<K, S> fmt::Debug for ById<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ById").field(&self.id).finish()
    }
}
