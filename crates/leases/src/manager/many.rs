//! Acquires and releases many locks at once.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::{Time, reentrancy};

use super::attempt::{Attempt, LEAST_CALL};
use super::drop_wait;
use super::error::{LockError, ReleaseError};
use super::guard::{Lease, LeaseGuard, Unasked};
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::request::{AttemptOptions, PendingRelease, Request};
use crate::keep_alive::{Called, Loss, call_limit};
use crate::store::{Acquired, Destination, Released, StoreError};
use crate::sync::Arc;

/// The result for each name.
pub(super) type Answers = Vec<Result<LeaseGuard, LockError>>;
/// The leases of guards that are released, and how their renewals have ended.
type EndedLeases = Vec<(Option<Arc<Lease>>, Result<(), Loss>)>;

/// One name of a call for many locks.
enum AskedName {
    /// Its options are refused.
    Invalid(LockError),
    /// It was not asked for, or not yet.
    Unsent(Request, StoreError),
    /// It is asked for, and there is no answer yet. The drop of [`AskedNames`] gives it back.
    Sent(Request),
    /// The store has answered the request, which was sent at this moment. A grant is not renewed
    /// yet.
    Answered(Request, Time, Result<Acquired, StoreError>),
}

impl AskedName {
    fn request(&self) -> Option<&Request> {
        match self {
            AskedName::Invalid(_) => None,
            AskedName::Unsent(request, _)
            | AskedName::Sent(request)
            | AskedName::Answered(request, _, _) => Some(request),
        }
    }

    /// Puts the name into another state.
    fn becomes(&mut self, next: impl FnOnce(Request) -> AskedName) {
        // Taken out for a moment. The state in its place costs nothing.
        *self = match std::mem::replace(self, AskedName::Invalid(LockError::EmptyName)) {
            AskedName::Invalid(error) => AskedName::Invalid(error),
            AskedName::Unsent(request, _)
            | AskedName::Sent(request)
            | AskedName::Answered(request, _, _) => next(request),
        };
    }

    /// Returns the release of a name that may be held.
    fn back(&self) -> Option<PendingRelease> {
        match self {
            AskedName::Sent(request)
            | AskedName::Answered(request, _, Ok(Acquired::Granted { .. })) => {
                Some(request.give_back())
            }
            AskedName::Answered(request, _, Err(error)) if error.leaves_open() => {
                Some(request.give_back())
            }
            _ => None,
        }
    }
}

/// The names of one call. The renewals begin when all of them have been asked for: a future that
/// nobody polls meanwhile holds nothing after a lease.
struct AskedNames<'a> {
    inner: &'a Arc<LeasesInner>,
    names: Vec<AskedName>,
    /// A moment before the first call.
    since: Time,
}

/// Nobody has polled a call for half of a lease.
struct Late;

impl Leases {
    /// Acquires those of the locks that are free, until `end`.
    pub(super) async fn try_many(&self, names: &[String], end: Time) -> Answers {
        loop {
            let requests = self.requests(names);
            if let Ok(answers) = self.inner.acquire_many(requests, end).await {
                return answers;
            }
        }
    }

