//! A waker that counts its wake-ups, and a way to poll futures by hand.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
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

/// Awaits `answer` again and again without a wait, as a loop of a task does that has nothing else
/// to do. Checks that the loop returns to its runtime now and then, with a wake-up for itself, and
/// goes on after that.
pub fn yields<T>(name: &str, mut answer: impl AsyncFnMut() -> T) {
    // A hundred is far above the bound, and far below what blocks a runtime.
    const MOST: usize = 100;
    let answers = Cell::new(0);
    let mut looping = pin!(async {
        loop {
            answer().await;
            answers.set(answers.get() + 1);
            assert!(answers.get() <= MOST, "{name}: no turn for the runtime");
        }
    });
    let wakes = Wakes::new();
    for turns in 1..=3 {
        answers.set(0);
        let poll: Poll<()> = poll(&mut looping, &wakes);
        assert!(poll.is_pending(), "{name}");
        assert_eq!(wakes.count(), turns, "{name}: a turn wakes the task");
        assert!(answers.get() >= 16, "{name}: {} answers", answers.get());
    }
}
