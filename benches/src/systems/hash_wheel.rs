//! The wheels of `hierarchical_hash_wheel_timer` and a map behind one mutex, and a thread that
//! ticks them every millisecond.
//!
//! The crate's wheel that can cancel counts its entries by `Rc`, so it stays on one thread: see the
//! crate's own timer thread for that. Between threads there are its plain wheels, to which a user
//! adds a map from the id to the tick that it is due in. An item of the wheels is alive if the map
//! says its tick. That favours the peer: no allocation per timer, and half the memory of the
//! counted entries. As there, a stop leaves a dead item in the wheels until its tick, and a touch
//! cancels and inserts; the lazy touch that the map would allow is that of the heap.
//!
//! Tasks run on the ticking thread, outside the mutex, also those that may block. The eight bytes
//! that a timer keeps are its key. Without keys the map goes by a number that the caller gets back,
//! and keeps the eight bytes. Sessions have a value of their own in the map.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hierarchical_hash_wheel_timer::wheels::quad_wheel::QuadWheelWithOverflow;
use rustc_hash::FxHashMap;

use crate::system::{Handles, Keyed, Payload, Sessions, System, Tasks};
use crate::recorder::fired;

const NAME: &str = "hash-wheel";
const ABOUT: &str = "hierarchical_hash_wheel_timer's wheels + FxHash map in a mutex, 1 ms ticks";

/// By the caller's key.
pub(crate) struct ByKey(Arc<Shared<()>>);

/// By a number.
pub(crate) struct ById(Arc<Shared<u64>>);

/// With values in the map.
pub(crate) struct SessionMap {
    shared: Arc<Shared<u64>>,
    idle: Duration,
}

struct Shared<V> {
    base: Instant,
    inner: Mutex<Inner<V>>,
}

/// Ticks are milliseconds since the base.
#[derive(Default)]
struct Inner<V> {
    armed: FxHashMap<u64, Armed<V>>,
    wheels: QuadWheelWithOverflow<u64>,
    /// The tick of the wheels.
    ticked: u64,
    next_id: u64,
}

struct Armed<V> {
    due: u64,
    value: V,
}

impl<V: Payload> Inner<V> {
    fn start(&mut self, id: u64, due: u64, value: V) {
        let due = self.insert(id, due);
        self.armed.insert(id, Armed { due, value });
    }

    fn touch(&mut self, id: u64, due: u64) -> bool {
        let Some(armed) = self.armed.get_mut(&id) else {
            return false;
        };
        let due = due.max(self.ticked + 1);
        armed.due = due;
        self.insert(id, due);
        true
    }

    /// Puts an item into the wheels, and returns the tick that it got.
    fn insert(&mut self, id: u64, due: u64) -> u64 {
        let due = due.max(self.ticked + 1);
        let delay = Duration::from_millis(due - self.ticked);
        let inserted = self.wheels.insert_with_delay(id, delay);
        inserted.expect("a tick or more away");
        due
    }

    /// Takes what expires in the next tick into `due`.
    fn tick(&mut self, due: &mut Vec<u64>) {
        self.ticked += 1;
        for id in self.wheels.tick() {
            if let Entry::Occupied(armed) = self.armed.entry(id)
                && armed.get().due == self.ticked
            {
                due.push(armed.remove().value.value(id));
            }
        }
    }
}

impl<V: Payload> Shared<V> {
    fn new() -> Arc<Self> {
        let shared = Arc::new(Shared {
            base: Instant::now(),
            inner: Mutex::default(),
        });
        let ticker = Arc::downgrade(&shared);
        thread::spawn(move || run(&ticker));
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first tick that is not before `delay` from now. The wheels lag behind the clock, so a
    /// delay from their tick would be early.
    fn due(&self, delay: Duration) -> u64 {
        let since = (self.base.elapsed() + delay).as_nanos() as u64;
        since.div_ceil(1_000_000)
    }

    fn stop(&self, id: u64) -> bool {
        self.lock().armed.remove(&id).is_some()
    }

    /// Ticks until the clock's tick is done, and returns the time of the next one.
    fn catch_up(&self, due: &mut Vec<u64>) -> Instant {
        let now = self.base.elapsed().as_millis() as u64;
        loop {
            let mut inner = self.lock();
            if inner.ticked >= now {
                return self.base + Duration::from_millis(inner.ticked + 1);
            }
            inner.tick(due);
            drop(inner);
            due.drain(..).for_each(fired);
        }
    }
}

/// Until nobody else has the timers.
fn run<V: Payload>(timers: &Weak<Shared<V>>) {
    let mut due = Vec::new();
    while let Some(shared) = timers.upgrade() {
        let next = shared.catch_up(&mut due);
        drop(shared);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

impl System for ByKey {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = ABOUT;

    fn pending(&self) -> usize {
        self.0.lock().armed.len()
    }

    /// Every call is done when it returns, but for the dead, whose time nobody can hurry.
    fn settle(&self) {}
}

impl Keyed for ByKey {
    fn new(_: Tasks) -> Self {
        ByKey(Shared::new())
    }

    fn start(&self, key: u64, delay: Duration) {
        let due = self.0.due(delay);
        self.0.lock().start(key, due, ());
    }

    fn stop(&self, key: u64) -> bool {
        self.0.stop(key)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let due = self.0.due(delay);
        self.0.lock().touch(key, due)
    }
}

impl System for ById {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = ABOUT;

    fn pending(&self) -> usize {
        self.0.lock().armed.len()
    }

    fn settle(&self) {}
}

impl Handles for ById {
    type Timeout = u64;

    fn new(_: Tasks) -> Self {
        ById(Shared::new())
    }

    fn start(&self, value: u64, delay: Duration) -> u64 {
        let due = self.0.due(delay);
        let mut inner = self.0.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.start(id, due, value);
        id
    }

    fn stop(&self, timeout: u64) -> bool {
        self.0.stop(timeout)
    }
}

impl System for SessionMap {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "the same with values of 8 bytes in the map";

    fn pending(&self) -> usize {
        self.shared.lock().armed.len()
    }

    fn settle(&self) {}
}

impl Sessions for SessionMap {
    fn new(idle: Duration) -> Self {
        SessionMap {
            shared: Shared::new(),
            idle,
        }
    }

    fn insert(&self, key: u64, value: u64) {
        let due = self.shared.due(self.idle);
        self.shared.lock().start(key, due, value);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.shared.lock().armed.get(&key).map(|armed| armed.value)
    }

    fn touch(&self, key: u64) -> bool {
        self.touch_many(&[key]) == 1
    }

    /// Under one hold of the mutex, and by one reading of the clock.
    fn touch_many(&self, keys: &[u64]) -> usize {
        let due = self.shared.due(self.idle);
        let mut inner = self.shared.lock();
        keys.iter().filter(|key| inner.touch(**key, due)).count()
    }

    fn remove(&self, key: u64) -> Option<u64> {
        let removed = self.shared.lock().armed.remove(&key);
        removed.map(|armed| armed.value)
    }
}
