//! A timer that a test drives.

use std::fmt;
use std::time::Duration;

use super::driver::{Driver, Steps};
use crate::clock::ManualClock;
use crate::engine::Shutdown;
use crate::error::BuildError;
use crate::sync::Arc;
use crate::tick::Time;
use crate::timer::{Timer, TimerBuilder, TimerFrontend, TimerReport};

/// A [`Timer`] without threads; see the [module](super). Tasks run, and sleeping futures are woken,
/// on the thread that drives the timer.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Time, Timer};
///
/// let stepped = Timer::builder().build_stepped(1)?;
/// let timer = stepped.timer();
/// let hour = Duration::from_secs(3600);
/// stepped.run_until(timer.sleep(hour))?;
/// assert_eq!(stepped.now(), Time::ZERO + hour);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SteppedTimer {
    pub(super) driver: Driver<TimerFrontend>,
    timer: Arc<Timer>,
}

/// The option that builds a [`SteppedTimer`].
impl TimerBuilder {
    /// Builds a timer without threads, driven by the calling thread; see
    /// [`test_util`](crate::test_util). `seed` decides how the ticker and the workers interleave.
    /// The timer has one shard and one stripe; other values are only checked.
    ///
    /// The clock starts at [`Time::ZERO`], unless a manual clock was given. Then that clock is
    /// used. A timer is over at the end of its tick. So times are exact if all delays are whole
    /// ticks, and the clock starts at one.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_stepped(self, seed: u64) -> Result<SteppedTimer, BuildError> {
        let ((server, ticker_states), hand) = self.stepped_parts(seed)?;
        Ok(SteppedTimer {
            timer: Arc::new(Timer::of(Arc::clone(&server))),
            driver: Driver::new(server, ticker_states, hand, seed),
        })
    }
}

impl SteppedTimer {
    /// Returns the timer, which any thread may use. Dropping this driver closes it.
    #[must_use]
    pub fn timer(&self) -> Arc<Timer> {
        Arc::clone(&self.timer)
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Time {
        self.driver.now()
    }

    /// Returns the clock, to set it by hand. Setting it runs nothing by itself;
    /// [`settle`](Self::settle) does.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.driver.hand().clone()
    }

    /// Polls `future` until it is ready, and returns its output. When nothing is left to do and the
    /// future waits, time moves to the next deadline at once.
    ///
    /// The future has to wait for something of this timer, or of the same thread. Nothing waits for
    /// other threads, so that every run is the same. Other drivers do not move; see
    /// [`Together`](crate::test_util::Together). A future that wakes itself in each poll, or waits
    /// beside a task that repeats without end, keeps this call busy.
    ///
    /// # Panics
    ///
    /// Panics if the future would wait forever: it is not woken, and nothing pending will ever be
    /// due. Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{TimeoutError, Timer};
    ///
    /// let stepped = Timer::builder().build_stepped(1)?;
    /// let timer = stepped.timer();
    /// let answer = timer.timeout(Duration::from_secs(5), std::future::pending::<()>());
    /// assert_eq!(stepped.run_until(answer), Err(TimeoutError::Elapsed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.run_until(future)
    }

    /// Returns a future that drives the timer by the clock of the present tokio runtime, for tests
    /// under `#[tokio::test(start_paused = true)]`; needs the feature `tokio`. Spawn it, and use
    /// the timer as in production. While all tasks wait, tokio's clock jumps to the next deadline,
    /// whether it is one of tokio or one of the timer.
    ///
    /// From this call on, the clock of the timer moves with tokio's clock. tokio stops at whole
    /// milliseconds, so a deadline between two of them is late by less than one. If tokio's clock
    /// is not paused, the timer runs in real time. Several drivers can follow one runtime.
    ///
    /// Tasks run inside the poll of this future, so they must not block. Await what the timer can
    /// wait for: a call that blocks would wait in vain.
    ///
    /// The future ends with a shutdown of the timer, which can be awaited. Dropping the future
    /// closes the timer.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a tokio runtime. The future panics in a runtime without
    /// timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = Timer::builder().build_stepped(1)?;
    /// let timer = stepped.timer();
    /// tokio::spawn(stepped.follow_tokio());
    ///
    /// let before = tokio::time::Instant::now();
    /// timer.sleep(Duration::from_secs(3600)).await?;
    /// assert_eq!(before.elapsed().as_secs(), 3600);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn follow_tokio(self) -> impl Future<Output = ()> + Send + 'static {
        let (following, timer) = (super::follow::follow(self.driver), self.timer);
        async move {
            following.await;
            // Dropping the last handle of a timer closes it.
            drop(timer);
        }
    }

    /// Lets `by` pass; see [`advance_to`](Self::advance_to).
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now() + by);
    }

    /// Lets time pass until `to`, and stops at every time at which something is due. If `to` is in
    /// the past, this only runs what is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// let stepped = Timer::builder().build_stepped(1)?;
    /// let minute = stepped.now() + Duration::from_secs(60);
    /// let timeout = stepped.timer().after(minute, || println!("a minute has passed"))?;
    /// stepped.advance_to(minute);
    /// assert!(timeout.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance_to(&self, to: Time) {
        self.driver.advance_to(to);
    }

    /// Sets the clock to `to` without stopping in between, as if every thread had slept meanwhile.
    /// Then runs everything that is due. `to` may be in the past.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    pub fn jump_to(&self, to: Time) {
        self.driver.hand().set(to);
        self.driver.settle();
    }

    /// Runs everything that is due now.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    pub fn settle(&self) {
        self.driver.settle();
    }

    /// Shuts down, and lets time pass where the mode waits for it. A second call returns an empty
    /// report.
    ///
    /// # Panics
    ///
    /// Panics if it is called from inside a task.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn shutdown(&self, mode: Shutdown) -> TimerReport {
        TimerReport::of(self.driver.shut_down(mode))
    }
}

impl fmt::Debug for SteppedTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedTimer")
            .field("driver", &self.driver)
            .finish()
    }
}
