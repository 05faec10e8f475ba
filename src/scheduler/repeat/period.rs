//! The period that a caller asks for: when rounds are due, and what happens to late rounds and
//! after panics.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::calendar::NextTime;
use super::missed::Missed;
use crate::tick::Time;
use crate::when::When;

/// The times at which the rounds of a repeating timer are due; see
/// [`Handle::repeat`](crate::Handle::repeat).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{AfterPanic, Missed, Period};
///
/// let minute = Duration::from_secs(60);
/// let period = Period::fixed_rate(minute)
///     .first(Duration::ZERO)
///     .jitter(Duration::from_secs(2))
///     .missed(Missed::Once)
///     .grace(Duration::from_secs(5))
///     .on_panic(AfterPanic::BackOff { first: minute, most: 60 * minute });
/// # drop(period);
/// ```
#[must_use = "a period does nothing until it is given to `Handle::repeat`"]
pub struct Period {
    pub(super) kind: PeriodKind,
    pub(super) first: Option<When>,
    pub(super) random_phase: bool,
    pub(super) jitter: Duration,
    /// `None` if it was not set.
    pub(super) missed: Option<Missed>,
    pub(super) grace: Option<Duration>,
    pub(super) after_panic: AfterPanic,
}

pub(super) type Schedule = Box<dyn FnMut(&SoFar) -> Option<Time> + Send>;

pub(super) enum PeriodKind {
    Rate(Duration),
    Delay(Duration),
    Schedule(Schedule),
    Calendar(NextTime),
}

/// The input of a [schedule function](Period::schedule).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Period, SoFar, Time};
///
/// fn after_the_last_round(so_far: &SoFar) -> Option<Time> {
///     let pause = Duration::from_secs(if so_far.rounds < 10 { 1 } else { 60 });
///     Some(so_far.now + pause)
/// }
/// let period = Period::schedule(after_the_last_round);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SoFar {
    /// The number of rounds that have run.
    pub rounds: u64,
    /// When the last round was due; `None` when the first time is asked for.
    pub deadline: Option<Time>,
    /// The current time: the end of the last round, or the time of the call.
    pub now: Time,
}

/// What follows a round that panicked. In any case the panic is caught and counted, and
/// [`SchedulerBuilder::on_panic`](crate::SchedulerBuilder::on_panic) is called.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{AfterPanic, Period};
///
/// let second = Duration::from_secs(1);
/// let period = Period::fixed_rate(second)
///     .on_panic(AfterPanic::BackOff { first: second, most: 60 * second });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AfterPanic {
    /// The next round follows, as if the round had answered [`Next::Again`](super::Next::Again).
    #[default]
    Continue,
    /// No further round follows. The key is gone, unless a move was answered during the round.
    Stop,
    /// The next round comes no earlier than `first` after the end of the round that panicked. Each
    /// further panic in a row doubles this delay, up to `most`. If `first` is zero, the second
    /// delay is 1 ms. A round that does not panic resets the delay.
    ///
    /// A fixed rate stays on its grid. Rounds that are skipped because of the delay do not count as
    /// missed.
    BackOff {
        /// The delay after the first panic.
        first: Duration,
        /// The greatest delay.
        most: Duration,
    },
}

impl Period {
    fn of(kind: PeriodKind) -> Self {
        Period {
            kind,
            first: None,
            random_phase: false,
            jitter: Duration::ZERO,
            missed: None,
            grace: None,
            after_panic: AfterPanic::default(),
        }
    }

    /// Makes a period with rounds on a grid. Each round is due one period after the point of the
    /// round before, however long that one took to start and to run, so there is no drift. The
    /// first round is due one period after the call.
    ///
    /// [`Handle::repeat`](crate::Handle::repeat) refuses a period of zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// timers.repeat("beat", Period::fixed_rate(Duration::from_secs(5)), |_| println!("beat"))?;
    /// assert_eq!(scheduler.advance(Duration::from_secs(60)).len(), 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "scheduleAtFixedRate")]
    pub fn fixed_rate(period: Duration) -> Self {
        Period::of(PeriodKind::Rate(period))
    }

