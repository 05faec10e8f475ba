//! Ticks at a fixed period, for tasks that await them.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Timer;
use super::sleep::{Sleep, SleepError};
use crate::scheduler::{DueRound, Missed, PUT_OFF_AT_MOST, plan};
use crate::tick::Time;
use crate::when::When;

/// Ticks at a fixed period; see [`Timer::interval`]. With the feature `stream` it is also a stream
/// of its ticks, which ends after the error [`Closed`](SleepError::Closed).
///
/// Dropping it cancels its timer.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Interval, SleepError, Timer};
///
/// struct Heartbeat {
///     beats: Interval,
/// }
///
/// impl Heartbeat {
///     async fn run(mut self) -> Result<(), SleepError> {
///         for _ in 0..5 {
///             self.beats.tick().await?;
///             // .. send a heartbeat ..
///         }
///         Ok(())
///     }
/// }
///
/// let stepped = Timer::builder().build_stepped(1)?;
/// let timer = stepped.timer();
/// let heartbeat = Heartbeat { beats: timer.interval(Duration::from_secs(10)) };
/// stepped.run_until(heartbeat.run())?;
/// // The first beat comes at once.
/// assert_eq!(stepped.now().as_nanos(), Duration::from_secs(40).as_nanos() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an interval ticks only while it is awaited"]
pub struct Interval {
    /// Sleeps until the next tick. Its deadline is that tick.
    sleep: Sleep,
    period: Duration,
    missed: Missed,
    /// How often in a row a tick was skipped.
    put_off: u32,
    /// Whether the stream has ended.
    #[cfg(feature = "stream")]
    ended: bool,
}

/// The future of [`Interval::tick`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::Timer;
///
/// # let stepped = Timer::builder().build_stepped(1)?;
/// # let timer = stepped.timer();
/// let mut interval = timer.interval(Duration::from_secs(10));
/// # stepped.run_until(async {
/// let first = interval.tick().await?;
/// assert_eq!(interval.tick().await? - first, Duration::from_secs(10));
/// # Ok::<(), tourbillon::SleepError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "futures do nothing unless they are awaited"]
#[derive(Debug)]
pub struct NextTick<'a>(&'a mut Interval);

impl Timer {
    /// Returns an interval, whose first tick comes at once, or as [`Interval::first`] says, and
    /// each further tick one `period` after the tick before. It is used like
    /// `tokio::time::interval`, and needs no particular runtime.
    ///
    /// Ticks keep to the grid that begins at this call. They do not drift, however long the caller
    /// takes between them.
    ///
    /// A tick is missed if it is awaited so late that the next tick is due as well. By default, all
    /// missed ticks come at once, one after the other. [`Interval::missed`] changes that. The names
    /// are those of repeating timers:
    ///
    /// | `tokio::time::MissedTickBehavior` | here |
    /// |---|---|
    /// | `Burst`, the default | [`Missed::All`], the default of intervals |
    /// | `Skip`: one late tick, and then the next one of the grid | [`Missed::Once`] |
    /// | `Delay`: one late tick, and then a new grid | [`Missed::Once`], and [`Interval::reset`] after the late tick |
    /// | - | [`Missed::Skip`]: no late tick |
    /// | - | [`Missed::AtMost`]: a bounded number of late ticks |
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Missed, Timer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let timer = Timer::new()?;
    /// let mut ticks = timer.interval(Duration::from_millis(20)).missed(Missed::Once);
    /// let first = ticks.tick().await?; // at once
    /// let second = ticks.tick().await?;
    /// assert!(second >= first + Duration::from_millis(20));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[doc(alias("setInterval", "ticker"))]
    pub fn interval(&self, period: Duration) -> Interval {
        assert!(
            !period.is_zero(),
            "the period of an interval must not be zero"
        );
        Interval {
            sleep: self.sleep(self.now()),
            period,
            missed: Missed::All,
            put_off: 0,
            #[cfg(feature = "stream")]
            ended: false,
        }
    }
}

