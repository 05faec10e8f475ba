//! Which engines' tasks the present thread is in: waiting for a run, or for the end of all runs,
//! from inside one of them would wait for itself.

use std::cell::RefCell;

use crate::sync::thread_local;

thread_local! {
    static INSIDE: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, the thread is in a task of the engine `tag`.
pub(super) struct Inside(());

impl Inside {
    pub(super) fn enter(tag: u32) -> Self {
        INSIDE.with(|inside| inside.borrow_mut().push(tag));
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.borrow_mut().pop());
    }
}

/// Whether the thread is in a task of the engine `tag`, however deep.
pub(super) fn is_inside(tag: u32) -> bool {
    INSIDE.with(|inside| inside.borrow().contains(&tag))
}
