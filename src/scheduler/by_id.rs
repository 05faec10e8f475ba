//! Calls on armings instead of keys.

use std::fmt;
use std::hash::BuildHasher;

use super::answers::{Cancel, PullIn, Reschedule, TimerId, TimerInfo};
use super::handle::Handle;
use super::hasher::RandomState;
use crate::job::drop_catching;
use crate::shard::EntryId;
use crate::shard::batch::{Located, by_stripe};
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{PullIn, Scheduler};
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let sync = timers.schedule("sync", Duration::from_secs(60), |_| ())?;
    /// let earlier = timers.by_id(sync.id).pull_in(Duration::from_secs(5));
    /// assert_eq!(earlier, PullIn::Moved { before: sync.deadline });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

/// Calls on many armings; see [`Handle::by_ids`]. The value can be used for more than one call.
///
/// # Blocking
///
/// Each call holds up to 16 locks for some microseconds, but never while it waits for another one.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::{Reschedule, Scheduler};
/// # let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
/// # let timers = scheduler.handle();
/// let mut ids = Vec::new();
/// for request in 0..100 {
///     ids.push(timers.schedule(request, Duration::from_secs(5), |_| ())?.id);
/// }
/// // Bytes of all of them came, so the 5 s start again.
/// let answers = timers.by_ids(ids.iter().copied()).reschedule(Duration::from_secs(5));
/// assert!(answers.iter().all(|answer| matches!(answer, Reschedule::Moved { .. })));
/// // The connection is closed.
/// let answers = timers.by_ids(ids).cancel();
/// assert!(answers.iter().all(|answer| answer.is_cancelled()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByIds<'a, K, S = RandomState> {
    handle: &'a Handle<K, S>,
    /// The armings of this scheduler.
    located: Vec<Located<EntryId>>,
    /// The number of ids, with those of other schedulers.
    count: usize,
}

impl<K, S> ByIds<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Calls [`ById::reschedule`] for each of them. The results are in the order of the ids, and
    /// the clock is read once: all timers get the same deadline.
    ///
    /// The call is not atomic: each timer is moved on its own, and other calls may act in between.
    pub fn reschedule(&self, when: impl Into<When>) -> Vec<Reschedule> {
        let engine = self.handle.engine();
        engine.reschedule_ids(&self.located, |item| item.item, when.into(), self.count)
    }

    /// Calls [`ById::cancel`] for each of them. The results are in the order of the ids. The call is
    /// not atomic, like [`reschedule`](Self::reschedule).
    pub fn cancel(&self) -> Vec<Cancel> {
        let mut answers = vec![Cancel::NotFound; self.count];
        let engine = self.handle.engine();
        engine.cancel_ids(
            &self.located,
            |item| item.item,
            |item, cancelling| {
                let (answer, dropped) = Handle::<K, S>::cancel_answer(cancelling);
                answers[item.index()] = answer;
                dropped
            },
        );
        answers
    }
}

impl<K, S> fmt::Debug for ByIds<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByIds")
            .field("count", &self.count)
            .finish_non_exhaustive()
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

    /// Returns a view for calls on many armings. The ids are sorted by stripe, and the locks of
    /// several stripes are held at a time, so that cache misses overlap. Of an id that comes twice,
    /// the second one is served after the first one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// let seven = timers.schedule(7, Duration::from_secs(5), |_| ())?.id;
    /// let eight = timers.schedule(8, Duration::from_secs(5), |_| ())?.id;
    /// timers.by_ids([seven, eight]).reschedule(Duration::from_secs(60));
    /// assert_eq!(scheduler.advance(Duration::from_secs(59)).len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn by_ids(&self, ids: impl IntoIterator<Item = TimerId>) -> ByIds<'_, K, S> {
        let mut count = 0;
        let located = ids.into_iter().filter_map(|id| {
            let index = count;
            count += 1;
            let stripe = self.stripe_of(id)?;
            Some(Located::new(index, stripe, id.entry))
        });
        let located = located.collect();
        ByIds {
            handle: self,
            located: by_stripe(self.engine().shards().stripes(), located),
            count,
        }
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
