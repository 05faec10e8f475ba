//! Releases in the background: the locks of dropped guards, locks that may have been granted
//! without an answer, and releases that failed before. No caller waits for them, except a drop for
//! a moment.
//!
//! They go through a [`BackgroundQueue`](super::background::BackgroundQueue) on the workers of the
//! renewals. A release that fails is tried again until the lease would have run out.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tourbillon::reentrancy::when_unlocked;
use tourbillon::{Clock, Time};

use super::background::Carrier;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::request::{PendingRelease, Queued, Request};
use crate::keep_alive::{Called, DestinationQueue, Flush, QueueKey, TimerKey, call_limit};
use crate::store::{Destination, Released, StoreError, only};
use crate::sync::atomic::Ordering;
use crate::sync::channel::Sender;
use crate::sync::{Arc, catch_panic};

/// How long a release is repeated at most if it is unknown whether the lock was granted. It is
/// repeated for longer if the acquire may still arrive after this time.
const DOUBT: Duration = Duration::from_secs(60);
/// The longest pause between two releases of a name.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The first pause between two releases of a name that may still be granted.
const SOON: Duration = Duration::from_millis(10);

impl LeasesInner {
    /// Gives a name back in the background. Tries again until every lease of it would have run out.
    pub(super) fn give_back_later(self: &Arc<Self>, back: PendingRelease) {
        self.give_back(back, false, None);
    }

    /// Gives a name back like [`give_back_later`](Self::give_back_later).
    ///
    /// `held` says that the name is held for certain. Then the first release that is answered ends
    /// only that holding, and not a grant that may still follow. `tells` is dropped when the
    /// release has been tried once.
    pub(super) fn give_back(
        self: &Arc<Self>,
        back: PendingRelease,
        held: bool,
        tells: Option<Sender<()>>,
    ) {
        // The original process holds the name and gives it back.
        if self.keep_alive.is_forked() {
            return;
        }
        let release = self.release_of(back, held, tells);
        self.put(vec![release]);
    }

    /// Gives many names back in the background, in full batches.
    pub(super) fn give_all_back_later(self: &Arc<Self>, all: impl Iterator<Item = PendingRelease>) {
        // The original process holds the names and gives them back.
        if self.keep_alive.is_forked() {
            return;
        }
        self.put(all.map(|back| self.release_of(back, false, None)).collect());
    }

    /// Makes the queued item of a pending release, and counts it.
    fn release_of(&self, back: PendingRelease, held: bool, tells: Option<Sender<()>>) -> Queued {
        Queued {
            until: self.of_use(&back),
            back,
            tried: 0,
            held,
            entered: Some(self.releases.enter()),
            tells,
        }
    }

    /// Puts releases into the background queue.
    fn put(self: &Arc<Self>, releases: Vec<Queued>) {
        let routed = releases.into_iter().map(|release| {
            let destination = self.destination(&release.back.name);
            let queue_key = QueueKey::of(destination, release.back.lease);
            (queue_key, release.until, release)
        });
        let (inner, routed) = (Arc::clone(self), routed.collect());
        // Each queued item needs an armed flush (BACKGROUND-1), and none can be armed under a lock.
        // So under a lock the items are queued after it.
        when_unlocked(move || inner.background.put(&inner, routed));
    }

    /// Returns the destination of a name, or the default one if the store panics.
    pub(super) fn destination(&self, name: &str) -> Destination {
        catch_panic(|| self.store.destination(name)).unwrap_or_default()
    }

    /// Returns until when a release that begins now is useful.
    fn of_use(&self, back: &PendingRelease) -> Time {
        // A renewal may be in flight and prolong the lease once more.
        let whole = back.lease.saturating_add(call_limit(back.lease));
        // A thread of the store may still make the acquire, for a third of the lease. The last
        // release comes after that.
        let arrives = (back.lease / 3).saturating_add(2 * LONGEST_PAUSE);
        let doubt = whole.min(arrives.max(DOUBT));
        self.clock.now() + if back.sure { whole } else { doubt }
    }

    /// Waits until every queued release has been tried once, or until `until` by this clock. Leases
    /// without threads try them on this thread.
    pub(super) fn settle(self: &Arc<Self>, clock: &Clock, until: Time) {
        if self.keep_alive.timers().is_stepped() {
            for queue in self.background.queues() {
                flush_here(self, &queue, until);
            }
        } else {
            self.releases.settled(clock, until);
        }
    }

