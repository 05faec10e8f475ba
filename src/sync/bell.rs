//! How a thread that serves several tickers learns which of them are to look again.
//!
//! - **BELL-1** Whoever rings notes the number first, under the lock, and then unparks the thread.
//!   The thread takes the numbers under the lock before it parks. If it took them too early, the
//!   unpark comes later and leaves a token, so the next park returns at once.
//!
//! The lock is a leaf: nothing else is locked under it, and no user code runs there. So a bell may
//! be rung under any other lock.

use super::{Arc, Mutex, Unparker};

/// The bell of a thread.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: Mutex<Vec<usize>>,
    thread: Unparker,
}

/// Rings the bell of a thread for one of the tickers that it serves.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    bell: Arc<Bell>,
    number: usize,
}

/// The handle that wakes a thread, or the ticker of a thread that serves several.
#[derive(Clone, Debug)]
pub(crate) enum Sleeper {
    Thread(Unparker),
    Ticker(Ring),
}

impl Bell {
    pub(crate) fn new(thread: Unparker) -> Self {
        Bell {
            rung: Mutex::new(Vec::new()),
            thread,
        }
    }

    /// Wakes the thread for nobody in particular.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// Moves the numbers that were rung to the end of `into`. A number may be there several times.
    pub(crate) fn take(&self, into: &mut Vec<usize>) {
        into.append(&mut self.rung.lock());
    }
}

impl Ring {
    pub(crate) fn new(bell: &Arc<Bell>, number: usize) -> Self {
        let bell = Arc::clone(bell);
        Ring { bell, number }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn ring(&self) {
        // BELL-1: in this order.
        self.bell.rung.lock().push(self.number);
        self.bell.wake();
    }
}

impl Sleeper {
    pub(crate) fn wake(&self) {
        match self {
            Sleeper::Thread(thread) => thread.unpark(),
            Sleeper::Ticker(ring) => ring.ring(),
        }
    }
}
