//! Stripes and shards.
//!
//! ```text
//! producers --hash--> stripe (Mutex): index, entries, wheel
//!                       | next_due: a lower bound in a dense array, one per shard
//!                       v
//!                     shard: the array, a doorbell, the backlog -- one ticker
//! ```
//!
//! A shard is the set of stripes that one ticker serves: those whose number, modulo the number of
//! shards, is the number of the shard. These rules hold in every layer above:
//!
//! - **STRIPE-1** A thread never waits for a lock while it holds a stripe's lock. A call for many
//!   keys, or for two, holds several stripes' locks: it waits for the first one and only tries the
//!   others. Code
//!   under a stripe's lock touches other shared state through atomics only, such as those of the
//!   permit pool. A front end may hold a lock of its own around a stripe's lock, and never takes
//!   that lock inside.
//! - **STRIPE-2** The only user code under a stripe's lock is a key's `Eq` and `Clone`, and the
//!   closures that `ExpiryMap` documents as called there. This code must not call the scheduler.
//!   `under_lock.rs` turns such a call into a panic with a message, and defers the work that the
//!   drops of guards would do.
//! - **STRIPE-3** `next_due` is written under the stripe's lock only. A thread that files an
//!   earlier entry lowers it; only the ticker raises it.
//! - **STRIPE-4** After the lock is released, the caller performs the deferred actions in the
//!   [`DeferredActions`]: it rings the doorbell and hands a ticket over. Keys and values are
//!   dropped after that, too.

mod backlog;
pub(crate) mod batch;
mod doorbell;
mod entry;
mod finalize_hash;
mod guard;
mod pair;
pub(crate) mod permits;
mod stripe;
mod ticker;
mod under_lock;
mod user_code;
mod waiter;

use backlog::Backlog;
pub(crate) use doorbell::Doorbell;
pub(crate) use entry::End;
use finalize_hash::HashFinalizer;
#[cfg(all(test, not(loom)))]
pub(crate) use finalize_hash::spread;
pub(crate) use guard::{RunDeferred, StripeGuard, UsualCall};
use permits::PermitPool;
pub(crate) use stripe::{
    Admission, Arming, Cancelling, Claimed, Completed, DeferredActions, EntryId, EntryInfo,
    EntryPhase, Index, JudgedMove, KeyHash, Lookup, Moving, NotUsual, PutOff, Refusal, RunEvent,
    RunInProgress, Start, Stripe, StripeGate, Taken,
};
pub(crate) use ticker::{Collected, Ticker};
pub(crate) use under_lock::{Barrier, ReentrancyGuard, is_under_lock, refuse, when_unlocked};
use user_code::UserCode;
pub(crate) use user_code::{UserCodeCounts, UserCodeKind};
pub(crate) use waiter::Waiter;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::fork::Origin;
use crate::sync::{Arc, CachePadded, Mutex, MutexGuard, OnceLock};
use crate::tick::{TickSize, Time};

/// State of one shard outside its stripes' locks.
#[derive(Debug)]
pub(crate) struct Shard {
    /// For each stripe of the shard, in the order of their numbers: the moment at which the ticker
    /// must check it next, in nanoseconds. The value is a lower bound: it is never later than the
    /// stripe's real next moment.
    next_due: Box<[AtomicU64]>,
    /// Wakes the ticker.
    pub(crate) bell: Doorbell,
    /// Counts the tickets that no worker has claimed.
    pub(crate) backlog: Backlog,
    /// Counts the threads that are in user code outside of a run.
    pub(crate) user_code: UserCode,
}

impl Shard {
    /// Returns the earliest due moment of all stripes of the shard, or [`Time::MAX`].
    #[inline]
    pub(crate) fn least_due(&self) -> Time {
        let least = self
            .next_due
            .iter()
            // Relaxed: ordered by the doorbell's fences.
            .map(|due| due.load(Ordering::Relaxed))
            .min();
        Time::from_nanos(least.unwrap_or(u64::MAX))
    }
}

/// Number of generations of copies whose inert stripes are kept, with the original.
const GENERATIONS: usize = 4;

type InertStripe<K, V> = OnceLock<Box<Mutex<Stripe<K, V>>>>;

/// A stripe. No thread waits for another lock inside of it (STRIPE-1 to STRIPE-4).
type StripeLock<K, V> = CachePadded<Mutex<Stripe<K, V>>>;

/// All stripes and shards of one engine.
pub(crate) struct Shards<K, V> {
    stripes: Box<[StripeLock<K, V>]>,
    shards: Box<[CachePadded<Shard>]>,
    finalizer: HashFinalizer,
    permits: Option<Arc<PermitPool>>,
    /// The process whose threads serve the stripes.
    origin: Origin,
    /// Stripes for calls that must not take a lock: the first one in the own process, and the
    /// others in copies, by the number of forks in between. So no process uses the stripe of
    /// another one, which may have been locked at the fork. They are always empty, so no user code
    /// runs under their locks.
    inert: [InertStripe<K, V>; GENERATIONS],
    tick: TickSize,
}

