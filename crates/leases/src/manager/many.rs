//! Acquires and releases many locks at once.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::attempt::{Attempt, LEAST_CALL};
use super::awaiting::{on_worker, on_worker_or};
use super::drop_wait;
use super::error::{LockError, ReleaseError};
use super::guard::{Lease, LeaseGuard};
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::request::{AttemptOptions, PendingRelease, Request};
use crate::keep_alive::Loss;
use crate::store::{Acquired, Destination, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, catch_panic};

/// The result for each name.
pub(super) type Answers = Vec<Result<LeaseGuard, LockError>>;
/// The attempt to acquire a name, or why it was not asked for.
type Asked = Result<Attempt, StoreError>;
/// The leases of guards that are released, and how their renewals have ended.
type EndedLeases = Vec<(Option<Arc<Lease>>, Result<(), Loss>)>;

/// Returns the lease of the locks that are held by this answer.
fn lease_of(answers: &Result<Answers, LockError>) -> Option<Duration> {
    let first = answers.as_ref().ok()?.iter().flatten().next()?;
    Some(first.id().lease())
}

/// Whether somebody waits for the answer of a call.
#[derive(Clone)]
pub(super) struct Wanted(Arc<AtomicBool>);

impl Default for Wanted {
    fn default() -> Self {
        Wanted(Arc::new(AtomicBool::new(true)))
    }
}

impl Wanted {
    fn is_true(&self) -> bool {
        // Relaxed: it only saves calls.
        self.0.load(Ordering::Relaxed)
    }
}

/// A future that waits for the answer. Its drop ends the call.
struct WantedEnd(Wanted);

impl Drop for WantedEnd {
    fn drop(&mut self) {
        // Relaxed: as above.
        self.0.0.store(false, Ordering::Relaxed);
    }
}

impl Leases {
    /// Acquires those of the locks that are free, until `end`, on this thread.
    pub(super) fn try_many_here(&self, names: &[String], end: Time) -> Answers {
        drop_wait::acquires();
        let requests = self.requests(names);
        self.inner
            .acquire_many(requests, true, &Wanted::default(), end)
    }

    /// Acquires those of the locks that are free, until `end`, on a worker.
    pub(super) async fn try_many(&self, names: &[String], end: Time) -> Answers {
        let is_possible = |name: &&String| (1..=Self::LONGEST_NAME).contains(&name.len());
        let Some(first) = names.iter().find(is_possible) else {
            return self.try_many_here(names, end);
        };
        let error = loop {
            let (own, asked) = (Arc::clone(&self.inner), self.requests(names));
            let wanted = Wanted::default();
            let _ends = WantedEnd(wanted.clone());
            let task = move || Ok(own.acquire_many(asked, false, &wanted, end));
            match on_worker_or(&self.inner, first, task, lease_of).await {
                // A lease may have ended while its grant waited for this poll.
                Ok(answers) if answers.iter().flatten().all(LeaseGuard::is_held) => {
                    return answers;
                }
                Ok(_) | Err(LockError::Lost { .. }) => {}
                Err(error) => break error,
            }
        };
        // No call was made.
        let none = |request: Result<Request, LockError>| {
            let name = request?.name;
            Err(match &error {
                LockError::Store { error, .. } => LockError::Store {
                    name,
                    error: error.clone(),
                },
                // Each name has an error of its own.
                LockError::Spawn { .. } | LockError::Runtime { .. } => {
                    match self.inner.keep_alive.start() {
                        Err(error) => LockError::of_keep(&name, error),
                        Ok(()) => LockError::Closed { name },
                    }
                }
                _ => LockError::Closed { name },
            })
        };
        self.requests(names).into_iter().map(none).collect()
    }

    /// Releases many locks, each as [`LeaseGuard::release`] does. The answer has one result for each
    /// guard, in their order.
    ///
    /// The locks of one destination of the store travel together: on a Redis server 100 locks take
    /// one round trip. First the renewals of all of them end. If the future is dropped after its
    /// first poll, the release goes on. If it is dropped unused, the guards are dropped.
    ///
    /// # Errors
    ///
    /// For each guard those of [`LeaseGuard::release`]. A lock whose turn does not come in time, or
    /// whose destination does not answer, fails with [`ReleaseError::Store`], and is released in the
    /// background.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call after the other: one call for each
    /// destination and [batch](crate::LeasesBuilder::batch) of locks. All of them together take at
    /// most a third of the shortest lease, of which each destination gets a share. A renewal that is
    /// under way may add its limit, a sixth of its lease. Guards of other `Leases` are released one
    /// by one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let guards = leases.lock_all(["account/1", "account/2"]).wait()?;
    /// for released in leases.release_many(guards).wait() {
    ///     released?; // an error if it was not held to the end
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_many(
        &self,
        guards: impl IntoIterator<Item = LeaseGuard>,
    ) -> LeaseFuture<Vec<Result<(), ReleaseError>>> {
        let own = (self.clone(), guards.into_iter().collect::<Vec<_>>());
        let wait = |(leases, guards): (Leases, Vec<LeaseGuard>)| {
            let ended = leases.ended(guards);
            leases.inner.release_ended(ended)
        };
        LeaseFuture::new(own, wait, |(leases, guards)| async move {
            let Some(first) = guards.first() else {
                return Vec::new();
            };
            let destination = leases.inner.destination(first.name());
            let count = guards.len();
            let (inner, ended) = (Arc::clone(&leases.inner), leases.ended(guards));
            let own = Arc::clone(&inner);
            let answer = on_worker(&inner, destination, move || own.release_ended(ended), false);
            answer.await.unwrap_or_else(|| {
                let error = match inner.keep_alive.is_forked() {
                    true => ReleaseError::Lost(Loss::Forked),
                    false => {
                        let what = "no worker is left".to_owned();
                        ReleaseError::Store(StoreError::Unavailable(what))
                    }
                };
                vec![Err(error); count]
            })
        })
    }

