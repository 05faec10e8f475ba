//! A store in the memory of one process.

use std::fmt;
use std::hash::BuildHasher;
use std::task::Waker;
use std::time::Duration;

use tourbillon::Clock;

use super::fault::Faults;
pub use super::fault::{Fault, StoreCall};
use super::group::reservation;
use super::memory_state::MemoryState;
use super::wait_queue::WaitQueue;
use super::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Mode, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
};
use crate::sync::{Arc, Mutex, Origin};

/// Keeps leases in the memory of one process.
///
/// This is the embedded default. It is also the store for tests, which can [inject](Self::inject)
/// faults.
///
/// Clones share one store. Waiting callers are woken in the order in which they began to wait. A
/// released name is reserved for callers that have waited for a [turn](Claim::TURN). A lease that
/// has run out is removed when somebody asks for its name, or when there are twice as many names
/// as were alive at the last clean-up.
///
/// The store belongs to the process that created it. In a forked copy of that process every call of
/// the trait fails with [`StoreError::Forked`], and the other methods do nothing.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, LockError, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report").at_once().wait()?;
/// assert!(matches!(leases.lock("report").at_once().wait(), Err(LockError::Held { .. })));
/// guard.release().wait()?;
/// assert!(leases.lock("report").at_once().wait()?.token() > 0);
/// # Ok(())
/// # }
/// ```
///
/// In a test it fails as a server does:
///
/// ```
/// use tourbillon::Clock;
/// use tourbillon_leases::{Fault, Leases, MemoryStore, StoreError};
///
/// let store = MemoryStore::with_destinations(Clock::boottime(), 4);
/// let leases = Leases::new(store.clone())?;
/// let guard = leases.lock("report").wait()?;
/// store.forget();
/// assert!(guard.release().wait().is_err());
/// store.inject(|_| Fault::Fail(StoreError::Unavailable("down".to_owned())));
/// assert!(leases.holder("report").wait().is_err());
/// store.heal();
/// assert_eq!(leases.holder("report").wait()?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

/// The state that the clones of a store share.
struct Shared {
    clock: Clock,
    /// The names, owners and tokens.
    state: Mutex<MemoryState>,
    wait_queue: WaitQueue,
    destinations: u64,
    faults: Faults,
    origin: Origin,
}

