//! A store in the memory of one process.

mod fault;
mod queue_row;
mod state;

use std::fmt;
use std::time::{Duration, SystemTime};

use self::state::MemoryState;
use crate::store::{
    Answer, Beat, Call, Claim, Claimed, Connection, DeadLetter, DeadPage, Epoch, NewNode, Page,
    Poll, QueueCounts, Revived, Settle, Settled, Store, StoreError, StoreSnapshot, StoreTime,
    StoredNode, Timer, WallClock,
};
use crate::sync::{Arc, Mutex, Origin};

pub use self::fault::{MemoryCall, MemoryFault};

/// A store in the memory of one process, for tests and simulations.
///
/// Its timers end with the process. Apart from that it keeps every rule of the other stores. Clones
/// share one store, so several nodes of one process may use it. Tests can move its
/// [clock](Memory::with_clock) and [inject](Memory::inject) faults.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use tourbillon_durable::{Durable, Memory, WallClock};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = WallClock::manual(UNIX_EPOCH);
/// let timers = Durable::builder(Memory::with_clock(clock.clone())).start()?;
/// timers.schedule("pay-by", "order:7", Duration::from_secs(60), &7).wait()?;
/// assert_eq!(timers.counts().wait()?[0].waiting, 1);
///
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(timers.counts().wait()?[0].overdue, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Memory(Arc<MemoryShared>);

/// The state that all clones of a store share.
struct MemoryShared {
    origin: Origin,
    clock: WallClock,
    state: Mutex<MemoryState>,
    faults: fault::Faults,
}

impl Memory {
    /// Creates an empty store on the system's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_durable::{Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::new();
    /// let timers = Durable::builder(store.clone()).start()?;
    /// timers.schedule("pay-by", "order:7", Duration::from_secs(60), &7).wait()?;
    ///
    /// // Another node of the same process.
    /// let others = Durable::builder(store).start()?;
    /// assert!(others.get("pay-by", "order:7").wait()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Memory::with_clock(WallClock::system())
    }

    /// Creates an empty store on this clock, which may be a manual one.
    #[must_use]
    pub fn with_clock(clock: WallClock) -> Self {
        Memory(Arc::new(MemoryShared {
            origin: Origin::here(),
            clock,
            state: Mutex::new(MemoryState::default()),
            faults: fault::Faults::default(),
        }))
    }

    /// Calls `fault` before each call from now on. Its result decides what happens to the call.
    ///
    /// `fault` runs on the caller's thread without a lock. So it may block, call this store, and
    /// replace itself. It takes the place of the function that was injected before.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Durable, Memory, MemoryCall, MemoryFault, StoreError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::new();
    /// let timers = Durable::builder(store.clone()).start()?;
    /// store.inject(|call| match call {
    ///     MemoryCall::SetPaused { .. } => {
    ///         MemoryFault::LoseAnswer(StoreError::Unknown("cut".into()))
    ///     }
    ///     _ => MemoryFault::None,
    /// });
    /// assert!(timers.pause("pay-by").wait().is_err());
    /// assert!(timers.counts().wait()?[0].paused);
    ///
    /// store.heal();
    /// timers.resume("pay-by").wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn inject(&self, fault: impl Fn(&MemoryCall<'_>) -> MemoryFault + Send + Sync + 'static) {
        if self.0.origin.is_elsewhere() {
            return;
        }
        self.0.faults.inject(Arc::new(fault));
    }

    /// Ends the injection of faults. Calls that [hang](MemoryFault::Hang) go on.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Durable, Memory, MemoryFault, StoreError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::new();
    /// let timers = Durable::builder(store.clone()).start()?;
    /// store.inject(|_| MemoryFault::Fail(StoreError::Unavailable("an outage".into())));
    /// assert!(timers.counts().wait().is_err());
    /// store.heal();
    /// assert!(timers.counts().wait().is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn heal(&self) {
        if !self.0.origin.is_elsewhere() {
            self.0.faults.heal();
        }
    }

    /// Makes a call, as the injected fault says. The clock is read once, under the lock.
    fn call<T>(
        &self,
        call: &MemoryCall<'_>,
        execute: impl FnOnce(&mut MemoryState, StoreTime) -> T,
    ) -> Result<T, StoreError> {
        if self.0.origin.is_elsewhere() {
            return Err(StoreError::Forked);
        }
        self.0.faults.apply(call, || {
            let mut state = self.0.state.lock();
            let now = self.0.clock.store_time();
            execute(&mut state, now)
        })
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("clock", &self.0.clock)
            .finish_non_exhaustive()
    }
}

