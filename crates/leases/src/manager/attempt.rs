//! One attempt to acquire a name, and what may follow it.

use std::time::Duration;

use tourbillon::Time;

use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::request::{AttemptOptions, Request};
use crate::keep_alive::Called;
use crate::store::{Acquired, StoreError, only};
use crate::sync::Arc;

/// The shortest limit of a call, however little time the caller has left to wait.
pub(super) const LEAST_CALL: Duration = Duration::from_millis(10);

/// A call that has less time than this may fail although the store works.
pub(super) const RUSHED: Duration = Duration::from_millis(100);

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Granted(LeaseGuard),
    /// Somebody else holds the name, for this time unless the lease is renewed.
    Held(Duration),
    Failed(StoreError),
    /// The name was granted but could not be kept.
    Ended(LockError),
}

/// The last answer of the store.
pub(super) enum Last {
    None,
    Held,
    Failed(StoreError),
}

/// What a caller does next.
#[derive(Debug)]
pub(super) enum AcquireStep {
    Ask,
    Wait(Time),
    Done(Result<LeaseGuard, LockError>),
}

impl LeasesInner {
    /// Asks the store once, and keeps the name if it is granted. Returns `None` if nobody has
    /// polled the call for half of a lease. Then, and after a panic, the name may have been
    /// granted.
    ///
    /// If the future is dropped, the name may have been granted, or may be granted later.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        how: AttemptOptions,
    ) -> Option<Attempt> {
        let sent = self.clock.now();
        let answer = self.ask(request, how, sent, sent).await?;
        Some(self.answered_acquire(request, how, sent, answer))
    }

    /// Asks the store once at `sent`, which is the present moment. Returns `None` if there is no
    /// answer, and half of a lease has passed since `since`, when the first call for the same names
    /// was made. Then nobody has polled the call for long.
    pub(super) async fn ask(
        &self,
        request: &Request,
        how: AttemptOptions,
        sent: Time,
        since: Time,
    ) -> Option<Result<Acquired, StoreError>> {
        let claim = request.claim().waited(how.waited);
        let mut claim = claim.with_data(&self.holder_data);
        if how.waits {
            claim = claim.waiting();
        }
        // At most a third of the lease, so that a late grant still leaves most of it. After the
        // end of the caller's wait a grant is of no use.
        let limit = (request.lease / 3)
            .min(how.until.since(sent))
            .max(LEAST_CALL);
        let (destination, batch) = (self.destination(&request.name), [claim]);
        let call = self.call(sent, limit, |store| {
            store.acquire(destination, &batch, limit)
        });
        match call.await {
            Called::Unanswered if self.is_late(since, request.lease) => None,
            called => Some(called.answer(limit).and_then(only)),
        }
    }

    /// Whether a call without an answer was not polled for long. The first call for the same names
    /// began at `since`, and the limits of all of them together are far below half of the lease.
    pub(super) fn is_late(&self, since: Time, lease: Duration) -> bool {
        self.clock.now() >= since + lease / 2
    }

    /// Keeps the name if the store has granted it to a request that was sent at `sent`.
    pub(super) fn answered_acquire(
        self: &Arc<Self>,
        request: &Request,
        how: AttemptOptions,
        sent: Time,
        answer: Result<Acquired, StoreError>,
    ) -> Attempt {
        // In a forked copy of the process the locks below may stay locked forever.
        if let Err(StoreError::Forked) = answer {
            return Attempt::Failed(StoreError::Forked);
        }
        let now = self.clock.now();
        self.acquire_failures.note(answer.as_ref().err(), now);
        let (token, place) = match answer {
            Ok(Acquired::Granted { token, place }) => (token, place),
            Ok(Acquired::Held { remaining }) => return Attempt::Held(remaining),
            Err(error) => return Attempt::Failed(error),
        };
        // The store may have ignored the limit, or the process may have been paused. Such a grant
        // is over. The error leaves it open, so the name is given back.
        let until = sent + self.keep_alive.good_for(request.lease);
        if now >= until {
            let what = "the grant arrived after its lease had run out".to_owned();
            return Attempt::Failed(StoreError::Unavailable(what));
        }
        let id = LeaseId::new(request, token, place, now);
        let keep = request.keep.clone().since(sent);
        match self.keep_alive.keep_with(id, &keep) {
            Ok(kept) => {
                let guard = LeaseGuard::new(self, kept, keep, how.unsure, how.drop_waits);
                Attempt::Granted(guard)
            }
            Err(error) => Attempt::Ended(LockError::of_keep(&request.name, error)),
        }
    }
}
