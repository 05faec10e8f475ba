//! The futures of calls, and how a thread waits for one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon::{Clock, ClockParker};

use super::StoreError;
use crate::sync::Arc;

/// The future of a call to a [`LeaseStore`](crate::LeaseStore): what `Box::pin(async move { .. })`
/// returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Waits for a call on this thread. A call that is pending when `limit` is over by this clock is
/// dropped, and fails.
pub(crate) fn complete<T>(
    clock: &Clock,
    limit: Duration,
    mut call: StoreFuture<'_, T>,
) -> Result<T, StoreError> {
    let end = clock.now() + limit;
    // A store in memory, or one that blocks, answers at once.
    if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return answer;
    }
    let parker = ClockParker::new(clock);
    let waker = Waker::from(Arc::new(parker.unparker()));
    // A poll at the limit might send something.
    while clock.now() < end {
        if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        parker.park_until(end);
    }
    Err(StoreError::unanswered(limit))
}

/// Returns the answer to a batch of one.
pub(crate) fn only<T>(answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    let first = answers.into_iter().next();
    first.unwrap_or_else(|| Err(StoreError::no_answer()))
}
