//! Stripes and shards.
//!
//! ```text
//! producers --hash--> stripe (Mutex): index, entries, wheel
//!                       | next_due: a lower bound in a dense array, one per shard
//!                       v
//!                     shard: the array, a doorbell, the backlog -- one ticker
//! ```
//!
//! A shard is what one ticker serves: the stripes whose number is the shard's modulo the number of
//! shards. Rules that hold everywhere above:
//!
//! - **STRIPE-1** Nobody waits for a lock while holding a stripe's; a call for many keys holds
//!   several, of which it waits for the first and tries the others. Inside are the permit pool's
//!   atomics only. A face may hold a lock of its own around it, and never takes that inside.
//! - **STRIPE-2** Under it runs no user code but a key's `Eq` and `Clone`, and what an `ExpiryMap`
//!   says that it calls there. Those must not call the scheduler; `under_lock.rs` turns that into a
//!   panic with a message, and puts off what drops of guards would do.
//! - **STRIPE-3** `next_due` is written under the stripe's lock only: lowered by whoever files
//!   something earlier, raised by the ticker alone.
//! - **STRIPE-4** After the lock is released the caller acts on the [`Aftermath`]: the doorbell is
//!   rung, a ticket is handed over, and values are dropped.

mod backlog;
pub(crate) mod batch;
mod doorbell;
mod entry;
mod fold;
pub(crate) mod permits;
mod stripe;
mod ticker;
mod under_lock;
mod user_code;
mod waiter;

use backlog::Backlog;
use doorbell::Doorbell;
pub(crate) use entry::End;
use fold::Fold;
use permits::PermitPool;
pub(crate) use stripe::{
    Aftermath, Arming, Cancelling, Claimed, EntryId, Index, KeyHash, Moving, Refusal, RunEvent,
    Settled, Sight, SightPhase, Start, Stays, Stripe, Taken,
};
pub(crate) use ticker::{Collected, Ticker};
pub(crate) use under_lock::{Barrier, NoCalls, is_under_a_lock, refuse, when_unlocked};
use user_code::UserCode;
pub(crate) use user_code::{Outside, OutsideCounts};
pub(crate) use waiter::Waiter;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, CachePadded, Mutex, MutexGuard, OnceLock, Parker};
use crate::tick::{TickSize, Time};

/// What one ticker serves besides its stripes' locks.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Per stripe, in the order of their numbers: the next moment at which it wants to be looked
    /// at, in nanoseconds. Never later than the truth.
    next_due: Box<[AtomicU64]>,
    pub(crate) bell: Doorbell,
    pub(crate) backlog: Backlog,
    pub(crate) user_code: UserCode,
}

impl Shard {
    /// The least of the shard's due moments.
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

type Lock<K, V> = CachePadded<Mutex<Stripe<K, V>>>;

/// All stripes and shards of one engine.
pub(crate) struct Shards<K, V> {
    stripes: Box<[Lock<K, V>]>,
    shards: Box<[CachePadded<Shard>]>,
    fold: Fold,
    permits: Option<Arc<PermitPool>>,
    /// What a call gets that must not take a lock. No user code runs under its lock: it is empty.
    inert: OnceLock<Box<Mutex<Stripe<K, V>>>>,
    tick: TickSize,
}

/// How to build [`Shards`].
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) shards: usize,
    /// A power of two.
    pub(crate) stripes: usize,
    pub(crate) tick: TickSize,
    pub(crate) now: Time,
    pub(crate) backlog: usize,
    pub(crate) max_pending: Option<usize>,
    /// No ticket evades the tickers.
    pub(crate) paced: bool,
    /// Makes hashes and origins differ from process to process, or repeats them in simulations.
    pub(crate) seed: u64,
}

/// Holds a stripe's lock and the thread's flag.
struct Locked<'a, K, V>(MutexGuard<'a, Stripe<K, V>>, NoCalls);

impl<'a, K, V> Locked<'a, K, V> {
    #[inline]
    fn new(shards: &'a Shards<K, V>, stripe: usize) -> Self {
        let no_calls = NoCalls::begin();
        let stripe = if no_calls.is_inert() {
            shards.inert()
        } else {
            &*shards.stripes[stripe]
        };
        Locked(stripe.lock(), no_calls)
    }
}

