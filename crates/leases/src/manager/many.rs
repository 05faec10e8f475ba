//! Acquires many locks at once.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use super::attempt::Attempt;
use super::awaiting::on_worker_or;
use super::error::LockError;
use super::guard::LeaseGuard;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::request::{AttemptOptions, Request};
use crate::store::{Acquired, Destination, StoreError};
use crate::sync::{Arc, catch_panic};

/// The result for each name.
type Answers = Vec<Result<LeaseGuard, LockError>>;

impl Leases {
    /// Acquires those of the locks that are free. Returns one result for each name, in their order.
    ///
    /// It does for each name what [`try_lock`](Self::try_lock) does, but the names of one
    /// destination of the store travel together: on a Redis server 100 locks take one round trip.
    /// Nothing waits for a lock, so there is no deadlock, whatever the order. To hold all or none,
    /// collect into a `Result`: the first error then drops all guards.
    ///
    /// If a name stands there twice, the second one is [held](LockError::Held) by the first one.
    ///
    /// # Errors
    ///
    /// For each name those of [`try_lock`](Self::try_lock).
    ///
    /// # Blocking
    ///
    /// Blocks for one call after the other, at most a third of the lease each: one call for each
    /// destination and [batch](crate::LeasesBuilder::batch) of names.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{LeaseGuard, Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let accounts = ["account/1", "account/2"];
    /// let all: Result<Vec<LeaseGuard>, LockError> =
    ///     leases.try_lock_many(accounts).into_iter().collect();
    /// assert_eq!(all?.len(), 2); // both, or an error
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_lock_many<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Answers {
        let requests = self.requests(names);
        self.inner.acquire_many(requests, true)
    }

    /// Acquires those of the locks that are free, like [`try_lock_many`](Self::try_lock_many), as a
    /// future. If the future is dropped, locks that are granted after that are given back at once.
    ///
    /// # Errors
    ///
    /// For each name those of [`try_lock`](Self::try_lock).
    pub fn try_lock_many_async<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LeaseFuture<Answers> {
        let names = names.into_iter().map(|name| name.as_ref().to_owned());
        let (names, leases) = (names.collect::<Vec<_>>(), self.clone());
        LeaseFuture::new(async move {
            let Some(first) = names.iter().find(|name| !name.is_empty()) else {
                return leases.try_lock_many(&names);
            };
            let (own, asked) = (Arc::clone(&leases.inner), leases.requests(&names));
            let task = move || Ok(own.acquire_many(asked, false));
            match on_worker_or(&leases.inner, first, task).await {
                Ok(answers) => answers,
                // No call was made.
                Err(error) => {
                    let none = |name: &String| {
                        let name = name.clone();
                        Err(match &error {
                            LockError::Store { error, .. } => LockError::Store {
                                name,
                                error: error.clone(),
                            },
                            _ => LockError::Closed { name },
                        })
                    };
                    names.iter().map(none).collect()
                }
            }
        })
    }

    /// Checks the names and makes their requests.
    fn requests<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Vec<Result<Request, LockError>> {
        let names = names.into_iter();
        names
            .map(|name| self.acquire(name.as_ref()).request())
            .collect()
    }
}

impl LeasesInner {
    /// Asks for all names, in batches of one destination.
    fn acquire_many(
        self: &Arc<Self>,
        requests: Vec<Result<Request, LockError>>,
        drop_waits: bool,
    ) -> Answers {
        let how = AttemptOptions {
            waits: false,
            waited: Duration::ZERO,
            until: Time::MAX,
            unsure: false,
            drop_waits,
        };
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
        for (destination, requests) in routed {
            for batch in requests.chunks(self.keep_alive.most()) {
                let attempts = self.acquire_batch(destination, batch, how);
                for ((at, request), attempt) in batch.iter().zip(attempts) {
                    let answer = self.ended(request, attempt);
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

    /// Asks for the names of one batch.
    fn acquire_batch(
        self: &Arc<Self>,
        destination: Destination,
        batch: &[(usize, Request)],
        how: AttemptOptions,
    ) -> Vec<Attempt> {
        // The leases count from before the request is sent.
        let sent = self.clock.now();
        let claims: Vec<_> = batch
            .iter()
            .map(|(_, request)| request.claim().with_data(&self.holder_data))
            .collect();
        let limit = self.lease / 3;
        let answer = catch_panic(|| self.store.acquire_many(destination, &claims, limit));
        let mut answers: Vec<Result<Acquired, StoreError>> = match answer {
            Ok(Ok(answers)) => answers,
            // One bad name may be the reason, so each one is tried alone.
            Ok(Err(StoreError::Refused(_))) => {
                let alone = batch.iter().map(|(_, request)| self.attempt(request, how));
                return alone.collect();
            }
            Ok(Err(error)) => vec![Err(error); batch.len()],
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
            .map(|(request, answer)| self.answered_acquire(request, how, sent, answer))
            .collect()
    }

    /// Returns the result of an attempt, and gives the name back if it may have been granted.
    fn ended(
        self: &Arc<Self>,
        request: &Request,
        attempt: Attempt,
    ) -> Result<LeaseGuard, LockError> {
        let name = request.name.clone();
        let (error, unsure) = match attempt {
            Attempt::Granted(guard) => return Ok(guard),
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