    /// Makes a period whose rounds are due `delay` after the end of the round before. The first
    /// round is due `delay` after the call. There is no grid, so no round is ever missed: a late
    /// round runs late.
    ///
    /// [`Handle::repeat`](crate::Handle::repeat) refuses a delay of zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// // 5 s between the end of one round and the start of the next.
    /// let period = Period::fixed_delay(Duration::from_secs(5));
    /// timers.repeat("poll", period, |_| println!("polling"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "scheduleWithFixedDelay")]
    pub fn fixed_delay(delay: Duration) -> Self {
        Period::of(PeriodKind::Delay(delay))
    }

    /// Makes a period whose rounds are due when `next` says, by the scheduler's clock. For rounds by
    /// the wall clock, which can be set, see [`calendar`](Self::calendar). After `None` no round follows, and the
    /// key is gone. The function runs without a lock. It is called:
    ///
    /// - once in [`Handle::repeat`](crate::Handle::repeat), unless
    ///   [`first`](Self::first) says when the first round is due,
    /// - after each round that answers [`Next::Again`](super::Next::Again), or that panics and is
    ///   to be followed by another, on the thread that ran the round.
    ///
    /// A time in the past is due at once. No round is ever missed: the function gets the current
    /// time and may skip what it likes. If the function panics, the round counts as panicked and no
    /// round follows. A `reschedule` that was answered during the round holds in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// // After 1, 2 and 4 s, and no more.
    /// let doubling = Period::schedule(|so_far| {
    ///     let seconds = Duration::from_secs(1 << so_far.rounds);
    ///     (so_far.rounds < 3).then(|| so_far.deadline.unwrap_or(so_far.now) + seconds)
    /// });
    /// scheduler.handle().repeat("retry", doubling, |_| ())?;
    /// assert_eq!(scheduler.advance(Duration::from_secs(60)).len(), 3);
    /// assert!(!scheduler.handle().contains(&"retry"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule(next: impl FnMut(&SoFar) -> Option<Time> + Send + 'static) -> Self {
        Period::of(PeriodKind::Schedule(Box::new(next)))
    }

    /// Makes a period whose rounds are due at dates. `next` gets a time and returns the first date
    /// after it, or `None` if there is none.
    ///
    /// A round knows its date exactly: [`Round::scheduled_for`](super::Round::scheduled_for). The
    /// timer follows the wall clock. It reads the clock and asks `next` again at least once an hour,
    /// and whenever a round seems due, so a clock that was set, a suspended machine and changed
    /// rules move the round. The [guide](crate::guide::calendars) has a table of what happens then.
    ///
    /// - `next` runs without a lock, and should depend on nothing but its argument and the rules of
    ///   the calendar. It is asked once in [`Handle::repeat`](crate::Handle::repeat), which fails
    ///   with [`NoRound`](crate::ScheduleError::NoRound) if there is no date.
    /// - After `None`, or a date that is not after the time it was asked for, no round follows, and
    ///   the key is gone. If `next` panics, this counts as a panic of a round, and none follows.
    /// - [`missed`](Self::missed) and [`grace`](Self::grace) say what happens to dates that passed
    ///   before their rounds could run. Without a grace, the latest date that has passed is not
    ///   missed, and its round runs late.
    /// - A round that a call or the task moved, one by [`first`](Self::first) and one by
    ///   [`run_now`](crate::Handle::run_now) has no date. After a moved round, the next date after
    ///   its start follows.
    /// - Between two rounds the timer's deadline is its next look at the clock. Each look counts as
    ///   a run in the statistics, and is not logged as one by a stepped scheduler.
    /// - A leap second is no date: a date is what the system's clock shows.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{Period, Scheduler};
    ///
    /// const DAY: u64 = 86_400;
    /// /// Noon, by UTC.
    /// fn noon(after: SystemTime) -> Option<SystemTime> {
    ///     let seconds = after.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    ///     let days = (seconds + DAY / 2) / DAY;
    ///     Some(SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY + DAY / 2))
    /// }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// scheduler.handle().repeat("report", Period::calendar(noon), |round| {
    ///     let date = round.scheduled_for().expect("a round of the calendar");
    ///     assert!(noon(date - Duration::from_secs(1)) == Some(date));
    /// })?;
    /// assert_eq!(scheduler.advance(Duration::from_secs(3 * DAY)).len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cron", "date"))]
    pub fn calendar(next: impl FnMut(SystemTime) -> Option<SystemTime> + Send + 'static) -> Self {
        Period::of(PeriodKind::Calendar(Box::new(next)))
    }

    /// Sets when the first round is due, whatever the period. A delay counts from the call of
    /// [`Handle::repeat`](crate::Handle::repeat), and zero runs as soon as a worker is free.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let minute = Duration::from_secs(60);
    /// timers.repeat("poll", Period::fixed_rate(minute).first(Duration::ZERO), |_| ())?;
    /// assert_eq!(scheduler.settle().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first(mut self, when: impl Into<When>) -> Self {
        self.first = Some(when.into());
        self
    }

    /// Sets the first round to be due at a random time within one period after the call, or after
    /// [`first`](Self::first). So timers that were started together do not run together
    /// forever. The grid of a fixed rate begins there.
    ///
    /// [`Handle::repeat`](crate::Handle::repeat) refuses it for a schedule function and a calendar,
    /// which have no period.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Period;
    ///
    /// // A thousand of these do not run at one moment.
    /// let period = Period::fixed_rate(Duration::from_secs(60)).random_phase();
    /// ```
    #[doc(alias("jitter", "splay"))]
    pub fn random_phase(mut self) -> Self {
        self.random_phase = true;
        self
    }

    /// Moves each round at random, up to `most` earlier or later than the period asks for. A round
    /// that the task or a call moved is not affected. A fixed rate keeps its grid, so the
    /// deviations never add up.
    ///
    /// - For a fixed rate, more than half a period counts as half a period.
    /// - For a fixed delay, more than the delay counts as the delay.
    /// - Jitter makes no round due before the end of the round before, or before the call.
    /// - [`Handle::repeat`](crate::Handle::repeat) refuses it for a calendar.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Period;
    ///
    /// // Every 60 s, up to 5 s earlier or later.
    /// let period = Period::fixed_rate(Duration::from_secs(60)).jitter(Duration::from_secs(5));
    /// ```
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Sets what happens to rounds of a fixed rate or a calendar that were missed;
    /// [`Missed::Skip`] by default.
    ///
    /// [`Handle::repeat`](crate::Handle::repeat) refuses it for other periods, which miss no
    /// rounds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Missed, Period};
    ///
    /// let period = Period::fixed_rate(Duration::from_secs(60)).missed(Missed::AtMost(3));
    /// ```
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = Some(policy);
        self
    }

    /// Sets by how much a round of a fixed rate or a calendar may start late and is not missed yet.
    /// The default is one period: a round counts as missed once the next round is due as well. Less than two
    /// ticks of the scheduler count as two ticks, since every start may be late by one tick.
    ///
    /// A round that is late by less runs at once, under every [policy](Self::missed), also under
    /// [`Missed::Skip`]. So a shorter grace lets `Skip` skip more.
    ///
    /// [`Handle::repeat`](crate::Handle::repeat) refuses it for other periods, which miss no
    /// rounds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Period;
    ///
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let (second, start) = (Duration::from_secs(1), scheduler.now());
    /// // A round that starts 5 s late, or later, is missed, and skipped by default.
    /// let period = Period::fixed_rate(60 * second).grace(5 * second);
    /// scheduler.handle().repeat("report", period, |_| ())?;
    /// assert_eq!(scheduler.jump_to(start + 64 * second).len(), 1); // 4 s late
    /// assert_eq!(scheduler.jump_to(start + 125 * second).len(), 0); // 5 s late
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets what follows a round that panicked; [`AfterPanic::Continue`] by default.
    pub fn on_panic(mut self, policy: AfterPanic) -> Self {
        self.after_panic = policy;
        self
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Period");
        match &self.kind {
            PeriodKind::Rate(period) => text.field("fixed_rate", period),
            PeriodKind::Delay(delay) => text.field("fixed_delay", delay),
            PeriodKind::Schedule(_) => text.field("schedule", &format_args!("..")),
            PeriodKind::Calendar(_) => text.field("calendar", &format_args!("..")),
        };
        text.field("first", &self.first)
            .field("random_phase", &self.random_phase)
            .field("jitter", &self.jitter)
            .field("missed", &self.missed)
            .field("grace", &self.grace)
            .field("on_panic", &self.after_panic)
            .finish()
    }
}
