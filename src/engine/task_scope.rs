//! Records which tasks the current thread is in. A task that waited for its own run, or for the end
//! of all runs, would wait for itself; this detects it.

use std::cell::RefCell;

use crate::shard::EntryId;
use crate::sync::thread_local;

/// The stripe and the id of a run.
pub(super) type RunId = (u32, EntryId);

// Each element is an engine's tag, and the run if it is known. A worker enters once for many runs
// and does not name one.
thread_local! {
    static INSIDE: RefCell<Vec<(u32, Option<RunId>)>> = const { RefCell::new(Vec::new()) };
}

/// Marks the thread as being in a task of an engine while the guard lives.
pub(super) struct TaskScope {
    /// False if the thread is ending and its list was destroyed already.
    noted: bool,
}

impl TaskScope {
    /// Enters some task of the engine `tag`.
    #[inline]
    pub(super) fn enter(tag: u32) -> Self {
        Self::enter_run(tag, None)
    }

    /// Enters a task of the engine `tag`; `run` says which run, if that is known.
    pub(super) fn enter_run(tag: u32, run: Option<RunId>) -> Self {
        let noted = INSIDE.try_with(|task_scope| task_scope.borrow_mut().push((tag, run)));
        TaskScope {
            noted: noted.is_ok(),
        }
    }
}

impl Drop for TaskScope {
    #[inline]
    fn drop(&mut self) {
        if self.noted {
            INSIDE.with(|task_scope| task_scope.borrow_mut().pop());
        }
    }
}

/// Returns whether the thread is in a task of the engine `tag`, at any depth.
pub(crate) fn is_inside(tag: u32) -> bool {
    INSIDE
        .try_with(|task_scope| task_scope.borrow().iter().any(|(of, _)| *of == tag))
        .unwrap_or(false)
}

/// Returns whether the thread may be in this run. That is so if it is in a task of the engine `tag`
/// whose run is unknown or is this one.
pub(super) fn may_be_inside_run(tag: u32, run: RunId) -> bool {
    let look = INSIDE.try_with(|task_scope| {
        let may_be = |(of, known): &(u32, Option<RunId>)| {
            *of == tag && known.is_none_or(|known| known == run)
        };
        task_scope.borrow().iter().any(may_be)
    });
    look.unwrap_or(false)
}
