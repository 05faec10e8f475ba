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
use super::by_number::{self, ByNumber};
use crate::recorder::fired;
use crate::system::{Payload, Tasks};

/// Parts of the map: many more than cores.
const SHARDS: usize = 256;
/// The tests do not wait so long.
const PERIOD: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1_000 });

type Map<V> = DashMap<u64, Armed<V>, FxBuildHasher>;

pub(crate) struct Sweep<V>(Arc<Map<V>>);

pub(crate) type ByKey = by_number::ByKey<Sweep<()>>;
pub(crate) type SessionMap = by_number::SessionMap<Sweep<u64>>;

/// In nanoseconds since the program began.
pub(crate) struct Armed<V> {
    deadline: AtomicU64,
    value: V,
}

fn after(delay: Duration) -> u64 {
    read() + delay.as_nanos() as u64
}

impl<V: Payload> ByNumber<V> for Sweep<V> {
    const NAME: &'static str = "sweep";
    const ABOUT: &'static str =
        "deadlines in a DashMap with FxHash, which is searched once a second";

    fn new(_: Tasks) -> Self {
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
        Sweep(map)
    }

    fn pending(&self) -> usize {
        self.0.len()
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = AtomicU64::new(after(delay));
        self.0.insert(key, Armed { deadline, value });
    }

    fn remove(&self, key: u64) -> Option<V> {
        self.0.remove(&key).map(|(_, armed)| armed.value)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = after(delay);
        let armed = self.0.get(&key);
        // Relaxed: whoever compares it has the lock.
        let write = |armed: &Armed<V>| armed.deadline.store(deadline, Ordering::Relaxed);
        armed.as_deref().map(write).is_some()
    }

    fn get(&self, key: u64) -> Option<V> {
        self.0.get(&key).map(|armed| armed.value)
    }
}