/// Parameters of [`Shards::new`].
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) shards: usize,
    /// Number of stripes: a power of two, and at least `shards`.
    pub(crate) stripes: usize,
    pub(crate) tick: TickSize,
    /// The present, at which the wheels start.
    pub(crate) now: Time,
    /// Bound on the unclaimed tickets of one shard.
    pub(crate) backlog: usize,
    /// Bound on the pending armings of all stripes.
    pub(crate) max_pending: Option<usize>,
    /// Every ticket goes through its ticker, which keeps the pace.
    pub(crate) paced: bool,
    /// Seed of the hashes and of the wheels' origins. It differs between processes; a simulation
    /// fixes it to repeat a run.
    pub(crate) seed: u64,
}

/// A stripe's lock, with the thread's mark that it runs under a lock. The fields are dropped in
/// this order: the lock must be free before deferred drops run.
struct Locked<'a, K, V>(MutexGuard<'a, Stripe<K, V>>, ReentrancyGuard);

impl<'a, K, V> Locked<'a, K, V> {
    #[inline(always)]
    fn new(shards: &'a Shards<K, V>, stripe: usize) -> Self {
        // The usual way asks for the state of the thread once. FORK-1: that also says that this
        // process is no copy.
        match ReentrancyGuard::begin_alone() {
            Some(no_calls) => Locked(shards.stripes[stripe].lock_in_original(), no_calls),
            None => Locked::new_beside(shards, stripe),
        }
    }

    /// Takes the lock where the thread has something set.
    #[cold]
    #[inline(never)]
    fn new_beside(shards: &'a Shards<K, V>, stripe: usize) -> Self {
        let no_calls = shards.begin();
        if no_calls.is_inert() {
            Locked(shards.inert().lock(), no_calls)
        } else {
            Locked(shards.stripes[stripe].lock(), no_calls)
        }
    }
}

impl<K, V> Shards<K, V> {
    pub(crate) fn new(layout: &Layout) -> Self {
        assert!(
            layout.stripes.is_power_of_two(),
            "stripes are chosen by bits"
        );
        assert!(layout.shards > 0 && layout.shards <= layout.stripes);
        // A small limit is handed out permit by permit: with blocks, most of it would lie unused in
        // some stripes, and calls on the others would have to collect it.
        let permits = layout.max_pending.map(|limit| {
            let block = if limit < 10_000 {
                1
            } else {
                (limit / layout.stripes / 4).clamp(1, 64)
            };
            Arc::new(PermitPool::new(limit, block, layout.stripes))
        });
        let stripes = (0..layout.stripes)
            .map(|number| {
                // Each stripe gets an origin of its own, so that the stripes cascade at different
                // moments, on level 1 as well. When all stripes cascaded at once, they delayed the
                // timers of the next milliseconds.
                let origin = splitmix64(layout.seed ^ (number as u64 + 1));
                let stripe = Stripe::new(layout.tick, layout.now, origin, permits.clone());
                let stripe = if layout.paced { stripe.paced() } else { stripe };
                CachePadded::new(Mutex::new(stripe))
            })
            .collect();
        let shards = (0..layout.shards)
            .map(|number| {
                // The stripes may not divide evenly among the shards.
                let own = (number..layout.stripes).step_by(layout.shards).count();
                CachePadded::new(Shard {
                    next_due: (0..own).map(|_| AtomicU64::new(u64::MAX)).collect(),
                    bell: Doorbell::new(),
                    backlog: Backlog::new(layout.backlog),
                    user_code: UserCode::new(),
                })
            })
            .collect();
        Shards {
            stripes,
            shards,
            finalizer: HashFinalizer::new(layout.seed),
            permits,
            origin: Origin::here(),
            inert: [const { OnceLock::new() }; GENERATIONS],
            tick: layout.tick,
        }
    }

    /// Returns the number of stripes.
    #[inline]
    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Returns the number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the number of stripes of a shard.
    pub(crate) fn stripes_of(&self, shard: usize) -> usize {
        self.shards[shard].next_due.len()
    }

    pub(crate) fn shard(&self, number: usize) -> &Shard {
        &self.shards[number]
    }

    /// Returns the shard that serves `stripe`.
    #[inline]
    pub(crate) fn shard_of(&self, stripe: usize) -> &Shard {
        &self.shards[stripe % self.shards.len()]
    }

    /// Finalizes a hash of any hasher. Without this, a hasher that returns small integers unchanged
    /// would put all keys into one stripe and into few rows of its index.
    #[inline]
    pub(crate) fn finalize_hash(&self, hash: u64) -> KeyHash {
        self.finalizer.of(hash)
    }

    /// Returns the stripe of a key. The stripe is chosen by the top bits of the hash, because the
    /// index uses the low ones.
    #[inline]
    pub(crate) fn stripe_of(&self, hash: KeyHash) -> usize {
        ((hash.0 >> 48) as usize) & (self.stripes.len() - 1)
    }

    /// Returns whether this process is a forked copy of the one whose threads serve the stripes.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Begins a guard for the lock of any stripe. It is inert if no stripe's lock may be taken.
    fn begin(&self) -> ReentrancyGuard {
        if self.is_forked() {
            ReentrancyGuard::begin_forked()
        } else {
            ReentrancyGuard::begin()
        }
    }

