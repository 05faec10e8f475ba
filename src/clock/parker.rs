//! Puts threads of users to sleep by the clock of a scheduler.

use std::task::Wake;
use std::time::Duration;

use super::Clock;
use crate::sync::{Arc, Parker, Unparker};
use crate::tick::Time;

/// Blocks a thread until a moment of a [`Clock`], or until another thread unparks it.
///
/// It is for threads of your own that go by the clock of a scheduler: on a manual clock they wake
/// when the clock is moved to their moment. It holds one token, as `std::thread::park` does: an
/// unpark before the park makes that park return at once.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Clock, ClockParker, ManualClock};
///
/// let hand = ManualClock::new();
/// let clock = Clock::manual(&hand);
/// let sleeper = std::thread::spawn(move || {
///     let parker = ClockParker::new(&clock);
///     let until = clock.now() + Duration::from_secs(3600);
///     while clock.now() < until {
///         parker.park_until(until);
///     }
/// });
/// while !sleeper.is_finished() {
///     hand.advance(Duration::from_secs(60));
/// }
/// ```
#[derive(Debug)]
pub struct ClockParker {
    clock: Clock,
    parker: Parker,
}

impl ClockParker {
    /// A parker that goes by `clock`.
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        ClockParker {
            clock: clock.clone(),
            parker: Parker::new(),
        }
    }

    /// Blocks this thread until the clock shows `until`, or until it is unparked; with
    /// [`Time::MAX`] until it is unparked. It may also return a little earlier, or for no reason:
    /// look at the clock, and at what the thread waits for, and park again.
    ///
    /// # Blocking
    ///
    /// A suspension of the machine does not shorten the sleep, as [`Clock::boottime`] describes.
    pub fn park_until(&self, until: Time) {
        self.clock.park_until(&self.parker, Some(until));
    }

    /// Blocks this thread for `limit` by the clock, or until it is unparked; see
    /// [`park_until`](Self::park_until).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ClockParker};
    ///
    /// let clock = Clock::system();
    /// let start = clock.now();
    /// let parker = ClockParker::new(&clock);
    /// while clock.now() - start < Duration::from_millis(2) {
    ///     parker.park_for(Duration::from_millis(2));
    /// }
    /// ```
    pub fn park_for(&self, limit: Duration) {
        self.park_until(self.clock.now() + limit);
    }

    /// What unparks the thread, from anywhere.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ClockParker};
    ///
    /// let parker = ClockParker::new(&Clock::system());
    /// parker.unparker().unpark();
    /// parker.park_for(Duration::from_secs(3600)); // returns at once
    /// ```
    #[must_use]
    pub fn unparker(&self) -> ClockUnparker {
        ClockUnparker(self.parker.unparker().clone())
    }
}

/// Unparks the thread of a [`ClockParker`]. It is a [`Wake`], so it can be made a
/// [`Waker`](std::task::Waker).
///
/// # Examples
///
/// ```
/// use tourbillon::{Clock, ClockParker, Time};
///
/// let parker = ClockParker::new(&Clock::system());
/// let unparker = parker.unparker();
/// let waker = std::thread::spawn(move || unparker.unpark());
/// parker.park_until(Time::MAX);
/// # waker.join().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ClockUnparker(Unparker);

impl ClockUnparker {
    /// Unparks the thread: the present park returns, or the next one if the thread is not parked.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}

impl Wake for ClockUnparker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}
