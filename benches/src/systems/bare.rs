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

use super::by_number::{self, ByNumber, WITH_VALUES};
use crate::system::{Payload, Tasks};

/// Two threads rarely meet at one of them.
const STRIPES: usize = 256;

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

/// Deadlines and their values, in this number of stripes.
pub(crate) struct Deadlines<V, const STRIPES: usize>(Box<[Stripe<V>]>);

pub(crate) type ByKey = by_number::ByKey<Deadlines<(), STRIPES>>;
/// For touches one by one.
pub(crate) type StripedSessions = by_number::SessionMap<Deadlines<u64, STRIPES>>;
/// For touches of many in a call.
pub(crate) type SessionsOfOneMap = by_number::SessionMap<Deadlines<u64, 1>>;

/// Alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Stripe<V>(Mutex<FxHashMap<u64, Armed<V>>>);

struct Armed<V> {
    deadline: u64,
    value: V,
}

impl<V> Stripe<V> {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Armed<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V, const STRIPES: usize> Deadlines<V, STRIPES> {
    /// By the high bits of a product; the map inside mixes in its own way.
    fn stripe(&self, key: u64) -> MutexGuard<'_, FxHashMap<u64, Armed<V>>> {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.0[mixed as usize & (self.0.len() - 1)].lock()
    }
}

fn touch<V>(map: &mut FxHashMap<u64, Armed<V>>, key: u64, deadline: u64) -> bool {
    let Some(armed) = map.get_mut(&key) else {
        return false;
    };
    armed.deadline = deadline;
    true
}

fn after(delay: Duration) -> u64 {
    published() + delay.as_nanos() as u64
}

impl<V: Payload, const STRIPES: usize> ByNumber<V> for Deadlines<V, STRIPES> {
    const NAME: &'static str = "bare";
    const ABOUT: &'static str =
        "no timers, a floor: deadlines in locked FxHash maps, the time as one load";
    const OF_SESSIONS: &'static str = if STRIPES == 1 {
        "for S2 and S5: all in one map, one lock for a call"
    } else {
        WITH_VALUES
    };
    const FLOOR_OF: &'static [&'static str] = if STRIPES == 1 {
        &["S2", "S5"]
    } else {
        &["W2", "S1"]
    };

    fn new(_: Tasks) -> Self {
        Deadlines((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn pending(&self) -> usize {
        self.0.iter().map(|stripe| stripe.lock().len()).sum()
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = after(delay);
        self.stripe(key).insert(key, Armed { deadline, value });
    }

    fn remove(&self, key: u64) -> Option<V> {
        self.stripe(key).remove(&key).map(|armed| armed.value)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = after(delay);
        touch(&mut self.stripe(key), key, deadline)
    }

    fn get(&self, key: u64) -> Option<V> {
        self.stripe(key).get(&key).map(|armed| armed.value)
    }

    /// With one stripe under one hold of its mutex.
    fn touch_many(&self, keys: &[u64], delay: Duration) -> usize {
        let [stripe] = &*self.0 else {
            return keys.iter().filter(|key| self.touch(**key, delay)).count();
        };
        let deadline = after(delay);
        let mut map = stripe.lock();
        let touched = keys.iter().filter(|key| touch(&mut map, **key, deadline));
        touched.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_writes_the_published_time_and_the_delay() {
        let deadlines = Deadlines::<(), STRIPES>::new(Tasks::Short);
        deadlines.start(7, (), Duration::ZERO);
        let deadline = || deadlines.stripe(7)[&7].deadline;
        let before = deadline();
        thread::sleep(Duration::from_millis(20));
        assert!(deadlines.touch(7, Duration::from_secs(1)));
        let moved = Duration::from_nanos(deadline() - before);
        // Whatever the machine does, 15 of the 20 ms have been published.
        assert!(moved >= Duration::from_millis(1_005), "{moved:?}");
    }

    #[test]
    fn keys_spread_over_all_stripes() {
        let deadlines = Deadlines::<(), STRIPES>::new(Tasks::Short);
        for key in 0..100 * STRIPES as u64 {
            deadlines.start(key, (), Duration::ZERO);
        }
        let sizes = deadlines.0.iter().map(|stripe| stripe.lock().len());
        let few = |size: &usize| *size > 50 && *size < 200;
        assert!(
            sizes.clone().all(|size| few(&size)),
            "{:?}",
            sizes.collect::<Vec<_>>()
        );
    }
}
