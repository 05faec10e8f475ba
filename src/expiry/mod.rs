//! The face whose payload is a value: an expiry map.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | `ExpiryMap`; putting in, looking, taking out |
//! | `touch.rs` | the calls that move a deadline |
//! | `many.rs` | the calls for many keys or all |
//! | `grouping.rs` | whether entries may belong to groups |
//! | `grouped.rs` | the calls for groups |
//! | `groups.rs`, `members.rs` | which entries belong to which group |
//! | `builder.rs` | options |
//! | `span.rs` | how long an entry lives |
//! | `stream.rs` | the expired as a stream |
//! | `face.rs` | the payload in the engine, and how it is delivered |
//! | `answers.rs` | what calls answer, and what a shutdown leaves |

mod answers;
mod builder;
mod face;
mod grouped;
mod grouping;
mod groups;
mod many;
mod members;
mod span;
#[cfg(feature = "stream")]
mod stream;
mod touch;

pub use answers::{
    ExpiryHandedBack, ExpiryReport, Found, InsertError, InsertRefusal, Inserted, Removed, Touch,
};
pub use builder::ExpiryMapBuilder;
pub use face::{Expired, Reason, ReceiverLost};
pub use grouping::{Grouping, Groups, NoGroups};
pub use many::Entries;
pub use span::Expiry;
#[cfg(feature = "stream")]
pub use stream::Expirations;

pub(crate) use face::Sessions;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use crate::engine::{Engine, Lifecycle, Shutdown};
use crate::scheduler::{RandomState, ReportTicket, Stats, collect_stats};
use crate::shard::{Arming, Cancelling, KeyHash};
use crate::sync::Arc;
use crate::tick::Time;
use face::Session;
use touch::luck;

/// A concurrent map whose entries expire: each after a time without a touch, after a time since it
/// was inserted, or after whichever comes first.
///
/// An expired entry, key and value, is delivered within a tick, whether anybody looks at the map
/// or not: to a handler on the map's workers, or through a channel. Values lie in the map
/// itself, without an allocation for each; a touch is one probe and one write.
///
/// Clones are cheap and stand for the same map. When the last one is dropped, or after
/// [`shutdown`](Self::shutdown), the map is closed: dropping it drops the entries that are left
/// without delivering them.
///
/// # When is an entry gone?
///
/// An entry is in the map until its delivery begins, at or after its deadline. Until then a touch
/// saves it, also when it is due and waits for a worker: [`Touch::Touched`] means that it lives on.
/// The end of its lifetime is never moved; from that moment on no call finds the entry, delivered
/// or not, but for [`remove`](Self::remove) and what replaces it, which take it out. While the
/// handler runs for a key, the key is free: what is inserted then is a new entry, which is
/// delivered after that run at the earliest. A delivery needs a clone of the key; if that panics,
/// the entry is dropped undelivered and counts as one that panicked.
///
/// # User code under a lock
///
/// A key's `Eq` and `Clone` run under the lock of one stripe of the map, and so do a value's
/// `Clone` in [`get`](Self::get) and its siblings and the closures of [`with`](Self::with),
/// [`update`](Self::update) and [`retain`](Self::retain). They should be short, and must not call
/// this or any other map or scheduler of this crate: that panics with a message instead of
/// deadlocking. Dropping what this crate has made, such as a [`CancelGuard`](crate::CancelGuard) or
/// the last clone of a map, is no call. The thread does its work after releasing the lock, and
/// before the call returns.
///
/// If a key's or value's method or a closure panics, so does the call, and the map goes on; only
/// what an `update` or a `retain` had done by then stays done. What such a closure captures is
/// dropped under the lock, too. Everything else of the user's, `Hash`, drops of keys and values,
/// and the handler, runs without a lock. [Groups](Self::insert_in) have locks of their own, and say
/// what runs under them.
///
/// # Panic hooks
///
/// If user code panics under a lock, a hook of `std::panic::set_hook` runs while the thread has
/// that lock. Calls of the map from that hook, and from drops that the panic causes under the lock,
/// do nothing. An insertion is refused with [`InsertRefusal::UnderLock`]; all other calls answer as
/// if the map were empty. [The crate's page](crate#panic-hooks) has the details.
///
/// # Blocking
///
/// Each call takes the lock of one stripe for well under a microsecond, or of one after the other
/// ([`touch_many`](Self::touch_many): of a few at a time); and
/// for as long as user code takes that runs under it. None waits for a handler, but
/// [`shutdown`](Self::shutdown).
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
pub struct ExpiryMap<K, V, S = RandomState, G = NoGroups>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    engine: Arc<Engine<Sessions<K, V, S, G>>>,
    /// The handler's map has none: it must not keep the map open.
    owner: Option<Arc<Owner<K, V, S, G>>>,
}

