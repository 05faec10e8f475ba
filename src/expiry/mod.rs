//! The front end whose payload is a value: an expiry map.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | `ExpiryMap`, and the calls for the map as a whole |
//! | `entry.rs` | the builder of the calls that insert, or look first |
//! | `insert.rs` | the calls that insert |
//! | `find_or_insert.rs` | the calls that find an entry or insert one |
//! | `compute.rs`, `computing.rs`, `flights.rs` | the call of which one caller computes a value and the others wait |
//! | `lookup.rs` | the calls that read, change and remove the entry of a key |
//! | `rename.rs` | the call that gives an entry another key |
//! | `touch.rs` | the calls that move a deadline, and may change the value |
//! | `batch.rs` | the calls for many keys |
//! | `many.rs` | the calls for all entries |
//! | `toucher.rs` | a buffer for the touches of one thread |
//! | `trace_keys.rs` | whether spans and warnings show keys |
//! | `grouping.rs` | the hasher, whether entries may belong to groups, and to which |
//! | `grouped.rs`, `whole_groups.rs` | the calls for entries in groups, and for all entries of a group |
//! | `groups/`, `members.rs` | which entries belong to which group |
//! | `walks.rs` | calls for whole groups, beside entries that get another key |
//! | `builder.rs` | the options |
//! | `removal.rs` | the listener of all entries that leave |
//! | `span.rs` | how long an entry lives |
//! | `content.rs` | the content of an entry, and its times |
//! | `snapshot.rs` | all entries, to be stored and restored |
//! | `stream.rs` | the expired entries as a stream |
//! | `on_tokio.rs`, `places.rs` | futures that handle expired entries, and the bound on their number |
//! | `frontend.rs` | the payload in the engine, and its delivery |
//! | `answers.rs` | the results of calls and of a shutdown |

mod answers;
mod batch;
mod builder;
mod compute;
mod computing;
mod content;
mod entry;
mod eviction;
mod find_or_insert;
mod flights;
mod frontend;
mod grouped;
mod grouping;
mod groups;
mod insert;
mod lookup;
mod many;
mod members;
#[cfg(feature = "tokio")]
mod on_tokio;
#[cfg(feature = "tokio")]
mod places;
mod removal;
mod rename;
#[cfg(feature = "serde")]
mod snapshot;
mod span;
mod stats;
#[cfg(feature = "stream")]
mod stream;
mod tag;
mod touch;
mod toucher;
#[cfg(feature = "tracing")]
mod trace_keys;
mod walks;
mod whole_groups;

pub use answers::{
    EntryError, ExpiryHandedBack, ExpiryReport, Found, InsertError, InsertRefusal, Inserted,
    Removed, Touch, Updated,
};
pub use builder::ExpiryMapBuilder;
pub use computing::Computing;
pub use entry::{Changes, Entry, Reads};
pub use eviction::GroupFull;
pub use frontend::{Expired, Reason, ReceiverLost};
pub use grouped::{GroupedExpiryMap, GroupedExpiryMapBuilder};
pub use grouping::{GroupNotNamed, GroupedBy, InGroup, MapHasher, NoGroup};
pub use many::Iter;
pub use rename::{RenameError, RenameRefusal};
#[cfg(feature = "serde")]
pub use snapshot::{NewerFormatError, Restored, Snapshot};
pub use span::Expiry;
pub use stats::ExpiryStats;
#[cfg(feature = "stream")]
pub use stream::Expirations;
pub use toucher::Toucher;

#[cfg(any(test, feature = "test-util"))]
pub(crate) use frontend::Delivery;
pub(crate) use frontend::MapFrontend;
#[cfg(all(feature = "tokio", any(test, feature = "test-util")))]
pub(crate) use on_tokio::AsyncDelivery;

use std::fmt;
use std::hash::Hash;

use crate::clock::{Clock, Reading};
use crate::engine::{Engine, Lifecycle, Owner, Shutdown};
use crate::scheduler::{Closing, RandomState, hash_of, next_deadline};
use crate::shard::KeyHash;
use crate::sync::Arc;
use crate::tick::Time;

