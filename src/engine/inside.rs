//! Which tasks the present thread is in: waiting for a run, or for the end of all runs, from inside
//! one of them would wait for itself.

use std::cell::RefCell;

use crate::shard::EntryId;
use crate::sync::thread_local;

/// A run, by stripe.
pub(super) type RunId = (u32, EntryId);

// Engines by their tags, and the run where it is known: a worker enters once for many.
thread_local! {
    static INSIDE: RefCell<Vec<(u32, Option<RunId>)>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, the thread is in a task of an engine.
pub(super) struct Inside {
    /// Not while the thread ends and its list is gone already.
    noted: bool,
}

impl Inside {
    /// In a task of the engine `tag`, whichever.
    pub(super) fn enter(tag: u32) -> Self {
        Self::enter_run(tag, None)
    }

    /// In this run, if it is known.
    pub(super) fn enter_run(tag: u32, run: Option<RunId>) -> Self {
        let noted = INSIDE.try_with(|inside| inside.borrow_mut().push((tag, run)));
        Inside {
            noted: noted.is_ok(),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.noted {
            INSIDE.with(|inside| inside.borrow_mut().pop());
        }
    }
}

/// Whether the thread is in a task of the engine `tag`, however deep.
pub(super) fn is_inside(tag: u32) -> bool {
    INSIDE
        .try_with(|inside| inside.borrow().iter().any(|(of, _)| *of == tag))
        .unwrap_or(false)
}

/// Whether the thread may be in this run: in a task of the engine `tag`, and not in another run.
pub(super) fn may_be_inside_run(tag: u32, run: RunId) -> bool {
    let look = INSIDE.try_with(|inside| {
        let may_be = |(of, known): &(u32, Option<RunId>)| {
            *of == tag && known.is_none_or(|known| known == run)
        };
        inside.borrow().iter().any(may_be)
    });
    look.unwrap_or(false)
}
