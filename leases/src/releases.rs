//! Giving back what nobody waits for, or nobody but a drop: the locks of dropped guards, those that
//! may have been granted without an answer, and releases that failed before.
//!
//! They go through a [`BackgroundQueue`] of their own, on the threads of the renewals, and are tried again
//! until their lease would have run out.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tourbillon::reentrancy::when_unlocked;
use tourbillon::{Clock, Time};

use super::background::Carrier;
use super::inner::LeasesInner;
use super::keep_alive::{DestinationQueue, QueueKey, TimerKey, call_limit};
use super::request::{PendingRelease, Queued};
use super::store::{Destination, Holding, Released, StoreError};
use crate::panics::catch_panic;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::channel::Sender;

/// What may not even have been granted is given back for so long.
const DOUBT: Duration = Duration::from_secs(60);
/// So many passes of releases run or hang at one time. They must leave threads to the renewals.
const MOST_PASSES: usize = 64;
/// A pass that finds as many tries again after this.
const BUSY: Duration = Duration::from_millis(50);

impl LeasesInner {
    /// Gives a name back in the background, and tries again until any lease of it would have run out.
    pub(super) fn give_back_later(self: &Arc<Self>, back: PendingRelease) {
        self.give_back(back, false, None);
    }

    /// The same. Of a name that is `held`, a first release does not answer for a later grant. `tells`
    /// is dropped when it has been tried once.
    pub(super) fn give_back(
        self: &Arc<Self>,
        back: PendingRelease,
        held: bool,
        tells: Option<Sender<()>>,
    ) {
        // The process that this one was forked from holds it, and gives it back.
        if self.keep_alive.is_forked() {
            return;
        }
        let release = self.release_of(back, held, tells);
        self.put(vec![release]);
    }

    /// The same for many, in batches that are as full as can be.
    pub(super) fn give_all_back_later(self: &Arc<Self>, all: impl Iterator<Item = PendingRelease>) {
        self.put(all.map(|back| self.release_of(back, false, None)).collect());
    }

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

    fn put(self: &Arc<Self>, releases: Vec<Queued>) {
        let routed = releases.into_iter().map(|release| {
            let destination = self.destination(&release.back.name);
            let queue_key = QueueKey::of(destination, release.back.lease);
            (queue_key, release.until, release)
        });
        let (inner, routed) = (Arc::clone(self), routed.collect());
        // What is in a lane has an armed pass (BACKGROUND-1), and none can be armed under a lock.
        when_unlocked(move || inner.background.put(&inner, routed));
    }

    /// Where a name lives. A panic of the store's leaves it where the others are.
    pub(super) fn destination(&self, name: &str) -> Destination {
        catch_panic(|| self.store.destination(name)).unwrap_or_default()
    }

    /// Until when a release that begins now is of use.
    fn of_use(&self, back: &PendingRelease) -> Time {
        // A call may be under way, and prolong it once more.
        let whole = back.lease.saturating_add(call_limit(back.lease));
        self.clock.now() + if back.sure { whole } else { whole.min(DOUBT) }
    }

    /// Waits until everything that is to be given back has been tried once, or the time has come by
    /// this clock. Without threads it is tried here.
    pub(super) fn settle(self: &Arc<Self>, clock: &Clock, until: Time) {
        if self.stepped {
            self.background.flush_here(self, until);
        } else {
            self.releases.settled(clock, until);
        }
    }

    fn release_all(
        &self,
        destination: Destination,
        batch: &[Queued],
        limit: Duration,
    ) -> Vec<Result<Released, StoreError>> {
        let holdings: Vec<_> = batch
            .iter()
            .map(|release| Holding::new(&release.back.name, &release.back.owner))
            .collect();
        let answer = catch_panic(|| self.store.release_many(destination, &holdings, limit));
        let whole = batch.len() > 1;
        let mut answers = match answer {
            Ok(Ok(answers)) => answers,
            Ok(Err(StoreError::Refused(_))) | Err(_) if whole => {
                // All of them together may take as long as one call.
                let until = self.clock.now() + limit;
                let mut answers = Vec::with_capacity(batch.len());
                for release in batch {
                    let left = until.since(self.clock.now());
                    if left.is_zero() {
                        break;
                    }
                    answers.extend(self.release_all(
                        destination,
                        std::slice::from_ref(release),
                        left,
                    ));
                }
                answers
            }
            Ok(Err(error)) => vec![Err(error); batch.len()],
            Err(panic) => {
                let what = format!("the store panicked: {panic}");
                vec![Err(StoreError::Unavailable(what))]
            }
        };
        let none = || Err(StoreError::Unavailable("it got no answer".to_owned()));
        answers.resize_with(batch.len(), none);
        answers
    }

