//! The embedded store.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::task::Waker;
use std::time::Duration;

use tourbillon::{Clock, Time};

use super::store::{
    Acquired, Claim, Destination, Holding, LeaseStore, Outcome, Released, Renewal, StoreError,
    Watch,
};
use super::wait_queue::WaitQueue;
use crate::sync::{Arc, Mutex, Origin};

/// Leases in the memory of one process: the embedded default, and the store of tests, whose
/// [faults](Self::inject) are theirs to choose.
///
/// Clones are one store. Waiting callers are woken in the order in which they began to wait. A
/// released name is reserved for callers that have waited for a [turn](Claim::TURN). A lease that
/// has run out is forgotten when somebody asks for its name, or when there are twice as many names
/// as were alive at the last clean-up.
///
/// The store belongs to the process that made it. In a forked copy of that process every call of
/// the trait fails with [`StoreError::Forked`], and the other methods do nothing.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, LockError, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.try_lock("report")?;
/// assert!(matches!(leases.try_lock("report"), Err(LockError::Held { .. })));
/// guard.release()?;
/// assert!(leases.try_lock("report")?.fencing_token() > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    clock: Clock,
    state: Mutex<MemoryState>,
    wait_queue: WaitQueue,
    destinations: u64,
    faults: Mutex<Option<Arc<Injected>>>,
    origin: Origin,
}

type Injected = dyn Fn(&StoreCall<'_>) -> Fault + Send + Sync;

#[derive(Default)]
struct MemoryState {
    held: HashMap<String, Held>,
    /// Names that nobody holds, and until when they are for those who are due alone.
    reserved: HashMap<String, Time>,
    /// When there are so many, those that have run out are cleaned up.
    crowd: usize,
    /// The last token of all names, so that nothing has to be remembered of each.
    token: u64,
}

struct Held {
    owner: String,
    until: Time,
    token: u64,
    /// Since when the one has waited who has waited longest of all that are due.
    next: Option<Time>,
}

/// For how long a name is reserved for those who are due: for a quarter of the longest wait, so that
/// who is slow gets more time the longer it waits, within bounds.
fn reservation(waited: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_millis(25);
    (waited / 4).clamp(LEAST, MOST)
}

/// A call to a [`MemoryStore`], before it is executed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StoreCall<'a> {
    /// Somebody wants a name.
    Claim(&'a Claim<'a>),
    /// A batch is to be renewed.
    Renew {
        /// Where it goes.
        destination: Destination,
        /// What it is.
        batch: &'a [Renewal<'a>],
    },
    /// Somebody gives a name back.
    GiveBack {
        /// The name.
        name: &'a str,
        /// Who it was.
        owner: &'a str,
    },
    /// One call gives several names back. A batch of one is a [`GiveBack`](Self::GiveBack).
    GiveBackMany {
        /// Where it goes.
        destination: Destination,
        /// What it is.
        batch: &'a [Holding<'a>],
    },
}

/// What becomes of a call.
#[non_exhaustive]
pub enum Fault {
    /// It is executed.
    None,
    /// It is not executed, and fails.
    Fail(StoreError),
    /// It is executed, and its answer is lost.
    LoseAnswer(StoreError),
    /// It is executed, and then this runs, on the caller's thread and without a lock, before the
    /// answer comes.
    Then(Box<dyn FnOnce() + Send>),
    /// The items at these places in a batch, of renewals or releases, fail with the error. All
    /// other items, and all calls without a batch, are executed.
    Some(Vec<usize>, StoreError),
}

