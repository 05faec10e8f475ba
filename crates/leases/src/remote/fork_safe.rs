//! Values that forked copies of a process leave alone.

use crate::store::StoreError;
use crate::sync::Origin;

/// A value that is used and dropped only in the process that made it. A forked copy leaks the value:
/// the copy lacks the threads of the value, locks in it may stay locked forever, and its sockets are
/// those of the original.
pub(crate) struct ForkSafe<T> {
    /// `None` after the drop has begun.
    value: Option<T>,
    origin: Origin,
}

impl<T> ForkSafe<T> {
    pub(crate) fn new(value: T) -> Self {
        ForkSafe {
            value: Some(value),
            origin: Origin::here(),
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Returns the value.
    ///
    /// # Errors
    ///
    /// [`StoreError::Forked`] in a forked copy.
    pub(crate) fn get(&self) -> Result<&T, StoreError> {
        match &self.value {
            Some(value) if !self.is_forked() => Ok(value),
            _ => Err(StoreError::Forked),
        }
    }

    /// Returns the value, to be changed.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, StoreError> {
        match &mut self.value {
            Some(value) if !self.origin.is_elsewhere() => Ok(value),
            _ => Err(StoreError::Forked),
        }
    }
}

impl<T> Drop for ForkSafe<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.value.take());
        }
    }
}
