//! Timers in the memory of this process, for tests.

use crate::sync::{Arc, Mutex};
use crate::time::WallClock;

/// A store in memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: WallClock,
    state: Mutex<()>,
}

impl Memory {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Memory::with_clock(WallClock::system())
    }

    /// Returns an empty store with a clock of its own.
    #[must_use]
    pub fn with_clock(clock: WallClock) -> Self {
        let state = Mutex::new(());
        Memory(Arc::new(Shared { clock, state }))
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}