    /// Asks the store to give a batch back. Returns one answer for each item, in the same order.
    pub(super) async fn release_batch(
        &self,
        destination: Destination,
        batch: &[&PendingRelease],
        limit: Duration,
    ) -> Vec<Result<Released, StoreError>> {
        let called = self.release_called(destination, batch, limit).await;
        let is_refused = matches!(
            called,
            Called::Answered(Err(StoreError::Refused(_))) | Called::Panicked(_)
        );
        let mut answers = Vec::with_capacity(batch.len());
        // One bad name may be the reason for a refusal or a panic. So the items are tried alone,
        // and a batch of one gets its own error.
        if is_refused && batch.len() > 1 {
            // All single calls together may take as long as one call. The items without a turn
            // count as failed and are tried again.
            let until = self.clock.now() + limit;
            for back in batch {
                let left = until.since(self.clock.now());
                if left.is_zero() {
                    break;
                }
                let called = self.release_called(destination, &[*back], left).await;
                answers.push(called.answer(left).and_then(only));
            }
        } else {
            match called.answer(limit) {
                Ok(all) => answers = all,
                Err(error) => answers.resize(batch.len(), Err(error)),
            }
        }
        // A store may return too few answers. An item without one counts as failed.
        let none = || Err(StoreError::no_answer());
        answers.resize_with(batch.len(), none);
        answers
    }

    /// Asks the store once to give a batch back.
    async fn release_called(
        &self,
        destination: Destination,
        batch: &[&PendingRelease],
        limit: Duration,
    ) -> Called<Vec<Result<Released, StoreError>>> {
        let now = self.clock.now();
        let holdings: Vec<_> = batch.iter().map(|back| back.holding(now)).collect();
        let call = self.call(now, limit, |store| {
            store.release(destination, &holdings, limit)
        });
        call.await
    }

    /// Applies the answer to a release. Returns the pause until it is tried again, or `None` if it
    /// is done.
    fn answered(
        &self,
        release: &mut Queued,
        answer: &Result<Released, StoreError>,
    ) -> Option<Duration> {
        match answer {
            Ok(answer) => {
                // Counted before the item leaves the queue, so that a caller that waited for the
                // queue finds it in the statistics.
                self.count_released(*answer);
                release.entered = None;
            }
            // It stays in the tally, but a thread that waits for the queue need not wait for more.
            Err(_) => {
                if let Some(entered) = &mut release.entered {
                    entered.tried();
                }
            }
        }
        // After the counts, so that a drop that waits finds its release counted.
        release.tells = None;
        // The first answer ended the holding that was certain. An earlier attempt may still be
        // granted, so the name is given back once more. After a failure the certain holding may
        // still be there.
        if answer.is_ok() && std::mem::take(&mut release.held) && !release.back.sure {
            release.until = self.of_use(&release.back);
            return Some(Duration::ZERO);
        }
        let again = match answer {
            Ok(Released::Released) => false,
            Ok(Released::NotHeld) => !release.back.sure,
            Err(error) => error.may_pass(),
        };
        // The pauses double up to the time that a call may take. The first one is short if an
        // acquire may still be on its way, since it mostly arrives soon.
        let longest = call_limit(release.back.lease).min(LONGEST_PAUSE);
        let first = match answer {
            Ok(_) => SOON.min(longest / 8),
            Err(_) => longest / 8,
        };
        let pause = first
            .saturating_mul(1 << release.tried.min(16))
            .min(longest);
        release.tried = release.tried.saturating_add(1);
        (again && self.clock.now() + pause < release.until).then_some(pause)
    }

    /// Asks the store once to give a name back. A panic counts as an error.
    pub(super) async fn release_once(&self, id: &LeaseId) -> Result<Released, StoreError> {
        let limit = call_limit(id.lease());
        let destination = self.destination(id.name());
        let held = [id.holding(|| self.clock.now())];
        let answers = self.call_store(limit, |store| store.release(destination, &held, limit));
        let answer = answers.await.and_then(only);
        if let Ok(answer) = &answer {
            self.count_released(*answer);
        }
        answer
    }

    /// Notes in the store, on a worker, that a caller which waited has given up. If that fails, or
    /// many such calls run for the destination, the reservation runs out after some milliseconds.
    pub(super) fn leave_later(self: &Arc<Self>, request: &Arc<Request>) {
        // The original process has the reservation.
        if self.keep_alive.is_forked() {
            return;
        }
        let Some(leaves) = self.leaving.begin(self.destination(&request.name)) else {
            return;
        };
        let (inner, request) = (Arc::clone(self), Arc::clone(request));
        // The caller may be dropped under a lock, where nothing can be scheduled.
        when_unlocked(move || {
            let own = Arc::clone(&inner);
            inner.keep_alive.timers().spawn(async move {
                let _leaves = leaves;
                let limit = call_limit(request.lease);
                let leave = own.call_store(limit, |store| {
                    store.leave(&request.name, &request.owner, limit)
                });
                // The outcome does not matter.
                let _ = leave.await;
            });
        });
    }

