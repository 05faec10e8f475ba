//! Guards for user code that runs under a lock of the crate: which calls it must not make, and
//! which work is deferred until the lock is free.
//!
//! A thread-local flag is set while the thread runs such code. A call of the crate that needs a
//! lock panics then, because it could wait for a lock that its own thread holds.
//!
//! The drop of a guard or a future must not panic, and its work must not get lost either. So that
//! work is deferred. The thread runs it as soon as it has released the lock, before it returns from
//! the call that took it. That also holds when a panic releases the lock.
//!
//! While the thread panics, such a call must not panic either: in a panic hook, or in a drop during
//! unwinding, a second panic would abort the process. Then its [`ReentrancyGuard`] is
//! [inert](ReentrancyGuard::is_inert), and the call gets a stripe that is empty, belongs to no
//! shard and refuses everything.
//!
//! The flag is in the word of the thread that a fork changes ([`UNCHECKED`]). A thread clears that
//! bit at its first call, and in a forked copy it stays set. So the comparison with 0 at the
//! beginning of each call also tells whether the process may be a copy, and only then the call asks
//! whether its engine is of before the fork. **FORK-1** In a copy, no lock of an engine of before
//! the fork is taken: its calls get an inert guard and a stripe that refuses everything.
//!
//! - **DEFER-1** Deferred work runs while the thread holds no lock of the crate. A
//!   [`ReentrancyGuard`] is dropped after its lock, and a [`Barrier`] covers a lock that is held
//!   around other locks.
//! - **DEFER-2** Deferred work runs exactly once. The thread checks the list whenever it clears the
//!   flag, and work is deferred only while the flag is set.

use std::cell::RefCell;
use std::mem::{ManuallyDrop, take};

use crate::job::catch_panic;
use crate::sync::fork::{UNCHECKED, is_copy, set_word, word};
use crate::sync::thread::panicking;
use crate::sync::thread_local;

/// User code runs under a lock.
const UNDER: u32 = 2;
/// A lock is held around locks that are taken and released.
const BARRIER: u32 = 4;
/// Work is deferred.
const WAITING: u32 = 8;
/// The state counts the inert guards of the thread in steps of this.
const INERT: u32 = 16;

const _: () = assert!(UNCHECKED < UNDER, "the bits of the word differ");

/// The deferred work of a drop.
type DeferredDrop = Box<dyn FnOnce()>;