impl Interval {
    /// Sets when the first tick comes, which the grid begins with. Set later, it begins a new grid,
    /// as [`reset`](Self::reset) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let start = timer.now() + Duration::from_secs(3);
    /// let mut ticks = timer.interval(Duration::from_secs(10)).first(start);
    /// # stepped.run_until(async {
    /// assert_eq!(ticks.tick().await?, start);
    /// # Ok::<(), tourbillon::SleepError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first(mut self, when: impl Into<When>) -> Self {
        self.sleep.reset(when);
        self
    }

    /// Sets what happens to missed ticks; [`Missed::All`] by default. A tick that is late by less
    /// than a period is not missed.
    ///
    /// With [`Missed::Skip`], a late tick comes all the same after three ticks in a row were
    /// skipped.
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    /// Returns a future that is ready at the next tick, with the time at which that tick was due.
    ///
    /// This is cancel-safe: if the future is dropped before it is ready, no tick is lost.
    ///
    /// # Errors
    ///
    /// As for [`Timer::sleep`]. After [`Full`](SleepError::Full) the tick can be awaited again.
    pub fn tick(&mut self) -> NextTick<'_> {
        NextTick(self)
    }

    /// Polls for the next tick, like the future of [`tick`](Self::tick).
    ///
    /// # Errors
    ///
    /// As for [`tick`](Self::tick).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use std::time::Duration;
    /// use tourbillon::{Interval, SleepError, Timer};
    ///
    /// /// Is ready after three ticks.
    /// struct ThreeTicks(Interval, u32);
    ///
    /// impl Future for ThreeTicks {
    ///     type Output = Result<(), SleepError>;
    ///
    ///     fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
    ///         while self.1 < 3 {
    ///             match self.0.poll_tick(context) {
    ///                 Poll::Ready(tick) => tick?,
    ///                 Poll::Pending => return Poll::Pending,
    ///             };
    ///             self.1 += 1;
    ///         }
    ///         Poll::Ready(Ok(()))
    ///     }
    /// }
    /// let stepped = Timer::builder().build_stepped(1)?;
    /// let ticks = stepped.timer().interval(Duration::from_secs(10));
    /// stepped.run_until(ThreeTicks(ticks, 0))?;
    /// assert_eq!(stepped.now().as_nanos(), 20_000_000_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Time, SleepError>> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(context))?;
            let point = self.sleep.deadline();
            let due = DueRound {
                point,
                period: self.nanos(),
                deadline: point,
            };
            // Skipped too often in a row: the waker is always late by more than a period.
            let policy = match self.missed {
                Missed::Skip | Missed::AtMost(0) if self.put_off >= PUT_OFF_AT_MOST => Missed::Once,
                policy => policy,
            };
            let plan = plan(due, self.sleep.now(), policy, self.period);
            self.sleep.reset(plan.next);
            if let Some(tick) = plan.runs {
                self.put_off = 0;
                return Poll::Ready(Ok(tick));
            }
            self.put_off += 1;
        }
    }

    /// Restarts the interval: the next tick comes one period from now, and a new grid begins there.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let mut ticks = timer.interval(Duration::from_secs(10));
    /// // Without the tick that would come at once.
    /// ticks.reset();
    /// # stepped.run_until(async {
    /// assert_eq!(ticks.tick().await?.as_nanos(), 10_000_000_000);
    /// # Ok::<(), tourbillon::SleepError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&mut self) {
        self.sleep.reset(self.period);
    }

    /// Returns the period.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Timer;
    /// # let stepped = Timer::builder().build_stepped(1)?;
    /// # let timer = stepped.timer();
    /// let ticks = timer.interval(Duration::from_secs(10));
    /// assert_eq!(ticks.period(), Duration::from_secs(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Future for NextTick<'_> {
    type Output = Result<Time, SleepError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_tick(context)
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Interval {
    type Item = Result<Time, SleepError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            ready!(self.sleep.poll_yield(context));
            self.sleep.cancel();
            return Poll::Ready(None);
        }
        let tick = ready!(self.poll_tick(context));
        self.ended = matches!(tick, Err(SleepError::Closed | SleepError::Forked));
        Poll::Ready(Some(tick))
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("next", &self.sleep.deadline())
            .field("period", &self.period)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}
