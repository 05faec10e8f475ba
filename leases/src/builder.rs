//! Options of the lock manager.

use std::fmt;
use std::time::Duration;

use tourbillon::Clock;

use super::background::BackgroundQueue;
use super::build_error::BuildError;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::keep_alive::{Event, KeepAlive, KeepAliveBuilder, random};
use super::locks::Leases;
use super::stats::Asks;
use super::store::LeaseStore;
use super::turns::Turns;
use super::wait_queue::WaitQueue;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
#[cfg(any(test, feature = "test-util"))]
use crate::sync::unique_number;

const LEASE: Duration = Duration::from_secs(30);
/// A drop may take as long as a release usually does, and not as long as it may.
const DROP_LIMIT: Duration = Duration::from_millis(100);
/// The end of a program may take longer: there is no later.
const END_LIMIT: Duration = Duration::from_secs(1);
/// So many awaited calls of one destination run at one time, a third of all workers for them.
const MOST_AWAITED: usize = 64;

/// Options of [`Leases`].
#[must_use = "a builder does nothing until `build`"]
pub struct LeasesBuilder {
    store: Arc<dyn LeaseStore>,
    clock: Clock,
    keep_alive: KeepAliveBuilder<LeaseId>,
    lease: Duration,
    poll: Option<Duration>,
    instance: Option<String>,
    end_limit: Duration,
}

impl Leases {
    /// Leases of 30 s on this store, with default options.
    ///
    /// # Errors
    ///
    /// As for [`LeasesBuilder::build`].
    pub fn new(store: impl LeaseStore) -> Result<Self, BuildError> {
        Self::builder(store).build()
    }

    /// Options with their defaults.
    pub fn builder(store: impl LeaseStore) -> LeasesBuilder {
        LeasesBuilder::new(Arc::new(store))
    }
}

impl LeasesBuilder {
    pub(super) fn new(store: Arc<dyn LeaseStore>) -> Self {
        LeasesBuilder {
            store,
            clock: Clock::boottime(),
            keep_alive: KeepAlive::builder(),
            lease: LEASE,
            poll: None,
            instance: None,
            end_limit: END_LIMIT,
        }
    }

