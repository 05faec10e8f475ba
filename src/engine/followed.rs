//! The shutdown of an engine that a task steps. That task does it, since only it knows what waits
//! for time to pass, and what has to happen before.

use super::closing::Asked;
use super::{Engine, FrontendTypes};
use crate::sync::Mutex;

/// The place where a shutdown is left for the task that steps the engine.
pub(crate) struct Follower<F: FrontendTypes>(Mutex<FollowerState<F>>);

enum FollowerState<F: FrontendTypes> {
    Steps,
    Asked(Asked<F>),
    /// The task has ended, or was dropped.
    Gone,
}

impl<F: FrontendTypes> Follower<F> {
    pub(crate) fn new() -> Self {
        Follower(Mutex::new(FollowerState::Steps))
    }

    /// Leaves a shutdown for the task. Returns it if the task is gone.
    pub(super) fn ask(&self, asked: Asked<F>) -> Result<(), Asked<F>> {
        let mut state = self.0.lock();
        if matches!(*state, FollowerState::Gone) {
            return Err(asked);
        }
        *state = FollowerState::Asked(asked);
        Ok(())
    }

    /// Takes the shutdown that was left here.
    pub(crate) fn take(&self) -> Option<Asked<F>> {
        Self::asked(&mut self.0.lock(), FollowerState::Steps)
    }

    /// Says that the task is gone, and takes the shutdown that was left here.
    pub(crate) fn leave(&self) -> Option<Asked<F>> {
        Self::asked(&mut self.0.lock(), FollowerState::Gone)
    }

    fn asked(state: &mut FollowerState<F>, next: FollowerState<F>) -> Option<Asked<F>> {
        match std::mem::replace(state, next) {
            FollowerState::Asked(asked) => Some(asked),
            FollowerState::Steps | FollowerState::Gone => None,
        }
    }
}

impl<F: FrontendTypes> Engine<F> {
    /// Says that a task steps this engine.
    pub(crate) fn is_followed_from_now_on(&self) {
        self.follower.get_or_init(Follower::new);
    }

    /// Returns where to leave a shutdown for the task that steps this engine, if one does.
    pub(crate) fn follower(&self) -> Option<&Follower<F>> {
        self.follower.get()
    }
}