    /// Returns the stripe that stays empty, and makes it on the first call.
    #[cold]
    fn inert(&self) -> &Mutex<Stripe<K, V>> {
        let forks = self.origin.forks_since();
        let why = if forks == 0 {
            StripeGate::UnderLock
        } else {
            StripeGate::Forked
        };
        let make = || Box::new(Mutex::new(Stripe::inert(self.tick, why)));
        match self.inert.get(forks as usize) {
            Some(inert) => inert.get_or_init(make),
            // In the fourth copy of a copy, a call on such an old engine leaks a stripe.
            None => Box::leak(make()),
        }
    }

    /// Runs `operate` under the stripe's lock, then publishes the due moment and rings the
    /// doorbell. The remaining actions of the [`DeferredActions`] (a ticket, "emptied") are passed
    /// to `act`, which is called only if there are any.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        stripe: usize,
        operate: impl FnOnce(&mut Stripe<K, V>) -> R,
        act: impl FnOnce(DeferredActions),
    ) -> R {
        let mut locked = Locked::new(self, stripe);
        // The answer is returned as it is from here on and never moved: it may be large.
        let answer = operate(&mut locked.0);
        if locked.0.has_deferred() {
            // Most operations leave nothing to do, so only the test is inlined into every call.
            act(self.publish(stripe, locked));
        }
        answer
    }

    /// Publishes the due moment, releases the lock and rings the doorbell.
    #[inline(never)]
    fn publish(&self, stripe: usize, mut locked: Locked<'_, K, V>) -> DeferredActions {
        if locked.1.is_inert() {
            // No ticker serves this stripe, so nobody needs to be notified.
            return DeferredActions::default();
        }
        let deferred = self.publish_due(stripe, &mut locked.0);
        let Locked(guard, no_calls) = locked;
        drop(guard);
        self.ring(stripe, &deferred);
        // Last, because this runs the deferred drops, which may take long.
        drop(no_calls);
        deferred
    }

    /// Takes the deferred actions and stores the due moment. The caller holds the lock.
    fn publish_due(&self, number: usize, stripe: &mut Stripe<K, V>) -> DeferredActions {
        let deferred = stripe.take_deferred();
        if let Some(due) = deferred.lowered {
            let next_due = &self.shard_of(number).next_due[number / self.shards.len()];
            // Relaxed: the lock orders the writes (STRIPE-3); the doorbell orders the ticker's
            // read.
            next_due.store(due.as_nanos(), Ordering::Relaxed);
        }
        deferred
    }

    /// Rings the doorbell if the due moment became earlier. The caller holds no lock.
    fn ring(&self, stripe: usize, deferred: &DeferredActions) {
        if let Some(due) = deferred.lowered {
            self.shard_of(stripe).bell.ring_for(due);
        }
    }

    /// Runs `look` on a stripe, under its lock. `look` changes nothing, so there are no deferred
    /// actions.
    pub(crate) fn peek<R>(&self, stripe: usize, look: impl FnOnce(&Stripe<K, V>) -> R) -> R {
        look(&Locked::new(self, stripe).0)
    }

    /// Runs `look` on a stripe, as [`peek`](Self::peek) does, if its lock is free.
    pub(crate) fn try_peek<R>(
        &self,
        stripe: usize,
        look: impl FnOnce(&Stripe<K, V>) -> R,
    ) -> Option<R> {
        let no_calls = self.begin();
        if no_calls.is_inert() {
            return None;
        }
        let guard = self.stripes[stripe].try_lock()?;
        Some(look(&Locked(guard, no_calls).0))
    }

    /// Collects the unused permits of all stripes into the pool. Called before a call is refused;
    /// returns whether the pool has any permit now.
    pub(crate) fn collect_permits(&self) -> bool {
        let Some(pool) = &self.permits else {
            return true;
        };
        pool.collect(|| {
            for stripe in 0..self.stripes.len() {
                pool.drain(Locked::new(self, stripe).0.permits());
            }
        })
    }

    /// Returns the number of armings for which there is a permit now. Without a bound there is no
    /// end of them.
    #[cfg(feature = "serde")]
    pub(crate) fn unused_permits(&self) -> usize {
        self.collect_permits();
        (self.permits.as_ref()).map_or(usize::MAX, |pool| pool.available())
    }

    /// Returns how many tickets of all shards no worker has claimed.
    pub(crate) fn unclaimed(&self) -> usize {
        let backlogs = self.shards.iter().map(|shard| &shard.backlog);
        backlogs.map(Backlog::unclaimed).sum()
    }

    /// Ends scarcity if there are plenty of permits again; see [`PermitPool::relax`].
    pub(crate) fn relax_permits(&self) {
        if let Some(pool) = &self.permits {
            pool.relax();
        }
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
pub(crate) fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<K, V> std::fmt::Debug for Shards<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards")
            .field("stripes", &self.stripes.len())
            .field("shards", &self.shards.len())
            .finish_non_exhaustive()
    }
}