impl MemoryStore {
    /// A store on [`Clock::boottime`].
    #[cfg(not(loom))]
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::boottime())
    }

    /// A store on a clock, a manual one perhaps.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self::with_destinations(clock, 1)
    }

    /// A store that spreads its names over so many destinations, by a hash.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn with_destinations(clock: Clock, destinations: u64) -> Self {
        assert!(destinations > 0, "a name has to have a destination");
        MemoryStore(Arc::new(Shared {
            clock,
            state: Mutex::new(MemoryState::default()),
            wait_queue: WaitQueue::default(),
            destinations,
            faults: Mutex::new(None),
            origin: Origin::here(),
        }))
    }

    /// Asks `fault` from now on, before each call, what is to become of it. It runs on the caller's
    /// thread without a lock: it may block, for a call that hangs, and panic.
    pub fn inject(&self, fault: impl Fn(&StoreCall<'_>) -> Fault + Send + Sync + 'static) {
        if !self.is_forked() {
            *self.0.faults.lock() = Some(Arc::new(fault));
        }
    }

    /// No more faults.
    pub fn heal(&self) {
        if !self.is_forked() {
            *self.0.faults.lock() = None;
        }
    }

    /// Forgets all leases, as a server does that restarts without having saved anything. Tokens go on.
    pub fn forget(&self) {
        if self.is_forked() {
            return;
        }
        let held = std::mem::take(&mut self.0.state.lock().held);
        for name in held.keys() {
            self.0.wait_queue.released(name);
        }
    }

    /// Who holds a name by the store's clock, with which token.
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<(String, u64)> {
        if self.is_forked() {
            return None;
        }
        let now = self.0.clock.now();
        let state = self.0.state.lock();
        let held = state.held.get(name).filter(|held| now < held.until)?;
        Some((held.owner.clone(), held.token))
    }

    /// Whether this process is a forked copy, in which the locks may be held for ever.
    fn is_forked(&self) -> bool {
        self.0.origin.is_elsewhere()
    }

    fn fault(&self, call: &StoreCall<'_>) -> Fault {
        let fault = self.0.faults.lock().clone();
        fault.map_or(Fault::None, |fault| fault(call))
    }

    /// Executes a call as the fault says.
    fn execute<T>(
        &self,
        call: &StoreCall<'_>,
        execute: impl FnOnce(&[usize], Option<StoreError>) -> T,
    ) -> Result<T, StoreError> {
        if self.is_forked() {
            return Err(StoreError::Forked);
        }
        match self.fault(call) {
            Fault::None => Ok(execute(&[], None)),
            Fault::Fail(error) => Err(error),
            Fault::LoseAnswer(error) => {
                execute(&[], None);
                Err(error)
            }
            Fault::Then(then) => {
                let answer = execute(&[], None);
                then();
                Ok(answer)
            }
            Fault::Some(which, error) => Ok(execute(&which, Some(error))),
        }
    }

    fn grant(&self, claim: &Claim<'_>) -> Acquired {
        let mut state = self.0.state.lock();
        // Under the lock, here and below: who comes later has a later time, so that nothing is
        // shortened by one who was overtaken.
        let now = self.0.clock.now();
        if let Some(held) = state.held.get_mut(claim.name)
            && now < held.until
            && held.owner != claim.owner
        {
            if claim.waits && claim.is_due() {
                let since = now - claim.waited;
                held.next = Some(held.next.map_or(since, |next| next.min(since)));
            }
            return Acquired::Held {
                remaining: held.until.since(now),
            };
        }
        if let Some(until) = state.reserved.get(claim.name)
            && now < *until
            && !claim.is_due()
        {
            return Acquired::Held {
                remaining: until.since(now),
            };
        }
        state.reserved.remove(claim.name);
        if state.held.len() + state.reserved.len() >= state.crowd {
            state.held.retain(|_, held| now < held.until);
            state.reserved.retain(|_, until| now < *until);
            state.crowd = (2 * (state.held.len() + state.reserved.len())).max(1_024);
        }
        state.token += 1;
        let token = state.token;
        let held = Held {
            owner: claim.owner.to_owned(),
            until: now + claim.lease,
            token,
            next: None,
        };
        state.held.insert(claim.name.to_owned(), held);
        Acquired::Granted { token }
    }

    fn prolong(&self, renewal: &Renewal<'_>) -> Outcome {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        match state.held.get_mut(renewal.name) {
            Some(held) if now < held.until && held.owner == renewal.owner => {
                held.until = now + renewal.lease;
                Outcome::Renewed
            }
            _ => Outcome::NotHeld,
        }
    }

    fn free(&self, name: &str, owner: &str) -> Released {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        match state.held.get(name) {
            Some(held) if held.owner == owner => {
                let in_time = now < held.until;
                let reserved = held.next.map(|since| now + reservation(now.since(since)));
                let gone = state.held.remove(name);
                // In the same hold: nobody comes in between.
                if let Some(until) = reserved.filter(|_| in_time) {
                    state.reserved.insert(name.to_owned(), until);
                }
                drop(state);
                drop(gone);
                self.0.wait_queue.released(name);
                if in_time {
                    Released::Released
                } else {
                    Released::NotHeld
                }
            }
            _ => Released::NotHeld,
        }
    }
}

impl LeaseStore for MemoryStore {
    fn destination(&self, name: &str) -> Destination {
        if self.0.destinations == 1 {
            return Destination::default();
        }
        // Always the same, also in the next run.
        let hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
        Destination::new(hasher.hash_one(name) % self.0.destinations)
    }

    fn acquire(&self, claim: &Claim<'_>, _limit: Duration) -> Result<Acquired, StoreError> {
        self.execute(&StoreCall::Claim(claim), |_, _| self.grant(claim))
    }

    fn renew(
        &self,
        destination: Destination,
        batch: &[Renewal<'_>],
        _limit: Duration,
    ) -> Result<Vec<Outcome>, StoreError> {
        self.execute(&StoreCall::Renew { destination, batch }, |fail, error| {
            let outcome = |(at, renewal): (usize, &Renewal<'_>)| match &error {
                Some(error) if fail.contains(&at) => Outcome::Failed(error.clone()),
                _ => self.prolong(renewal),
            };
            batch.iter().enumerate().map(outcome).collect()
        })
    }

    fn release(&self, name: &str, owner: &str, _limit: Duration) -> Result<Released, StoreError> {
        self.execute(&StoreCall::GiveBack { name, owner }, |_, _| {
            self.free(name, owner)
        })
    }

    fn release_many(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Duration,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        if let [held] = batch {
            return Ok(vec![self.release(held.name, held.owner, limit)]);
        }
        self.execute(
            &StoreCall::GiveBackMany { destination, batch },
            |fail, error| {
                let answer = |(at, held): (usize, &Holding<'_>)| match &error {
                    Some(error) if fail.contains(&at) => Err(error.clone()),
                    _ => Ok(self.free(held.name, held.owner)),
                };
                batch.iter().enumerate().map(answer).collect()
            },
        )
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        (!self.is_forked()).then(|| self.0.wait_queue.watch(name, waker))
    }
}

#[cfg(not(loom))]
impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryStore");
        if !self.is_forked() {
            shown.field("names", &self.0.state.lock().held.len());
        }
        shown.finish_non_exhaustive()
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::None => f.write_str("None"),
            Fault::Fail(error) => f.debug_tuple("Fail").field(error).finish(),
            Fault::LoseAnswer(error) => f.debug_tuple("LoseAnswer").field(error).finish(),
            Fault::Then(_) => f.write_str("Then(..)"),
            Fault::Some(which, error) => f.debug_tuple("Some").field(which).field(error).finish(),
        }
    }
}