/// Closes the map when the last clone is dropped.
struct Owner<K, V, S, G>(Arc<Engine<Sessions<K, V, S, G>>>)
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping;

impl<K, V, S, G> Drop for Owner<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    fn drop(&mut self) {
        Engine::abandon_anywhere(&self.0);
    }
}

impl<K, V> ExpiryMap<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    /// Options with their defaults. Without a time to idle and a time to live nothing expires but
    /// what is inserted with an [`Expiry`] of its own.
    pub fn builder() -> ExpiryMapBuilder<K, V> {
        ExpiryMapBuilder::new()
    }
}

impl<K, V, S, G> ExpiryMap<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    /// Closes the engine with its last clone.
    fn owning(engine: Arc<Engine<Sessions<K, V, S, G>>>) -> Self {
        ExpiryMap {
            owner: Some(Arc::new(Owner(Arc::clone(&engine)))),
            engine,
        }
    }

    /// A clone that does not keep the map open.
    pub(crate) fn of(engine: Arc<Engine<Sessions<K, V, S, G>>>) -> Self {
        ExpiryMap {
            engine,
            owner: None,
        }
    }

    /// The present moment of the map's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// How long entries live that are inserted without an [`Expiry`] of their own.
    #[must_use]
    pub fn expiry(&self) -> Expiry {
        self.engine.face.expiry
    }

    /// How far the map's life has come.
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.engine.closing().state()
    }

    /// How many entries there are, those included that are due and wait for their delivery.
    ///
    /// # Complexity
    ///
    /// One lock per stripe, one after the other; while others insert and remove it is no snapshot.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.pending()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }

    /// Counters, queue depth and lateness. An insertion is one arming, *scheduled*; a delivery is
    /// one that *ran*; a removal, one that was *cancelled*.
    ///
    /// # Complexity
    ///
    /// One lock per stripe, twice: some ten microseconds in all.
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect_stats(&self.engine)
    }

    /// Closes the map and deals with what is left as `mode` says: it comes back in the report, is
    /// still delivered at its deadline, or at once, with [`Reason::Shutdown`]. The first
    /// call does it; every later one returns an empty report at once, with
    /// [`ExpiryReport::already_closed`] set.
    ///
    /// # Errors
    ///
    /// From inside the map's own handler the end can't be waited for: the ticket in `Err` yields
    /// the report later.
    ///
    /// # Blocking
    ///
    /// Until what `mode` asks for is done and running handlers have ended, but no longer than the
    /// limits in `mode` and in the builder's `shutdown_limit`, both by the map's clock. With a full
    /// channel that is until somebody receives.
    ///
    /// # Panics
    ///
    /// On a map that a test drives, whose driver has a call for it.
    pub fn shutdown(
        &self,
        mode: Shutdown,
    ) -> Result<ExpiryReport<K, V>, ReportTicket<ExpiryReport<K, V>>> {
        assert!(
            !self.engine.is_stepped(),
            "a map that is driven by a test is shut down by its driver"
        );
        let Some(server) = self.engine.server() else {
            // Its threads are gone, which comes after its end.
            return Ok(ExpiryReport::default());
        };
        Engine::shut_down(&server, mode, ExpiryReport::of).map_err(ReportTicket::new)
    }

    /// Like [`shutdown`](Self::shutdown), without waiting for it; see
    /// [`Scheduler::begin_shutdown`](crate::Scheduler::begin_shutdown).
    ///
    /// # Panics
    ///
    /// As [`shutdown`](Self::shutdown).
    pub fn begin_shutdown(&self, mode: Shutdown) -> ReportTicket<ExpiryReport<K, V>> {
        assert!(
            !self.engine.is_stepped(),
            "a map that is driven by a test is shut down by its driver"
        );
        self.engine
            .server()
            .map_or_else(ReportTicket::done, |server| {
                ReportTicket::new(Engine::begin_shutdown(&server, mode, ExpiryReport::of))
            })
    }

    fn hash_of<Q>(&self, key: &Q) -> (usize, KeyHash)
    where
        Q: Hash + ?Sized,
    {
        let shards = self.engine.shards();
        let hash = shards.fold(self.engine.face.hasher.hash_one(key));
        (shards.stripe_of(hash), hash)
    }
}

