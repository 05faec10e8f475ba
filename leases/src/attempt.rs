//! One attempt to acquire a name.

use std::time::Duration;

use super::error::LockError;
use super::guard::LeaseGuard;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::request::{AttemptOptions, Request};
use super::store::{Acquired, Claim, StoreError};
use crate::panics::catch_panic;
use crate::sync::Arc;

/// A call takes this long at least, however little patience is left.
pub(super) const LEAST_CALL: Duration = Duration::from_millis(10);

/// What an attempt had for an answer.
#[derive(Debug)]
pub(super) enum Attempt {
    Granted(LeaseGuard),
    Held(Duration),
    Failed(StoreError),
    /// It was granted, and could not be kept.
    Ended(LockError),
}

impl LeasesInner {
    /// Asks the store once. Whatever panics, the answer is that nobody knows.
    pub(super) fn attempt(self: &Arc<Self>, request: &Request, how: AttemptOptions) -> Attempt {
        catch_panic(|| self.ask(request, how)).unwrap_or_else(|panic| {
            let what = format!("the store panicked: {panic}");
            Attempt::Failed(StoreError::Unavailable(what))
        })
    }

    fn ask(self: &Arc<Self>, request: &Request, how: AttemptOptions) -> Attempt {
        // The lease counts from before the request is sent.
        let sent = self.clock.now();
        let claim = Claim::new(&request.name, &request.owner, request.lease);
        let mut claim = claim.waited(how.waited);
        if how.waits {
            claim = claim.waiting();
        }
        let limit = (request.lease / 3)
            .min(how.until.since(sent))
            .max(LEAST_CALL);
        let token = match self.store.acquire(&claim, limit) {
            Ok(Acquired::Granted { token }) => token,
            Ok(Acquired::Held { remaining }) => return Attempt::Held(remaining),
            Err(error) => return Attempt::Failed(error),
        };
        let until = sent + self.keep_alive.good_for(request.lease);
        if self.clock.now() >= until {
            let what = "the grant came when its lease had run out".to_owned();
            return Attempt::Failed(StoreError::Unavailable(what));
        }
        let id = LeaseId::new(request, token);
        match self
            .keep_alive
            .keep_with(id, &request.keep.clone().since(sent))
        {
            Ok(kept) => Attempt::Granted(LeaseGuard::new(self, kept, how.unsure, how.drop_waits)),
            Err(error) => Attempt::Ended(LockError::of_keep(&request.name, error)),
        }
    }
}