    /// How long a lease is; 30 s by default, at least 50 ms. It is renewed after about a third. When
    /// a holder dies, others wait for what is left of it; when the store does not answer, a holder
    /// goes on for what is left of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// What tells the time. By default [`Clock::boottime`], which goes on while the machine is
    /// suspended.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How much earlier than in the store a lease ends by the local clock, for what the two clocks
    /// may drift apart during a lease. By default a hundredth of the lease and 2 ms. A lease has to be
    /// three times as long at least.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.keep_alive = self.keep_alive.margin(margin);
        self
    }

    /// The largest number of leases that one call renews or gives back; 100 by default.
    pub fn batch(mut self, most: usize) -> Self {
        self.keep_alive = self.keep_alive.batch(most);
        self
    }

    /// Approximate delay between two attempts of a waiting caller. Each delay is drawn at random,
    /// up to a fifth shorter or longer than this. The default is 0.1 s if the store can't announce
    /// releases. Otherwise it is 0.8 s, so that each waiting caller asks at least once a second.
    pub fn poll(mut self, pause: Duration) -> Self {
        self.poll = Some(pause);
        self
    }

    /// What owners are called in the store, for people who look at it; `leases` by default. Random
    /// digits follow, the number of the process, and that of the holding.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// How long the drop of the last [`Leases`] or guard waits for queued releases; one second by
    /// default. At zero it does not wait.
    ///
    /// The drop of a guard may leave its release to the background. If the program ended right
    /// then, the lock would stay locked until its lease has run out. So the last drop waits until
    /// the store has been asked for each release, and for this limit at most, by the clock of this
    /// machine.
    ///
    /// The wait blocks the thread, also one of an async runtime. Choose a shorter limit if `Leases`
    /// come and go while a runtime works, and keep one clone for as long as the runtime lives.
    ///
    /// A program that never drops the last one should call [`Leases::close`]. That is so when it
    /// lies in a `static`, is leaked, or the program ends by [`exit`](std::process::exit).
    pub fn end_limit(mut self, limit: Duration) -> Self {
        self.end_limit = limit;
        self
    }

    /// Is told of every event, on threads of its own: it may block, and panic. See
    /// [`KeepAliveBuilder::on_event`].
    pub fn on_event(mut self, tell: impl Fn(&Event<LeaseId>) + Send + Sync + 'static) -> Self {
        self.keep_alive = self.keep_alive.on_event(tell);
        self
    }

    /// Tells [`What::HeldLong`](super::What::HeldLong) when a lease was renewed so often.
    pub fn alarm_after(mut self, renewals: u64) -> Self {
        self.keep_alive = self.keep_alive.alarm_after(renewals);
        self
    }

    /// Makes them. No thread starts, and the store is not asked.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that can't be.
    pub fn build(self) -> Result<Leases, BuildError> {
        self.check()?;
        let store = Arc::clone(&self.store);
        let keep_alive = self.keep_alive.clock(self.clock.clone());
        let store_of = Arc::clone(&self.store);
        let keep_alive = keep_alive
            .destination(move |id: &LeaseId| store_of.destination(id.name()))
            .build(move |batch| LeasesInner::renew(store.as_ref(), batch))?;
        let instance = instance(self.instance.as_deref(), random(), random());
        Ok(Leases::of(LeasesInner {
            store: self.store,
            keep_alive,
            clock: self.clock,
            instance,
            lease: self.lease,
            poll: self.poll,
            drop_limit: DROP_LIMIT,
            waiting: WaitQueue::default(),
            background: BackgroundQueue::default(),
            releases: Arc::default(),
            release_passes: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            asks: Asks::default(),
            handles: AtomicUsize::new(0),
            end_limit: self.end_limit,
            stepped: false,
            turns: Turns::new(MOST_AWAITED),
        }))
    }

    /// Makes leases without threads, which the [`Steps`](super::Steps) drive from the thread of a
    /// test. The clock is the manual one that was given, or a new one; a store that has one should
    /// have the same.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped(
        self,
        seed: u64,
    ) -> Result<(Leases, super::keep_alive::Steps), BuildError> {
        self.check()?;
        let store = Arc::clone(&self.store);
        let keep_alive = self.keep_alive.clock(self.clock.clone());
        let store_of = Arc::clone(&self.store);
        let (keep_alive, steps) = keep_alive
            .destination(move |id: &LeaseId| store_of.destination(id.name()))
            .build_stepped(seed, move |batch| LeasesInner::renew(store.as_ref(), batch))?;
        let inner = LeasesInner {
            store: self.store,
            keep_alive,
            clock: Clock::manual(&steps.clock()),
            instance: instance(self.instance.as_deref(), seed, unique_number().into()),
            lease: self.lease,
            poll: self.poll,
            // Nothing would happen while it waits.
            drop_limit: Duration::ZERO,
            waiting: WaitQueue::default(),
            background: BackgroundQueue::default(),
            releases: Arc::default(),
            release_passes: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            asks: Asks::default(),
            handles: AtomicUsize::new(0),
            end_limit: Duration::ZERO,
            stepped: true,
            turns: Turns::new(MOST_AWAITED),
        };
        Ok((Leases::of(inner), steps))
    }

    fn check(&self) -> Result<(), BuildError> {
        let most = self.store.longest_lease();
        let least = self.keep_alive.least();
        if self.lease < least || self.lease > most {
            return Err(BuildError::Lease {
                lease: self.lease,
                least,
                most,
            });
        }
        Ok(())
    }
}

fn instance(name: Option<&str>, one: u64, other: u64) -> String {
    format!("{}-{one:016x}{other:016x}", name.unwrap_or("leases"))
}

impl fmt::Debug for LeasesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasesBuilder")
            .field("lease", &self.lease)
            .field("clock", &self.clock)
            .field("poll", &self.poll)
            .field("instance", &self.instance)
            .field("end_limit", &self.end_limit)
            .field("watchdog", &self.keep_alive)
            .finish_non_exhaustive()
    }
}
