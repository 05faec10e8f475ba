//! The refusal of a full wheel.

use std::fmt;

/// A value that a full wheel refused; see [`Wheel::try_insert`](super::Wheel::try_insert).
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Full, Tick, Wheel};
///
/// fn insert<T>(wheel: &mut Wheel<T>, value: T) -> Result<(), T> {
///     wheel.try_insert(Tick::new(1), value).map(drop).map_err(Full::into_value)
/// }
/// assert_eq!(insert(&mut Wheel::new(), 'a'), Ok(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub(super) T);

impl<T> Full<T> {
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
}

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wheel holds as many values as it has numbers for")
    }
}

impl<T> std::error::Error for Full<T> {}