// The list is never dropped, so that it exists until the very end of the thread. It is empty then,
// because its vector is taken out before the work runs.
thread_local! {
    static DEFERRED: ManuallyDrop<RefCell<Vec<DeferredDrop>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// The state of the thread: the bits from above, and [`UNCHECKED`].
#[inline(always)]
fn state() -> u32 {
    word()
}

/// Returns whether the thread is in user code under a lock, where calls panic.
#[inline]
pub(crate) fn is_under_lock() -> bool {
    state() & UNDER != 0
}

/// Marks the thread as holding a lock under which user code must not call the scheduler: a stripe's
/// lock, or a lock of a front end. It must outlive the lock.
///
/// Whether it is inert is in the state of the thread and not in the guard, so that the guard takes
/// no register in a call.
pub(crate) struct ReentrancyGuard(());

impl ReentrancyGuard {
    #[inline(always)]
    pub(crate) fn begin() -> Self {
        Self::begin_free().unwrap_or_else(Self::begin_inside)
    }

    /// Begins a guard that is not inert, unless the thread is in user code under a lock. Then
    /// [`begin`](Self::begin) handles the call.
    #[inline(always)]
    pub(crate) fn begin_free() -> Option<Self> {
        Self::begin_alone().or_else(Self::begin_beside)
    }

    /// Begins a guard if nothing is set. Nearly all calls begin so, and one comparison with memory
    /// is all that they need.
    #[inline(always)]
    pub(crate) fn begin_alone() -> Option<Self> {
        Self::may_begin_alone().then(Self::begin_allowed)
    }

    /// Returns whether nothing is set, so that [`begin_allowed`](Self::begin_allowed) may follow.
    #[inline(always)]
    pub(crate) fn may_begin_alone() -> bool {
        state() == 0
    }

    #[inline(always)]
    pub(crate) fn begin_allowed() -> Self {
        set_word(UNDER);
        ReentrancyGuard(())
    }

    /// Begins a guard where something is set, perhaps only a [`Barrier`].
    #[cold]
    #[inline(never)]
    fn begin_beside() -> Option<Self> {
        let mut state = state();
        if state & UNCHECKED != 0 && !is_copy() {
            state &= !UNCHECKED;
            set_word(state);
        }
        if state & UNDER != 0 {
            return None;
        }
        set_word(state | UNDER);
        Some(ReentrancyGuard(()))
    }

    /// Begins an inert guard for a call on an engine that belongs to the original of this process.
    pub(crate) fn begin_forked() -> Self {
        set_word(state() + INERT);
        ReentrancyGuard(())
    }

    /// Handles a call from under a lock. The flag stays set until the lock that set it is released.
    #[cold]
    #[inline(never)]
    fn begin_inside() -> Self {
        refuse();
        set_word(state() + INERT);
        ReentrancyGuard(())
    }

    /// Returns whether the thread holds a lock already and is panicking, or whether the engine
    /// belongs to the original of this process. Then it must take no other lock. Only for the guard
    /// that began last: guards end in reverse order.
    #[inline(always)]
    pub(crate) fn is_inert(&self) -> bool {
        state() >= INERT
    }

    /// Ends a guard that is inert, is inside of a [`Barrier`], or after which work waits.
    #[inline(never)]
    fn end_otherwise() {
        let state = state();
        if state >= INERT {
            set_word(state - INERT);
            return;
        }
        let state = state & !UNDER;
        set_word(state);
        if state & !UNCHECKED == WAITING {
            run_deferred_drops();
        }
    }
}

impl Drop for ReentrancyGuard {
    #[inline(always)]
    fn drop(&mut self) {
        if state() == UNDER {
            set_word(0);
        } else {
            Self::end_otherwise();
        }
    }
}

/// A call from under a lock: a panic, unless the thread panics already.
#[cold]
#[inline(never)]
pub(crate) fn refuse() {
    assert!(
        panicking(),
        "a key's `Eq` or `Clone`, a value's `Clone`, a group's `Eq`, or a closure that gets \
         a value in its place called the scheduler or the map. They run under a lock and must \
         not"
    );
}

/// Keeps work deferred while stripes' locks are released and taken again. It must outlive the lock
/// that it stands for.
pub(crate) struct Barrier(());

impl Barrier {
    /// Starts to defer work. The thread must hold no lock.
    pub(crate) fn begin() -> Self {
        let state = state();
        debug_assert!(
            state & !UNCHECKED == 0,
            "STRIPE-1: one lock after the other"
        );
        set_word(state | BARRIER);
        Barrier(())
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        let state = state() & !BARRIER;
        set_word(state);
        if state & !UNCHECKED == WAITING {
            run_deferred_drops();
        }
    }
}

/// Runs the work of a drop now, or as soon as the thread has released its lock.
pub(crate) fn when_unlocked(work: impl FnOnce() + 'static) {
    if state() & (UNDER | BARRIER) == 0 {
        return work();
    }
    DEFERRED.with(|list| list.borrow_mut().push(Box::new(work)));
    set_word(state() | WAITING);
}

/// Runs the deferred work. The work may drop user code that takes locks, defers more work and gets
/// here again.
#[cold]
#[inline(never)]
fn run_deferred_drops() {
    // Before the work runs: work that is deferred meanwhile sets the bit again.
    set_word(state() & !WAITING);
    let list = DEFERRED.with(|list| take(&mut *list.borrow_mut()));
    for work in list {
        // The thread may be panicking already, and one panic must not keep the remaining work from
        // running.
        let _ = catch_panic(work);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Work that ran, in order, with the state of the flags.
    #[derive(Clone, Default)]
    struct Log(Rc<RefCell<Vec<(u32, u32)>>>);

    impl Log {
        fn note(&self, number: u32) {
            self.0.borrow_mut().push((number, state() & !UNCHECKED));
        }

        fn put_off(&self, number: u32) {
            let log = self.clone();
            when_unlocked(move || log.note(number));
        }

        fn done(&self) -> Vec<(u32, u32)> {
            take(&mut *self.0.borrow_mut())
        }
    }

    #[test]
    fn work_waits_for_the_end_of_the_lock_and_is_done_once() {
        let log = Log::default();
        log.put_off(0);
        assert_eq!(log.done(), [(0, 0)], "no lock is held");
        let lock = ReentrancyGuard::begin();
        log.put_off(1);
        log.put_off(2);
        assert_eq!(log.done(), []);
        drop(lock);
        assert_eq!(log.done(), [(1, 0), (2, 0)]);
        drop(ReentrancyGuard::begin());
        assert_eq!(log.done(), []);
    }

    #[test]
    fn work_waits_for_the_lock_around_the_locks() {
        let log = Log::default();
        let around = Barrier::begin();
        for number in 0..2 {
            let lock = ReentrancyGuard::begin();
            log.put_off(number);
            drop(lock);
            assert_eq!(log.done(), []);
        }
        drop(around);
        assert_eq!(log.done(), [(0, 0), (1, 0)]);
        assert_eq!(state(), 0);
    }

    #[test]
    fn work_that_panics_or_puts_more_off_keeps_nothing_back() {
        let log = Log::default();
        let lock = ReentrancyGuard::begin();
        when_unlocked(|| panic!("on purpose"));
        let again = log.clone();
        when_unlocked(move || {
            let lock = ReentrancyGuard::begin();
            again.put_off(1);
            again.note(0);
            drop(lock);
        });
        log.put_off(2);
        drop(lock);
        assert_eq!(log.done(), [(0, UNDER | WAITING), (1, 0), (2, 0)]);
        assert_eq!(state(), 0);
    }

    #[test]
    fn a_call_from_under_a_lock_panics_unless_the_thread_does_already() {
        struct CallInUnwinding(Log);
        impl Drop for CallInUnwinding {
            fn drop(&mut self) {
                let lock = ReentrancyGuard::begin();
                assert!(lock.is_inert());
                drop(lock);
                assert!(is_under_lock());
                self.0.note(7);
            }
        }
        let log = Log::default();
        let panicked = catch_panic(|| {
            let lock = ReentrancyGuard::begin();
            assert!(!lock.is_inert());
            let _in_unwinding = CallInUnwinding(log.clone());
            let _again = ReentrancyGuard::begin();
        });
        assert!(panicked.unwrap_err().contains("run under a lock"));
        assert_eq!((log.done(), state()), (vec![(7, UNDER)], 0));
    }

    #[test]
    fn work_is_done_while_the_thread_panics() {
        let log = Log::default();
        let panicked = catch_panic(|| {
            let _lock = ReentrancyGuard::begin();
            log.put_off(0);
            when_unlocked(|| panic!("another one"));
            log.put_off(1);
            panic!("on purpose");
        });
        assert_eq!(panicked, Err::<(), _>("on purpose".to_owned()));
        assert_eq!(log.done(), [(0, 0), (1, 0)]);
    }
}
