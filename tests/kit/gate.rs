//! A gate at which tasks wait until a test opens it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Holds back tasks until the test opens it. Clones are the same gate.
#[derive(Clone, Default, Debug)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default, Debug)]
struct State {
    open: bool,
    waiting: usize,
}

impl Gate {
    /// Waits until the gate is open.
    pub fn pass(&self) {
        let (state, bell) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        bell.notify_all();
        while !state.open {
            state = bell.wait(state).unwrap();
        }
        state.waiting -= 1;
    }

    /// Opens the gate, for good.
    pub fn open(&self) {
        let (state, bell) = &*self.0;
        state.lock().unwrap().open = true;
        bell.notify_all();
    }

    /// The number of tasks that wait at the gate.
    pub fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    /// Waits until at least `size` tasks wait at the gate.
    #[track_caller]
    pub fn crowd(&self, size: usize) {
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
