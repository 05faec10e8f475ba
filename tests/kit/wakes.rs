//! A waker that counts, and polls by hand.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// One poll of a future, by a task that these wakes would wake.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(wakes));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}
