//! What users write themselves: a `BinaryHeap` of deadlines and a map behind one mutex, and a
//! thread that sleeps on a condition variable until the earliest one.
//!
//! A touch is *lazy*: it only writes the new deadline into the map. When the heap's item comes to
//! the top at the old time, it goes back with the new one. A stop removes the map's entry alone;
//! the dead item stays in the heap until its time comes. A start wakes the thread only if it sleeps
//! past the new deadline. All that favours this peer, and so do plain nanoseconds instead of
//! `Instant`s: they make its items and entries a third smaller.
//!
//! Tasks run on the timer's own thread, outside the mutex, also those that may block: who wants a
//! pool has to write one more. The eight bytes that a timer keeps are its key. Without keys the map
//! goes by a number that the caller gets back, and keeps the eight bytes. Sessions have a value of
//! their own in the map.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::by_number::{self, ByNumber, Counting};
use crate::recorder::fired;
use crate::system::{Payload, Tasks};

/// So many items of the heap are looked at before callers get at the mutex again.
const BATCH: usize = 1_024;

pub(crate) type ByKey = by_number::ByKey<Arc<Shared<()>>>;
pub(crate) type ById = by_number::ById<Arc<Shared<u64>>>;
pub(crate) type SessionMap = by_number::SessionMap<Arc<Shared<u64>>>;

pub(crate) struct Shared<V> {
    base: Instant,
    inner: Mutex<Inner<V>>,
    earlier: Condvar,
}

/// Times are nanoseconds since the base.
#[derive(Default)]
struct Inner<V> {
    armed: FxHashMap<u64, Armed<V>>,
    heap: BinaryHeap<Reverse<Item>>,
    /// Until when the thread sleeps; 0 while it is awake, or about to be.
    sleeps_until: u64,
    next_id: u64,
}

struct Armed<V> {
    deadline: u64,
    /// The time of the heap's item for it, at most the deadline. An item with another time is dead.
    queued: u64,
    value: V,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    time: u64,
    id: u64,
}

/// What the thread does next.
enum Next {
    Fire,
    SleepUntil(u64),
}

impl<V: Payload> Inner<V> {
    /// Whether the thread must be woken.
    fn start(&mut self, id: u64, deadline: u64, value: V) -> bool {
        match self.armed.entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Armed {
                    deadline,
                    queued: deadline,
                    value,
                });
                self.queue(id, deadline)
            }
            Entry::Occupied(occupied) => {
                let armed = occupied.into_mut();
                armed.value = value;
                let stays = armed.move_to(deadline);
                !stays && self.queue(id, deadline)
            }
        }
    }

    /// Whether there is one, and whether the thread must be woken.
    fn touch(&mut self, id: u64, deadline: u64) -> (bool, bool) {
        let Some(armed) = self.armed.get_mut(&id) else {
            return (false, false);
        };
        let stays = armed.move_to(deadline);
        (true, !stays && self.queue(id, deadline))
    }

    fn queue(&mut self, id: u64, time: u64) -> bool {
        self.heap.push(Reverse(Item { time, id }));
        let wake = time < self.sleeps_until;
        if wake {
            self.sleeps_until = 0;
        }
        wake
    }

    /// Takes what is due into `due`, a batch at most.
    fn collect(&mut self, now: u64, due: &mut Vec<u64>) -> Next {
        for _ in 0..BATCH {
            let Some(mut top) = self.heap.peek_mut() else {
                return Next::SleepUntil(u64::MAX);
            };
            let Item { time, id } = top.0;
            if time > now {
                return Next::SleepUntil(time);
            }
            match self.armed.entry(id) {
                Entry::Occupied(mut armed) if armed.get().queued == time => {
                    let deadline = armed.get().deadline;
                    if deadline > now {
                        armed.get_mut().queued = deadline;
                        top.0.time = deadline;
                    } else {
                        PeekMut::pop(top);
                        due.push(armed.remove().value.value(id));
                    }
                }
                _ => drop(PeekMut::pop(top)),
            }
        }
        Next::Fire
    }
}

impl<V> Armed<V> {
    /// Whether the heap's item can stay where it is.
    fn move_to(&mut self, deadline: u64) -> bool {
        self.deadline = deadline;
        let stays = self.queued <= deadline;
        if !stays {
            self.queued = deadline;
        }
        stays
    }
}

impl<V: Payload> Shared<V> {
    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }

    fn after(&self, delay: Duration) -> u64 {
        self.now() + delay.as_nanos() as u64
    }

    fn wake(&self, wake: bool) {
        if wake {
            self.earlier.notify_one();
        }
    }

    fn run(&self) {
        let mut due = Vec::with_capacity(BATCH);
        let mut inner = self.lock();
        loop {
            let now = self.now();
            let next = inner.collect(now, &mut due);
            inner = match next {
                Next::SleepUntil(time) if due.is_empty() => {
                    inner.sleeps_until = time;
                    let sleep = Duration::from_nanos(time - now);
                    let slept = self.earlier.wait_timeout(inner, sleep);
                    let (mut inner, _) = slept.unwrap_or_else(PoisonError::into_inner);
                    inner.sleeps_until = 0;
                    inner
                }
                _ => {
                    drop(inner);
                    due.drain(..).for_each(fired);
                    self.lock()
                }
            };
        }
    }
}

impl<V: Payload> ByNumber<V> for Arc<Shared<V>> {
    const NAME: &'static str = "heap";
    const ABOUT: &'static str =
        "BinaryHeap + FxHash map in a mutex, touched lazily, a sleeping thread";
    const MANY_BY_KEY: bool = true;

    fn new(_: Tasks) -> Self {
        let shared = Arc::new(Shared {
            base: Instant::now(),
            inner: Mutex::default(),
            earlier: Condvar::new(),
        });
        let timer = Arc::clone(&shared);
        thread::spawn(move || timer.run());
        shared
    }

    fn pending(&self) -> usize {
        self.lock().armed.len()
    }

    fn start(&self, id: u64, value: V, delay: Duration) {
        let deadline = self.after(delay);
        let wake = self.lock().start(id, deadline, value);
        self.wake(wake);
    }

    fn remove(&self, id: u64) -> Option<V> {
        let removed = self.lock().armed.remove(&id);
        removed.map(|armed| armed.value)
    }

    fn touch(&self, id: u64, delay: Duration) -> bool {
        self.touch_many(&[id], delay) == 1
    }

    fn get(&self, id: u64) -> Option<V> {
        self.lock().armed.get(&id).map(|armed| armed.value)
    }

    /// Under one hold of the mutex, and by one reading of the clock.
    fn touch_many(&self, ids: &[u64], delay: Duration) -> usize {
        let deadline = self.after(delay);
        let mut inner = self.lock();
        let mut wake = false;
        let mut touched = 0;
        for id in ids {
            let (found, earlier) = inner.touch(*id, deadline);
            touched += usize::from(found);
            wake |= earlier;
        }
        drop(inner);
        self.wake(wake);
        touched
    }
}

impl Counting for Arc<Shared<u64>> {
    fn start_next(&self, value: u64, delay: Duration) -> u64 {
        let deadline = self.after(delay);
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let wake = inner.start(id, deadline, value);
        drop(inner);
        self.wake(wake);
        id
    }
}
