//! The permits of `max_pending`. There are never more armings than permits. After a refusal there
//! was a moment without an unused permit. `shard/permits.rs` has the protocol, PERMIT-1 and
//! PERMIT-2. Most models use the pool itself, since an engine with a small bound never hands out
//! permits in blocks.
//!
//! Teeth:
//! - `teeth/permits-collecting-without-scarcity.patch`: a stripe that was visited gets a permit
//!   back and keeps it.
//! - `teeth/permits-relaxing-during-a-collection.patch`: the same, since scarcity ends meanwhile.
//! - `teeth/permits-taken-without-a-second-look.patch`: two callers take the same permit.
//! - `teeth/permits-drained-and-dropped.patch`: the permits that a visit finds do not reach the
//!   pool.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::rig::{Rig, START, Size, at};
use crate::shard::Refusal;
use crate::shard::permits::{LocalPermits, PermitPool};
use crate::sync::{Arc, Mutex};

/// A pool, and the stripes that take permits from it.
struct Permits {
    pool: PermitPool,
    stripes: [Mutex<LocalPermits>; 2],
    limit: usize,
    /// The number of permits in use. A counter of std, not of loom. It may be too low for a moment,
    /// but never too high.
    held: Count,
}

impl Permits {
    /// Creates the permits. With `plentiful` scarcity may end right after each collection, which is
    /// the worst case for the next one.
    fn new(limit: usize, block: usize, plentiful: bool) -> Arc<Self> {
        // The threshold of plenty is a multiple of the number of stripes.
        let stripes = if plentiful { 0 } else { 2 };
        Arc::new(Permits {
            pool: PermitPool::new(limit, block, stripes),
            stripes: [(); 2].map(|()| Mutex::new(LocalPermits::default())),
            limit,
            held: Count::new(0),
        })
    }

    /// Takes a permit, as `Engine::admit` does.
    fn take(&self, stripe: usize) -> bool {
        loop {
            let taken = self.pool.take(&mut self.stripes[stripe].lock());
            if taken {
                let before = self.held.fetch_add(1, Relaxed);
                assert!(before < self.limit, "more than there are");
                return true;
            }
            let some = self.pool.collect(|| {
                for stripe in &self.stripes {
                    self.pool.drain(&mut stripe.lock());
                }
            });
            if !some {
                return false;
            }
        }
    }

    fn put_back(&self, stripe: usize) {
        self.held.fetch_sub(1, Relaxed);
        self.pool.put_back(&mut self.stripes[stripe].lock());
    }

    /// Checks that all permits can be taken.
    fn all_there(&self) {
        let held = self.held.load(Relaxed);
        let mut free = 0;
        while self.take(free % 2) {
            free += 1;
        }
        assert_eq!(held + free, self.limit);
    }
}

/// No permit is returned, so the number of accepted armings is the number of permits, wherever the
/// permits were.
#[test]
fn three_want_two() {
    check(3, || {
        let permits = Permits::new(2, 2, false);
        let others = [0, 1].map(|stripe| {
            let permits = Arc::clone(&permits);
            thread::spawn(move || permits.take(stripe))
        });
        let mut accepted = usize::from(permits.take(1));
        for other in others {
            accepted += usize::from(other.join().unwrap());
        }
        assert_eq!(accepted, 2);
    });
}

/// One thread holds at most one of two permits at any moment. So another thread is never refused,
/// wherever the permits go meanwhile.
#[test]
fn nobody_is_refused_while_a_permit_is_unused() {
    check(3, || {
        let permits = Permits::new(2, 2, true);
        // While permits are scarce each stripe takes one. Afterwards stripe 1 keeps the one it gets
        // back.
        assert!(permits.pool.collect(|| {}));
        assert!(permits.take(0));
        permits.pool.relax();
        assert!(permits.take(1));
        permits.put_back(1);
        let wanderer = {
            let permits = Arc::clone(&permits);
            thread::spawn(move || {
                permits.put_back(0);
                assert!(permits.take(1));
            })
        };
        let ticker = {
            let permits = Arc::clone(&permits);
            thread::spawn(move || permits.pool.relax())
        };
        assert!(permits.take(0), "one is unused");
        wanderer.join().unwrap();
        ticker.join().unwrap();
        permits.all_there();
    });
}

/// The same, with the unused permit in the other stripe, and both holders return theirs.
#[test]
fn what_is_given_back_is_found() {
    check(3, || {
        let permits = Permits::new(3, 2, true);
        for stripe in [0, 1] {
            assert!(permits.take(stripe));
        }
        let others = [0, 1].map(|stripe| {
            let permits = Arc::clone(&permits);
            thread::spawn(move || {
                permits.put_back(stripe);
                permits.pool.relax();
            })
        });
        assert!(permits.take(1), "the third one is unused");
        for other in others {
            other.join().unwrap();
        }
        permits.all_there();
    });
}

/// The same through the engine: the stripes' own calls, with blocks of one.
#[test]
fn the_engine_accepts_as_many_as_may_be_pending() {
    check(3, || {
        let (rig, _seat) = Rig::new(&Size {
            stripes: 2,
            max_pending: Some(1),
            ..Size::default()
        });
        let far = at(START + 1_000);
        rig.arm(0, 0, far).unwrap();
        let arm = |key: u32| {
            let rig = rig.clone();
            thread::spawn(move || match rig.arm(key, key as usize, far) {
                Ok(_) => true,
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::NoPermit);
                    false
                }
            })
        };
        let others = [1, 2].map(arm);
        rig.cancel(0);
        let accepted = others.map(|other| other.join().unwrap());
        assert_ne!(accepted, [true, true]);
        let pending = rig.balance().pending;
        assert_eq!(pending, u64::from(accepted != [false, false]));
        assert_eq!(rig.arm(3, 3, far).is_ok(), pending == 0);
    });
}
