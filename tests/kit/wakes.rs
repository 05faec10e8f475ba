//! A waker that counts its wake-ups, and a way to poll futures by hand.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts how often it was woken.
#[derive(Default, Debug)]
pub struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    /// A count of 0.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The number of wake-ups so far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Polls a future once. Its wake-ups are counted by `wakes`.
pub fn poll<F: Future + Unpin>(future: &mut F, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(wakes));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}
