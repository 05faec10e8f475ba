//! The options of a map, and the destinations of its expired entries.

use std::fmt;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::eviction::GroupFull;
use super::frontend::{Delivery, Expired, MapFrontend, OnReceiverLost, OnRemoval, ReceiverLost};
use super::{Expiry, ExpiryMap, GroupedBy, MapHasher};
use crate::bounded_channel::{BoundedReceiver, bounded_channel};
use crate::config::Config;
#[cfg(any(test, feature = "test-util"))]
use crate::engine::BuiltStepped;
use crate::engine::{Engine, RunsOn};
use crate::error::BuildError;
use crate::options::engine_options;
use crate::scheduler::{OnPanic, RandomState, TaskPanic};
use crate::sync::atomic::AtomicU64;
use crate::sync::channel::Receiver;
use crate::sync::{Arc, OnceLock};

/// Options of an [`ExpiryMap`], with defaults that fit most uses.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::ExpiryMap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (tokens, expired) = ExpiryMap::<String, u64>::builder()
///     .time_to_live(Duration::from_millis(20))
///     .max_pending(1_000_000)
///     .build_channel(1_024)?;
/// tokens.insert("token".to_owned(), 7)?;
/// let gone = expired.recv()?;
/// assert_eq!((gone.key.as_str(), gone.value), ("token", 7));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct ExpiryMapBuilder<K, V, S = RandomState> {
    config: Config,
    runs_on: RunsOn,
    hasher: S,
    expiry: Expiry,
    on_panic: Option<OnPanic<K>>,
    #[cfg(feature = "tracing")]
    pub(super) show_key: Option<crate::trace::ShowKey<K>>,
    max_per_group: Option<usize>,
    when_group_full: GroupFull,
    when_receiver_lost: ReceiverLost,
    on_receiver_lost: Option<OnReceiverLost<K, V>>,
    pub(super) on_removal: Option<OnRemoval<K, V>>,
    entries: PhantomData<fn(K, V)>,
}

impl<K, V> ExpiryMapBuilder<K, V> {
    pub(super) fn new() -> Self {
        ExpiryMapBuilder {
            config: Config::new(),
            runs_on: RunsOn::new(),
            hasher: RandomState::default(),
            expiry: Expiry::NEVER,
            on_panic: None,
            #[cfg(feature = "tracing")]
            show_key: None,
            max_per_group: None,
            when_group_full: GroupFull::default(),
            when_receiver_lost: ReceiverLost::default(),
            on_receiver_lost: None,
            on_removal: None,
            entries: PhantomData,
        }
    }
}

impl<K, V, S> ExpiryMapBuilder<K, V, S> {
    engine_options!();

