//! User code that runs under a lock of the crate: which calls it must not make, and what is put off
//! until the lock is free.
//!
//! A thread knows by a flag of its own that it is in such code. A call of the crate that needs a
//! lock panics there, because it could wait for a lock that its own thread has. The drop of a guard
//! or a future must not panic, and must not get lost either. So its work is put off: the thread does
//! it as soon as it has released the lock, before it returns from the call that took it. That also
//! holds when a panic releases the lock.
//!
//! While the thread panics such a call must not panic either: from a panic hook, or from a drop
//! during unwinding, that would end the process. Its [`NoCalls`] is [inert](NoCalls::is_inert)
//! then, and the call gets a stripe that is empty, refuses everything and belongs to nobody.
//!
//! - **DEFER-1** What is put off runs without any lock of the crate. A [`NoCalls`] is dropped after
//!   the lock that it stands for, and a [`Barrier`] covers a lock that is held around others.
//! - **DEFER-2** It runs exactly once: whoever clears the flag looks at the list, and nothing is
//!   put off unless the flag is set.

use std::cell::{Cell, RefCell};
use std::mem::{ManuallyDrop, take};

use crate::job::contain;
use crate::sync::thread::panicking;
use crate::sync::thread_local;

/// User code runs under a lock.
const UNDER: u8 = 1;
/// A lock is held around the locks that come and go.
const BARRIER: u8 = 2;
/// Something is put off.
const WAITING: u8 = 4;

/// Work of a drop.
type Work = Box<dyn FnOnce()>;

thread_local! {
    static STATE: Cell<u8> = const { Cell::new(0) };
}

// Never dropped, so that it is there until the very end of the thread. It is empty then: its vector
// is taken out before the work is done.
thread_local! {
    static PUT_OFF: ManuallyDrop<RefCell<Vec<Work>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

fn state() -> u8 {
    STATE.with(Cell::get)
}

/// Whether this is user code under a lock, from which calls panic.
pub(crate) fn is_under_a_lock() -> bool {
    state() & UNDER != 0
}

/// While it lives, the thread is where user code must not call the scheduler: holding a stripe's
/// lock, or another one that a face has. It must outlive the lock.
pub(crate) struct NoCalls {
    inert: bool,
}

impl NoCalls {
    #[inline]
    pub(crate) fn begin() -> Self {
        let state = state();
        if state & UNDER != 0 {
            return Self::begin_inside();
        }
        STATE.with(|cell| cell.set(state | UNDER));
        NoCalls { inert: false }
    }

    /// A call from under a lock. The flag stays, until the lock that it stands for is released.
    #[cold]
    #[inline(never)]
    fn begin_inside() -> Self {
        refuse();
        NoCalls { inert: true }
    }

    /// Whether the thread has a lock already, and panics. Then it must take no other one.
    #[inline]
    pub(crate) fn is_inert(&self) -> bool {
        self.inert
    }
}

/// A call from under a lock: a panic, unless the thread panics already.
#[cold]
#[inline(never)]
pub(crate) fn refuse() {
    assert!(
        panicking(),
        "a key's `Eq` or `Clone`, a value's `Clone`, a group's `Eq`, or a closure that looks at \
         a value in its place called the scheduler or the map; they run under a lock and must \
         not"
    );
}

impl Drop for NoCalls {
    #[inline]
    fn drop(&mut self) {
        if self.inert {
            return;
        }
        let state = state() & !UNDER;
        STATE.with(|cell| cell.set(state));
        if state == WAITING {
            do_what_was_put_off();
        }
    }
}

/// While it lives, what is put off stays so, though stripes' locks are released. It must outlive the
/// lock that it stands for.
pub(crate) struct Barrier(());

impl Barrier {
    /// To be called from under no lock.
    pub(crate) fn begin() -> Self {
        let state = state();
        debug_assert!(state == 0, "STRIPE-1: one lock after the other");
        STATE.with(|cell| cell.set(state | BARRIER));
        Barrier(())
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        let state = state() & !BARRIER;
        STATE.with(|cell| cell.set(state));
        if state == WAITING {
            do_what_was_put_off();
        }
    }
}

/// Does the work of a drop: now, or when the thread has released its lock.
pub(crate) fn when_unlocked(work: impl FnOnce() + 'static) {
    if state() & (UNDER | BARRIER) == 0 {
        return work();
    }
    PUT_OFF.with(|list| list.borrow_mut().push(Box::new(work)));
    STATE.with(|cell| cell.set(cell.get() | WAITING));
}

/// The work may drop user code, which may take locks, and so put more off and come here again.
#[cold]
#[inline(never)]
fn do_what_was_put_off() {
    STATE.with(|cell| cell.set(cell.get() & !WAITING));
    let list = PUT_OFF.with(|list| take(&mut *list.borrow_mut()));
    for work in list {
        // The thread may be panicking already. And a panic of one must not keep the others back.
        let _ = contain(work);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// What was done, in its order.
    #[derive(Clone, Default)]
    struct Log(Rc<RefCell<Vec<(u32, u8)>>>);

    impl Log {
        fn note(&self, number: u32) {
            self.0.borrow_mut().push((number, state()));
        }

        fn put_off(&self, number: u32) {
            let log = self.clone();
            when_unlocked(move || log.note(number));
        }

        fn done(&self) -> Vec<(u32, u8)> {
            take(&mut *self.0.borrow_mut())
        }
    }

    #[test]
    fn work_waits_for_the_end_of_the_lock_and_is_done_once() {
        let log = Log::default();
        log.put_off(0);
        assert_eq!(log.done(), [(0, 0)], "there is no lock");
        let lock = NoCalls::begin();
        log.put_off(1);
        log.put_off(2);
        assert_eq!(log.done(), []);
        drop(lock);
        assert_eq!(log.done(), [(1, 0), (2, 0)]);
        drop(NoCalls::begin());
        assert_eq!(log.done(), []);
    }

    #[test]
    fn work_waits_for_the_lock_around_the_locks() {
        let log = Log::default();
        let around = Barrier::begin();
        for number in 0..2 {
            let lock = NoCalls::begin();
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
        let lock = NoCalls::begin();
        when_unlocked(|| panic!("on purpose"));
        let again = log.clone();
        when_unlocked(move || {
            let lock = NoCalls::begin();
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
        struct InUnwinding(Log);
        impl Drop for InUnwinding {
            fn drop(&mut self) {
                let lock = NoCalls::begin();
                assert!(lock.is_inert());
                drop(lock);
                assert!(is_under_a_lock());
                self.0.note(7);
            }
        }
        let log = Log::default();
        let panicked = contain(|| {
            let lock = NoCalls::begin();
            assert!(!lock.is_inert());
            let _in_unwinding = InUnwinding(log.clone());
            let _again = NoCalls::begin();
        });
        assert!(panicked.unwrap_err().contains("run under a lock"));
        assert_eq!((log.done(), state()), (vec![(7, UNDER)], 0));
    }

    #[test]
    fn work_is_done_while_the_thread_panics() {
        let log = Log::default();
        let panicked = contain(|| {
            let _lock = NoCalls::begin();
            log.put_off(0);
            when_unlocked(|| panic!("another one"));
            log.put_off(1);
            panic!("on purpose");
        });
        assert_eq!(panicked, Err::<(), _>("on purpose".to_owned()));
        assert_eq!(log.done(), [(0, 0), (1, 0)]);
    }
}
