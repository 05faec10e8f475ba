//! A gate at which tasks wait until a test opens it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    open: bool,
    waiting: usize,
}

impl Gate {
    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let (state, bell) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        bell.notify_all();
        while !state.open {
            state = bell.wait(state).unwrap();
        }
        state.waiting -= 1;
    }

    pub(crate) fn open(&self) {
        let (state, bell) = &*self.0;
        state.lock().unwrap().open = true;
        bell.notify_all();
    }

    /// How many tasks wait at it.
    #[allow(dead_code, reason = "each test uses a part of the kit")]
    pub(crate) fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    /// Waits until so many tasks wait at the gate.
    #[track_caller]
    pub(crate) fn crowd(&self, size: usize) {
        let (state, bell) = &*self.0;
        let state = state.lock().unwrap();
        let (state, waited) = bell
            .wait_timeout_while(state, Duration::from_secs(60), |state| state.waiting < size)
            .unwrap();
        let waiting = state.waiting;
        drop(state);
        assert!(!waited.timed_out(), "{waiting} of {size} came to the gate");
    }
}
