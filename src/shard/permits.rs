//! `max_pending`: permits in blocks, and a refusal that is exact all the same.
//!
//! Without a bound there is no pool and no shared counter. With one, every pending arming holds a
//! permit. A permit is in one of three places: with an arming, unused in a stripe (only its lock's
//! holder touches it), or in the pool. Stripes take from the pool in blocks, so that most calls
//! touch nothing shared.
//!
//! A refusal must mean that at one moment no permit was unused anywhere. So before refusing, a
//! producer becomes the collector (one at a time), turns `scarce` on, and visits every stripe under
//! its lock. While `scarce` is on, a stripe that gets a permit back gives it to the pool and takes
//! no more than it needs at once; so a visited stripe stays without unused permits. When the pool
//! is then found empty, at that moment there was none at all: **PERMIT-1**. `scarce` goes off when
//! the pool is comfortably full again, and never during a collection: **PERMIT-2** (both hold the
//! collector's lock). Until then another refusal need not visit anybody: **PERMIT-3**.
//!
//! `scarce` is written under the collector's lock and read under a stripe's lock. A stripe that was
//! locked after the collector's visit sees it, since the visit's unlock comes in between: that is
//! why Relaxed is enough.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The permits that no stripe holds.
#[derive(Debug)]
pub(crate) struct PermitPool {
    available: AtomicUsize,
    scarce: AtomicBool,
    /// Whether all stripes have been visited since scarcity began: then none has an unused permit.
    collector: Mutex<bool>,
    block: usize,
    /// From here on `scarce` may go off again.
    plenty: usize,
}

/// Unused permits of one stripe, behind its lock.
#[derive(Debug, Default)]
pub(crate) struct LocalPermits(usize);

impl PermitPool {
    /// `limit` permits, handed to `stripes` stripes in blocks of `block`.
    pub(crate) fn new(limit: usize, block: usize, stripes: usize) -> Self {
        PermitPool {
            available: AtomicUsize::new(limit),
            // A block of one is scarcity for good: nothing is ever held back in a stripe.
            scarce: AtomicBool::new(block <= 1),
            // With blocks of one there is never anything to collect.
            collector: Mutex::new(block <= 1),
            block,
            plenty: block.saturating_mul(stripes).saturating_mul(2),
        }
    }

    /// Takes a permit, from the stripe's own or from the pool. False: the caller must unlock and
    /// [`collect`](Self::collect).
    pub(crate) fn take(&self, local: &mut LocalPermits) -> bool {
        if local.0 > 0 {
            local.0 -= 1;
            return true;
        }
        // Relaxed: see the head.
        let scarce = self.scarce.load(Ordering::Relaxed);
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
                local.0 -= self.block;
                self.give(self.block);
            }
        }
    }

    fn give(&self, permits: usize) {
        // Relaxed: the count guards no data, only itself.
        self.available.fetch_add(permits, Ordering::Relaxed);
    }

    /// One collection: `visit` is called, unless nothing can have been left unused since the last
    /// one, and must run `PermitPool::drain` on every stripe's
    /// permits under that stripe's lock. Returns whether the pool has any permit afterwards.
    pub(crate) fn collect(&self, visit: impl FnOnce()) -> bool {
        let mut collected = self.collector.lock();
        if !*collected {
            // Relaxed: the stripes' locks carry it; see the head.
            self.scarce.store(true, Ordering::Relaxed);
            visit();
            *collected = true;
        }
        // Relaxed: the count guards no data, only itself.
        self.available.load(Ordering::Relaxed) > 0
    }

    /// Takes a stripe's unused permits into the pool.
    pub(crate) fn drain(&self, local: &mut LocalPermits) {
        let unused = std::mem::take(&mut local.0);
        if unused > 0 {
            self.give(unused);
        }
    }

    /// Ends scarcity when there is plenty again. Called now and then, by tickers.
    pub(crate) fn relax(&self) {
        // Relaxed: a stale answer costs one more round.
        if self.block > 1
            && self.scarce.load(Ordering::Relaxed)
            && self.available.load(Ordering::Relaxed) >= self.plenty
        {
            let mut collected = self.collector.lock();
            *collected = false;
            // Relaxed: whoever misses it stays careful for a while.
            self.scarce.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unused_permits_are_collected_before_a_refusal() {
        let pool = PermitPool::new(10, 4, 2);
        let (mut a, mut b) = (LocalPermits::default(), LocalPermits::default());
        assert!(pool.take(&mut a) && a.0 == 3);
        for _ in 0..6 {
            assert!(pool.take(&mut b));
        }
        assert!(!pool.take(&mut b), "three are unused, but with the other");
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
            "while scarce, the pool gets it"
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
}
