//! The timer thread of `hierarchical_hash_wheel_timer`: callers send commands through a channel
//! without a bound, one thread does them, ticks the wheels and runs the tasks.
//!
//! Its state is a type of eight bytes where the crate's shorthand boxes a closure, and its ids are
//! `u64`s where the shorthand draws random UUIDs; each thread has a reference of its own. A start
//! or a touch is one command, since inserting an id replaces what has it; there is no other way to
//! touch. All that favours the peer, and so does that nobody learns whether a stop or a touch found
//! its timer: both say yes here, and a touch would start a timer that is not there. Settling waits
//! for the channel.
//!
//! It counts a delay from the tick in which the thread sees the command and drops parts of a
//! millisecond, so a timer fires up to two of them early; that counts as no lateness. Tasks run on
//! that one thread, also those that may block.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::LocalKey;
use std::time::Duration;

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{OneshotState, PeriodicState, Timer, TimerReturn};

use crate::recorder::fired;
use crate::system::{Handles, Keyed, Payload, System, Tasks};

/// So long the thread may take for what was sent to it.
const PATIENCE: Duration = Duration::from_secs(300);

/// By the caller's key, which is the timer's id.
pub(crate) type ByKey = Timers<()>;

/// By an id that is a number.
pub(crate) type ById = Timers<u64>;

pub(crate) struct Timers<V: Payload> {
    /// Tells it from others in the same process.
    instance: u64,
    thread: TimerWithThread<u64, Once<V>, Never>,
    /// How many timers each producer has started. Only that one writes.
    started: Mutex<Vec<Arc<AtomicU64>>>,
}

/// What a timer keeps.
#[derive(Debug)]
struct Once<V> {
    id: u64,
    value: V,
}

/// No timer is periodic, so that the timer's entries need not tell.
#[derive(Debug)]
enum Never {}

/// What a thread has that uses a timer.
pub(crate) struct Producer<V: Payload> {
    instance: u64,
    timer: TimerRef<u64, Once<V>, Never>,
    started: Arc<AtomicU64>,
    /// The first of its ids without keys.
    first_id: u64,
}

/// Ids that begin so are no timers: they ask the thread to report. No workload has such keys.
const REPORT: u64 = 0xfffe << 48;

/// Who waits for a report, by its id.
static REPORTS: Mutex<BTreeMap<u64, mpsc::Sender<u64>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// On a timer's thread: how many timers have gone, whatever way.
    static GONE: Cell<u64> = const { Cell::new(0) };
}

fn reports() -> MutexGuard<'static, BTreeMap<u64, mpsc::Sender<u64>>> {
    REPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn asks_for_report(id: u64) -> bool {
    id >> 48 == REPORT >> 48
}

impl<V: Payload> OneshotState for Once<V> {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.id
    }

    fn trigger(self) {
        if asks_for_report(self.id) {
            if let Some(waiting) = reports().remove(&self.id) {
                let _ = waiting.send(GONE.get());
            }
            return;
        }
        fired(self.value.value(self.id));
    }
}

/// The timer drops a state on its thread, whether it fired, was cancelled or replaced.
impl<V> Drop for Once<V> {
    fn drop(&mut self) {
        if !asks_for_report(self.id) {
            GONE.set(GONE.get() + 1);
        }
    }
}

impl PeriodicState for Never {
    type Id = u64;

    fn id(&self) -> &u64 {
        match *self {}
    }

    fn trigger(self) -> TimerReturn<Self> {
        match self {}
    }
}

/// A thread's producer, per type of payload.
pub(crate) trait Local: Payload {
    fn local() -> &'static LocalKey<RefCell<Option<Producer<Self>>>>;
}

macro_rules! local {
    ($payload:ty) => {
        impl Local for $payload {
            fn local() -> &'static LocalKey<RefCell<Option<Producer<$payload>>>> {
                thread_local! {
                    static LOCAL: RefCell<Option<Producer<$payload>>> = const { RefCell::new(None) };
                }
                &LOCAL
            }
        }
    };
}
local!(());
local!(u64);

impl<V: Payload> Producer<V> {
    fn schedule(&mut self, delay: Duration, state: Once<V>) {
        let started = self.started.load(Ordering::Relaxed);
        // Relaxed: a count, which is asked for after the work.
        self.started.store(started + 1, Ordering::Relaxed);
        self.timer.schedule_once(delay, state);
    }
}

impl<V: Local> Timers<V> {
    fn begin() -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        Timers {
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            thread: TimerWithThread::new().expect("one more thread"),
            started: Mutex::default(),
        }
    }

    fn started(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Producer<V>) -> R) -> R {
        V::local().with_borrow_mut(|local| match local {
            Some(producer) if producer.instance == self.instance => work(producer),
            _ => work(local.insert(self.producer())),
        })
    }

    #[cold]
    fn producer(&self) -> Producer<V> {
        let mut all = self.started();
        let started = Arc::default();
        all.push(Arc::clone(&started));
        Producer {
            instance: self.instance,
            timer: self.thread.timer_ref(),
            started,
            first_id: (all.len() as u64) << 40,
        }
    }

    /// Waits until the thread has done what was sent before, and asks how many timers have gone.
    fn gone(&self) -> u64 {
        static ASKED: AtomicU64 = AtomicU64::new(REPORT);
        let id = ASKED.fetch_add(1, Ordering::Relaxed);
        let (report, wait) = mpsc::channel();
        reports().insert(id, report);
        let value = V::default();
        // Without a delay it is not filed, but triggers when its turn in the channel comes.
        let asks = Once { id, value };
        self.with(|producer| producer.timer.schedule_once(Duration::ZERO, asks));
        wait.recv_timeout(PATIENCE).expect("the thread runs")
    }
}

impl<V: Payload> Drop for Timers<V> {
    fn drop(&mut self) {
        // The thread may be gone by a panic already.
        let _ = self.thread.shutdown_async();
    }
}

impl<V: Local> System for Timers<V> {
    const NAME: &'static str = "hash-wheel-thread";
    const ABOUT: &'static str =
        "hierarchical_hash_wheel_timer's thread_timer, which a channel leads to";
    const MAY_BE_EARLY: bool = true;

    fn pending(&self) -> usize {
        let gone = self.gone();
        let started = self.started();
        let started: u64 = started.iter().map(|one| one.load(Ordering::Relaxed)).sum();
        started.saturating_sub(gone) as usize
    }

    fn settle(&self) {
        self.gone();
    }
}

impl Keyed for ByKey {
    fn new(_: Tasks) -> Self {
        Timers::begin()
    }

    fn start(&self, key: u64, delay: Duration) {
        self.with(|producer| {
            if delay < Duration::from_millis(1) {
                // It fires at once without being filed, so it would not replace anything.
                producer.timer.cancel(&key);
            }
            let state = Once { id: key, value: () };
            producer.schedule(delay, state);
        });
    }

    fn stop(&self, key: u64) -> bool {
        self.with(|producer| producer.timer.cancel(&key));
        true
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.start(key, delay);
        true
    }
}

impl Handles for ById {
    type Timeout = u64;

    fn new(_: Tasks) -> Self {
        Timers::begin()
    }

    fn start(&self, value: u64, delay: Duration) -> u64 {
        self.with(|producer| {
            let id = producer.first_id + producer.started.load(Ordering::Relaxed);
            producer.schedule(delay, Once { id, value });
            id
        })
    }

    fn stop(&self, timeout: u64) -> bool {
        self.with(|producer| producer.timer.cancel(&timeout));
        true
    }
}
