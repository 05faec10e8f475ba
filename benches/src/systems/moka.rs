//! A cache that many use for sessions: `moka::sync::Cache` with a time to idle and an eviction listener,
//! without a bound. FxHash in the place of its SipHash, as for the other peers, which favours it.
//!
//! It has no thread. What is over its time is not found any more, but stays where it is, unseen by the
//! listener, until housekeeping comes by: in some calls of users, at most every 64 of them, or when
//! `run_pending_tasks` is called. So that a session that nobody looks at expires at all, there is a
//! thread here that calls it every 100 ms; a listener may hear of an expiry so much later.
//!
//! Its touch is `get`: it writes the time into the entry, and notes the read in a queue for
//! housekeeping, which moves the entry to the end of a list; when the queue is full the note is dropped.
//! Settling is a run of the pending tasks.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::sync::Cache;
use rustc_hash::FxBuildHasher;

use super::{Sessions, System};
use crate::recorder::fired;

/// Between two rounds of housekeeping.
const PERIOD: Duration = Duration::from_millis(100);

/// The thread of housekeeping ends when the last reference to `alive` is dropped.
pub(crate) struct SessionMap {
    cache: Cache<u64, u64, FxBuildHasher>,
    _alive: Arc<()>,
}

impl System for SessionMap {
    const NAME: &'static str = "moka";
    const ABOUT: &'static str = "moka::sync::Cache, time_to_idle, a listener, housekeeping every 100 ms";

    fn pending(&self) -> usize {
        self.settle();
        self.cache.entry_count() as usize
    }

    fn settle(&self) {
        self.cache.run_pending_tasks();
    }
}

fn keep_house(cache: &Cache<u64, u64, FxBuildHasher>, alive: &Weak<()>) {
    while alive.strong_count() > 0 {
        cache.run_pending_tasks();
        thread::sleep(PERIOD);
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
        let cache = Cache::builder().time_to_idle(idle).eviction_listener(listen);
        let cache = cache.build_with_hasher(FxBuildHasher);
        let alive = Arc::new(());
        let (kept, until) = (cache.clone(), Arc::downgrade(&alive));
        thread::spawn(move || keep_house(&kept, &until));
        SessionMap {
            cache,
            _alive: alive,
        }
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