    /// Ends the renewals of guards that are to be released. Those that are not the last ones of
    /// their locks have no lease in the result.
    fn ended(&self, guards: Vec<LeaseGuard>) -> EndedLeases {
        // Under a lock of the crate this panics before anything changes, as in `release`. The drops
        // of the guards then release the locks.
        let _ = reentrancy::check();
        let end = |mut guard: LeaseGuard| match guard.is_last() {
            true => {
                let lease = Arc::clone(guard.lease());
                let ended = lease.kept.end();
                (Some(lease), ended)
            }
            false => (None, guard.lost().loss().map_or(Ok(()), Err)),
        };
        guards.into_iter().map(end).collect()
    }

    /// Gives back locks that were granted just now, together and in the background.
    pub(super) fn give_back_together(&self, guards: Vec<LeaseGuard>) {
        let ended = self.ended(guards).into_iter();
        let backs = ended.filter_map(|(lease, _)| Some(lease?.kept.key().back(true)));
        self.inner.give_all_back_later(backs);
    }

    /// Checks the names and makes their requests.
    pub(super) fn requests<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Vec<Result<Request, LockError>> {
        let names = names.into_iter();
        names
            .map(|name| self.lock(name.as_ref()).request())
            .collect()
    }
}

impl LeasesInner {
    /// Asks for all names, in batches of one destination, for a third of the lease, and not after
    /// `end`. There is always time for one call.
    pub(super) fn acquire_many(
        self: &Arc<Self>,
        requests: Vec<Result<Request, LockError>>,
        drop_waits: bool,
        wanted: &Wanted,
        end: Time,
    ) -> Answers {
        let now = self.clock.now();
        let end = end.min(now + self.lease / 3).max(now + LEAST_CALL);
        let mut answers: Vec<_> = requests.iter().map(|_| None).collect();
        let mut routed: BTreeMap<Destination, Vec<(usize, Request)>> = BTreeMap::new();
        for (at, request) in requests.into_iter().enumerate() {
            match request {
                Ok(request) => {
                    self.asks.begin();
                    let destination = self.destination(&request.name);
                    routed.entry(destination).or_default().push((at, request));
                }
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let mut destinations = u32::try_from(routed.len()).unwrap_or(u32::MAX);
        for (destination, requests) in routed {
            let how = AttemptOptions {
                waits: false,
                waited: Duration::ZERO,
                until: self.share(end, self.lease / 12, destinations),
                unsure: false,
                drop_waits,
            };
            destinations -= 1;
            let mut over = None;
            for batch in requests.chunks(self.keep_alive.most()) {
                over = over.or_else(|| self.is_over(how.until, wanted));
                let asked = match &over {
                    None => self.acquire_batch(destination, batch, how, wanted, &mut over),
                    Some(error) => batch.iter().map(|_| Err(error.clone())).collect(),
                };
                for ((at, request), asked) in batch.iter().zip(asked) {
                    let answer = self.ended(request, asked);
                    self.asks.end(&answer);
                    answers[*at] = Some(answer);
                }
            }
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.expect("each name is refused, or is in one batch"))
            .collect()
    }

    /// Returns until when the next of some destinations may take, of the time until `end`: at least
    /// `least`, if so much is left.
    fn share(&self, end: Time, least: Duration, destinations: u32) -> Time {
        let now = self.clock.now();
        let left = end.since(now);
        // A few destinations that do not answer leave time for the others, and one whose first call
        // has to connect has time for that.
        now + (left / destinations.max(1)).max(left.min(least))
    }

    /// Returns why no further name of a destination is asked for, if that is so.
    fn is_over(&self, end: Time, wanted: &Wanted) -> Option<StoreError> {
        if !wanted.is_true() {
            let why = "nobody waits for the answer any more";
            return Some(StoreError::Unavailable(why.to_owned()));
        }
        self.is_late(end)
    }

    fn is_late(&self, end: Time) -> Option<StoreError> {
        (self.clock.now() >= end).then(StoreError::batch_too_slow)
    }

    /// Asks for the names of one batch. Sets `over` if the destination does not answer.
    fn acquire_batch(
        self: &Arc<Self>,
        destination: Destination,
        batch: &[(usize, Request)],
        how: AttemptOptions,
        wanted: &Wanted,
        over: &mut Option<StoreError>,
    ) -> Vec<Asked> {
        // The leases count from before the request is sent.
        let sent = self.clock.now();
        let claims: Vec<_> = batch
            .iter()
            .map(|(_, request)| request.claim().with_data(&self.holder_data))
            .collect();
        let limit = how.until.since(sent).max(LEAST_CALL);
        let answer = catch_panic(|| {
            self.complete(limit, |store| store.acquire(destination, &claims, limit))
        });
        let mut answers: Vec<Result<Acquired, StoreError>> = match answer {
            Ok(Ok(answers)) => answers,
            // One bad name may be the reason, so each one is tried alone.
            Ok(Err(StoreError::Refused(_))) => {
                let alone = batch.iter().map(|one| {
                    *over = over.take().or_else(|| self.is_over(how.until, wanted));
                    match &*over {
                        None => Ok(self.attempt(&one.1, how)),
                        Some(error) => Err(error.clone()),
                    }
                });
                return alone.collect();
            }
            Ok(Err(error)) => {
                *over = error.leaves_open().then(|| error.clone());
                vec![Err(error); batch.len()]
            }
            Err(panic) => {
                let what = format!("the store panicked: {panic}");
                vec![Err(StoreError::Unavailable(what)); batch.len()]
            }
        };
        // A store may return too few answers. A name without one may have been granted.
        let none = || Err(StoreError::no_answer());
        answers.resize_with(batch.len(), none);
        let requests = batch.iter().map(|(_, request)| request);
        requests
            .zip(answers)
            .map(|(request, answer)| Ok(self.answered_acquire(request, how, sent, answer)))
            .collect()
    }

    /// Releases the locks whose renewals have ended.
    fn release_ended(self: &Arc<Self>, ended: EndedLeases) -> Vec<Result<(), ReleaseError>> {
        // The renewals have ended. So all calls together end before the shortest lease does.
        let leases = ended.iter().filter_map(|(lease, _)| lease.as_ref());
        let shortest = leases.map(|lease| lease.kept.key().lease()).min();
        let shortest = shortest.unwrap_or(self.lease).min(self.lease);
        let end = self.clock.now() + shortest / 3;
        let mut routed: BTreeMap<Destination, Vec<(usize, PendingRelease)>> = BTreeMap::new();
        for (at, (lease, ended)) in ended.iter().enumerate() {
            let own = lease.as_ref().filter(|lease| lease.is_of(self));
            if let (Some(lease), Ok(())) = (own, ended)
                && !lease.kept.is_forked()
            {
                let back = lease.kept.key().back(true);
                let destination = self.destination(&back.name);
                routed.entry(destination).or_default().push((at, back));
            }
        }
        let mut released: Vec<_> = ended.iter().map(|_| None).collect();
        let mut destinations = u32::try_from(routed.len()).unwrap_or(u32::MAX);
        for (destination, backs) in routed {
            let end = self.share(end, shortest / 12, destinations);
            destinations -= 1;
            let mut over: Option<StoreError> = None;
            for batch in backs.chunks(self.keep_alive.most()) {
                over = over.or_else(|| self.is_late(end));
                let answers = match &over {
                    Some(error) => vec![Err(error.clone()); batch.len()],
                    None => {
                        let limit = end.since(self.clock.now()).max(LEAST_CALL);
                        let backs: Vec<_> = batch.iter().map(|(_, back)| back).collect();
                        self.release_batch(destination, &backs, limit)
                    }
                };
                // If all have failed, the destination does not answer.
                let failed = |answer: &Result<_, StoreError>| {
                    answer.as_ref().is_err_and(StoreError::leaves_open)
                };
                if answers.iter().all(failed) {
                    over = answers.first().and_then(|answer| answer.clone().err());
                }
                for ((at, _), answer) in batch.iter().zip(answers) {
                    if let Ok(answer) = &answer {
                        self.count_released(*answer);
                    }
                    released[*at] = Some(answer);
                }
            }
        }
        let all = ended.into_iter().zip(released);
        all.map(|((lease, ended), released)| match (lease, released) {
            (None, _) => ended.map_err(ReleaseError::Lost),
            (Some(lease), Some(released)) => lease.released(released),
            (Some(lease), None) => lease.answer(ended),
        })
        .collect()
    }

    /// Returns the result of an attempt, and gives the name back if it may have been granted.
    fn ended(self: &Arc<Self>, request: &Request, asked: Asked) -> Result<LeaseGuard, LockError> {
        let name = request.name.clone();
        let (error, unsure) = match asked {
            Ok(Attempt::Granted(guard)) => return Ok(guard),
            Ok(Attempt::Held(remaining)) => (LockError::Held { name, remaining }, false),
            Ok(Attempt::Failed(error)) => {
                let unsure = error.leaves_open();
                (LockError::Store { name, error }, unsure)
            }
            // It was granted and can't be kept.
            Ok(Attempt::Ended(error)) => (error, true),
            Err(error) => (LockError::Store { name, error }, false),
        };
        if unsure {
            self.give_back_later(request.give_back());
        }
        Err(error)
    }
}
