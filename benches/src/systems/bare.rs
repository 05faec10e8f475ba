//! No timers, but what a touch costs at least: a map of deadlines, locked, looked up and written.
//! Nothing ever fires, so this is a floor to compare with and no peer. It serves the workloads that
//! only touch, and is left out when the best peer is determined.
//!
//! The map is striped: each stripe is a mutex around a plain hash map with FxHash, on cache lines
//! of its own. A call for many keys takes one lock over one map, as a loop in a service would; so
//! calls for many are measured with a single stripe.
//!
//! The time is one atomic load. A thread publishes it every millisecond, so a deadline is up to
//! that much too early, which no timer may be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::system::{Keyed, Sessions, System, Tasks};

/// Two threads rarely meet at one of them.
const STRIPES: usize = 256;

const NAME: &str = "bare";

/// Nanoseconds since this process asked first.
pub(super) fn read() -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    BASE.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The same by a thread that writes it.
pub(super) fn published() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    static PUBLISHER: OnceLock<()> = OnceLock::new();
    PUBLISHER.get_or_init(|| {
        NOW.store(read(), Ordering::Relaxed);
        thread::spawn(|| {
            loop {
                thread::sleep(Duration::from_millis(1));
                // Relaxed: only the number matters.
                NOW.store(read(), Ordering::Relaxed);
            }
        });
    });
    NOW.load(Ordering::Relaxed)
}

/// Deadlines by key.
pub(crate) struct Deadlines(Box<[Stripe<()>]>);

/// Values with deadlines, all of which are pushed out equally far.
pub(crate) struct Idle<const STRIPES: usize> {
    stripes: Box<[Stripe<u64>]>,
    idle: u64,
}

/// For touches one by one.
pub(crate) type StripedSessions = Idle<STRIPES>;
/// For touches of many in a call.
pub(crate) type SessionsOfOneMap = Idle<1>;

/// Alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Stripe<V>(Mutex<FxHashMap<u64, Armed<V>>>);

struct Armed<V> {
    deadline: u64,
    value: V,
}

impl<V> Stripe<V> {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Armed<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stripes<V: Default>(count: usize) -> Box<[Stripe<V>]> {
    (0..count).map(|_| Stripe::default()).collect()
}

/// By the high bits of a product; the map inside mixes in its own way.
fn stripe_of<V>(stripes: &[Stripe<V>], key: u64) -> &Stripe<V> {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    &stripes[mixed as usize & (stripes.len() - 1)]
}

fn insert<V>(stripes: &[Stripe<V>], key: u64, armed: Armed<V>) {
    stripe_of(stripes, key).lock().insert(key, armed);
}

fn touch<V>(map: &mut FxHashMap<u64, Armed<V>>, key: u64, deadline: u64) -> bool {
    let Some(armed) = map.get_mut(&key) else {
        return false;
    };
    armed.deadline = deadline;
    true
}

fn count<V>(stripes: &[Stripe<V>]) -> usize {
    stripes.iter().map(|stripe| stripe.lock().len()).sum()
}

impl System for Deadlines {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "no timers, a floor: deadlines in locked FxHash maps, the time as one load";
    const FLOOR_OF: &'static [&'static str] = &["W2"];

    fn pending(&self) -> usize {
        count(&self.0)
    }

    fn settle(&self) {}
}

impl Keyed for Deadlines {
    fn new(_: Tasks) -> Self {
        Deadlines(stripes(STRIPES))
    }

    fn start(&self, key: u64, delay: Duration) {
        let deadline = published() + delay.as_nanos() as u64;
        let value = ();
        insert(&self.0, key, Armed { deadline, value });
    }

    fn stop(&self, key: u64) -> bool {
        stripe_of(&self.0, key).lock().remove(&key).is_some()
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = published() + delay.as_nanos() as u64;
        touch(&mut stripe_of(&self.0, key).lock(), key, deadline)
    }
}

impl<const STRIPES: usize> System for Idle<STRIPES> {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = if STRIPES == 1 {
        "for S2 and S5: all in one map, one lock for a call"
    } else {
        "the same with values of 8 bytes in the map"
    };
    const FLOOR_OF: &'static [&'static str] = if STRIPES == 1 { &["S2", "S5"] } else { &["S1"] };

    fn pending(&self) -> usize {
        count(&self.stripes)
    }

    fn settle(&self) {}
}

impl<const STRIPES: usize> Sessions for Idle<STRIPES> {
    fn new(idle: Duration) -> Self {
        Idle {
            stripes: stripes(STRIPES),
            idle: idle.as_nanos() as u64,
        }
    }

    fn insert(&self, key: u64, value: u64) {
        let deadline = published() + self.idle;
        insert(&self.stripes, key, Armed { deadline, value });
    }

    fn get(&self, key: u64) -> Option<u64> {
        let map = stripe_of(&self.stripes, key).lock();
        map.get(&key).map(|armed| armed.value)
    }

    fn touch(&self, key: u64) -> bool {
        let deadline = published() + self.idle;
        touch(&mut stripe_of(&self.stripes, key).lock(), key, deadline)
    }

    /// With one stripe under one hold of its mutex.
    fn touch_many(&self, keys: &[u64]) -> usize {
        let [stripe] = &*self.stripes else {
            return keys.iter().filter(|key| self.touch(**key)).count();
        };
        let deadline = published() + self.idle;
        let mut map = stripe.lock();
        let touched = keys.iter().filter(|key| touch(&mut map, **key, deadline));
        touched.count()
    }

    fn remove(&self, key: u64) -> Option<u64> {
        let removed = stripe_of(&self.stripes, key).lock().remove(&key);
        removed.map(|armed| armed.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_writes_the_published_time_and_the_delay() {
        let deadlines = Deadlines::new(Tasks::Short);
        deadlines.start(7, Duration::ZERO);
        let deadline = || stripe_of(&deadlines.0, 7).lock()[&7].deadline;
        let before = deadline();
        thread::sleep(Duration::from_millis(20));
        assert!(deadlines.touch(7, Duration::from_secs(1)));
        let moved = Duration::from_nanos(deadline() - before);
        // Whatever the machine does, 15 of the 20 ms have been published.
        assert!(moved >= Duration::from_millis(1_005), "{moved:?}");
    }

    #[test]
    fn keys_spread_over_all_stripes() {
        let deadlines = Deadlines::new(Tasks::Short);
        for key in 0..100 * STRIPES as u64 {
            deadlines.start(key, Duration::ZERO);
        }
        let sizes = deadlines.0.iter().map(|stripe| stripe.lock().len());
        let (least, most) = sizes.fold((usize::MAX, 0), |(least, most), size| {
            (least.min(size), most.max(size))
        });
        assert!(least > 50 && most < 200, "{least} to {most}");
    }
}
