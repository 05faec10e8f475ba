//! What most users of tokio write: a task per timer, which sleeps and then does its work. A stop
//! aborts the task.
//!
//! *As a handle* it is `spawn` and the `JoinHandle`. *By key* there is a `DashMap` with FxHash from
//! the key to that handle. A touch aborts the task and spawns another one. A task that wakes up
//! takes its own handle out of the map before it fires, so what was stopped or replaced never does.
//!
//! The runtime has one thread, which does W3 and W1k in three quarters of the time that two workers
//! take: timers are started by threads outside, and each spawn or abort goes through the queue that
//! the runtime has for those. Settling waits for that queue, where aborted tasks wait to be
//! dropped. Tasks that may block go to the blocking pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use rustc_hash::FxBuildHasher;
use tokio::runtime::Handle;
use tokio::task::{self, JoinHandle};
use tokio::time::{Instant, sleep_until};

use super::on_tokio;
use crate::system::{Handles, Keyed, System, Tasks};

const NAME: &str = "tokio-task";
/// A task takes half a kilobyte, and its figures depend little on how many others there are.
const MOST_KEYS: u64 = 1_000_000;

/// Shards of the map.
const SHARDS: usize = 256;

/// By key.
pub(crate) struct ByKey {
    runtime: Handle,
    armed: &'static Armed,
    tasks: Tasks,
}

type Armed = DashMap<u64, JoinHandle<()>, FxBuildHasher>;

/// As handles.
pub(crate) struct ByHandle {
    runtime: Handle,
    counts: &'static Counts,
    tasks: Tasks,
}

/// On two cache lines: callers write the one and the runtime the other.
#[derive(Default)]
struct Counts {
    started: Line,
    gone: Line,
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicUsize);

/// A part of a task, which is dropped with it.
struct Counted(&'static Counts);

impl Drop for Counted {
    fn drop(&mut self) {
        // Release: what the task did comes before.
        self.0.gone.0.fetch_add(1, Ordering::Release);
    }
}

impl ByKey {
    fn spawn(&self, key: u64, deadline: Instant) -> JoinHandle<()> {
        let (armed, tasks) = (self.armed, self.tasks);
        self.runtime.spawn(async move {
            sleep_until(deadline).await;
            let own = task::id();
            let taken = armed.remove_if(&key, |_, handle| handle.id() == own);
            if taken.is_some() {
                on_tokio::fire(key, tasks);
            }
        })
    }
}

impl System for ByKey {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str =
        "a tokio task per timer in a DashMap with FxHash, aborted to stop it";
    const MOST_KEYS: u64 = MOST_KEYS;

    fn pending(&self) -> usize {
        self.armed.len()
    }

    fn settle(&self) {
        on_tokio::settle(&self.runtime);
    }
}

impl Keyed for ByKey {
    fn new(tasks: Tasks) -> Self {
        let armed = DashMap::with_hasher_and_shard_amount(FxBuildHasher, SHARDS);
        ByKey {
            runtime: on_tokio::run(std::future::pending::<()>),
            armed: Box::leak(Box::new(armed)),
            tasks,
        }
    }

    fn start(&self, key: u64, delay: Duration) {
        let deadline = Instant::now() + delay;
        // The shard stays locked meanwhile, so the task finds its handle.
        let former = match self.armed.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(self.spawn(key, deadline));
                None
            }
            Entry::Occupied(mut occupied) => Some(occupied.insert(self.spawn(key, deadline))),
        };
        if let Some(former) = former {
            former.abort();
        }
    }

    fn stop(&self, key: u64) -> bool {
        let Some((_, handle)) = self.armed.remove(&key) else {
            return false;
        };
        handle.abort();
        true
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let Some(mut armed) = self.armed.get_mut(&key) else {
            return false;
        };
        let former = std::mem::replace(&mut *armed, self.spawn(key, deadline));
        drop(armed);
        former.abort();
        true
    }
}

impl System for ByHandle {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "a tokio task per timer, aborted to stop it";
    const MOST_KEYS: u64 = MOST_KEYS;

    fn pending(&self) -> usize {
        let gone = self.counts.gone.0.load(Ordering::Acquire);
        self.counts.started.0.load(Ordering::Relaxed) - gone
    }

    fn settle(&self) {
        on_tokio::settle(&self.runtime);
    }
}

impl Handles for ByHandle {
    type Timeout = JoinHandle<()>;

    fn new(tasks: Tasks) -> Self {
        ByHandle {
            runtime: on_tokio::run(std::future::pending::<()>),
            counts: Box::leak(Box::default()),
            tasks,
        }
    }

    fn start(&self, value: u64, delay: Duration) -> JoinHandle<()> {
        let deadline = Instant::now() + delay;
        let (counts, tasks) = (self.counts, self.tasks);
        // Relaxed: a count, which is asked for after the work.
        counts.started.0.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(counts);
        self.runtime.spawn(async move {
            let _counted = counted;
            sleep_until(deadline).await;
            on_tokio::fire(value, tasks);
        })
    }

    /// Whether it had not ended when it was asked; the task may still end before it is aborted.
    fn stop(&self, handle: JoinHandle<()>) -> bool {
        let ended = handle.is_finished();
        handle.abort();
        !ended
    }
}