impl Store for Memory {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let connection: Box<dyn Connection> = Box::new(self.clone());
        self.0.faults.apply(&MemoryCall::Connect, || connection)
    }

    fn wall_clock(&self) -> Option<SystemTime> {
        Some(self.0.clock.now())
    }

    fn refusal(&self) -> Option<StoreError> {
        let is_copy = self.0.origin.is_elsewhere();
        is_copy.then_some(StoreError::Forked)
    }
}

impl Connection for Memory {
    fn write(&mut self, calls: &[Call]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let answers = self.call(&MemoryCall::Write(calls), |state, now| {
            state.write(calls, now)
        })?;
        Ok(answers.into_iter().map(Ok).collect())
    }

    fn get(&mut self, queue: &str, key: &str) -> Result<Option<Timer>, StoreError> {
        self.call(&MemoryCall::Get { queue, key }, |state, now| {
            state.get(queue, key, now)
        })
    }

    fn list(&mut self, page: &Page) -> Result<Vec<Timer>, StoreError> {
        self.call(&MemoryCall::List(page), |state, now| state.list(page, now))
    }

    fn counts(&mut self) -> Result<Vec<QueueCounts>, StoreError> {
        self.call(&MemoryCall::Counts, |state, now| state.counts(now))
    }

    fn dead(&mut self, page: &DeadPage) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(&MemoryCall::Dead(page), |state, now| state.dead(page, now))
    }

    fn discard(&mut self, letters: &[i64]) -> Result<u64, StoreError> {
        self.call(&MemoryCall::Discard(letters), |state, _| {
            state.discard(letters)
        })
    }

    fn discard_old(&mut self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        self.call(&MemoryCall::DiscardOld, |state, now| {
            state.discard_old(now.back_by(age), limit)
        })
    }

    fn nodes(&mut self) -> Result<Vec<StoredNode>, StoreError> {
        self.call(&MemoryCall::Nodes, |state, now| state.nodes(now))
    }

    fn revive(&mut self, letter: i64) -> Result<Revived, StoreError> {
        self.call(&MemoryCall::Revive(letter), |state, now| {
            state.revive(letter, now)
        })
    }

    fn set_paused(&mut self, queue: &str, paused: bool) -> Result<(), StoreError> {
        self.call(&MemoryCall::SetPaused { queue, paused }, |state, _| {
            state.set_paused(queue, paused);
        })
    }

    fn pause_schedule(&mut self, queue: &str, key: &str, paused: bool) -> Result<bool, StoreError> {
        let call = MemoryCall::PauseSchedule { queue, key, paused };
        self.call(&call, |state, now| {
            state.pause_schedule(queue, key, paused, now)
        })
    }

    fn join(&mut self, node: &NewNode) -> Result<(), StoreError> {
        self.call(&MemoryCall::Join(node), |state, now| state.join(node, now))
    }

    fn beat(&mut self, epoch: Epoch) -> Result<Option<Beat>, StoreError> {
        self.call(&MemoryCall::Beat(epoch), |state, now| {
            state.beat(epoch, now)
        })
    }

    fn poll(&mut self, poll: &Poll) -> Result<StoreSnapshot, StoreError> {
        self.call(&MemoryCall::Poll(poll), |state, now| state.poll(poll, now))
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.call(&MemoryCall::Claim(claim), |state, now| {
            state.claim(claim, now)
        })
    }

    fn settle(&mut self, settle: &Settle) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        let settled = self.call(&MemoryCall::Settle(settle), |state, now| {
            state.settle(settle, now)
        })?;
        Ok(settled.into_iter().map(Ok).collect())
    }

    fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> Result<bool, StoreError> {
        let call = MemoryCall::DeclareGone {
            asking,
            epoch,
            beat,
        };
        self.call(&call, |state, now| {
            state.declare_gone(asking, epoch, beat, now)
        })
    }

    fn leave(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.call(&MemoryCall::Leave(epoch), |state, now| {
            state.leave(epoch, now);
        })
    }

    #[cfg(feature = "test-util")]
    fn set_clock(&mut self, now: StoreTime) -> Result<(), StoreError> {
        self.0.clock.set_for_test(now)
    }
}