impl MemoryStore {
    /// Creates a store on [`Clock::boottime`].
    #[cfg(not(loom))]
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::boottime())
    }

    /// Creates a store on this clock, which may be a manual one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock};
    /// use tourbillon_leases::MemoryStore;
    ///
    /// let hand = ManualClock::new();
    /// let store = MemoryStore::with_clock(Clock::manual(&hand));
    /// assert_eq!(store.holder("report"), None);
    /// ```
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self::with_destinations(clock, 1)
    }

    /// Creates a store that spreads its names over this number of destinations, by a hash.
    ///
    /// # Panics
    ///
    /// If `destinations` is zero.
    #[must_use]
    pub fn with_destinations(clock: Clock, destinations: u64) -> Self {
        assert!(destinations > 0, "a name has to have a destination");
        MemoryStore(Arc::new(Shared {
            clock,
            state: Mutex::new(MemoryState::default()),
            wait_queue: WaitQueue::default(),
            destinations,
            faults: Faults::new(),
            origin: Origin::here(),
        }))
    }

    /// Calls `fault` before each call from now on. Its result decides what happens to the call.
    ///
    /// `fault` runs on the thread that polls the call, without a lock. It may panic. If it blocks, it
    /// blocks that thread. [`Fault::Hang`] imitates a call that hangs. The example of [`MemoryStore`]
    /// calls this function.
    pub fn inject(&self, fault: impl Fn(&StoreCall<'_>) -> Fault + Send + Sync + 'static) {
        if !self.is_forked() {
            self.0.faults.set(Some(Arc::new(fault)));
        }
    }

    /// Ends the injection of faults. Calls that [hang](Fault::Hang) go on.
    pub fn heal(&self) {
        if !self.is_forked() {
            self.0.faults.set(None);
        }
    }

    /// Forgets all leases, like a server that restarts without its data. Tokens go on increasing.
    pub fn forget(&self) {
        if self.is_forked() {
            return;
        }
        let forgotten = self.0.state.lock().forget();
        for name in &forgotten {
            self.0.wait_queue.released(name);
        }
    }

    /// Returns the owner and the token of a name that is held by the store's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let leases = Leases::new(store.clone())?;
    /// let guard = leases.lock("report").wait()?;
    /// let (owner, token) = store.holder("report").expect("the lock is held");
    /// assert_eq!((owner.as_str(), token), (guard.id().owner(), guard.token()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<(String, u64)> {
        if self.is_forked() {
            return None;
        }
        self.find(name).map(|holder| (holder.owner, holder.token))
    }

    fn find(&self, name: &str) -> Option<Holder> {
        let state = self.0.state.lock();
        state.find(name, self.0.clock.now())
    }

    /// Returns whether this process is a forked copy, in which a mutex may stay locked forever.
    fn is_forked(&self) -> bool {
        self.0.origin.is_elsewhere()
    }

    /// Returns the future of a call. `execute` gets the positions that fail, and their error.
    fn call<'a, T: Send + 'a>(
        &'a self,
        call: StoreCall<'a>,
        execute: impl FnOnce(&[usize], Option<StoreError>) -> T + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(self.0.faults.call(call, execute))
    }

    /// Grants the name, or says how long it is held or reserved.
    fn grant(&self, claim: &Claim<'_>) -> Acquired {
        let mut state = self.0.state.lock();
        // The clock is read under the lock, here and below. So a later call has a later time, and
        // no call shortens a lease because another one has overtaken it.
        let now = self.0.clock.now();
        if let Some(held) = state.held.get_mut(claim.name)
            && now < held.until
            && !(claim.mode == Mode::Exclusive && held.is_held_with(claim.secret))
        {
            // The release decides by the longest wait whether it reserves the name, and how long.
            if claim.waits {
                let since = now - claim.waited;
                held.next = Some(held.next.map_or(since, |next| next.min(since)));
            }
            return Acquired::Held {
                remaining: held.until.since(now),
            };
        }
        if let Some((acquired, room)) = state.join(claim, now) {
            drop(state);
            self.has_room(claim.name, room);
            return acquired;
        }
        // The name is free, but reserved: only a caller that is due may take it.
        if let Some(until) = state.reserved.get(claim.name) {
            if now < *until && !claim.is_due() {
                return Acquired::Held {
                    remaining: until.since(now),
                };
            }
            state.reserved.remove(claim.name);
        }
        let (acquired, room) = state.begin(claim, now);
        drop(state);
        self.has_room(claim.name, room);
        acquired
    }

    /// Wakes the next waiting caller, if a grant has left room for it (SHARE-4).
    fn has_room(&self, name: &str, room: bool) {
        if room {
            self.0.wait_queue.released(name);
        }
    }

    /// Ends the reservation of a name for which nobody waits any more.
    fn left(&self, name: &str) {
        let mut state = self.0.state.lock();
        // Under the lock: a caller that comes now would otherwise lose what it notes. Nobody takes
        // this lock under that of the queue.
        if self.0.wait_queue.waits_for(name) {
            return;
        }
        state.forget_waits(name);
    }

    /// Renews one lease.
    fn prolong(&self, renewal: &Renewal<'_>) -> Outcome {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        match state.renew(renewal, now) {
            true => Outcome::Renewed,
            false => Outcome::NotHeld,
        }
    }

    /// Releases one name, or shortens its lease to the rest that it stays locked.
    fn free(&self, holding: &Holding<'_>) -> Released {
        let name = holding.name;
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        if holding.mode != Mode::Exclusive {
            let freed = state.release_place(holding, now);
            drop(state);
            self.has_room(name, freed == Some(true));
            return freed.map_or(Released::NotHeld, |_| Released::Released);
        }
        match state.held.get_mut(name) {
            Some(held)
                if held.is_held_with(holding.secret)
                    && !holding.rest.is_zero()
                    && now < held.until =>
            {
                // No secret, so that a renewal which arrives later does not find its lease.
                (held.secret, held.detached) = (None, None);
                held.owner.push_str(" (released)");
                held.until = now + holding.rest;
                drop(state);
                // The waiting caller asks again, and learns when the name will be free.
                self.0.wait_queue.released(name);
                Released::Released
            }
            Some(held) if held.is_held_with(holding.secret) => {
                let in_time = now < held.until;
                let waited = held.next.map(|since| now.since(since));
                let due = waited.filter(|waited| *waited >= Claim::TURN);
                let reserved = due.map(|waited| now + reservation(waited));
                let gone = state.held.remove(name);
                // Under the same lock as the removal, so that no other caller takes the name first.
                if let Some(until) = reserved.filter(|_| in_time) {
                    state.reserved.insert(name.to_owned(), until);
                }
                // Unlock before freeing memory and before waking a caller.
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

    /// Writes a ticket beside a name.
    fn detached(&self, detach: &Detach<'_>) -> Detached {
        let mut state = self.0.state.lock();
        state.detach(detach, self.0.clock.now())
    }

    /// Uses up a ticket, and gives the name to another owner.
    fn resumed(&self, resume: &Resume<'_>) -> Option<Resumed> {
        let mut state = self.0.state.lock();
        state.resume(resume, self.0.clock.now())
    }

    fn page(&self, prefix: &str, paging: &LockPaging) -> LockPage {
        let state = self.0.state.lock();
        state.page(prefix, paging, self.0.clock.now())
    }
}

impl LeaseStore for MemoryStore {
    fn destination(&self, name: &str) -> Destination {
        if self.0.destinations == 1 {
            return Destination::default();
        }
        // This hasher has fixed keys, so the destination is the same in every run.
        let hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
        Destination::new(hasher.hash_one(name) % self.0.destinations)
    }

    fn can_share(&self) -> bool {
        true
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        _limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        let call = match batch {
            [claim] => StoreCall::Claim(claim),
            _ => StoreCall::ClaimMany { destination, batch },
        };
        self.call(call, |fail, error| {
            let answer = |(at, claim): (usize, &Claim<'_>)| match &error {
                Some(error) if fail.contains(&at) => Err(error.clone()),
                _ => Ok(self.grant(claim)),
            };
            batch.iter().enumerate().map(answer).collect()
        })
    }

    fn leave<'a>(&'a self, name: &'a str, owner: &'a str, _limit: Duration) -> StoreFuture<'a, ()> {
        self.call(StoreCall::Leave { name, owner }, |_, _| self.left(name))
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        _limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.call(StoreCall::Renew { destination, batch }, |fail, error| {
            let outcome = |(at, renewal): (usize, &Renewal<'_>)| match &error {
                Some(error) if fail.contains(&at) => Outcome::Failed(error.clone()),
                _ => self.prolong(renewal),
            };
            batch.iter().enumerate().map(outcome).collect()
        })
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        _limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        let call = match batch {
            [held] => StoreCall::GiveBack {
                name: held.name,
                secret: held.secret,
            },
            _ => StoreCall::GiveBackMany { destination, batch },
        };
        self.call(call, |fail, error| {
            let answer = |(at, held): (usize, &Holding<'_>)| match &error {
                Some(error) if fail.contains(&at) => Err(error.clone()),
                _ => Ok(self.free(held)),
            };
            batch.iter().enumerate().map(answer).collect()
        })
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, _limit: Duration) -> StoreFuture<'a, Detached> {
        self.call(StoreCall::Detach(detach), |_, _| self.detached(detach))
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        _limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        self.call(StoreCall::Resume(resume), |_, _| self.resumed(resume))
    }

    fn holder_of<'a>(&'a self, name: &'a str, _limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        self.call(StoreCall::Holder { name }, |_, _| self.find(name))
    }

    /// The pages are in the order of the names. Takes time linear in the number of all names, under
    /// the lock of the store.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        _limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        self.call(StoreCall::List { prefix }, |_, _| self.page(prefix, paging))
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
            shown.field("names", &self.0.state.lock().names());
        }
        shown.finish_non_exhaustive()
    }
}