    /// Sets how long after its last touch, or its insertion, an entry expires; never by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// let sessions = ExpiryMap::<u64, String>::builder()
    ///     .time_to_idle(Duration::from_secs(30 * 60))
    ///     .build(|_, expired| println!("{} has left", expired.value))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("tti", "ttl", "expire_after_access", "sliding", "watchdog"))]
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        self.expiry = self.expiry.time_to_idle(idle);
        self
    }

    /// Sets how long after its insertion an entry expires, touched or not; never by default.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// let tokens = ExpiryMap::<String, u64>::builder()
    ///     .time_to_live(Duration::from_secs(5 * 60))
    ///     .build(|_, expired| println!("{} is no longer valid", expired.key))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("ttl", "expire_after_write", "max_age"))]
    pub fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.expiry = self.expiry.time_to_live(lifetime);
        self
    }

    /// Changes the hasher and keeps all options.
    fn map_hasher<S2>(self, hasher: impl FnOnce(S) -> S2) -> ExpiryMapBuilder<K, V, S2> {
        ExpiryMapBuilder {
            config: self.config,
            runs_on: self.runs_on,
            hasher: hasher(self.hasher),
            expiry: self.expiry,
            on_panic: self.on_panic,
            #[cfg(feature = "tracing")]
            show_key: self.show_key,
            max_per_group: self.max_per_group,
            when_group_full: self.when_group_full,
            when_receiver_lost: self.when_receiver_lost,
            on_receiver_lost: self.on_receiver_lost,
            on_removal: self.on_removal,
            entries: PhantomData,
        }
    }

    /// Sets a function that is called after each handler that panicked, on the thread that ran the
    /// handler. The panic is caught and counted in any case, and the panic hook has printed it
    /// before.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::ExpiryMap;
    ///
    /// let map = ExpiryMap::<u64, String>::builder()
    ///     .on_panic(|panic| eprintln!("the handler of {}: {}", panic.key, panic.message))
    ///     .build(|_, _| ())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, tell: impl Fn(&TaskPanic<'_, K>) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Box::new(tell));
        self
    }

    /// Sets what the map does when the last receiver of its channel, or its stream, was dropped. By
    /// default it stays open, and entries that expire are [dropped and
    /// counted](ReceiverLost::Drop). A runtime that has ended is such a receiver, too; see
    /// `build_on_tokio`. A map with another handler ignores this option.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{ExpiryMap, ReceiverLost};
    ///
    /// let (map, expired) = ExpiryMap::<u64, String>::builder()
    ///     .when_receiver_lost(ReceiverLost::Close)
    ///     .build_channel(64)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn when_receiver_lost(mut self, policy: ReceiverLost) -> Self {
        self.when_receiver_lost = policy;
        self
    }

    /// Calls `report` with the first entry that expires after the last receiver of the channel, or
    /// the stream, was dropped, or the runtime has ended. A lost receiver never comes back, so this
    /// happens at most once. [`ExpiryStats::unreceived`](crate::ExpiryStats::unreceived) is the
    /// number of entries dropped since then.
    ///
    /// `report` runs on the thread that sends expired entries, without a lock. It may call the map,
    /// but must not wait for the map's shutdown. While it blocks, no entry is delivered. If it
    /// panics, the panic is caught and the map continues. With [`ReceiverLost::Close`] the map is
    /// closed before `report` is called.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (alarm, alarms) = mpsc::channel();
    /// let (tokens, expired) = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_live(Duration::from_millis(20))
    ///     .on_receiver_lost(move |first| {
    ///         let _ = alarm.send(format!("nobody reads what expires, such as {}", first.key));
    ///     })
    ///     .build_channel(64)?;
    ///
    /// drop(expired); // for example since the task that read it has panicked
    /// tokens.insert(7, "token")?;
    /// assert_eq!(alarms.recv()?, "nobody reads what expires, such as 7");
    /// assert_eq!(tokens.stats().unreceived, 1);
    /// tokens.insert(8, "the map lives on")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_receiver_lost(
        mut self,
        report: impl Fn(&Expired<K, V>) + Send + Sync + 'static,
    ) -> Self {
        self.on_receiver_lost = Some(Box::new(report));
        self
    }
}

impl<K, V, S: BuildHasher> ExpiryMapBuilder<K, V, S> {
    /// Sets the hasher of the keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use tourbillon::ExpiryMap;
    ///
    /// let map = ExpiryMap::<u64, String>::builder().hasher(RandomState::new()).build(|_, _| ())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasher<S2>(self, hasher: S2) -> ExpiryMapBuilder<K, V, S2> {
        self.map_hasher(|_| hasher)
    }

    /// Lets entries belong to groups named by values of type `G`. The builder then makes a
    /// [`GroupedExpiryMap`](crate::GroupedExpiryMap).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::ExpiryMap;
    ///
    /// let sessions = ExpiryMap::<u64, &str>::builder().groups::<String>().build(|_, _| ())?;
    /// sessions.entry(1).group("ada").insert("phone")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn groups<G>(self) -> ExpiryMapBuilder<K, V, GroupedBy<G, S>> {
        self.map_hasher(GroupedBy::new)
    }
}

