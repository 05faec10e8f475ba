//! The bound `max_pending`: permits are handed out in blocks, and a refusal is exact nevertheless.
//!
//! Without a bound there is no pool and no shared counter. With a bound, every pending arming holds
//! a permit. A permit is held by an arming, lies unused in a stripe (where only the holder of the
//! stripe's lock touches it), or lies in the pool. Stripes take permits from the pool in blocks, so
//! that most calls touch no shared state.
//!
//! A refusal must mean that at some moment there was no unused permit anywhere. So before a call is
//! refused:
//!
//! 1. The calling thread becomes the collector. There is one at a time.
//! 2. It sets `scarce` and visits every stripe under the stripe's lock, to move unused permits into
//!    the pool.
//! 3. While `scarce` is set, a stripe that gets a permit back gives it to the pool, and takes no
//!    more than it needs at once. So a visited stripe keeps no unused permits.
//!
//! - **PERMIT-1** If the pool is then found empty, there was no unused permit at that moment.
//! - **PERMIT-2** `scarce` is cleared when the pool has plenty again, and never during a
//!   collection: both hold the collector's lock.
//! - **PERMIT-3** Until `scarce` is cleared, a further refusal need not visit any stripe.
//!
//! `scarce` is written under the collector's lock and read under a stripe's lock. A stripe that is
//! locked after the collector's visit sees the new value, because the visit's unlock comes in
//! between. That is why Relaxed is enough.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The permits that no stripe holds.
#[derive(Debug)]
pub(crate) struct PermitPool {
    available: AtomicUsize,
    scarce: AtomicBool,
    /// Whether all stripes have been visited since scarcity began. If so, no stripe has an unused
    /// permit. Held by who collects; taken before a stripe's lock, never inside of it.
    collector: Mutex<bool>,
    /// Number of permits that a stripe takes at a time.
    block: usize,
    /// Number of permits in the pool at which `scarce` may be cleared.
    plenty: usize,
}

/// The unused permits of one stripe, protected by its lock.
#[derive(Debug, Default)]
pub(crate) struct LocalPermits(usize);

impl PermitPool {
    /// Creates a pool of `limit` permits for `stripes` stripes, which take `block` permits at a
    /// time.
    pub(crate) fn new(limit: usize, block: usize, stripes: usize) -> Self {
        PermitPool {
            available: AtomicUsize::new(limit),
            // With a block of one, scarcity never ends: no permit ever stays in a stripe.
            scarce: AtomicBool::new(block <= 1),
            // With a block of one, there is never anything to collect.
            collector: Mutex::new(block <= 1),
            block,
            plenty: block.saturating_mul(stripes).saturating_mul(2),
        }
    }

