//! Options of the lock manager.

use std::fmt;
use std::time::Duration;

use tourbillon::{Clock, Runtime};

use super::background::BackgroundQueue;
use super::id::LeaseId;
use super::inner::LeasesInner;
use super::leaving::Leaving;
use super::locks::Leases;
use super::stats::{AcquireFailures, Asks};
use crate::keep_alive::{BuildError, Event, KeepAlive, KeepAliveBuilder, random};
use crate::store::{LeaseStore, WaitQueue};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
#[cfg(any(test, feature = "test-util"))]
use crate::sync::unique_number;

const LEASE: Duration = Duration::from_secs(30);
/// How long the drop of a guard waits. A release usually takes less; its own limit is much longer.
const DROP_LIMIT: Duration = Duration::from_millis(100);
/// How long the last drop waits. It may wait longer than others, since the program may end next.
const END_LIMIT: Duration = Duration::from_secs(1);
/// The greatest number of bytes that a holder may say about itself.
const MOST_DATA: usize = 1_024;

/// Options of [`Leases`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Clock;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// let second = Duration::from_secs(1);
/// let leases = Leases::builder(MemoryStore::new())
///     .lease(10 * second)
///     .instance("billing-1")
///     .margin(second / 2)
///     .batch(50)
///     .poll(second / 4)
///     .end_limit(2 * second)
///     .alarm_after(10_000)
///     .clock(Clock::boottime()) // the default
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct LeasesBuilder {
    store: Arc<dyn LeaseStore>,
    clock: Clock,
    keep_alive: KeepAliveBuilder<LeaseId>,
    lease: Duration,
    poll: Option<Duration>,
    instance: Option<String>,
    holder_data: String,
    end_limit: Duration,
}

impl Leases {
    /// Creates leases of 30 s on this store, with default options.
    ///
    /// # Errors
    ///
    /// As for [`LeasesBuilder::build`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::new(MemoryStore::new())?;
    /// assert!(leases.lock("report").wait()?.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(store: impl LeaseStore) -> Result<Self, BuildError> {
        Self::builder(store).build()
    }

    /// Returns a builder with default options.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::builder(MemoryStore::new()).lease(Duration::from_secs(10)).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(store: impl LeaseStore) -> LeasesBuilder {
        LeasesBuilder::new(Arc::new(store))
    }
}

impl LeasesBuilder {
    pub(super) fn new(store: Arc<dyn LeaseStore>) -> Self {
        LeasesBuilder {
            store,
            clock: Clock::boottime(),
            #[cfg(not(feature = "tracing"))]
            keep_alive: KeepAlive::builder(),
            #[cfg(feature = "tracing")]
            keep_alive: KeepAlive::builder().traced(|event| {
                let lock = &event.key;
                crate::keep_alive::trace::named(lock.name(), lock.token(), &event.what);
            }),
            lease: LEASE,
            poll: None,
            instance: None,
            holder_data: String::new(),
            end_limit: END_LIMIT,
        }
    }