impl<K, V, G, S> ExpiryMapBuilder<K, V, GroupedBy<G, S>> {
    /// Sets the hasher of the keys and groups.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use tourbillon::ExpiryMap;
    ///
    /// let builder = ExpiryMap::<u64, &str>::builder().groups::<String>();
    /// let sessions = builder.hasher(RandomState::new()).build(|_, _| ())?;
    /// sessions.entry(1).group("ada").insert("phone")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasher<S2>(self, hasher: S2) -> ExpiryMapBuilder<K, V, GroupedBy<G, S2>> {
        self.map_hasher(|_| GroupedBy::new(hasher))
    }

    /// Sets the maximum number of entries of a group; unbounded by default. An insertion beyond it
    /// is refused with [`InsertRefusal::GroupFull`](crate::InsertRefusal::GroupFull), or evicts
    /// another entry, as [`when_group_full`](Self::when_group_full) says. A maximum of 0 is a
    /// [`BuildError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{ExpiryMap, InsertRefusal};
    ///
    /// let builder = ExpiryMap::<u64, &str>::builder().groups::<String>();
    /// let sessions = builder.max_per_group(1).build(|_, _| ())?;
    /// sessions.entry(1).group("ada").insert("phone")?;
    /// let error = sessions.entry(2).group("ada").insert("laptop").unwrap_err();
    /// assert_eq!(error.refusal, InsertRefusal::GroupFull);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("eviction", "max_sessions"))]
    pub fn max_per_group(mut self, max_per_group: usize) -> Self {
        self.max_per_group = Some(max_per_group);
        self
    }

    /// Sets what an insertion in a full group does: it is [refused](GroupFull::Refuse), which is
    /// the default, or it evicts the [oldest](GroupFull::EvictOldest) or the [least recently
    /// touched](GroupFull::EvictLeastRecentlyTouched) entry of the group. So the newest login can
    /// sign the oldest one out. Without [`max_per_group`](Self::max_per_group) no group is full.
    ///
    /// **The evicted entry** leaves the group and is due at once. It is delivered like an expired
    /// entry, exactly once, with [`Reason::GroupFull`](crate::Reason::GroupFull). Until then it is
    /// in the map like an entry whose lifetime is over:
    ///
    /// - No lookup, update or touch finds it alive. A touch answers
    ///   [`Touch::Expired`](crate::Touch::Expired), and can't save it.
    /// - An insertion of the same key replaces it, and [`remove`](crate::ExpiryMap::remove) removes
    ///   it. Its value comes back from that call, and it is not delivered.
    /// - It counts for `max_pending` and in [`len`](crate::ExpiryMap::len). If the receiver of a
    ///   channel is slow, evicted entries wait in the map. Set `max_pending` to bound their number.
    /// - A shutdown treats it like other entries that are due.
    ///
    /// An entry whose lifetime is over, but whose delivery has not begun, still counts in its
    /// group. If it is evicted, it is delivered with its own reason.
    ///
    /// **The insertion** returns after the eviction. Exactly one entry makes room, and none if the
    /// insertion replaces an entry of the same group. A refused insertion evicts nothing, for
    /// example if the map is full or closed. For calls of groups the insertion and the eviction are
    /// one step. Calls by key may find both entries while the insertion runs.
    ///
    /// **Races.** A touch takes effect before or after the eviction: it moves the entry in the
    /// order, or it answers `Expired`, or `NotFound` after the delivery. The order of touches that
    /// are less than a millisecond apart, or that run during the insertion, may be taken wrong.
    ///
    /// # Complexity
    ///
    /// For a group of n entries:
    ///
    /// | | `Refuse` | `EvictOldest` | `EvictLeastRecentlyTouched` |
    /// |---|---|---|---|
    /// | insertion in a group | no extra cost | O(log n) | O(log n) |
    /// | eviction | - | O(log n), one lock more | O(log n) and one lock for each entry that it looks at |
    /// | touch | no extra cost | no extra cost | no extra cost |
    /// | removal, expiry | no extra cost | amortized O(1) | amortized O(1) |
    /// | memory | none | 40 bytes for a group, 32 to 128 for an entry of it | the same |
    ///
    /// `EvictLeastRecentlyTouched` looks at the entries that may come first and were touched since
    /// an eviction looked at them last: at most 2 n, and usually few. This holds the group's lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use tourbillon::{ExpiryMap, GroupFull, Reason};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sign_out, signed_out) = mpsc::channel();
    /// let sessions = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(30 * 60))
    ///     .groups::<String>()
    ///     .max_per_group(2)
    ///     .when_group_full(GroupFull::EvictOldest)
    ///     .build(move |_, expired| {
    ///         let _ = sign_out.send((expired.key, expired.reason));
    ///     })?;
    /// sessions.entry(1).group("ada").insert("phone")?;
    /// sessions.entry(2).group("ada").insert("laptop")?;
    /// // The newest login signs the oldest session out.
    /// sessions.entry(3).group("ada").insert("tablet")?;
    /// assert!(!sessions.touch(&1).is_alive());
    /// assert_eq!(sessions.group_len("ada"), 2);
    /// assert_eq!(signed_out.recv()?, (1, Reason::GroupFull));
    /// # Ok(())
    /// # }
    /// ```
    pub fn when_group_full(mut self, policy: GroupFull) -> Self {
        self.when_group_full = policy;
        self
    }
}

