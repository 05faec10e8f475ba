//! What a node notes for its health.

use std::time::Duration;

use super::node_lease::LocalClock;
use crate::store::StoreTime;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The signs of life of a node: numbers that its threads write, and that are only read for people
/// and probes.
#[derive(Debug)]
pub(crate) struct NodeSigns {
    clock: LocalClock,
    /// When the node lease ends or has ended, in nanoseconds by the local clock.
    lease_end: AtomicU64,
    /// When the node's thread is to go on, at the latest. All ones: not before something happens.
    wakes_at: AtomicU64,
    /// Since when the doorbell is not heard. All ones: it is.
    doorbell_down: AtomicU64,
    /// When the first timer that waits for its claim is due, by the store's clock. The greatest
    /// number: there is none.
    first_due: AtomicI64,
    has_ended: AtomicBool,
}

const NEVER: u64 = u64::MAX;

impl NodeSigns {
    /// Makes the signs of a node that has not joined yet.
    pub(crate) fn new(clock: LocalClock) -> Arc<Self> {
        let start = nanos(clock.now());
        Arc::new(NodeSigns {
            clock,
            lease_end: AtomicU64::new(start),
            wakes_at: AtomicU64::new(NEVER),
            doorbell_down: AtomicU64::new(NEVER),
            first_due: AtomicI64::new(i64::MAX),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Notes when the lease ends, or that there is none.
    pub(crate) fn lease(&self, end: Option<Duration>) {
        let end = match end {
            Some(end) => nanos(end),
            // It keeps the moment at which the last one has ended.
            None => load(&self.lease_end).min(nanos(self.clock.now())),
        };
        store(&self.lease_end, end);
    }

    /// Notes when the node's thread goes on at the latest.
    pub(crate) fn wakes_at(&self, wakes_at: Option<Duration>) {
        store(&self.wakes_at, wakes_at.map_or(NEVER, nanos));
    }

    pub(crate) fn first_due(&self, due: Option<StoreTime>) {
        let due = due.map_or(i64::MAX, StoreTime::as_micros);
        // Relaxed: see `load`.
        self.first_due.store(due, Ordering::Relaxed);
    }

    pub(crate) fn doorbell(&self, is_down: bool) {
        let since = match is_down {
            true => nanos(self.clock.now()),
            false => NEVER,
        };
        store(&self.doorbell_down, since);
    }

    pub(super) fn ended(&self) {
        // Relaxed: see `load`.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        // Relaxed: see `load`.
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns the time by the local clock.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Returns for how long the node has had no lease, if it has none.
    pub(crate) fn alone_for(&self, now: Duration) -> Option<Duration> {
        now.checked_sub(Duration::from_nanos(load(&self.lease_end)))
    }

    /// Returns for how long the node's thread should have gone on.
    pub(crate) fn late_for(&self, now: Duration) -> Option<Duration> {
        now.checked_sub(Duration::from_nanos(load(&self.wakes_at)))
    }

    /// Returns for how long the doorbell has not been heard.
    pub(crate) fn doorbell_down_for(&self, now: Duration) -> Option<Duration> {
        now.checked_sub(Duration::from_nanos(load(&self.doorbell_down)))
    }

    /// Returns how long ago the first timer was due that waits for its claim, if it is due.
    pub(crate) fn overdue_by(&self, now: StoreTime) -> Option<Duration> {
        // Relaxed: see `load`.
        let due = self.first_due.load(Ordering::Relaxed);
        let micros = now.as_micros().checked_sub(due)?;
        u64::try_from(micros).ok().map(Duration::from_micros)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

fn load(number: &AtomicU64) -> u64 {
    // Relaxed: the number alone is read; nothing else is published by it.
    number.load(Ordering::Relaxed)
}

fn store(number: &AtomicU64, value: u64) {
    // Relaxed: see `load`.
    number.store(value, Ordering::Relaxed);
}
