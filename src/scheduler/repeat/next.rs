//! The answer of a round.

use std::time::Duration;

use crate::tick::Time;

/// The answer of a round: what follows it.
///
/// The answer counts only if no call decided otherwise during the round:
///
/// - After a `cancel` or at shutdown no round follows.
/// - A `reschedule` or `pull_in` that answered *moved* sets when the next round is due.
/// - A timer that was armed for the key replaces the repetition.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Next, Period, Scheduler};
///
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// let second = Duration::from_secs(1);
/// timers.repeat("poll", Period::fixed_delay(second), |round| match round.number() {
///     1 => Next::Again,
///     2 => Next::After(Duration::from_secs(30)),
///     _ => Next::Stop,
/// })?;
/// assert_eq!(scheduler.advance(Duration::from_secs(60)).len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "it says nothing unless the task returns it"]
pub enum Next {
    /// The next round follows when the period says.
    Again,
    /// The next round follows this long after the end of the present one; zero means at once. The
    /// grid of a fixed rate begins anew there.
    After(Duration),
    /// The next round follows at this time of the scheduler's clock; a time in the past means at
    /// once. The grid of a fixed rate begins anew there.
    At(Time),
    /// No further round follows. The key is gone, unless a move was answered during the round.
    Stop,
}

/// What a repeating task may return: [`Next`], or `()` for [`Next::Again`], or a custom type.
///
/// # Examples
///
/// ```
/// use tourbillon::{IntoNext, Next};
///
/// enum Poll { Pending, Done }
///
/// impl IntoNext for Poll {
///     fn into_next(self) -> Next {
///         match self {
///             Poll::Pending => Next::Again,
///             Poll::Done => Next::Stop,
///         }
///     }
/// }
/// assert_eq!(Poll::Pending.into_next(), ().into_next());
/// assert_eq!(Poll::Done.into_next(), Next::Stop);
/// ```
pub trait IntoNext {
    /// Returns what follows the round. A panic in here counts as a panic of the round.
    fn into_next(self) -> Next;
}

impl IntoNext for Next {
    fn into_next(self) -> Next {
        self
    }
}

impl IntoNext for () {
    fn into_next(self) -> Next {
        Next::Again
    }
}
