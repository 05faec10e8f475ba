//! The time by the local clock, the end of a node's lease, and an estimate of the store's clock.

use std::time::Duration;

use tourbillon::{Clock, Time};

use crate::store::{Epoch, StoreTime, micros};
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::{Arc, Origin};

/// The local clock, which nobody sets and which goes on while the machine is suspended, where the
/// system has such a clock.
#[derive(Clone, Debug)]
pub(crate) struct LocalClock {
    clock: Clock,
    start: Time,
}

impl LocalClock {
    pub(crate) fn start() -> Self {
        LocalClock::on(Clock::boottime())
    }

    /// Starts on this clock, which a test may move.
    pub(crate) fn on(clock: Clock) -> Self {
        let start = clock.now();
        LocalClock { clock, start }
    }

    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now().since(self.start)
    }

    /// Whether a test moves it.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_moved_by_a_test(&self) -> bool {
        self.clock.as_manual().is_some()
    }

    /// Returns the clock behind it, for timers that go by the same time.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }
}

/// The lease of one life of a node, which has this [length](crate::DurableBuilder::node_lease).
#[derive(Debug)]
pub(crate) struct NodeLease {
    pub(crate) epoch: Epoch,
    clock: LocalClock,
    /// When the lease ends, in nanoseconds by the local clock. 0: it has ended.
    end: AtomicU64,
    /// A forked copy of this process holds no run.
    origin: Origin,
}

impl NodeLease {
    pub(crate) fn new(epoch: Epoch, clock: LocalClock) -> Arc<Self> {
        let end = AtomicU64::new(0);
        Arc::new(NodeLease {
            epoch,
            clock,
            end,
            origin: Origin::here(),
        })
    }

    /// Whether a test moves the clock.
    #[cfg(all(feature = "test-util", feature = "sqlite"))]
    pub(super) fn is_moved_by_a_test(&self) -> bool {
        self.clock.is_moved_by_a_test()
    }

    /// Publishes when the lease ends.
    pub(crate) fn set_end(&self, end: Duration) {
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the number alone is read; nothing else is published by it.
        self.end.store(nanos, Ordering::Relaxed);
    }

    /// Whether the lease goes on, by the local clock.
    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: as in `set_end`. A reader that sees an older end only says no too early.
        let end = Duration::from_nanos(self.end.load(Ordering::Relaxed));
        self.clock.now() < end && !self.origin.is_elsewhere()
    }
}

/// An estimate of the store's clock, by the store's last answer and the local clock.
///
/// The answer was on its way for a while, so the estimate is early rather than late.
#[derive(Debug)]
pub(crate) struct StoreClock {
    clock: LocalClock,
    /// The store's clock minus the local one, in microseconds.
    offset: AtomicI64,
}

impl StoreClock {
    /// Returns an estimate that goes by the system's clock until the store has answered.
    pub(crate) fn new(clock: LocalClock) -> Self {
        let now = StoreTime::from(std::time::SystemTime::now());
        let offset = now.as_micros().saturating_sub(micros(clock.now()));
        StoreClock {
            clock,
            offset: AtomicI64::new(offset),
        }
    }

    /// Whether the local clock is one that a test moves.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_moved_by_a_test(&self) -> bool {
        self.clock.is_moved_by_a_test()
    }

    /// Notes what the store's clock has shown just now.
    pub(crate) fn shows(&self, now: StoreTime) {
        let offset = now.as_micros().saturating_sub(micros(self.clock.now()));
        // Relaxed: the number alone is read; nothing else is published by it.
        self.offset.store(offset, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> StoreTime {
        // Relaxed: as in `shows`.
        let offset = self.offset.load(Ordering::Relaxed);
        StoreTime::from_micros(offset.saturating_add(micros(self.clock.now())))
    }
}