/// A concurrent map whose entries expire: after a time without a touch, after a time since the
/// insertion, or after whichever comes first.
///
/// An expired entry, key and value, is delivered within a tick, whether any call looks at the map
/// or not. It goes to a handler on the map's workers, or through a channel. The map stores values
/// inline, without an allocation for each. A touch is one probe and one write.
///
/// Clones are cheap and stand for the same map. The map is closed when the last clone is dropped or
/// after [`shutdown`](Self::shutdown). Dropping the last clone drops the remaining entries without
/// delivering them.
///
/// # When is an entry gone?
///
/// An entry is in the map until its delivery begins, at or after its deadline:
///
/// - Until then a touch saves the entry, even if it is due and waits for a worker.
///   [`Touch::Touched`] means that it lives on.
/// - A touch never moves the end of its lifetime. After that end no call finds the entry, delivered
///   or not, except calls that take it out: [`remove`](Self::remove), for example, or an insertion
///   that replaces it.
/// - While the handler runs for a key, the key is free. An entry inserted then is a new one, and is
///   delivered after that run at the earliest.
/// - A delivery needs a clone of the key. If `Clone` panics, the entry is dropped undelivered and
///   counts as a delivery that panicked.
///
/// # User code under a lock
///
/// Some user code runs under the lock of one stripe: a key's `Eq` and `Clone`, a value's `Clone` in
/// [`get`](Self::get) and its siblings, and the closures of [`with`](Self::with),
/// [`update`](Self::update), [`touch_with`](Self::touch_with) and [`retain`](Self::retain), also as
/// options of an [`entry`](Self::entry). It should be short. It must not call any map or scheduler
/// of this crate: such a call panics with a message instead of deadlocking.
///
/// Such code may drop values of this crate, such as a [`CancelGuard`](crate::CancelGuard) or the
/// last clone of a map. The thread does the work of such a drop after it has released the lock, and
/// before the call returns.
///
/// If such code panics, the call panics and the map stays usable. Only the changes to values that
/// such a closure made before the panic remain. The captures of such a closure are dropped under
/// the lock, too. All other user code runs without a lock: `Hash`, the drops of keys and values,
/// and the handler. Computations in progress have a lock of their own, under which a key's `Eq` and
/// `Clone` run in [`or_compute`](Entry::or_compute). [Groups](crate::GroupedExpiryMap) have
/// locks of their own, and their documentation says what runs under them.
///
/// # Panic hooks
///
/// If user code panics under a lock, a hook of `std::panic::set_hook` runs while the thread holds
/// that lock. Calls of the map from that hook, and from drops that the panic causes under the lock,
/// do nothing. An insertion is refused with [`InsertRefusal::UnderLock`]; all other calls act as if
/// the map were empty. [The crate's page](crate#panic-hooks) has the details.
///
/// # Blocking
///
/// Each call takes one stripe's lock at a time ([`touch_many`](Self::touch_many): a few at a time,
/// [`rename`](Self::rename): two), for well under a microsecond plus the time of user code under
/// it. Only [`shutdown`](Self::shutdown) waits for a handler. Only
/// [`or_compute`](Entry::or_compute) waits for another caller.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, Touch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = ExpiryMap::<u64, String>::builder()
///     .time_to_idle(Duration::from_secs(30 * 60))
///     .time_to_live(Duration::from_secs(12 * 3600))
///     .build(|_, expired| println!("{} has left: {:?}", expired.value, expired.reason))?;
///
/// sessions.insert(7, "Ada".to_owned())?;
/// assert!(matches!(sessions.touch(&7), Touch::Touched { .. }));
/// assert_eq!(sessions.with(&7, |name| name.len()), Some(3));
/// assert_eq!(sessions.remove(&7).value().as_deref(), Some("Ada"));
/// assert_eq!(sessions.touch(&7), Touch::NotFound);
/// # Ok(())
/// # }
/// ```
#[doc(alias("session", "cache", "ttl", "eviction", "watchdog"))]
pub struct ExpiryMap<K, V, S: MapHasher = RandomState> {
    engine: Arc<Engine<MapFrontend<K, V, S>>>,
    /// `None` in the map that the handler gets, which must not keep the map open.
    owner: Option<Arc<Owner<MapFrontend<K, V, S>>>>,
}

