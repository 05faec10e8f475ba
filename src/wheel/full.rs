//! The refusal of a full wheel.

use std::fmt;

/// A value that a full wheel refused; see [`Wheel::try_insert`](super::Wheel::try_insert).
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{FullError, Tick, Wheel};
///
/// fn insert<T>(wheel: &mut Wheel<T>, value: T) -> Result<(), T> {
///     wheel.try_insert(Tick::new(1), value).map(drop).map_err(FullError::into_value)
/// }
/// assert_eq!(insert(&mut Wheel::new(), 'a'), Ok(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FullError<T>(pub(crate) T);

impl<T> FullError<T> {
    /// The value that was refused.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// if let Err(full) = wheel.try_insert(Tick::new(1), "value") {
    ///     println!("no room for {}", full.into_value());
    /// }
    /// ```
    #[must_use]
    pub fn into_value(self) -> T {
        self.0
    }

    /// Drops the value, and keeps the reason as an error, which can be passed on by `?` as
    /// `anyhow::Error` or `Box<dyn Error + Send + Sync>`, also if the value is not `Sync`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::error::Error;
    /// use tourbillon::wheel::{FullError, Tick, Wheel};
    ///
    /// fn insert(wheel: &mut Wheel<Cell<u8>>) -> Result<(), Box<dyn Error + Send + Sync>> {
    ///     wheel.try_insert(Tick::new(1), Cell::new(7)).map_err(FullError::into_reason)?;
    ///     Ok(())
    /// }
    /// assert!(insert(&mut Wheel::new()).is_ok());
    /// ```
    #[must_use]
    pub fn into_reason(self) -> FullError<()> {
        FullError(())
    }
}

impl<T> fmt::Debug for FullError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FullError(..)")
    }
}

impl<T> fmt::Display for FullError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wheel holds as many values as it has numbers for")
    }
}

impl<T> std::error::Error for FullError<T> {}