impl<K, V, S> ExpiryMapBuilder<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Starts the threads and returns the map. Every expired entry is given to `handler` exactly
    /// once, on one of the map's workers. Two entries of one key are never handled at the same
    /// time. Others are handled in parallel and in no particular order.
    ///
    /// The handler may block and may call the map. The map that it is given does not keep the map
    /// open, so it may be stored inside the map.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the value that is not allowed, or why a thread did not start.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// let sessions = ExpiryMap::<u64, String>::builder()
    ///     .time_to_idle(Duration::from_secs(30 * 60))
    ///     .build(|map, expired| {
    ///         println!("{} has left, {} are here", expired.value, map.len());
    ///     })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(
        self,
        handler: impl Fn(&ExpiryMap<K, V, S>, Expired<K, V>) + Send + Sync + 'static,
    ) -> Result<ExpiryMap<K, V, S>, BuildError> {
        self.start(Delivery::Handler(Box::new(handler)))
    }

    /// Like [`build`](Self::build), but `handler` gets as many expired entries at once as a worker
    /// has at hand: up to `max`, and on the map's own workers up to 32. Use it for handlers whose
    /// calls are expensive, such as one that writes to a database.
    ///
    /// All entries of a batch are taken when the batch begins. If the handler panics, the panic
    /// counts for each of them, and `on_panic` is called for the first one.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build), and [`BuildError::Batch`] if `max` is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// let sessions = ExpiryMap::<u64, String>::builder()
    ///     .time_to_idle(Duration::from_secs(30 * 60))
    ///     .build_batched(32, |_, expired| {
    ///         // .. one statement for all of them ..
    ///         println!("{} have left", expired.len());
    ///     })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_batched(
        self,
        max: usize,
        handler: impl Fn(&ExpiryMap<K, V, S>, Vec<Expired<K, V>>) + Send + Sync + 'static,
    ) -> Result<ExpiryMap<K, V, S>, BuildError> {
        let max = NonZeroUsize::new(max).ok_or(BuildError::Batch)?;
        self.start(Delivery::Batches(max, Box::new(handler)))
    }

    /// Starts the threads. Every expired entry is sent exactly once into a channel of this
    /// capacity. The [receiver](crate::channel) works in `channel::select!` and may be cloned.
    ///
    /// One thread takes expired entries and sends them. While the channel is full, expired entries
    /// wait in the map. While they wait, they count as entries of the map and can be touched and
    /// removed. The entry that is being sent can't. No ticker ever waits. With a capacity of 0,
    /// each entry waits for a receiver. The options `workers`, `max_running`, `executor` and
    /// `inline` are ignored.
    ///
    /// A shutdown waits for entries that are to be sent. So the only thread that receives must not
    /// shut the map down. The channel is disconnected when the map has ended and everything sent
    /// was received.
    ///
    /// When the last receiver is dropped, the entries in the channel are dropped with it. The map
    /// stays open. Entries that expire later, and an entry that waits for room in the channel, are
    /// dropped without a lock, on the thread that would have sent them. They are counted in
    /// [`ExpiryStats::unreceived`](crate::ExpiryStats::unreceived).
    /// [`on_receiver_lost`](Self::on_receiver_lost) reports the first of them;
    /// [`when_receiver_lost`](Self::when_receiver_lost) can close the map instead.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// let (tokens, expired) = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_live(Duration::from_millis(20))
    ///     .build_channel(64)?;
    /// tokens.insert(7, "token")?;
    /// assert_eq!(expired.recv()?.value, "token");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    pub fn build_channel(
        self,
        capacity: usize,
    ) -> Result<(ExpiryMap<K, V, S>, Receiver<Expired<K, V>>), BuildError> {
        let (map, receiver) = self.build_outlet(capacity)?;
        Ok((map, receiver.into_receiver()))
    }

    /// Like [`build_channel`](Self::build_channel), but the receiving end is a stream, for a task
    /// on any runtime; needs the feature `stream`. A capacity of 0 counts as 1, since nobody can
    /// wait in a stream's poll. A dropped stream counts as the last receiver.
    ///
    /// A shutdown waits for entries that are to be sent. So a task that awaits the end of
    /// [`shutdown`](ExpiryMap::shutdown) should continue to read, or leave the reading to another
    /// task.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    #[cfg(feature = "stream")]
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    pub fn build_stream(
        self,
        capacity: usize,
    ) -> Result<(ExpiryMap<K, V, S>, super::Expirations<K, V>), BuildError> {
        let (map, receiver) = self.build_outlet(capacity.max(1))?;
        Ok((map, super::Expirations::new(receiver)))
    }

    /// Starts a map whose only worker sends expired entries.
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    fn build_outlet(
        self,
        capacity: usize,
    ) -> Result<(ExpiryMap<K, V, S>, BoundedReceiver<Expired<K, V>>), BuildError> {
        let (sender, receiver) = bounded_channel(capacity);
        let map = self.one_worker().start(Delivery::BoundedSender(sender))?;
        Ok((map, receiver))
    }

    /// For a map that sends: a worker that waits for room holds an entry that no call finds.
    pub(crate) fn one_worker(mut self) -> Self {
        self.runs_on.on_pool();
        // Of the workers of its own, if it has any.
        self.config.workers = self.config.workers.map(|_| 1);
        self.config.max_running = Some(1);
        self
    }

    /// Starts the threads of a map with this delivery.
    pub(super) fn start(
        self,
        delivery: Delivery<K, V, S>,
    ) -> Result<ExpiryMap<K, V, S>, BuildError> {
        let (runs_on, config, frontend) = self.parts(delivery)?;
        let server = Engine::build(runs_on, &config, frontend)?;
        Ok(ExpiryMap::owning(Arc::clone(server.engine())))
    }

    /// Makes the parts of a map without threads, and its clock.
    #[cfg(any(test, feature = "test-util"))]
    #[allow(clippy::type_complexity, reason = "a pair in a result")]
    pub(crate) fn stepped_parts(
        mut self,
        seed: u64,
        delivery: Delivery<K, V, S>,
    ) -> Result<BuiltStepped<MapFrontend<K, V, S>>, BuildError> {
        // Only the default hasher can be seeded.
        if let Some(hasher) = (self.hasher.hasher_mut() as &mut dyn std::any::Any).downcast_mut() {
            *hasher = RandomState::seeded(seed);
        }
        let (runs_on, config, frontend) = self.parts(delivery)?;
        Engine::build_stepped(runs_on, &config, seed, frontend)
    }

    #[allow(clippy::type_complexity, reason = "a triple in a result")]
    fn parts(
        self,
        delivery: Delivery<K, V, S>,
    ) -> Result<(RunsOn, Config, MapFrontend<K, V, S>), BuildError> {
        if self.max_per_group == Some(0) {
            return Err(BuildError::MaxPerGroup);
        }
        let frontend = MapFrontend {
            hasher: self.hasher,
            expiry: self.expiry,
            delivery,
            on_panic: self.on_panic,
            #[cfg(feature = "tracing")]
            show_key: self.show_key,
            when_receiver_lost: self.when_receiver_lost,
            on_receiver_lost: self.on_receiver_lost,
            on_removal: self.on_removal,
            evicted: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            groups: S::index(self.max_per_group, self.when_group_full),
            flights: OnceLock::new(),
        };
        Ok((self.runs_on, self.config, frontend))
    }
}

impl<K, V, S> fmt::Debug for ExpiryMapBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryMapBuilder")
            .field("config", &self.config)
            .field("expiry", &self.expiry)
            .field("when_group_full", &self.when_group_full)
            .field("when_receiver_lost", &self.when_receiver_lost)
            .finish_non_exhaustive()
    }
}
