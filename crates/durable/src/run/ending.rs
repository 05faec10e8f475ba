//! How handlers end.

use std::error::Error;
use std::time::Duration;

/// How a run has succeeded.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, Ending, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .handle("clean-up", |_: &Due<()>| {
///         // .. delete what is old ..
///         Ending::Again(Duration::from_secs(3_600))
///     })
///     .start()?;
/// // At most one of them, however many processes start.
/// timers.schedule_if_absent("clean-up", "all", Duration::ZERO, &()).wait()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias("cron", "recurring", "repeat", "periodic"))]
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
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Due, Durable, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new())
///     .handle("log", |due: &Due<u64>| println!("{}", due.payload()))
///     .handle("mail", |due: &Due<String>| match due.payload().contains('@') {
///         true => Ok(()),
///         false => Err(format!("{} is no address", due.payload())),
///     })
///     .start()?;
/// # drop(timers);
/// # Ok(())
/// # }
/// ```
pub trait IntoEnding {
    /// Returns the ending, or the error that the run failed with.
    ///
    /// # Errors
    ///
    /// The handler's own error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::error::Error;
    /// use std::time::Duration;
    /// use tourbillon_durable::{Ending, IntoEnding};
    ///
    /// /// What a poll of a server says.
    /// enum Polled {
    ///     Ready,
    ///     NotYet,
    ///     Gone(String),
    /// }
    ///
    /// impl IntoEnding for Polled {
    ///     fn into_ending(self) -> Result<Ending, Box<dyn Error + Send + Sync>> {
    ///         match self {
    ///             Polled::Ready => Ok(Ending::Done),
    ///             Polled::NotYet => Ok(Ending::Again(Duration::from_secs(60))),
    ///             Polled::Gone(why) => Err(why.into()),
    ///         }
    ///     }
    /// }
    /// assert_eq!(Polled::Ready.into_ending().unwrap(), Ending::Done);
    /// # let _ = (Polled::NotYet, Polled::Gone(String::new()));
    /// ```
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
