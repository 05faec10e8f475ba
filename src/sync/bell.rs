//! How a thread that serves several tickers learns which of them are to look again.
//!
//! - **BELL-1** Whoever rings notes the number first, under the lock, then raises a flag, and then
//!   unparks the thread. The thread looks at the flag after each park, and takes the numbers if it
//!   is up. A ring that a look has missed leaves a token, so the next park returns at once, and the
//!   thread sees the flag after it. It looks between two steps, too. While the flag is down, a look
//!   takes no lock.
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

    /// Exchanges the numbers that were rung for the empty list `rung`. A number may be there several
    /// times. Returns whether there are any.
    #[inline]
    pub(crate) fn take(&self, rung: &mut Vec<usize>) -> bool {
        debug_assert!(rung.is_empty(), "they were taken before");
        // Relaxed: the numbers are under the lock. Who parks sees the flag by the token.
        let any = self.any.load(Ordering::Relaxed);
        if any {
            self.take_noted(rung);
        }
        any
    }

    #[cold]
    fn take_noted(&self, rung: &mut Vec<usize>) {
        let mut noted = self.rung.lock();
        // Relaxed: under the lock, so a number that is left raises it again.
        self.any.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *noted, rung);
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