    /// Sets the length of a lease; 30 s by default, at least 50 ms. A lease is renewed after about
    /// a third of its length. When a holder dies, others wait for the rest of the lease. When the
    /// store does not answer, a holder may go on for the rest of the lease.
    ///
    /// A lease can't be longer than the store grants. Stores on Redis and PostgreSQL grant at most the
    /// `longest_lease` of their builder, 30 s by default. For a longer lease, raise it there.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the clock. The default is [`Clock::boottime`], which goes on while the machine is
    /// suspended.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how much earlier a lease ends by the local clock than in the store. The margin covers
    /// the drift between the two clocks during a lease. The default is a hundredth of the lease
    /// plus 2 ms. A lease must be at least three times as long as the margin.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.keep_alive = self.keep_alive.margin(margin);
        self
    }

    /// Sets the largest number of leases that one call renews or releases; 100 by default.
    pub fn batch(mut self, most: usize) -> Self {
        self.keep_alive = self.keep_alive.batch(most);
        self
    }

    /// Sets the approximate delay between two attempts of a waiting caller. Each delay is drawn at
    /// random, up to a fifth shorter or longer than this. The default is 0.1 s if the store can't
    /// announce releases. Otherwise it is 0.8 s, so that each waiting caller asks at least once a
    /// second. A caller that waits for a name that readers hold, or permits, asks at least once a
    /// second in any case.
    pub fn poll(mut self, pause: Duration) -> Self {
        self.poll = Some(pause);
        self
    }

    /// Sets the name by which [metrics](Leases::metrics) tell these leases from others: the value
    /// of their label `name`. By default it is a number that no other instance of this process has.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::builder(MemoryStore::new()).name("invoices").build()?;
    /// let text = leases.metrics().to_string();
    /// assert!(text.contains("tourbillon_leases_kept{type=\"leases\",name=\"invoices\"} 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.keep_alive = self.keep_alive.name(name);
        self
    }

    /// Runs on the threads of `runtime`, which others may share. The default is the runtime of the
    /// process, or [`own_threads`](Self::own_threads) with a manual clock.
    ///
    /// A renewal or a release occupies a worker only while its future is polled. So the
    /// [`max_workers`](tourbillon::RuntimeBuilder::max_workers) of the runtime should be more than
    /// the number of other tasks that may block at one time.
    ///
    /// If the runtime was shut down, each attempt fails with
    /// [`LockError::Runtime`](crate::LockError::Runtime).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Runtime;
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let runtime = Runtime::builder().tickers(1).workers(2).build()?;
    /// let leases = Leases::builder(MemoryStore::new()).runtime(&runtime).build()?;
    /// let guard = leases.lock("report").wait()?;
    /// assert_eq!(runtime.stats().instances, 1);
    /// # drop(guard);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.keep_alive = self.keep_alive.runtime(runtime);
        self
    }

    /// Runs on threads of their own: three, two more with a callback, and more while callbacks block.
    /// They end with the leases, and with callbacks that hang. So renewals go on even where other
    /// tasks block all workers of a runtime and the system refuses a thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::builder(MemoryStore::new()).own_threads().build()?;
    /// assert!(leases.lock("report").wait()?.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn own_threads(mut self) -> Self {
        self.keep_alive = self.keep_alive.own_threads();
        self
    }

    /// Sets the prefix of owners in the store, for people who look at it. By default it is the name
    /// of the machine, on Linux, and `leases` elsewhere. Random digits follow, then the process id
    /// and the number of the acquire.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// Sets what the store says about these leases where they hold a lock, such as a version or a
    /// URL; see [`Holder::data`](crate::Holder::data). Empty by default, since owners begin with
    /// the [instance](Self::instance). At most 1,024 bytes. The store keeps it for each held lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::builder(MemoryStore::new()).holder_data("billing 1.4").build()?;
    /// let guard = leases.lock("report").wait()?;
    /// assert_eq!(leases.holder("report").wait()?.expect("it is held").data, "billing 1.4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holder_data(mut self, data: impl Into<String>) -> Self {
        self.holder_data = data.into();
        self
    }

    /// Sets how long the last drop of a [`Leases`], guard, election or unfinished call waits for
    /// queued releases; one second by default. With zero the drop does not wait.
    ///
    /// The drop of a guard may leave its release to the background. If the program ended right
    /// then, the lock would stay locked until its lease has run out. So the last drop waits until
    /// each release has been sent to the store. It waits for at most this limit, by the clock of
    /// this machine.
    ///
    /// The wait blocks the thread, also one of an async runtime. If `Leases` come and go while a
    /// runtime works, choose a shorter limit, or keep one clone while the runtime lives.
    ///
    /// A program that never drops the last one should call [`Leases::close`]. That is so when it
    /// lies in a `static`, is leaked, or the program ends by [`exit`](std::process::exit).
    pub fn end_limit(mut self, limit: Duration) -> Self {
        self.end_limit = limit;
        self
    }

    /// Sets a callback that receives every event. Renewals do not wait for it, so it may block, and
    /// it may panic. See [`KeepAliveBuilder::on_event`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore, What};
    ///
    /// let leases = Leases::builder(MemoryStore::new())
    ///     .on_event(|event| {
    ///         if let What::Lost(loss) = &event.what {
    ///             eprintln!("{} is lost: {loss}", event.key.name());
    ///         }
    ///     })
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_event(mut self, tell: impl Fn(&Event<LeaseId>) + Send + Sync + 'static) -> Self {
        self.keep_alive = self.keep_alive.on_event(tell);
        self
    }

    /// Reports [`What::HeldLong`](crate::What::HeldLong) when a lease has been renewed this number
    /// of times.
    pub fn alarm_after(mut self, renewals: u64) -> Self {
        self.keep_alive = self.keep_alive.alarm_after(renewals);
        self
    }

    /// Creates the leases. This starts no thread and does not call the store.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the invalid value.
    pub fn build(self) -> Result<Leases, BuildError> {
        self.check()?;
        let store = Arc::clone(&self.store);
        let keep_alive = self.keep_alive.clock(self.clock.clone());
        let store_of = Arc::clone(&self.store);
        let keep_alive = keep_alive
            .destination(move |id: &LeaseId| store_of.destination(id.name()))
            .build(move |batch| LeasesInner::renew(Arc::clone(&store), batch))?;
        let instance = instance(self.instance.as_deref(), random(), random());
        Ok(Leases::of(LeasesInner {
            store: self.store,
            keep_alive,
            clock: self.clock,
            instance,
            holder_data: self.holder_data,
            lease: self.lease,
            poll: self.poll,
            drop_limit: DROP_LIMIT,
            waiting: WaitQueue::default(),
            background: BackgroundQueue::default(),
            leaving: Leaving::default(),
            releases: Arc::default(),
            released: AtomicU64::new(0),
            asks: Asks::default(),
            acquire_failures: AcquireFailures::default(),
            handles: AtomicUsize::new(0),
            end_limit: self.end_limit,
        }))
    }

    /// Creates leases without threads. The [`Steps`](crate::Steps) drive them from the thread of a
    /// test. The clock is the manual clock that was set, or a new manual clock. A store that has a
    /// clock should use the same one.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Clock, ManualClock};
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let clock = Clock::manual(&ManualClock::new());
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let (leases, steps) = Leases::builder(store).clock(clock).build_stepped(1)?;
    /// let guard = leases.lock("report").at_once().wait()?;
    /// steps.advance(Duration::from_secs(3600));
    /// assert!(guard.is_held() && guard.renewals() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(any(test, feature = "test-util"))]
    pub fn build_stepped(
        self,
        seed: u64,
    ) -> Result<(Leases, crate::keep_alive::Steps), BuildError> {
        self.check()?;
        let store = Arc::clone(&self.store);
        let keep_alive = self.keep_alive.clock(self.clock.clone());
        let store_of = Arc::clone(&self.store);
        let (keep_alive, steps) = keep_alive
            .destination(move |id: &LeaseId| store_of.destination(id.name()))
            .build_stepped(seed, move |batch| {
                LeasesInner::renew(Arc::clone(&store), batch)
            })?;
        let inner = LeasesInner {
            store: self.store,
            keep_alive,
            clock: Clock::manual(&steps.clock()),
            instance: instance(self.instance.as_deref(), seed, unique_number().into()),
            holder_data: self.holder_data,
            lease: self.lease,
            poll: self.poll,
            // Without threads nothing would be released while the drop waits.
            drop_limit: Duration::ZERO,
            waiting: WaitQueue::default(),
            background: BackgroundQueue::default(),
            leaving: Leaving::default(),
            releases: Arc::default(),
            released: AtomicU64::new(0),
            asks: Asks::default(),
            acquire_failures: AcquireFailures::default(),
            handles: AtomicUsize::new(0),
            end_limit: Duration::ZERO,
        };
        Ok((Leases::of(inner), steps))
    }

    /// Checks that the leases can be renewed in time, and are not longer than the store grants.
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
        if self.holder_data.len() > MOST_DATA {
            return Err(BuildError::HolderData {
                bytes: self.holder_data.len(),
                most: MOST_DATA,
            });
        }
        Ok(())
    }
}

/// Returns the prefix of all owners of one `Leases`.
fn instance(name: Option<&str>, one: u64, other: u64) -> String {
    let name = name.map_or_else(machine, str::to_owned);
    format!("{name}-{one:016x}{other:016x}")
}

/// The name of this machine, without a call of the C library.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "leases".to_owned(),
        name => name.to_owned(),
    }
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
