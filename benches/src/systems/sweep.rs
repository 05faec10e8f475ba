//! The least that users write: a `DashMap` of deadlines, which a thread goes through once a second.
//! A timer is up to a second late, and a bit more by the time that this takes.
//!
//! A touch takes the shared lock of its part of the map and writes the deadline. Tasks run on the
//! thread, outside the map, also those that may block. A timer keeps its key and nothing else;
//! sessions have a value of their own in the map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;

use super::bare::read;
use crate::recorder::fired;
use crate::system::{Keyed, Payload, Sessions, System, Tasks};

/// Parts of the map: many more than cores.
const SHARDS: usize = 256;
/// The tests do not wait so long.
const PERIOD: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1_000 });

type Map<V> = DashMap<u64, Armed<V>, FxBuildHasher>;

/// By key a timer has no value of its own, and `idle` is not used.
pub(crate) struct Sweep<V> {
    map: Arc<Map<V>>,
    idle: Duration,
}

pub(crate) type ByKey = Sweep<()>;
pub(crate) type SessionMap = Sweep<u64>;

/// In nanoseconds since the program began.
struct Armed<V> {
    deadline: AtomicU64,
    value: V,
}

impl<V: Payload + Sync> Sweep<V> {
    fn with(idle: Duration) -> Self {
        let map = DashMap::with_hasher_and_shard_amount(FxBuildHasher, SHARDS);
        let map: Arc<Map<V>> = Arc::new(map);
        let swept = Arc::downgrade(&map);
        thread::spawn(move || {
            let mut due = Vec::new();
            // Until nobody else has the timers.
            while let Some(map) = swept.upgrade() {
                let now = read();
                map.retain(|key, armed| {
                    let stays = *armed.deadline.get_mut() > now;
                    if !stays {
                        due.push(armed.value.value(*key));
                    }
                    stays
                });
                drop(map);
                due.drain(..).for_each(fired);
                thread::sleep(PERIOD);
            }
        });
        Sweep { map, idle }
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = AtomicU64::new(after(delay));
        self.map.insert(key, Armed { deadline, value });
    }

    fn push(&self, key: u64, delay: Duration) -> bool {
        let deadline = after(delay);
        let armed = self.map.get(&key);
        // Relaxed: whoever compares it has the lock.
        let write = |armed: &Armed<V>| armed.deadline.store(deadline, Ordering::Relaxed);
        armed.as_deref().map(write).is_some()
    }
}

fn after(delay: Duration) -> u64 {
    read() + delay.as_nanos() as u64
}

impl<V: Payload + Sync> System for Sweep<V> {
    const NAME: &'static str = "sweep";
    const ABOUT: &'static str = match size_of::<V>() {
        0 => "deadlines in a DashMap with FxHash, which is searched once a second",
        _ => "the same with values of 8 bytes in the map",
    };

    fn pending(&self) -> usize {
        self.map.len()
    }

    fn settle(&self) {}
}

impl Keyed for ByKey {
    fn new(_: Tasks) -> Self {
        Self::with(Duration::ZERO)
    }

    fn start(&self, key: u64, delay: Duration) {
        self.start(key, (), delay);
    }

    fn stop(&self, key: u64) -> bool {
        self.map.remove(&key).is_some()
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.push(key, delay)
    }
}

impl Sessions for SessionMap {
    fn new(idle: Duration) -> Self {
        Self::with(idle)
    }

    fn insert(&self, key: u64, value: u64) {
        self.start(key, value, self.idle);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.map.get(&key).map(|armed| armed.value)
    }

    fn touch(&self, key: u64) -> bool {
        self.push(key, self.idle)
    }

    fn remove(&self, key: u64) -> Option<u64> {
        self.map.remove(&key).map(|(_, armed)| armed.value)
    }
}
