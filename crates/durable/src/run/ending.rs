//! How handlers end.

use std::error::Error;
use std::time::Duration;

/// How a run has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ending {
    /// The timer is done, and is deleted.
    Done,
    /// The timer is to run again after this span, from the moment at which the store reads its
    /// clock. The next run has another [token](crate::Token) and starts with attempt 1. If the key
    /// was cancelled or scheduled anew during this run, that decides instead.
    Again(Duration),
}

/// An error of a handler.
pub(crate) type HandlerError = Box<dyn Error + Send + Sync>;

/// The results that a handler may return: `()`, [`Ending`], `Result<(), E>` or `Result<Ending, E>`,
/// where `E` is an error, or becomes one, such as a `String`.
pub trait IntoEnding {
    /// Returns the ending, or the error that the run failed with.
    ///
    /// # Errors
    ///
    /// The handler's own error.
    fn into_ending(self) -> Result<Ending, Box<dyn Error + Send + Sync>>;
}

impl IntoEnding for () {
    fn into_ending(self) -> Result<Ending, HandlerError> {
        Ok(Ending::Done)
    }
}

impl IntoEnding for Ending {
    fn into_ending(self) -> Result<Ending, HandlerError> {
        Ok(self)
    }
}

impl<E: Into<HandlerError>> IntoEnding for Result<(), E> {
    fn into_ending(self) -> Result<Ending, HandlerError> {
        self.map(|()| Ending::Done).map_err(Into::into)
    }
}

impl<E: Into<HandlerError>> IntoEnding for Result<Ending, E> {
    fn into_ending(self) -> Result<Ending, HandlerError> {
        self.map_err(Into::into)
    }
}