impl<K, V> Shards<K, V> {
    /// The shards, and a parker for each one's ticker.
    pub(crate) fn new(layout: &Layout) -> (Self, Vec<Parker>) {
        assert!(
            layout.stripes.is_power_of_two(),
            "stripes are chosen by bits"
        );
        assert!(layout.shards > 0 && layout.shards <= layout.stripes);
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
                // Cascades of the stripes fall on different moments, those of level 1 too: all at
                // once they held up what was due in the next milliseconds.
                let origin = mix(layout.seed ^ (number as u64 + 1));
                let stripe = Stripe::new(layout.tick, layout.now, origin, permits.clone());
                let stripe = if layout.paced { stripe.paced() } else { stripe };
                CachePadded::new(Mutex::new(stripe))
            })
            .collect();
        let parkers: Vec<Parker> = (0..layout.shards).map(|_| Parker::new()).collect();
        let shards = parkers
            .iter()
            .enumerate()
            .map(|(number, parker)| {
                let own = (number..layout.stripes).step_by(layout.shards).count();
                CachePadded::new(Shard {
                    next_due: (0..own).map(|_| AtomicU64::new(u64::MAX)).collect(),
                    bell: Doorbell::new(parker.unparker().clone()),
                    backlog: Backlog::new(layout.backlog),
                    user_code: UserCode::new(),
                })
            })
            .collect();
        let all = Shards {
            stripes,
            shards,
            fold: Fold::new(layout.seed),
            permits,
            inert: OnceLock::new(),
            tick: layout.tick,
        };
        (all, parkers)
    }

    #[inline]
    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// How many stripes a shard has.
    pub(crate) fn stripes_of(&self, shard: usize) -> usize {
        self.shards[shard].next_due.len()
    }

    pub(crate) fn shard(&self, number: usize) -> &Shard {
        &self.shards[number]
    }

    /// The shard that serves `stripe`.
    #[inline]
    pub(crate) fn shard_of(&self, stripe: usize) -> &Shard {
        &self.shards[stripe % self.shards.len()]
    }

    /// Hashers that leave small integers as they are must not fill one stripe, nor one row.
    #[inline]
    pub(crate) fn fold(&self, hash: u64) -> KeyHash {
        self.fold.of(hash)
    }

    /// By the top bits; the index goes by the low ones.
    #[inline]
    pub(crate) fn stripe_of(&self, hash: KeyHash) -> usize {
        ((hash.0 >> 48) as usize) & (self.stripes.len() - 1)
    }

    #[cold]
    fn inert(&self) -> &Mutex<Stripe<K, V>> {
        let make = || Box::new(Mutex::new(Stripe::inert(self.tick)));
        self.inert.get_or_init(make)
    }

    /// Runs `operate` under the stripe's lock, publishes and rings. What is left in the
    /// [`Aftermath`] (a ticket, "emptied") is for `act`, which is called if there is any.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        stripe: usize,
        operate: impl FnOnce(&mut Stripe<K, V>) -> R,
        act: impl FnOnce(Aftermath),
    ) -> R {
        let mut locked = Locked::new(self, stripe);
        // Not moved any more: an answer may be large.
        let answer = operate(&mut locked.0);
        if locked.0.has_aftermath() {
            act(self.publish(stripe, locked));
        }
        answer
    }

    /// Unlocks and rings.
    #[inline(never)]
    fn publish(&self, stripe: usize, mut locked: Locked<'_, K, V>) -> Aftermath {
        if locked.1.is_inert() {
            // It belongs to nobody, and nothing follows.
            return Aftermath::default();
        }
        let after = self.publish_due(stripe, &mut locked.0);
        let Locked(guard, no_calls) = locked;
        drop(guard);
        self.ring(stripe, &after);
        // Last: it does the work of drops that was put off, which may take a while.
        drop(no_calls);
        after
    }

    /// The first half, under the lock.
    fn publish_due(&self, number: usize, stripe: &mut Stripe<K, V>) -> Aftermath {
        let after = stripe.take_aftermath();
        if let Some(due) = after.lowered {
            let next_due = &self.shard_of(number).next_due[number / self.shards.len()];
            // Relaxed: STRIPE-3 makes writes ordered by the lock; the ticker's look by the
            // doorbell.
            next_due.store(due.as_nanos(), Ordering::Relaxed);
        }
        after
    }

    /// The second half, without it.
    fn ring(&self, stripe: usize, after: &Aftermath) {
        if let Some(due) = after.lowered {
            self.shard_of(stripe).bell.ring_for(due);
        }
    }

    /// A look that changes nothing.
    pub(crate) fn peek<R>(&self, stripe: usize, look: impl FnOnce(&Stripe<K, V>) -> R) -> R {
        look(&Locked::new(self, stripe).0)
    }

    /// Before a refusal: brings unused permits together. Whether there are any now.
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

    /// How many tickets nobody has claimed, of all shards.
    pub(crate) fn unclaimed(&self) -> usize {
        let backlogs = self.shards.iter().map(|shard| &shard.backlog);
        backlogs.map(Backlog::unclaimed).sum()
    }

    /// See [`PermitPool::relax`].
    pub(crate) fn relax_permits(&self) {
        if let Some(pool) = &self.permits {
            pool.relax();
        }
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(seed: u64) -> u64 {
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