    /// Releases many locks, each as [`LeaseGuard::release`] does. The answer has one result for each
    /// guard, in their order.
    ///
    /// The locks of one destination of the store travel together: on a Redis server 100 locks take
    /// one round trip. The first poll ends the renewals of all of them. If the future is dropped
    /// after that, the release goes on. If it is kept and not polled again, each lock is free after
    /// its lease at the latest. If it is dropped unused, the guards are dropped.
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
        let (leases, guards) = (self.clone(), guards.into_iter().collect());
        self.answer(async move {
            let ended = leases.ended(guards);
            leases.inner.release_ended(ended).await
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
    fn requests<N: AsRef<str>>(
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
    async fn acquire_many(
        self: &Arc<Self>,
        requests: Vec<Result<Request, LockError>>,
        end: Time,
    ) -> Result<Answers, Late> {
        let drop_waits = drop_wait::acquires().await;
        let now = self.clock.now();
        let end = end.min(now + self.lease / 3).max(now + LEAST_CALL);
        let mut how = AttemptOptions {
            waits: false,
            waited: Duration::ZERO,
            until: end,
            unsure: false,
            drop_waits,
        };
        let mut asked = AskedNames::new(self, requests);
        let routed = asked.routed();
        let mut destinations = u32::try_from(routed.len()).unwrap_or(u32::MAX);
        for (destination, places) in routed {
            how.until = self.share(end, self.lease / 12, destinations);
            destinations -= 1;
            let mut over = None;
            for batch in places.chunks(self.keep_alive.most()) {
                over = over.or_else(|| self.over_at(how.until));
                match &over {
                    None => match asked.ask(destination, batch, how).await {
                        Ok(error) => over = error,
                        Err(Late) => {
                            asked.are_given_back().await;
                            return Err(Late);
                        }
                    },
                    Some(error) => asked.are_unsent(batch, error),
                }
            }
        }
        Ok(asked.answers(how))
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

    /// Returns why no further name of a destination is asked for, or given back, if its time is
    /// over.
    fn over_at(&self, end: Time) -> Option<StoreError> {
        (self.clock.now() >= end).then(StoreError::batch_too_slow)
    }

    /// Releases the locks whose renewals have ended. If the future is dropped, the rest is released
    /// in the background.
    async fn release_ended(self: &Arc<Self>, ended: EndedLeases) -> Vec<Result<(), ReleaseError>> {
        let unasked = ended
            .iter()
            .map(|(lease, _)| lease.as_deref().map(Unasked::new));
        let mut unasked: Vec<_> = unasked.collect();
        let released = self.release_own(&ended).await;
        // All answers are noted before the first wait: if the future is dropped then, no lock is
        // released twice.
        for (unasked, answer) in unasked.iter_mut().zip(&released) {
            if let Some(answer) = answer
                && let Some(unasked) = unasked.take()
            {
                unasked.was_asked(answer);
            }
        }
        let mut answers = Vec::with_capacity(ended.len());
        for (((lease, ended), unasked), released) in ended.iter().zip(unasked).zip(released) {
            answers.push(match (lease, released) {
                (Some(lease), Some(released)) => lease.released(released).await,
                (Some(lease), None) => {
                    if let Some(unasked) = unasked {
                        unasked.asks_elsewhere();
                    }
                    lease.answer(*ended).await
                }
                (None, _) => ended.map_err(ReleaseError::Lost),
            });
        }
        answers
    }

    /// Asks the store to release those of the locks that belong to these leases and are not lost.
    async fn release_own(
        self: &Arc<Self>,
        ended: &EndedLeases,
    ) -> Vec<Option<Result<Released, StoreError>>> {
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
                over = over.or_else(|| self.over_at(end));
                let answers = match &over {
                    Some(error) => vec![Err(error.clone()); batch.len()],
                    None => {
                        let limit = end.since(self.clock.now()).max(LEAST_CALL);
                        let backs: Vec<_> = batch.iter().map(|(_, back)| back).collect();
                        self.release_batch(destination, &backs, limit).await
                    }
                };
                // If all have failed, the destination does not answer.
                let failed =
                    |answer: &Result<_, StoreError>| answer.as_ref().is_err_and(ends_the_rest);
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
        released
    }

    /// Returns the result of an attempt, and gives the name back if it may have been granted.
    fn ended(
        self: &Arc<Self>,
        request: &Request,
        attempt: Attempt,
    ) -> Result<LeaseGuard, LockError> {
        let name = request.name.clone();
        let (error, unsure) = match attempt {
            Attempt::Granted(guard) => match guard.ended_by_options() {
                None => return Ok(guard),
                Some(loss) => (LockError::Lost { name, loss }, false),
            },
            Attempt::Held(remaining) => (LockError::Held { name, remaining }, false),
            Attempt::Failed(error) => {
                let unsure = error.leaves_open();
                (LockError::Store { name, error }, unsure)
            }
            // It was granted and can't be kept.
            Attempt::Ended(error) => (error, true),
        };
        if unsure {
            self.give_back_later(request.give_back());
        }
        Err(error)
    }
}

/// Returns whether a destination with this error is not asked about the remaining names.
fn ends_the_rest(error: &StoreError) -> bool {
    error.leaves_open() || *error == StoreError::Forked
}

impl<'a> AskedNames<'a> {
    fn new(inner: &'a Arc<LeasesInner>, requests: Vec<Result<Request, LockError>>) -> Self {
        let name = |request| match request {
            Ok(request) => {
                inner.asks.begin();
                AskedName::Unsent(request, StoreError::no_answer())
            }
            Err(error) => AskedName::Invalid(error),
        };
        AskedNames {
            inner,
            names: requests.into_iter().map(name).collect(),
            since: inner.clock.now(),
        }
    }

    /// Returns the places of the names of each destination.
    fn routed(&self) -> BTreeMap<Destination, Vec<usize>> {
        let mut routed: BTreeMap<Destination, Vec<usize>> = BTreeMap::new();
        for (at, name) in self.names.iter().enumerate() {
            if let Some(request) = name.request() {
                let destination = self.inner.destination(&request.name);
                routed.entry(destination).or_default().push(at);
            }
        }
        routed
    }

    fn are_unsent(&mut self, batch: &[usize], error: &StoreError) {
        for &at in batch {
            self.names[at].becomes(|request| AskedName::Unsent(request, error.clone()));
        }
    }

    fn is_answered(&mut self, at: usize, sent: Time, answer: Result<Acquired, StoreError>) {
        self.names[at].becomes(|request| AskedName::Answered(request, sent, answer));
    }

    /// Asks for the names of one batch. Returns the error if the destination does not answer.
    async fn ask(
        &mut self,
        destination: Destination,
        batch: &[usize],
        how: AttemptOptions,
    ) -> Result<Option<StoreError>, Late> {
        let inner = self.inner;
        // The leases count from before the request is sent.
        let sent = inner.clock.now();
        for &at in batch {
            self.names[at].becomes(AskedName::Sent);
        }
        let limit = how.until.since(sent).max(LEAST_CALL);
        let called = {
            let requests = batch.iter().filter_map(|&at| self.names[at].request());
            let claims: Vec<_> = requests
                .map(|request| request.claim().with_data(&inner.holder_data))
                .collect();
            let call = inner.call(sent, limit, |store| {
                store.acquire(destination, &claims, limit)
            });
            call.await
        };
        let is_panic = matches!(called, Called::Panicked(_));
        if matches!(called, Called::Unanswered) && inner.is_late(self.since, inner.lease) {
            return Err(Late);
        }
        let mut answers: Vec<Result<Acquired, StoreError>> = match called.answer(limit) {
            Ok(answers) => answers,
            // One bad name may be the reason, so each one is tried alone.
            Err(StoreError::Refused(_)) => return self.ask_alone(batch, how).await,
            Err(error) => {
                for &at in batch {
                    self.is_answered(at, sent, Err(error.clone()));
                }
                return Ok(Some(error).filter(|error| !is_panic && ends_the_rest(error)));
            }
        };
        // A store may return too few answers. A name without one may have been granted.
        let none = || Err(StoreError::no_answer());
        answers.resize_with(batch.len(), none);
        for (&at, answer) in batch.iter().zip(answers) {
            self.is_answered(at, sent, answer);
        }
        Ok(None)
    }

    /// Asks for the names one by one, as [`ask`](Self::ask) does.
    async fn ask_alone(
        &mut self,
        batch: &[usize],
        how: AttemptOptions,
    ) -> Result<Option<StoreError>, Late> {
        let inner = self.inner;
        let mut over = None;
        for &at in batch {
            over = over.or_else(|| inner.over_at(how.until));
            if let Some(error) = &over {
                self.are_unsent(&[at], error);
                continue;
            }
            let sent = inner.clock.now();
            self.names[at].becomes(AskedName::Sent);
            let request = self.names[at].request();
            let request = request.expect("only valid names are asked for");
            let answer = inner.ask(request, how, sent, self.since).await;
            let answer = answer.ok_or(Late)?;
            self.is_answered(at, sent, answer);
        }
        Ok(over)
    }

    /// Gives back what may have been granted, before it is asked for again.
    async fn are_given_back(&mut self) {
        let inner = self.inner;
        let limit = call_limit(inner.lease);
        for (destination, places) in self.routed() {
            let backs = places
                .iter()
                .filter_map(|&at| Some((at, self.names[at].back()?)));
            let backs: Vec<_> = backs.collect();
            for batch in backs.chunks(inner.keep_alive.most()) {
                let asked: Vec<_> = batch.iter().map(|(_, back)| back).collect();
                let released = inner.release_batch(destination, &asked, limit).await;
                // After any other answer, the drop of all names queues the release.
                for ((at, _), released) in batch.iter().zip(released) {
                    if released == Ok(Released::Released) {
                        self.are_unsent(&[*at], &StoreError::no_answer());
                    }
                }
            }
        }
    }

    /// Keeps the names that were granted, and counts the results.
    fn answers(mut self, how: AttemptOptions) -> Answers {
        let inner = self.inner;
        let names = std::mem::take(&mut self.names).into_iter();
        let answer = |name| {
            let answer = match name {
                AskedName::Invalid(error) => return Err(error),
                AskedName::Answered(request, sent, answer) => {
                    let attempt = inner.answered_acquire(&request, how, sent, answer);
                    inner.ended(&request, attempt)
                }
                AskedName::Sent(request) => {
                    let error = StoreError::no_answer();
                    inner.ended(&request, Attempt::Failed(error))
                }
                AskedName::Unsent(request, error) => {
                    let name = request.name;
                    Err(LockError::Store { name, error })
                }
            };
            inner.asks.end(&answer);
            answer
        };
        names.map(answer).collect()
    }
}

/// Gives back what may be held, if the future was dropped, or was not polled for long.
impl Drop for AskedNames<'_> {
    fn drop(&mut self) {
        let asked = self.names.iter().filter(|name| name.request().is_some());
        asked.for_each(|_| self.inner.asks.abandon());
        let backs = self.names.iter().filter_map(AskedName::back);
        self.inner.give_all_back_later(backs);
    }
}