impl<K, V> ExpiryMap<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    /// Returns a builder with default options. Without a time to idle and a time to live, only
    /// entries that are inserted with an [`Expiry`] of their own expire.
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
    pub fn builder() -> ExpiryMapBuilder<K, V> {
        ExpiryMapBuilder::new()
    }
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Makes the first map of an engine. The engine closes with its last clone.
    fn owning(engine: Arc<Engine<MapFrontend<K, V, S>>>) -> Self {
        ExpiryMap {
            owner: Some(Arc::new(Owner::new(&engine))),
            engine,
        }
    }

    /// Makes a clone that does not keep the map open.
    pub(crate) fn of(engine: Arc<Engine<MapFrontend<K, V, S>>>) -> Self {
        ExpiryMap {
            engine,
            owner: None,
        }
    }

    /// Returns the current time of the map's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// let deadline = map.deadline(&7).expect("the entry is there");
    /// assert_eq!(deadline, map.now() + Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// Returns the map's clock; see [`Handle::clock`](crate::Handle::clock).
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.engine.clock()
    }

    /// Returns the earliest deadline that is still to come, or `None` if there is none; see
    /// [`Handle::next_deadline`](crate::Handle::next_deadline).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        next_deadline(&self.engine)
    }

    /// Returns the expiry of entries that are inserted without an [`Expiry`] of their own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// assert_eq!(map.expiry().idle(), Some(Duration::from_secs(60)));
    /// assert_eq!(map.expiry().lifetime(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expiry(&self) -> Expiry {
        self.engine.frontend.expiry
    }

    /// Returns the moment of a call that touches many entries. It is exact if the map's own time to
    /// idle needs that, so that the clock is not read for each entry.
    fn reading_for_touches(&self) -> (&Clock, Reading) {
        let (clock, reading) = self.engine.clock_and_reading();
        let idle = self.engine.frontend.expiry.idle_nanos();
        (clock, reading.for_delay(idle, clock))
    }

    /// Returns the stage of the map's life.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Lifecycle};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// assert_eq!(map.state(), Lifecycle::Running);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.engine.lifecycle()
    }

    /// Returns the number of entries, including those that are due and wait for their delivery.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, one after the other. No snapshot while others insert and remove.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// map.insert(8, "Grace")?;
    /// assert_eq!(map.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.pending()
    }

    /// Returns whether the map has no entry.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// assert!(map.is_empty());
    /// map.insert(7, "Ada")?;
    /// assert!(!map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }

    /// Closes the map and treats the remaining entries as `mode` says. They come back in the
    /// report, or are delivered at their deadlines, or at once with [`Reason::Shutdown`]. Only the
    /// first call does this. Every later call returns an empty report at once, with
    /// [`ExpiryReport::already_closed`] set.
    ///
    /// The shutdown runs on a thread of its own, as
    /// [`Scheduler::shutdown`](crate::Scheduler::shutdown) explains. The returned [`Closing`]
    /// yields the report.
    ///
    /// # Blocking
    ///
    /// Does not wait for a handler. [`Closing::wait`] does, but no longer than the limits in `mode`
    /// and in the builder's `shutdown_limit`, both by the map's clock. If the channel is full, the
    /// shutdown waits for a receiver.
    ///
    /// # Panics
    ///
    /// Panics on a map that a test drives, unless it follows a runtime. Use its driver's
    /// `shutdown`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::{ExpiryMap, Shutdown};
    ///
    /// let map = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
    /// map.insert(7, "Ada")?;
    /// let report = map.shutdown(Shutdown::HandBack).wait()?;
    /// assert_eq!(report.handed_back[0].value, "Ada");
    /// assert!(map.insert(8, "Grace").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, mode: Shutdown) -> Closing<ExpiryReport<K, V>> {
        assert!(
            !self.engine.is_shut_down_by_driver(),
            "a test drives this map; call `shutdown` of its driver"
        );
        // Without threads the map has ended.
        self.engine.server().map_or_else(Closing::done, |server| {
            Closing::begin(&server, mode, ExpiryReport::of)
        })
    }

    fn hash_of<Q>(&self, key: &Q) -> (usize, KeyHash)
    where
        Q: Hash + ?Sized,
    {
        let shards = self.engine.shards();
        let hash = hash_of(shards, self.engine.frontend.hasher.hasher(), key);
        (shards.stripe_of(hash), hash)
    }
}

impl<K, V, S> Clone for ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn clone(&self) -> Self {
        ExpiryMap {
            engine: Arc::clone(&self.engine),
            owner: self.owner.clone(),
        }
    }
}

impl<K, V, S> fmt::Debug for ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryMap")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
