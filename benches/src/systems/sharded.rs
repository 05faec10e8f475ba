//! What users write for many threads: 128 mutexes, around a hash map and a small wheel each, and a
//! thread that goes through all of them every millisecond.
//!
//! A touch is *lazy*: it only writes the new deadline into the map. The wheel's item is filed again
//! when it comes up. A stop removes the map's entry alone, and the item stays until its time comes.
//! Nobody has to be woken. Deadlines are rounded up to ticks, which are milliseconds.
//!
//! Tasks run on the ticking thread, outside the mutexes, also those that may block. A timer keeps
//! its key and nothing else; sessions have a value of their own in the map.
//!
//! With the name `sharded-published` a call does not read the clock, but a time that a thread
//! publishes. Its timers may be early by as much as that thread is late, so this is a floor.

use std::collections::hash_map::Entry;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::bare::{published, read};
use super::by_number::{self, ByNumber, WITH_VALUES};
use crate::recorder::fired;
use crate::system::{Payload, Tasks};

const SHARDS: usize = 128;
const TICK: Duration = Duration::from_millis(1);
/// Each level of a wheel has 64 slots, of 64 times the time of those below: 139 years in all.
const BITS: u32 = 6;
const LEVELS: u32 = 7;

/// All shards.
pub(crate) struct Sharded<V, const PUBLISHED: bool>(Arc<[Shard<V>]>);

pub(crate) type ByKey = by_number::ByKey<Sharded<(), false>>;
pub(crate) type SessionMap = by_number::SessionMap<Sharded<u64, false>>;
pub(crate) type ByKeyPublished = by_number::ByKey<Sharded<(), true>>;
pub(crate) type SessionMapPublished = by_number::SessionMap<Sharded<u64, true>>;

/// Alone on its cache lines.
#[repr(align(128))]
pub(crate) struct Shard<V>(Mutex<Inner<V>>);

struct Inner<V> {
    armed: FxHashMap<u64, Armed<V>>,
    wheel: Wheel,
}

/// In ticks since the program began.
struct Armed<V> {
    deadline: u64,
    /// When the wheel's item for it comes up, at most at the deadline.
    queued: u64,
    value: V,
}

struct Wheel {
    /// Those of all levels, one after the other.
    slots: Vec<Vec<u64>>,
    ticked: u64,
}

impl Wheel {
    /// Returns the tick that the item comes up in.
    fn file(&mut self, key: u64, due: u64) -> u64 {
        let due = due.max(self.ticked + 1);
        let level = (due ^ self.ticked).ilog2() / BITS;
        self.slot(due, level).push(key);
        due
    }

    fn slot(&mut self, tick: u64, level: u32) -> &mut Vec<u64> {
        let number = (tick >> (BITS * level)) % (1 << BITS);
        &mut self.slots[((level << BITS) as u64 + number) as usize]
    }
}

impl<V: Payload> Inner<V> {
    fn start(&mut self, key: u64, deadline: u64, value: V) {
        match self.armed.entry(key) {
            Entry::Vacant(vacant) => {
                let queued = self.wheel.file(key, deadline);
                vacant.insert(Armed {
                    deadline,
                    queued,
                    value,
                });
            }
            Entry::Occupied(mut armed) => {
                armed.get_mut().value = value;
                armed.get_mut().move_to(key, deadline, &mut self.wheel);
            }
        }
    }

    fn touch(&mut self, key: u64, deadline: u64) -> bool {
        let armed = self.armed.get_mut(&key);
        let moved = armed.map(|armed| armed.move_to(key, deadline, &mut self.wheel));
        moved.is_some()
    }

