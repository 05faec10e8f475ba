//! What is asked for: when rounds are due, and what becomes of those that are late or panic.

use std::fmt;
use std::time::Duration;

use super::missed::Missed;
use crate::tick::Time;

/// When the rounds of a repeating timer are due; see [`Handle::repeat`](crate::Handle::repeat).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{AfterPanic, Missed, Period};
///
/// let minute = Duration::from_secs(60);
/// let period = Period::fixed_rate(minute)
///     .first_after(Duration::ZERO)
///     .jitter(Duration::from_secs(2))
///     .missed(Missed::Once)
///     .grace(Duration::from_secs(5))
///     .on_panic(AfterPanic::BackOff { first: minute, most: 60 * minute });
/// # drop(period);
/// ```
#[must_use = "a period does nothing until it is given to `Handle::repeat`"]
pub struct Period {
    pub(super) kind: Kind,
    pub(super) first: Option<Duration>,
    pub(super) random_phase: bool,
    pub(super) jitter: Duration,
    pub(super) missed: Missed,
    pub(super) grace: Option<Duration>,
    pub(super) after_panic: AfterPanic,
}

pub(super) type Schedule = Box<dyn FnMut(&SoFar) -> Option<Time> + Send>;

pub(super) enum Kind {
    Rate(Duration),
    Delay(Duration),
    Schedule(Schedule),
}

/// What a [schedule function](Period::schedule) goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SoFar {
    /// How many rounds have run.
    pub rounds: u64,
    /// When the last one was due; `None` when asked for the first one.
    pub deadline: Option<Time>,
    /// The present: the end of the last round.
    pub now: Time,
}

/// What follows a round that panicked. The panic is caught and counted in any case, and
/// [`Builder::on_panic`](crate::Builder::on_panic) is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AfterPanic {
    /// The next round, as if it had answered [`Next::Again`](super::Next::Again).
    #[default]
    Continue,
    /// No further round: the key is gone, unless a move was answered meanwhile.
    Stop,
    /// The next round comes no earlier than after `first`, counted from the end of the one that
    /// panicked; after each further one in a row twice as much, up to `most`. A fixed rate stays on
    /// its grid, and what is left out by this does not count as missed. A round that does not panic
    /// ends it.
    BackOff {
        /// After the first panic.
        first: Duration,
        /// Never longer than this.
        most: Duration,
    },
}

impl Period {
    fn of(kind: Kind) -> Self {
        Period {
            kind,
            first: None,
            random_phase: false,
            jitter: Duration::ZERO,
            missed: Missed::default(),
            grace: None,
            after_panic: AfterPanic::default(),
        }
    }

    /// Rounds on a grid: each is due one period after the point of the one before, however long
    /// that took to start and to run. So there is no drift. The first is due one period from the
    /// call.
    ///
    /// A period of zero is refused by [`Handle::repeat`](crate::Handle::repeat).
    pub fn fixed_rate(period: Duration) -> Self {
        Period::of(Kind::Rate(period))
    }

    /// Each round is due so long after the end of the one before; the first, so long after the
    /// call. There is no grid, so nothing is ever missed: a round that is late runs late.
    ///
    /// A delay of zero is refused by [`Handle::repeat`](crate::Handle::repeat).
    pub fn fixed_delay(delay: Duration) -> Self {
        Period::of(Kind::Delay(delay))
    }

    /// Each round is due when `next` says; after `None` there is none, and the key is gone. It is
    /// called once in [`Handle::repeat`](crate::Handle::repeat) (unless
    /// [`first_after`](Self::first_after) says when the first round is due) and after each round
    /// that answers [`Next::Again`](super::Next::Again) or panics and goes on, without a lock, on
    /// the thread that ran it.
    ///
    /// A time that has passed is due at once. Nothing is ever missed: the function sees the present
    /// and may leave out what it likes. If it panics, the round counts as panicked and there is no
    /// further one. What was answered to a `reschedule` during the round holds in any case.
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
        Period::of(Kind::Schedule(Box::new(next)))
    }

    /// The first round is due so long after the call, whatever the period. Zero runs as soon as a
    /// worker is free.
    pub fn first_after(mut self, delay: Duration) -> Self {
        self.first = Some(delay);
        self
    }

    /// The first round is due at a random moment within one period from the call, or from
    /// [`first_after`](Self::first_after): what was started together does not beat together for
    /// ever. A fixed rate's grid begins there. Means nothing for a schedule function.
    pub fn random_phase(mut self) -> Self {
        self.random_phase = true;
        self
    }

    /// Each round that the period asks for is due up to `most` earlier or later, at random, than it
    /// would be otherwise; one that the task or somebody else moved is not. A fixed
    /// rate keeps its grid: this never adds up. More than half a period of a fixed rate counts as
    /// half a period, more than the delay of a fixed delay as the delay, and jitter makes no round
    /// due before the end of the one before it, or before the call.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// What becomes of rounds of a fixed rate that were missed; [`Missed::Skip`] by default.
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    /// A round of a fixed rate that starts late by less than this is not missed; one period by
    /// default, so that a round is missed when the next one is due, too. Less than two ticks of the
    /// scheduler count as two ticks: by as much as one every start is late.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// What follows a round that panicked; [`AfterPanic::Continue`] by default.
    pub fn on_panic(mut self, policy: AfterPanic) -> Self {
        self.after_panic = policy;
        self
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Period");
        match &self.kind {
            Kind::Rate(period) => text.field("fixed_rate", period),
            Kind::Delay(delay) => text.field("fixed_delay", delay),
            Kind::Schedule(_) => text.field("schedule", &format_args!("..")),
        };
        text.field("first_after", &self.first)
            .field("random_phase", &self.random_phase)
            .field("jitter", &self.jitter)
            .field("missed", &self.missed)
            .field("grace", &self.grace)
            .field("on_panic", &self.after_panic)
            .finish()
    }
}
