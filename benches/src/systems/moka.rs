//! A cache that many use for sessions: `moka::sync::Cache` with a time to idle and an eviction
//! listener, without a bound. FxHash in the place of its SipHash, as for the other peers, which
//! favours it.
//!
//! As timers with a delay each, by key, its values are the delays, and a policy (`Expiry`) makes
//! the end of an entry of them: when it is inserted, when another delay replaces the value, and
//! when it is read. So a touch by the delay that the entry has is a `get`, which favours it; by
//! another one it is an `insert` as well.
//!
//! It has no thread. What is over its time is not found any more, but stays where it is, unseen by
//! the listener, until housekeeping comes by: in some calls of users, at most every 64 of them, or
//! when `run_pending_tasks` is called. So that a session that nobody looks at expires at all, there
//! is a thread here that calls it every 100 ms; a listener may hear of an expiry so much later.
//!
//! Its touch is `get`: it writes the time into the entry, and notes the read in a queue for
//! housekeeping, which moves the entry to the end of a list; when the queue is full the note is
//! dropped. Settling is a run of the pending tasks.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::notification::RemovalCause;
use moka::sync::Cache;
use rustc_hash::FxBuildHasher;

use crate::recorder::fired;
use crate::system::{Keyed, Sessions, System, Tasks};

/// Between two rounds of housekeeping.
const PERIOD: Duration = Duration::from_millis(100);

type Map = Cache<u64, u64, FxBuildHasher>;

/// A cache and its thread.
pub(crate) struct Kept<const SESSIONS: bool> {
    cache: Map,
    /// The thread of housekeeping ends when the last reference is dropped.
    _alive: Arc<()>,
}

/// By key.
pub(crate) type ByKey = Kept<false>;

/// With a time to idle for all.
pub(crate) type SessionMap = Kept<true>;

impl<const SESSIONS: bool> Kept<SESSIONS> {
    fn keep(cache: Map) -> Self {
        let alive = Arc::new(());
        let (kept, until) = (cache.clone(), Arc::downgrade(&alive));
        thread::spawn(move || keep_house(&kept, &until));
        Kept {
            cache,
            _alive: alive,
        }
    }
}

fn keep_house(cache: &Map, alive: &Weak<()>) {
    while alive.strong_count() > 0 {
        cache.run_pending_tasks();
        thread::sleep(PERIOD);
    }
}

impl<const SESSIONS: bool> System for Kept<SESSIONS> {
    const NAME: &'static str = "moka";
    const ABOUT: &'static str = if SESSIONS {
        "moka::sync::Cache, time_to_idle, a listener, housekeeping every 100 ms"
    } else {
        "moka::sync::Cache, a delay per entry by Expiry, housekeeping every 100 ms"
    };
    /// Ten million by key take 3.5 GB and twenty seconds to insert.
    const MOST_KEYS: u64 = if SESSIONS { u64::MAX } else { 1_000_000 };

    fn pending(&self) -> usize {
        self.settle();
        self.cache.entry_count() as usize
    }

    fn settle(&self) {
        self.cache.run_pending_tasks();
    }
}

/// A value is a delay, in nanoseconds.
struct DelayIsValue;

impl Expiry<u64, u64> for DelayIsValue {
    fn expire_after_create(&self, _: &u64, delay: &u64, _: Instant) -> Option<Duration> {
        Some(Duration::from_nanos(*delay))
    }

    fn expire_after_read(
        &self,
        _: &u64,
        delay: &u64,
        _: Instant,
        _: Option<Duration>,
        _: Instant,
    ) -> Option<Duration> {
        Some(Duration::from_nanos(*delay))
    }

    fn expire_after_update(
        &self,
        _: &u64,
        delay: &u64,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(Duration::from_nanos(*delay))
    }
}

impl Keyed for ByKey {
    fn new(_: Tasks) -> Self {
        let listen = |key: Arc<u64>, _, cause| {
            // As below.
            if cause == RemovalCause::Expired {
                fired(*key);
            }
        };
        let cache = Cache::builder()
            .expire_after(DelayIsValue)
            .eviction_listener(listen);
        Kept::keep(cache.build_with_hasher(FxBuildHasher))
    }

    fn start(&self, key: u64, delay: Duration) {
        self.cache.insert(key, delay.as_nanos() as u64);
    }

    fn stop(&self, key: u64) -> bool {
        self.cache.remove(&key).is_some()
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let wanted = delay.as_nanos() as u64;
        let found = self.cache.get(&key);
        if found.is_some_and(|value| value != wanted) {
            self.cache.insert(key, wanted);
        }
        found.is_some()
    }
}

impl Sessions for SessionMap {
    fn new(idle: Duration) -> Self {
        let listen = |_, value, cause| {
            // What is replaced or removed is told here too.
            if cause == RemovalCause::Expired {
                fired(value);
            }
        };
        let cache = Cache::builder()
            .time_to_idle(idle)
            .eviction_listener(listen);
        Kept::keep(cache.build_with_hasher(FxBuildHasher))
    }

    fn insert(&self, key: u64, value: u64) {
        self.cache.insert(key, value);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.cache.get(&key)
    }

    fn touch(&self, key: u64) -> bool {
        self.cache.get(&key).is_some()
    }

    fn remove(&self, key: u64) -> Option<u64> {
        self.cache.remove(&key)
    }
}