    /// Takes what is due in the next tick into `due`.
    fn tick(&mut self, due: &mut Vec<u64>) {
        self.wheel.ticked += 1;
        let now = self.wheel.ticked;
        for level in 0..=(now.trailing_zeros() / BITS).min(LEVELS - 1) {
            for key in mem::take(self.wheel.slot(now, level)) {
                let Entry::Occupied(mut entry) = self.armed.entry(key) else {
                    continue;
                };
                let armed = entry.get_mut();
                // Otherwise another item is the one that counts.
                if armed.queued >> (BITS * level) == now >> (BITS * level) {
                    if armed.deadline > now {
                        armed.queued = self.wheel.file(key, armed.deadline);
                    } else {
                        due.push(entry.remove().value.value(key));
                    }
                }
            }
        }
    }
}

impl<V> Armed<V> {
    fn move_to(&mut self, key: u64, deadline: u64, wheel: &mut Wheel) {
        self.deadline = deadline;
        if deadline < self.queued {
            self.queued = wheel.file(key, deadline);
        }
    }
}

impl<V> Shard<V> {
    fn new(now: u64) -> Self {
        let slots = (0..LEVELS << BITS).map(|_| Vec::new()).collect();
        let wheel = Wheel { slots, ticked: now };
        let armed = FxHashMap::default();
        Shard(Mutex::new(Inner { armed, wheel }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Payload, const PUBLISHED: bool> Sharded<V, PUBLISHED> {
    /// By the high bits of a product; the map inside mixes in its own way.
    fn shard(&self, key: u64) -> MutexGuard<'_, Inner<V>> {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.0[mixed as usize % SHARDS].lock()
    }

    /// The first tick that is not before `delay` from now.
    fn after(delay: Duration) -> u64 {
        let now = if PUBLISHED { published() } else { read() };
        (now + delay.as_nanos() as u64).div_ceil(TICK.as_nanos() as u64)
    }
}

/// The number of whole ticks in a time in nanoseconds.
fn ticks(nanos: u64) -> u64 {
    nanos / TICK.as_nanos() as u64
}

impl<V: Payload, const PUBLISHED: bool> ByNumber<V> for Sharded<V, PUBLISHED> {
    const NAME: &'static str = if PUBLISHED {
        "sharded-published"
    } else {
        "sharded"
    };
    const ABOUT: &'static str = if PUBLISHED {
        "sharded with a time that a thread publishes: a floor, since it may be early"
    } else {
        "128 mutexes, an FxHash map and a wheel in each, touched lazily, 1 ms ticks"
    };
    const OF_SESSIONS: &'static str = if PUBLISHED {
        <Self as ByNumber<V>>::ABOUT
    } else {
        WITH_VALUES
    };
    const MAY_BE_EARLY: bool = PUBLISHED;
    const FLOOR_OF: &'static [&'static str] = if PUBLISHED { &["W2", "S1"] } else { &[] };

    fn new(_: Tasks) -> Self {
        let now = ticks(read());
        let shards: Arc<[_]> = (0..SHARDS).map(|_| Shard::<V>::new(now)).collect();
        let ticked = Arc::downgrade(&shards);
        thread::spawn(move || {
            let mut due = Vec::new();
            // Until nobody else has the timers.
            while let Some(shards) = ticked.upgrade() {
                let now = ticks(read());
                for shard in &*shards {
                    let mut inner = shard.lock();
                    while inner.wheel.ticked < now {
                        inner.tick(&mut due);
                    }
                    drop(inner);
                    due.drain(..).for_each(fired);
                }
                drop(shards);
                thread::sleep(TICK);
            }
        });
        Sharded(shards)
    }

    fn pending(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().armed.len()).sum()
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = Self::after(delay);
        self.shard(key).start(key, deadline, value);
    }

    fn remove(&self, key: u64) -> Option<V> {
        let removed = self.shard(key).armed.remove(&key);
        removed.map(|armed| armed.value)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = Self::after(delay);
        self.shard(key).touch(key, deadline)
    }

    fn get(&self, key: u64) -> Option<V> {
        self.shard(key).armed.get(&key).map(|armed| armed.value)
    }
}
