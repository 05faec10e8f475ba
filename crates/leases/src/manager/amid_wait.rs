//! What a future holds while it waits for something else.
//!
//! A timer wakes the future, and counts how often it has done so since the last poll. At the third
//! time nobody seems to poll it any more, and what it holds is given back.
//!
//! - **AMID-1** What is held is taken by the future, or given back by the timer. Both happen under
//!   the lock, and only one of them finds it.
//! - **AMID-2** A giving back ends the round. Whatever the future has begun in that round finds that
//!   it is over, so the future does not rely on what is gone.
//! - **AMID-3** While something is held, a timer is armed. Whoever adds something to nothing arms it,
//!   and a look at what is held arms it again. A look that finds nothing lets the next one who adds
//!   something arm it.
//!
//! A thread that waits for the future needs no timer: it polls the future until it is ready. In
//! between it may block in a call of the store for as long as that takes.

use std::mem::{replace, take};
use std::task::Waker;

use crate::store::may_block;
use crate::sync::Mutex;

pub(crate) struct AmidWait<T>(Mutex<AmidWaitState<T>>);

struct AmidWaitState<T> {
    held: Vec<T>,
    /// The number of times that what was held was given back.
    round: u64,
    /// How often the future was woken since its last poll.
    woken: u32,
    /// The task of the last poll, until it is woken.
    waker: Option<Waker>,
    /// Whether a thread waits for the future.
    is_waited_for: bool,
    is_armed: bool,
}

/// What follows a look of the timer.
pub(crate) enum AfterLook<T> {
    /// Nothing is held, and no look follows.
    Nothing,
    /// The future is woken, and a look follows.
    Wake(Option<Waker>),
    /// This is given back, and no look follows.
    GiveBack(Vec<T>),
}

/// What follows an addition.
pub(crate) enum Added {
    Done,
    /// A look has to be armed.
    Arm,
    /// The round is over, and what was to be added is dropped.
    Over,
}

impl<T> AmidWait<T> {
    pub(crate) fn new() -> Self {
        AmidWait(Mutex::new(AmidWaitState {
            held: Vec::new(),
            round: 0,
            woken: 0,
            waker: None,
            is_waited_for: false,
            is_armed: false,
        }))
    }

    /// Notes a poll.
    pub(crate) fn polled(&self, waker: &Waker) {
        // Cloned before the lock is taken, and the one before is dropped after it: a waker is a
        // runtime's code.
        let (waker, is_waited_for) = (waker.clone(), may_block(waker));
        let mut state = self.0.lock();
        state.woken = 0;
        state.is_waited_for = is_waited_for;
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
    }

    /// Returns the present round, and how much is held. If one thing is of no use any more, all are
    /// dropped.
    pub(crate) fn begin(&self, is_of_use: impl Fn(&T) -> bool) -> (u64, usize) {
        let mut state = self.0.lock();
        let mut gone = Vec::new();
        if !state.held.iter().all(is_of_use) {
            gone = take(&mut state.held);
        }
        let begun = (state.round, state.held.len());
        drop(state);
        drop(gone);
        begun
    }

    /// Adds what was got in this round.
    pub(crate) fn add(&self, round: u64, more: Vec<T>) -> Added {
        let mut state = self.0.lock();
        if state.round != round {
            drop(state);
            drop(more);
            return Added::Over;
        }
        state.held.extend(more);
        let needs_none = state.held.is_empty() || state.is_waited_for;
        match needs_none || replace(&mut state.is_armed, true) {
            true => Added::Done,
            false => Added::Arm,
        }
    }

    /// Returns how much is held, unless the round is over.
    pub(crate) fn count(&self, round: u64) -> Option<usize> {
        let state = self.0.lock();
        (state.round == round).then_some(state.held.len())
    }

    /// Takes what is held, unless the round is over.
    pub(crate) fn take(&self, round: u64) -> Option<Vec<T>> {
        let mut state = self.0.lock();
        (state.round == round).then(|| take(&mut state.held))
    }

    /// Looks whether the future is polled.
    pub(crate) fn look(&self) -> AfterLook<T> {
        let mut state = self.0.lock();
        if state.held.is_empty() || state.is_waited_for {
            state.is_armed = false;
            return AfterLook::Nothing;
        }
        state.woken += 1;
        if state.woken <= 2 {
            return AfterLook::Wake(state.waker.take());
        }
        state.is_armed = false;
        state.round += 1;
        AfterLook::GiveBack(take(&mut state.held))
    }
}
