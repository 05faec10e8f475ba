//! Calls from user code that runs under a lock, for crates that build on this one.
//!
//! Some user code runs while the calling thread holds a lock of a map or a scheduler:
//!
//! - `Eq` and `Clone` of a key, `Clone` of a value, and `Eq` of a group,
//! - closures that get a value in its place, such as that of [`ExpiryMap::update`].
//!
//! This code must not call a map or a scheduler, because the thread could wait for a lock that it
//! holds itself. Calls of this crate panic there. The drops of this crate's types defer their work
//! until the lock is released.
//!
//! A type of another crate that calls this one can be a part of a key or a value, too. Then its
//! methods and its drop may run under such a lock, and should use this module:
//!
//! - A method calls [`check`] before it changes anything.
//! - A drop passes its calls of maps and schedulers to [`when_unlocked`].
//!
//! [`ExpiryMap::update`]: crate::ExpiryMap::update
//!
//! # Examples
//!
//! A session that is a value of a map, and cancels its timer when it is dropped:
//!
//! ```
//! use tourbillon::reentrancy::{self, when_unlocked};
//! use tourbillon::{Handle, Scheduler};
//!
//! struct Session {
//!     id: u64,
//!     timers: Handle<u64>,
//! }
//!
//! impl Session {
//!     fn end_now(&self) -> Result<(), reentrancy::UnderLockError> {
//!         reentrancy::check()?;
//!         self.timers.cancel(&self.id);
//!         Ok(())
//!     }
//! }
//!
//! impl Drop for Session {
//!     fn drop(&mut self) {
//!         let (id, timers) = (self.id, self.timers.clone());
//!         when_unlocked(move || {
//!             timers.cancel(&id);
//!         });
//!     }
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scheduler = Scheduler::<u64>::builder().build()?;
//! # let session = Session { id: 7, timers: scheduler.handle() };
//! # session.end_now()?;
//! # Ok(())
//! # }
//! ```

use std::fmt;

use crate::error::UNDER_LOCK;
use crate::shard;

/// Returns whether the calling thread holds a lock of a map or a scheduler. If so, calls to any of
/// them panic.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::reentrancy::is_under_lock;
/// use tourbillon::ExpiryMap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = ExpiryMap::<u64, String>::builder()
///     .time_to_live(Duration::from_secs(60))
///     .build(|_, _| ())?;
/// sessions.insert(7, "Ada".to_owned())?;
/// assert_eq!(sessions.update(&7, |_| is_under_lock()), Some(true));
/// assert!(!is_under_lock());
/// # Ok(())
/// # }
/// ```
#[inline]
#[must_use]
pub fn is_under_lock() -> bool {
    shard::is_under_lock()
}

/// Checks that the calling thread may call a map or a scheduler.
///
/// # Errors
///
/// Returns [`UnderLockError`] if the thread holds such a lock and is panicking. That happens in
/// panic hooks and in drops; see [panic hooks](crate#panic-hooks). A second panic would end the
/// process there, so the caller must go on without the call.
///
/// # Panics
///
/// Panics if the thread holds such a lock and is not panicking yet. The message names the user code
/// that may have called.
///
/// # Examples
///
/// ```
/// use tourbillon::reentrancy::{UnderLockError, check};
///
/// fn acquire() -> Result<(), UnderLockError> {
///     check()?; // before anything is changed
///     // .. calls of a map ..
///     Ok(())
/// }
/// acquire()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline]
pub fn check() -> Result<(), UnderLockError> {
    if shard::is_under_lock() {
        shard::refuse();
        return Err(UnderLockError(()));
    }
    Ok(())
}

/// Runs `work` at once, or, if the calling thread has a lock of a map or a scheduler, as soon as
/// the thread has released it: before it returns from the call that took the lock, also if a panic
/// releases it.
///
/// A panic of work that was put off is caught, and the panic hook has told of it.
///
/// # Examples
///
/// ```
/// use std::rc::Rc;
/// use tourbillon::reentrancy::when_unlocked;
///
/// let done = Rc::new(std::cell::Cell::new(false));
/// let clone = Rc::clone(&done);
/// when_unlocked(move || clone.set(true));
/// assert!(done.get()); // this thread has no lock
/// ```
pub fn when_unlocked(work: impl FnOnce() + 'static) {
    shard::when_unlocked(work);
}

/// The calling thread panics while it has a lock of a map or a scheduler; see [`check`].
///
/// # Examples
///
/// ```
/// use tourbillon::reentrancy::{UnderLockError, check};
///
/// let checked: Result<(), UnderLockError> = check();
/// assert_eq!(checked, Ok(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnderLockError(pub(crate) ());

impl fmt::Display for UnderLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(UNDER_LOCK)
    }
}

impl std::error::Error for UnderLockError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::catch_panic;
    use crate::shard::ReentrancyGuard;
    use crate::sync::Arc;
    use crate::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_check_fails_under_a_lock_and_panics_only_if_nothing_else_does() {
        struct CheckInUnwinding(Arc<AtomicUsize>);
        impl Drop for CheckInUnwinding {
            fn drop(&mut self) {
                let refused = check().unwrap_err();
                assert!(refused.to_string().contains("holds a lock"));
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert_eq!(check(), Ok(()));
        assert!(!is_under_lock());
        let seen = Arc::new(AtomicUsize::new(0));
        let panicked = catch_panic(|| {
            let _lock = ReentrancyGuard::begin();
            assert!(is_under_lock());
            let _in_unwinding = CheckInUnwinding(Arc::clone(&seen));
            let _ = check();
        });
        assert!(panicked.unwrap_err().contains("run under a lock"));
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn work_waits_until_the_lock_is_free() {
        let done = Arc::new(AtomicUsize::new(0));
        let work = || {
            let done = Arc::clone(&done);
            move || {
                assert!(!is_under_lock());
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        when_unlocked(work());
        assert_eq!(done.load(Ordering::Relaxed), 1);
        let lock = ReentrancyGuard::begin();
        when_unlocked(work());
        assert_eq!(done.load(Ordering::Relaxed), 1);
        drop(lock);
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}
