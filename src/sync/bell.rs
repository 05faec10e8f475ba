//! How a thread that serves several tickers learns which of them are to look again.
//!
//! - **BELL-1** Whoever rings notes the number first, under the lock, then raises a flag, and then
//!   unparks the thread. The thread takes the numbers before it parks, if the flag is up. If it
//!   looked too early, the unpark comes later and leaves a token, so the next park returns at once,
//!   and the thread sees the flag. So a thread that has work takes no lock.
//!
//! The lock is a leaf: nothing else is locked under it, and no user code runs there. So a bell may
//! be rung under any other lock.

use super::atomic::{AtomicBool, Ordering};
use super::{Arc, Mutex, Unparker};

/// The bell of a thread.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: Mutex<Vec<usize>>,
    /// Whether there may be numbers.
    any: AtomicBool,
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
            any: AtomicBool::new(false),
            thread,
        }
    }

    /// Wakes the thread for nobody in particular.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// Moves the numbers that were rung to the end of `into`. A number may be there several times.
    pub(crate) fn take(&self, into: &mut Vec<usize>) {
        // Relaxed: the numbers are under the lock. Who parks sees the flag by the token.
        if self.any.load(Ordering::Relaxed) {
            let mut rung = self.rung.lock();
            // Relaxed: under the lock, so a number that is left raises it again.
            self.any.store(false, Ordering::Relaxed);
            into.append(&mut rung);
        }
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
        let mut rung = self.bell.rung.lock();
        rung.push(self.number);
        // Relaxed: as in `take`.
        self.bell.any.store(true, Ordering::Relaxed);
        drop(rung);
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
