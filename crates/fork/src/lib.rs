#![doc = include_str!("../README.md")]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many forks with this crate's handler lie between this process and the first one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Whether the handler is registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// The bit of a thread's [`word`] that says: ask [`is_copy`] before you rely on anything.
pub const UNCHECKED: u32 = 1;

std::thread_local! {
    // Without a destructor and with a constant first value, so that the handler may use it.
    static WORD: Cell<u32> = const { Cell::new(UNCHECKED) };
}

/// The process in which the first of this library's crates has opened its first SQLite file.
///
/// SQLite keeps a list of open files, their locks, and mutexes. A forked copy has the list, without
/// the locks that it tells of: connections of the copy would count on locks that nobody holds, and
/// could destroy the file. Nothing can be closed in the copy either, and a mutex may be locked
/// forever.
#[doc(hidden)]
pub static SQLITE: OnceLock<Origin> = OnceLock::new();

/// The process in which a value was made.
///
/// # Examples
///
/// ```
/// use tourbillon_fork::Origin;
///
/// let origin = Origin::here();
/// assert!(!origin.is_elsewhere());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(u32);

impl Origin {
    /// Returns the calling process, whose copies are noticed from now on.
    ///
    /// If the system has no memory for the handler, the next call tries again.
    #[must_use]
    pub fn here() -> Self {
        register();
        Origin(generation())
    }

    /// Returns whether the calling process is a forked copy of this one, or a copy of a copy.
    ///
    /// # Complexity
    ///
    /// Two reads of memory.
    #[inline(always)]
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        generation() != self.0
    }

    /// Returns how many forks lie between this process and the calling one.
    #[must_use]
    pub fn forks_since(self) -> u32 {
        generation().wrapping_sub(self.0)
    }
}

/// Returns whether this process is a forked copy of one that had an [`Origin`].
///
/// # Examples
///
/// ```
/// assert!(!tourbillon_fork::is_copy());
/// ```
#[inline(always)]
#[must_use]
pub fn is_copy() -> bool {
    generation() != 0
}

/// Returns how many forks lie between this process and the first one that had an [`Origin`].
///
/// # Examples
///
/// ```
/// assert_eq!(tourbillon_fork::forks(), 0);
/// ```
#[inline(always)]
#[must_use]
pub fn forks() -> u32 {
    generation()
}

/// Returns the word of the calling thread: 32 bits for a caller that reads such a word at each of
/// its calls anyway, and so notices a fork for nothing.
///
/// A thread starts with the bit [`UNCHECKED`], and the thread that forks gets it again in the copy.
/// Its other bits belong to the caller, who may also clear that bit.
///
/// # Examples
///
/// ```
/// use tourbillon_fork::{UNCHECKED, is_copy, set_word, word};
///
/// assert_eq!(word(), UNCHECKED);
/// if !is_copy() {
///     set_word(0); // until this thread forks, and then only in the copy
/// }
/// assert_eq!(word(), 0);
/// ```
#[inline(always)]
#[must_use]
pub fn word() -> u32 {
    WORD.with(Cell::get)
}

/// Changes the [`word`] of the calling thread.
#[inline(always)]
pub fn set_word(word: u32) {
    WORD.with(|cell| cell.set(word));
}

#[inline(always)]
fn generation() -> u32 {
    // Relaxed: it changes only in the handler, while the process has one thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Registers the handler, unless it is registered. Two threads may register it at the same time.
/// Then each fork counts twice, which makes no difference. A thread never returns from here before
/// the handler is there, and never waits for another thread, which may be missing in a copy.
#[cfg(unix)]
fn register() {
    extern "C" fn in_copy() {
        // Relaxed: the process has one thread.
        GENERATION.fetch_add(1, Ordering::Relaxed);
        WORD.with(|cell| cell.set(cell.get() | UNCHECKED));
    }
    // Acquire pairs with the Release below: the handler was registered before.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handler is async-signal-safe, as a copy of a process with threads requires:
        // it adds to an atomic and changes a thread-local that needs no initialisation. It takes
        // no lock and allocates nothing.
        #[allow(unsafe_code, reason = "the one line that this crate exists for")]
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_copy)) };
        // Release pairs with the Acquire above.
        REGISTERED.store(failed == 0, Ordering::Release);
    }
}

#[cfg(not(unix))]
fn register() {
    // Relaxed: nobody asks.
    REGISTERED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_starts_unchecked_and_keeps_its_word() {
        let words = || {
            let first = word();
            set_word(6);
            (first, word())
        };
        for _ in 0..2 {
            assert_eq!(std::thread::spawn(words).join().unwrap(), (UNCHECKED, 6));
        }
    }

    #[test]
    fn this_process_is_no_copy() {
        let origin = Origin::here();
        assert_eq!(origin, Origin::here());
        assert_eq!((origin.is_elsewhere(), origin.forks_since()), (false, 0));
        assert!(!is_copy());
    }
}