    /// Takes a permit, from the stripe's own or else from the pool. If this returns false, the
    /// caller must unlock and [`collect`](Self::collect).
    pub(crate) fn take(&self, local: &mut LocalPermits) -> bool {
        if local.0 > 0 {
            local.0 -= 1;
            return true;
        }
        // Relaxed: see the head.
        let scarce = self.scarce.load(Ordering::Relaxed);
        // While permits are scarce, a block would leave unused ones in a stripe that was visited
        // already.
        let want = if scarce { 1 } else { self.block };
        // Relaxed: the count guards no data, only itself.
        let taken =
            self.available
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |available| {
                    (available > 0).then(|| available - available.min(want))
                });
        match taken {
            Ok(before) => {
                local.0 += before.min(want) - 1;
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the permit of an arming that ended.
    pub(crate) fn put_back(&self, local: &mut LocalPermits) {
        // Relaxed: see the head.
        if self.scarce.load(Ordering::Relaxed) {
            self.give(1);
        } else {
            local.0 += 1;
            if local.0 >= 2 * self.block {
                // One block stays, so that a stripe whose armings come and go does not touch the
                // pool each time.
                local.0 -= self.block;
                self.give(self.block);
            }
        }
    }

    /// Adds permits to the pool.
    fn give(&self, permits: usize) {
        // Relaxed: the count guards no data, only itself.
        let before = self.available.fetch_add(permits, Ordering::Relaxed);
        debug_assert!(before.checked_add(permits).is_some(), "permits were taken");
    }

    /// Collects unused permits, and returns whether the pool has any permit afterwards.
    ///
    /// `visit` must run `PermitPool::drain` on the permits of every stripe, under that stripe's
    /// lock. It is called unless no permit can have been left unused since the last collection.
    pub(crate) fn collect(&self, visit: impl FnOnce()) -> bool {
        let mut collected = self.collector.lock();
        if !*collected {
            // Relaxed: the stripes' locks publish it; see the head.
            self.scarce.store(true, Ordering::Relaxed);
            visit();
            *collected = true;
        }
        // Relaxed: the count guards no data, only itself.
        self.available.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of permits in the pool. After a collection, no other permit was unused
    /// (PERMIT-1).
    #[cfg(feature = "serde")]
    pub(crate) fn available(&self) -> usize {
        // Relaxed: the count guards no data, only itself.
        self.available.load(Ordering::Relaxed)
    }

    /// Moves a stripe's unused permits into the pool.
    pub(crate) fn drain(&self, local: &mut LocalPermits) {
        let unused = std::mem::take(&mut local.0);
        if unused > 0 {
            self.give(unused);
        }
    }

    /// Ends scarcity when the pool has plenty of permits again. Tickers call this now and then.
    pub(crate) fn relax(&self) {
        // Relaxed: after a stale answer, the next call ends it.
        if self.block > 1
            && self.scarce.load(Ordering::Relaxed)
            && self.available.load(Ordering::Relaxed) >= self.plenty
        {
            let mut collected = self.collector.lock();
            *collected = false;
            // Relaxed: a stripe that misses it takes single permits for a while longer.
            self.scarce.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Layout, Shards};
    use super::*;
    use crate::tick::{TickSize, Time};

    #[test]
    fn unused_permits_are_collected_before_a_refusal() {
        let pool = PermitPool::new(10, 4, 2);
        let (mut a, mut b) = (LocalPermits::default(), LocalPermits::default());
        assert!(pool.take(&mut a) && a.0 == 3);
        for _ in 0..6 {
            assert!(pool.take(&mut b));
        }
        assert!(!pool.take(&mut b), "the other stripe has three");
        assert!(pool.collect(|| {
            pool.drain(&mut a);
            pool.drain(&mut b);
        }));
        for _ in 0..3 {
            assert!(pool.take(&mut b));
        }
        assert!(!pool.take(&mut b));
        assert!(!pool.collect(|| {
            pool.drain(&mut a);
            pool.drain(&mut b);
        }));
        pool.put_back(&mut a);
        assert!(
            a.0 == 0 && pool.take(&mut b),
            "while permits are scarce, the pool gets them back"
        );
    }

    #[test]
    fn scarcity_ends_with_plenty() {
        let pool = PermitPool::new(100, 4, 2);
        let mut local = LocalPermits::default();
        assert!(pool.collect(|| ()));
        assert!(pool.take(&mut local) && local.0 == 0);
        pool.relax();
        assert!(pool.take(&mut local) && local.0 == 3);
    }

    #[test]
    fn with_blocks_of_one_scarcity_never_ends() {
        let pool = PermitPool::new(100, 1, 2);
        let mut local = LocalPermits::default();
        pool.relax();
        assert!(pool.take(&mut local));
        pool.put_back(&mut local);
        assert_eq!(local.0, 0, "no permit stays in a stripe");
    }

    #[test]
    fn the_shards_end_the_scarcity_of_their_pool() {
        let layout = Layout {
            shards: 1,
            stripes: 2,
            tick: TickSize::from_nanos(1_000_000),
            now: Time::ZERO,
            backlog: 16,
            // Smaller bounds are handed out one by one.
            max_pending: Some(10_000),
            paced: false,
            seed: 7,
        };
        let shards = Shards::<u64, ()>::new(&layout);
        let pool = shards.permits.as_ref().unwrap();
        assert!(shards.collect_permits());
        assert!(pool.scarce.load(Ordering::Relaxed));
        #[cfg(feature = "serde")]
        assert_eq!(pool.available(), 10_000);
        shards.relax_permits();
        assert!(!pool.scarce.load(Ordering::Relaxed));
    }
}
