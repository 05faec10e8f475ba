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

use super::by_number::{self, ByNumber, Counting};
use crate::recorder::fired;
use crate::system::{Payload, Tasks};

pub(crate) type ByKey = by_number::ByKey<Arc<Shared<()>>>;
pub(crate) type ById = by_number::ById<Arc<Shared<u64>>>;
pub(crate) type SessionMap = by_number::SessionMap<Arc<Shared<u64>>>;

pub(crate) struct Shared<V> {
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
    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first tick that is not before `delay` from now. The wheels lag behind the clock, so a
    /// delay from their tick would be early.
    fn due(&self, delay: Duration) -> u64 {
        let since = (self.base.elapsed() + delay).as_nanos() as u64;
        since.div_ceil(1_000_000)
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

impl<V: Payload> ByNumber<V> for Arc<Shared<V>> {
    const NAME: &'static str = "hash-wheel";
    const ABOUT: &'static str =
        "hierarchical_hash_wheel_timer's wheels + FxHash map in a mutex, 1 ms ticks";

    fn new(_: Tasks) -> Self {
        let shared = Arc::new(Shared {
            base: Instant::now(),
            inner: Mutex::default(),
        });
        let ticker = Arc::downgrade(&shared);
        thread::spawn(move || run(&ticker));
        shared
    }

    fn pending(&self) -> usize {
        self.lock().armed.len()
    }

    fn start(&self, id: u64, value: V, delay: Duration) {
        let due = self.due(delay);
        self.lock().start(id, due, value);
    }

    fn remove(&self, id: u64) -> Option<V> {
        let removed = self.lock().armed.remove(&id);
        removed.map(|armed| armed.value)
    }

    fn touch(&self, id: u64, delay: Duration) -> bool {
        let due = self.due(delay);
        self.lock().touch(id, due)
    }

    fn get(&self, id: u64) -> Option<V> {
        self.lock().armed.get(&id).map(|armed| armed.value)
    }

    /// Under one hold of the mutex, and by one reading of the clock.
    fn touch_many(&self, ids: &[u64], delay: Duration) -> usize {
        let due = self.due(delay);
        let mut inner = self.lock();
        ids.iter().filter(|id| inner.touch(**id, due)).count()
    }
}

impl Counting for Arc<Shared<u64>> {
    fn start_next(&self, value: u64, delay: Duration) -> u64 {
        let due = self.due(delay);
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.start(id, due, value);
        id
    }
}
