//! What a round answers.

use std::time::Duration;

use crate::tick::Time;

/// What a round answers: what comes after it.
///
/// It counts only if nobody decided otherwise during the round: after a `cancel` or at shutdown no
/// round follows, a `reschedule` or `pull_in` that answered *moved* says when the next one is due,
/// and a timer that was armed for the key takes the place of the repetition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "it says nothing unless the task returns it"]
pub enum Next {
    /// The next round, when the period says.
    Again,
    /// The next round so long after the end of this one; zero is at once. A fixed rate's grid
    /// begins anew there.
    After(Duration),
    /// The next round at this moment of the scheduler's clock; one that has passed is at once. A
    /// fixed rate's grid begins anew there.
    At(Time),
    /// No further round: the key is gone, unless a move was answered meanwhile.
    Stop,
}

/// What a repeating task may return: [`Next`], or `()` for [`Next::Again`], or a type of your own.
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
    /// What comes after the round. A panic in here is a panic of the round.
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
