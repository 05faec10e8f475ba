//! tokio's own `Sleep`, on the timer of its runtime: by key in a map, as a handle that the caller
//! keeps, and as a future of the caller's tasks.
//!
//! *By key* it is what a user of tokio writes who touches sessions from any thread: a `DashMap`
//! from the key to a `Sleep` in a box. A touch is `Sleep::reset` under the lock of the key's shard.
//! A later deadline is one compare-and-swap in the box, and no task is woken for it. That is this
//! peer's best: a task per session, which selects between its sleep and a channel, wakes for each
//! touch.
//!
//! Every sleep is polled once when it starts, with a waker that knows the key. When the time comes,
//! the runtime's timer calls that waker, which sends itself through tokio's unbounded channel. One
//! task receives it. If the sleep that lies under the key has elapsed, the task takes it out and
//! fires. If it was moved or replaced, the task polls it with the same waker.
//!
//! More that favours this peer:
//!
//! - FxHash, and more shards than the default of four for each core;
//! - what wakers point to lives as long as the process, so they count no references to it;
//! - a box is allocated before the shard is locked;
//! - a runtime with one thread, which drives the timer and runs short tasks. Tasks that may block
//!   go to its blocking pool.
//!
//! Tried without gain: 8, 64 and 1,024 shards, and a runtime with two workers. A waker that does
//! nothing would save its allocation of 48 bytes a timer and up to a tenth of a touch at 1 M keys,
//! but nothing would fire.
//!
//! *As a handle* the sleep stays with the caller, who drops it to stop it. A handle that goes out
//! of scope is leaked, so that its timer still fires: a user who keeps no handle spawns a task,
//! which is `tokio-task`. Whether it has elapsed is asked before the drop, so one that elapses in
//! between counts as stopped.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use rustc_hash::FxBuildHasher;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep, sleep_until};

use super::by_number::{self, ByNumber};
use super::on_tokio;
use crate::system::{Handles, Payload, Sleeps, System, Tasks};

const NAME: &str = "tokio-sleep";

/// Shards of the map.
const SHARDS: usize = 256;
/// The most that the task receives at a time.
const BATCH: usize = 256;

pub(crate) type ByKey = by_number::ByKey<Timers<()>>;
pub(crate) type SessionMap = by_number::SessionMap<Timers<u64>>;

/// As handles.
pub(crate) struct ByHandle {
    runtime: Handle,
    elapsed: &'static Elapsed<Once>,
    pending: &'static AtomicUsize,
}

/// As futures.
pub(crate) struct Futures;

pub(crate) struct Timers<V: Payload> {
    runtime: Handle,
    shared: &'static Shared<V>,
}

struct Shared<V> {
    sleeps: DashMap<u64, Armed<V>, FxBuildHasher>,
    elapsed: &'static Elapsed<OfKey>,
    tasks: Tasks,
}

struct Armed<V> {
    sleep: Pin<Box<Sleep>>,
    value: V,
}

/// Where wakers go when their time has come.
type Elapsed<W> = UnboundedSender<Arc<W>>;

/// The waker of the sleep under a key, also of one that replaces it.
struct OfKey {
    key: u64,
    elapsed: &'static Elapsed<OfKey>,
}

impl Wake for OfKey {
    fn wake(self: Arc<Self>) {
        let elapsed = self.elapsed;
        // The channel is open as long as the process lives.
        let _ = elapsed.send(self);
    }
}