impl<K, V, S, G> ExpiryMap<K, V, S, G>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    /// Inserts an entry that lives as long as the builder says. What is there under this key, due
    /// or not, is replaced in the same step: it comes back, and is not delivered.
    ///
    /// # Errors
    ///
    /// Key and value come back: the map is [full](InsertRefusal::Full) or
    /// [closed](InsertRefusal::Closed).
    ///
    /// # Complexity
    ///
    /// Constant: one hash, one lock, one probe of the index.
    pub fn insert(&self, key: K, value: V) -> Result<Inserted<V>, InsertError<K, V>> {
        self.insert_with(key, value, self.expiry())
    }

    /// Inserts an entry that lives as long as `expiry` says, whatever the builder said.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<&str, u32>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert("as the others", 1)?;
    /// map.insert_with("for a minute more", 2, map.expiry().time_to_idle(Duration::from_secs(120)))?;
    /// map.insert_with("for good", 3, Expiry::NEVER)?;
    /// stepped.advance(Duration::from_secs(60));
    /// assert_eq!(map.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_with(
        &self,
        key: K,
        value: V,
        expiry: Expiry,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        self.put(key, value, expiry, false)
    }

    fn put(
        &self,
        key: K,
        value: V,
        expiry: Expiry,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        let (stripe, hash) = self.hash_of(&key);
        let now = self.now();
        let session = Session::new(value, expiry, luck(hash, now), now);
        let deadline = session.deadline(now);
        let mut given = Some((key, session));
        let answer = self.engine.arm(
            stripe,
            &mut given,
            |stripe, (key, _)| {
                let slot = if if_absent {
                    stripe.find(hash, key)
                } else {
                    None
                };
                let session = slot.and_then(|slot| stripe.unclaimed(slot));
                let is_over = session.is_some_and(|(session, _)| !session.lives(now));
                stripe.admit(hash, key, if_absent && !is_over)
            },
            |stripe, admission, (key, session)| {
                if admission.is_vacant() {
                    stripe.arm_vacant(hash, key, session, deadline, now);
                    return (None, None);
                }
                let Arming { dropped, .. } =
                    stripe.arm(admission, hash, key, session, deadline, now);
                dropped
            },
        );
        match (answer, given) {
            (Ok((_key, None)), _) => Ok(Inserted::New),
            (Ok((_key, Some(old))), _) => Ok(Inserted::Replaced(old.value)),
            (Err(refusal), Some((key, session))) => Err(InsertError {
                key,
                value: session.value,
                refusal: InsertRefusal::of(refusal),
            }),
            (Err(_), None) => unreachable!("what is refused is not taken"),
        }
    }

    /// Inserts an entry if there is none for the key, as [`insert`](Self::insert) does. One whose
    /// lifetime is over is none: if it has not been delivered yet it is replaced.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert), and [`Occupied`](InsertRefusal::Occupied).
    pub fn insert_if_absent(&self, key: K, value: V) -> Result<Inserted<V>, InsertError<K, V>> {
        self.put(key, value, self.expiry(), true)
    }

    /// A clone of the value of `key`; if there is none, the one that `make` makes, which is
    /// inserted. Of two calls at the same time both may make one; both get the one that was
    /// inserted.
    ///
    /// `make` runs without a lock and may call the map, for a value that is looked up elsewhere; a
    /// value that was made in vain is dropped. The value's `Clone` runs under a lock if there is
    /// one.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn get_or_insert_with(
        &self,
        key: K,
        make: impl FnOnce() -> V,
    ) -> Result<Found<V>, InsertError<K, V>>
    where
        V: Clone,
    {
        if let Some(value) = self.get(&key) {
            return Ok(Found::Present(value));
        }
        let mut given = (key, make());
        let value = given.1.clone();
        loop {
            let (key, made) = given;
            let error = match self.insert_if_absent(key, made) {
                Ok(inserted) => {
                    let replaced = inserted.replaced();
                    return Ok(Found::Inserted { value, replaced });
                }
                Err(error) => error,
            };
            if error.refusal != InsertRefusal::Occupied {
                return Err(error);
            }
            if let Some(value) = self.get(&error.key) {
                return Ok(Found::Present(value));
            }
            // It has gone again in between.
            given = (error.key, error.value);
        }
    }

    /// The time that `key` has left, as the moment at which it expires unless it is touched.
    /// [`Time::MAX`] if it never does.
    #[must_use]
    pub fn deadline<Q>(&self, key: &Q) -> Option<Time>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |_, deadline| deadline)
    }

    /// Whether there is an entry for `key`.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.deadline(key).is_some()
    }

    /// A clone of the value, which is no touch. The value's `Clone` runs under a lock.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.with(key, V::clone)
    }

    /// What `look` makes of the value, which is no touch. `look` runs under a lock, see
    /// [above](Self#user-code-under-a-lock).
    pub fn with<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |value, _| look(value))
    }

    fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&V, Time) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let now = self.now();
        self.engine.shards().peek(stripe, |stripe| {
            let slot = stripe.find(hash, key)?;
            let (session, deadline) = stripe.unclaimed(slot)?;
            session.lives(now).then(|| look(&session.value, deadline))
        })
    }

    /// Lets `change` change the value, which is no touch. `change` runs under a lock, see
    /// [above](Self#user-code-under-a-lock).
    pub fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let now = self.now();
        self.engine.with(stripe, |stripe| {
            let slot = stripe.find(hash, key)?;
            let (session, _) = stripe.unclaimed_mut(slot)?;
            session.lives(now).then(|| change(&mut session.value))
        })
    }

    /// Takes the entry out. It is not delivered any more, also when it is due and waits for it.
    ///
    /// # Complexity
    ///
    /// Constant; the memory is free at once.
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn remove<Q>(&self, key: &Q) -> Removed<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let cancelling = self.engine.with(stripe, |stripe| stripe.cancel(hash, key));
        match cancelling {
            Cancelling::Cancelled {
                deadline,
                dropped: (_key, Some(session)),
                ..
            } => Removed::Removed {
                value: session.value,
                deadline,
            },
            Cancelling::Cancelled { .. } => unreachable!("a payload comes back"),
            Cancelling::Running(_) => Removed::Expired,
            Cancelling::NotFound => Removed::NotFound,
        }
    }
}

impl<K, V, S, G> Clone for ExpiryMap<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    fn clone(&self) -> Self {
        ExpiryMap {
            engine: Arc::clone(&self.engine),
            owner: self.owner.clone(),
        }
    }
}

impl<K, V, S, G> fmt::Debug for ExpiryMap<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryMap")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