    /// What became of one. It is asked for again after this pause, unless it is done.
    fn answered(
        &self,
        release: &mut Queued,
        answer: &Result<Released, StoreError>,
    ) -> Option<Duration> {
        match answer {
            Ok(answer) => {
                // Counted before it leaves: who waits for the line sees it in the statistics.
                self.count_released(*answer);
                release.entered = None;
            }
            Err(_) => {
                if let Some(entered) = &mut release.entered {
                    entered.tried();
                }
            }
        }
        // Last: a drop that waits finds its release counted.
        release.tells = None;
        // Only an answer ends the holding that is known: after a failure it may still be there.
        if answer.is_ok() && std::mem::take(&mut release.held) && !release.back.sure {
            release.until = self.of_use(&release.back);
            return Some(Duration::ZERO);
        }
        let again = match answer {
            Ok(Released::Released) => false,
            Ok(Released::NotHeld) => !release.back.sure,
            Err(error) => error.may_pass(),
        };
        // Soon, then with pauses as long as a call may take.
        let pause = call_limit(release.back.lease) / 8 * (1 << release.tried.min(3));
        release.tried = release.tried.saturating_add(1);
        (again && self.clock.now() + pause < release.until).then_some(pause)
    }

    /// Asks the store once to give a name back.
    pub(super) fn release_once(
        &self,
        name: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Released, StoreError> {
        let limit = call_limit(lease);
        let answer =
            catch_panic(|| self.store.release(name, owner, limit)).unwrap_or_else(|panic| {
                let what = format!("the store panicked: {panic}");
                Err(StoreError::Unavailable(what))
            });
        if let Ok(answer) = &answer {
            self.count_released(*answer);
        }
        answer
    }

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

    fn limit(&self, queue_key: QueueKey) -> Duration {
        call_limit(queue_key.shortest())
    }

    fn arm(&self, queue: &Arc<DestinationQueue<Queued>>, epoch: u64) {
        flush_after(self, queue, epoch, Duration::ZERO);
    }

    fn looks_at(&self, queue: &Arc<DestinationQueue<Queued>>, epoch: u64, at: Time) {
        let (inner, own) = (Arc::clone(self), Arc::clone(queue));
        let alarm = TimerKey::Look(queue.number, epoch);
        let delay = at.since(self.clock.now());
        self.keep_alive
            .after(alarm, delay, move || inner.background.look(&inner, &own));
    }

    fn stops_looking(&self, queue: &Arc<DestinationQueue<Queued>>, epoch: u64) {
        self.keep_alive.cancel(TimerKey::Look(queue.number, epoch));
    }

    fn send(&self, queue_key: QueueKey, mut batch: Vec<Queued>, limit: Duration) {
        let answers = self.release_all(queue_key.destination, &batch, limit);
        // Those with one pause share a timer.
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
            // It keeps the leases alive until it has been said, or may be left unsaid.
            let inner = Arc::clone(self);
            let alarm = TimerKey::Call(self.keep_alive.number());
            self.keep_alive
                .after(alarm, pause, move || inner.put(releases));
        }
    }
}

/// The timer keeps the leases alive: what is in the line is sent also when nobody has them any more.
fn flush_after(
    inner: &Arc<LeasesInner>,
    queue: &Arc<DestinationQueue<Queued>>,
    epoch: u64,
    delay: Duration,
) {
    let (own, lane_of) = (Arc::clone(inner), Arc::clone(queue));
    let alarm = TimerKey::Flush(queue.number, epoch);
    inner.keep_alive.flush(alarm, delay, move || {
        // Relaxed: a bound.
        let running = own.release_passes.fetch_add(1, Ordering::Relaxed);
        if running < MOST_PASSES {
            own.background.flush(&own, &lane_of, epoch, Time::MAX);
        } else {
            flush_after(&own, &lane_of, epoch, BUSY);
        }
        // Relaxed: as above.
        own.release_passes.fetch_sub(1, Ordering::Relaxed);
    });
}

/// The leases as their users have them: through [`Leases`](super::Leases) or a guard. The drop of the
/// last one waits for what is to be given back.
pub(super) struct UserHandle(Arc<LeasesInner>);

impl UserHandle {
    pub(super) fn new(inner: &Arc<LeasesInner>) -> Self {
        // Relaxed: who makes one has another one, or is about to let nobody have it.
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
        // AcqRel: the last one waits for what those before it have put into the line.
        let is_last = self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        // A forked copy of the process gives nothing back.
        if is_last && !self.0.end_limit.is_zero() && !self.0.keep_alive.is_forked() {
            let inner = Arc::clone(&self.0);
            // They may be a value of a map, and be dropped under that map's lock.
            when_unlocked(move || {
                // Not the leases' clock: it may be one that stands still.
                let clock = Clock::boottime();
                let until = clock.now() + inner.end_limit;
                inner.settle(&clock, until);
            });
        }
    }
}
