//! Several drivers that share one clock.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use super::driver::Steps;
use super::{Stepped, SteppedMap, SteppedTimer};
use crate::clock::ManualClock;
use crate::expiry::MapHasher;
use crate::tick::Time;

/// A driver that [`Together`] can move: [`Stepped`], [`SteppedMap`] and [`SteppedTimer`]. Only this
/// crate implements it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Timer;
/// use tourbillon::test_util::{Drive, Together};
///
/// fn let_pass(minute: Duration, program: &[&dyn Drive]) {
///     Together::new(program).advance(minute);
/// }
/// let timer = Timer::builder().build_stepped(1)?;
/// let_pass(Duration::from_secs(60), &[&timer]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Drive: sealed::Parts {}

mod sealed {
    pub trait Parts {
        fn steps(&self) -> &dyn super::Steps;
    }
}

impl<K, S> Drive for Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
}

impl<K, S> sealed::Parts for Stepped<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn steps(&self) -> &dyn Steps {
        &self.driver
    }
}

impl<K, V, S> Drive for SteppedMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
}

impl<K, V, S> sealed::Parts for SteppedMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn steps(&self) -> &dyn Steps {
        &self.driver
    }
}

impl Drive for SteppedTimer {}

impl sealed::Parts for SteppedTimer {
    fn steps(&self) -> &dyn Steps {
        &self.driver
    }
}

/// Several drivers of one program on one [`ManualClock`], which moves to the next deadline of any
/// of them. The drivers take their steps in the order in which they were given.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::test_util::Together;
/// use tourbillon::{Clock, ExpiryMap, ManualClock, Time, Timer};
///
/// let hand = ManualClock::new();
/// let map = ExpiryMap::<u64, &str>::builder()
///     .clock(Clock::manual(&hand))
///     .time_to_live(Duration::from_secs(60))
///     .build_stepped(1, |_, _| ())?;
/// let timer = Timer::builder().clock(Clock::manual(&hand)).build_stepped(1)?;
/// map.map().insert(7, "Ada")?;
///
/// let program = Together::new(&[&map, &timer]);
/// program.run_until(timer.timer().sleep(Duration::from_secs(90)))?;
/// assert!(map.map().is_empty());
/// assert_eq!(program.now(), Time::ZERO + Duration::from_secs(90));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Together<'a>(All<'a>);

struct All<'a>(Vec<&'a dyn Steps>);

impl Steps for All<'_> {
    fn hand(&self) -> &ManualClock {
        self.0[0].hand()
    }

    fn settle(&self) -> bool {
        let mut any = false;
        loop {
            let mut worked = false;
            for driver in &self.0 {
                worked |= driver.settle();
            }
            if !worked {
                return any;
            }
            // What one of them did may have made work for the others.
            any = true;
        }
    }

    fn next_due(&self, limit: Time) -> Option<Time> {
        self.0
            .iter()
            .filter_map(|driver| driver.next_due(limit))
            .min()
    }
}

impl<'a> Together<'a> {
    /// Joins these drivers. Each of them can still be driven alone, which moves the clock of all;
    /// the others do their work when they take steps again.
    ///
    /// # Panics
    ///
    /// Panics if there are no drivers, or if they do not share one manual clock.
    #[must_use]
    pub fn new(drivers: &[&'a dyn Drive]) -> Self {
        let all: Vec<_> = drivers.iter().map(|driver| driver.steps()).collect();
        let first = all.first().expect("at least one driver is needed").hand();
        assert!(
            all.iter().all(|driver| driver.hand().is_same(first)),
            "drivers move together only on one clock: give each builder \
             `.clock(Clock::manual(&hand))` with the same `hand`"
        );
        Together(All(all))
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task or a handler of one of the drivers.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now() + by);
    }

    /// Lets time pass until `to`, and stops at every time at which something of any driver is due.
    /// If `to` is in the past, this only does what is due now. [`Stepped::settle`] returns the runs
    /// of a scheduler afterwards.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task or a handler of one of the drivers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{Timer, test_util::Together};
    /// let timer = Timer::builder().build_stepped(1)?;
    /// let program = Together::new(&[&timer]);
    /// let minute = program.now() + Duration::from_secs(60);
    /// let timeout = timer.timer().after(minute, || println!("a minute has passed"))?;
    /// program.advance_to(minute);
    /// assert!(timeout.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance_to(&self, to: Time) {
        self.0.advance_to(to);
    }

    /// Polls `future` until it is ready, and returns its output. When no driver has anything left
    /// to do and the future waits, time moves to the next deadline of any driver. Nothing waits for
    /// other threads.
    ///
    /// # Panics
    ///
    /// Panics if the future would wait forever: it is not woken, and nothing pending of any driver
    /// will ever be due. Panics if it is called from inside a task or a handler of one of the
    /// drivers.
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.run_until(future)
    }
}

impl fmt::Debug for Together<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together")
            .field("now", &self.now())
            .field("drivers", &self.0.0.len())
            .finish()
    }
}