/// A runtime that runs what `task` makes of a channel. Both live as long as the process.
fn run<W: Send + Sync, F: Future<Output = ()>>(
    task: impl FnOnce(UnboundedReceiver<Arc<W>>) -> F + Send + 'static,
) -> (Handle, &'static Elapsed<W>)
where
    Arc<W>: Send + 'static,
{
    let (elapsed, receiver) = unbounded_channel();
    let runtime = on_tokio::run(move || task(receiver));
    (runtime, Box::leak(Box::new(elapsed)))
}

impl<V: Payload> Shared<V> {
    async fn expire(&self, mut receiver: UnboundedReceiver<Arc<OfKey>>) {
        let mut batch = Vec::with_capacity(BATCH);
        while receiver.recv_many(&mut batch, BATCH).await > 0 {
            for waker in batch.drain(..) {
                self.look(waker);
            }
        }
    }

    /// Fires the sleep that this waker belongs to, if it has elapsed.
    fn look(&self, waker: Arc<OfKey>) {
        let key = waker.key;
        let Entry::Occupied(mut armed) = self.sleeps.entry(key) else {
            return;
        };
        if !armed.get().sleep.is_elapsed() {
            let waker = Waker::from(waker);
            let sleep = armed.get_mut().sleep.as_mut();
            if sleep.poll(&mut Context::from_waker(&waker)).is_pending() {
                return;
            }
        }
        // The statement ends the hold of the shard. The sleep takes the timer's lock when it is
        // dropped.
        let Armed { sleep, value } = armed.remove();
        drop(sleep);
        on_tokio::fire(value.value(key), self.tasks);
    }
}

impl<V: Payload> ByNumber<V> for Timers<V> {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "tokio's Sleep in a DashMap with FxHash, a touch is Sleep::reset";

    fn new(tasks: Tasks) -> Self {
        let (to_task, from_here) = std::sync::mpsc::channel::<&'static Shared<V>>();
        let (runtime, elapsed) = run(move |receiver| async move {
            let shared = from_here.recv().expect("it is sent below");
            shared.expire(receiver).await;
        });
        let shared: &'static Shared<V> = Box::leak(Box::new(Shared {
            sleeps: DashMap::with_hasher_and_shard_amount(FxBuildHasher, SHARDS),
            elapsed,
            tasks,
        }));
        to_task.send(shared).expect("the task waits for it");
        Timers { runtime, shared }
    }

    fn pending(&self) -> usize {
        self.shared.sleeps.len()
    }

    fn start(&self, key: u64, value: V, delay: Duration) {
        let deadline = Instant::now() + delay;
        let sleep = Box::pin(sleep_until(deadline));
        let elapsed = self.shared.elapsed;
        let of_key = Arc::new(OfKey { key, elapsed });
        match self.shared.sleeps.entry(key) {
            Entry::Vacant(vacant) => {
                let waker = Waker::from(Arc::clone(&of_key));
                let mut armed = vacant.insert(Armed { sleep, value });
                let sleep = armed.sleep.as_mut();
                // The shard stays locked meanwhile, so whoever is woken finds the sleep.
                if sleep.poll(&mut Context::from_waker(&waker)).is_ready() {
                    of_key.wake();
                }
            }
            Entry::Occupied(mut occupied) => {
                let armed = occupied.get_mut();
                armed.sleep.as_mut().reset(deadline);
                armed.value = value;
            }
        }
    }

    fn remove(&self, key: u64) -> Option<V> {
        let (_, armed) = self.shared.sleeps.remove(&key)?;
        Some(armed.value)
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let Some(mut armed) = self.shared.sleeps.get_mut(&key) else {
            return false;
        };
        armed.sleep.as_mut().reset(deadline);
        true
    }

    fn get(&self, key: u64) -> Option<V> {
        self.shared.sleeps.get(&key).map(|armed| armed.value)
    }

    /// A sleep is made in the caller's context. All that a call may leave is a wake-up of the
    /// timer's thread.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        let _runtime = self.runtime.enter();
        work()
    }
}

/// The waker of a handle's sleep. It is dropped with the sleep, or by the task that it was sent to.
pub(crate) struct Once {
    value: u64,
    elapsed: &'static Elapsed<Once>,
    pending: &'static AtomicUsize,
}

impl Wake for Once {
    fn wake(self: Arc<Self>) {
        let elapsed = self.elapsed;
        // As above.
        let _ = elapsed.send(self);
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        // Relaxed: a count, read after the work.
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the caller keeps.
pub(crate) struct Timeout(Option<Pin<Box<Sleep>>>);

impl Drop for Timeout {
    fn drop(&mut self) {
        mem::forget(self.0.take());
    }
}

impl System for ByHandle {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "tokio's Sleep in a box, polled once, dropped to stop it";

    fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        let _runtime = self.runtime.enter();
        work()
    }
}

impl Handles for ByHandle {
    type Timeout = Timeout;

    fn new(tasks: Tasks) -> Self {
        let (runtime, elapsed) = run(async move |mut receiver: UnboundedReceiver<Arc<Once>>| {
            let mut batch = Vec::with_capacity(BATCH);
            while receiver.recv_many(&mut batch, BATCH).await > 0 {
                batch
                    .drain(..)
                    .for_each(|once| on_tokio::fire(once.value, tasks));
            }
        });
        ByHandle {
            runtime,
            elapsed,
            pending: Box::leak(Box::default()),
        }
    }

    fn start(&self, value: u64, delay: Duration) -> Timeout {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let once = Arc::new(Once {
            value,
            elapsed: self.elapsed,
            pending: self.pending,
        });
        let mut sleep = Box::pin(sleep_until(Instant::now() + delay));
        let waker = Waker::from(Arc::clone(&once));
        let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            once.wake();
        }
        Timeout(Some(sleep))
    }

    fn stop(&self, mut timeout: Timeout) -> bool {
        let sleep = timeout.0.take();
        sleep.is_some_and(|sleep| !sleep.is_elapsed())
    }
}

impl Sleeps for Futures {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "tokio::time::sleep, on the runtime's own timer";
    const RUNTIME_WITH_TIME: bool = true;

    fn new() -> Self {
        Futures
    }

    fn sleep(&'static self, delay: Duration) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(delay)
    }
}