    /// Counts a name that the store gave back.
    pub(super) fn count_released(&self, answer: Released) {
        if answer == Released::Released {
            // Relaxed: a counter.
            self.released.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Carrier<Queued> for Arc<LeasesInner> {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn number(&self) -> u64 {
        self.keep_alive.number()
    }

    fn most(&self) -> usize {
        self.keep_alive.most()
    }

    fn arm(&self, queue: &Arc<DestinationQueue<Queued>>) {
        // The timer keeps the leases alive, and so does the flush. So queued releases are sent even
        // if the user has dropped all handles.
        let (own, own_queue) = (Arc::clone(self), Arc::clone(queue));
        let alarm = TimerKey::Flush(queue.number);
        when_unlocked(move || {
            let inner = Arc::clone(&own);
            inner.keep_alive.flush(alarm, Duration::ZERO, move || {
                flush_here(&own, &own_queue, Time::MAX);
            });
        });
    }

    async fn send(&self, queue_key: QueueKey, mut batch: Vec<Queued>) {
        let limit = call_limit(queue_key.shortest());
        let backs: Vec<_> = batch.iter().map(|release| &release.back).collect();
        let call = self.release_batch(queue_key.destination, &backs, limit);
        let answers = call.await;
        // Releases with the same pause share a timer, so that they share a batch again.
        let mut later: Vec<(Duration, Vec<Queued>)> = Vec::new();
        for (mut release, answer) in batch.drain(..).zip(answers) {
            let Some(pause) = self.answered(&mut release, &answer) else {
                continue;
            };
            match later.iter_mut().find(|(other, _)| *other == pause) {
                Some((_, others)) => others.push(release),
                None => later.push((pause, vec![release])),
            }
        }
        for (pause, releases) in later {
            // The timer keeps the leases alive until the releases have been answered or are no
            // longer useful.
            let inner = Arc::clone(self);
            let alarm = TimerKey::Call(self.keep_alive.number());
            self.keep_alive
                .after(alarm, pause, move || inner.put(releases));
        }
    }
}

/// Begins a flush of a queue on this thread, unless one runs. It begins no batch after `until`.
/// Workers go on if the store does not answer at once.
fn flush_here(inner: &Arc<LeasesInner>, queue: &Arc<DestinationQueue<Queued>>, until: Time) {
    if let Some(flush) = Flush::begin(queue) {
        let own = Arc::clone(inner);
        let timers = inner.keep_alive.timers();
        timers.poll_here(async move { own.background.flush(&own, flush, until).await });
    }
}

/// A user's handle of the leases, inside [`Leases`](crate::Leases) or a guard. The drop of the last
/// one waits for the queued releases.
pub(super) struct UserHandle(Arc<LeasesInner>);

impl UserHandle {
    pub(super) fn new(inner: &Arc<LeasesInner>) -> Self {
        // Relaxed: another handle exists while this one is made. Otherwise this is the first one,
        // or it belongs to a guard that nobody will get, since its future is gone.
        inner.handles.fetch_add(1, Ordering::Relaxed);
        UserHandle(Arc::clone(inner))
    }
}

impl Clone for UserHandle {
    fn clone(&self) -> Self {
        UserHandle::new(&self.0)
    }
}

impl fmt::Debug for UserHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for UserHandle {
    type Target = Arc<LeasesInner>;

    fn deref(&self) -> &Arc<LeasesInner> {
        &self.0
    }
}

impl Drop for UserHandle {
    fn drop(&mut self) {
        // AcqRel: pairs with itself. The drop of the last handle sees the releases that the drops
        // before it have queued, and waits for them.
        let before = self.0.handles.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a handle is dropped once");
        let is_last = before == 1;
        // A forked copy of the process gives nothing back.
        if is_last && !self.0.end_limit.is_zero() && !self.0.keep_alive.is_forked() {
            let inner = Arc::clone(&self.0);
            // The handle may be in a value of a map and be dropped under that map's lock.
            when_unlocked(move || {
                // Not the clock of the leases, which may be a manual clock that stands still.
                let clock = Clock::boottime();
                let until = clock.now() + inner.end_limit;
                inner.settle(&clock, until);
            });
        }
    }
}
