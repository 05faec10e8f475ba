//! The front end of the engine for maps: a value in each entry, and one delivery for all.

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::answers::Computed;
use super::content::MapEntry;
use super::flights::Flights;
use super::tag::Tag;
use super::{Expiry, ExpiryHandedBack, ExpiryMap, ExpiryReport, MapHasher};
use crate::bounded_channel::{BoundedSender, Unsent};
use crate::clock::Clock;
#[cfg(feature = "tokio")]
use crate::engine::RunOutcome;
use crate::engine::{Batched, Ending, Engine, Frontend, FrontendTypes, RunInfo};
use crate::job::{catch_panic, drop_catching};
use crate::scheduler::{OnPanic, TaskPanic};
use crate::shard::{Taken, is_under_lock};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, OnceLock};
use crate::tick::Time;

/// An expired entry, as it is delivered.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{Expired, ExpiryMap};
///
/// fn report(expired: Expired<u64, String>) {
///     println!("{} has left, {:?} late", expired.value, expired.lateness);
/// }
/// let sessions = ExpiryMap::<u64, String>::builder()
///     .time_to_idle(Duration::from_secs(30 * 60))
///     .build(|_, expired| report(expired))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Expired<K, V> {
    /// A clone of the key, made when the entry was taken for delivery.
    pub key: K,
    /// The value.
    pub value: V,
    /// When the entry was due. If it was evicted before, the moment of the eviction.
    pub deadline: Time,
    /// How long after the deadline the delivery began. With the default clock it may be up to 1 ms
    /// too small, as [`Clock::fast`](crate::Clock::fast) says.
    pub lateness: Duration,
    /// The reason why the entry expired.
    pub reason: Reason,
}

/// The reason why an entry expired, or left the map in another way.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, Reason};
///
/// let sessions = ExpiryMap::<u64, String>::builder()
///     .time_to_idle(Duration::from_secs(30 * 60))
///     .time_to_live(Duration::from_secs(12 * 3600))
///     .build(|_, expired| match expired.reason {
///         Reason::Idle => println!("{} has left", expired.value),
///         _ => println!("{} has to sign in again", expired.value),
///     })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Reason {
    /// The entry was not touched for its time to idle.
    Idle,
    /// The entry's time to live was over.
    Lifetime,
    /// [`Shutdown::RunNow`](crate::Shutdown::RunNow) shut the map down before the entry's deadline.
    Shutdown,
    /// A newer entry took the entry's place in its full group, before the entry's lifetime was
    /// over; see [`when_group_full`](crate::ExpiryMapBuilder::when_group_full).
    GroupFull,
    /// A call removed the entry: [`remove`](crate::ExpiryMap::remove),
    /// [`retain`](crate::ExpiryMap::retain) or `remove_group`.
    Removed,
    /// An insertion of the same key replaced the entry.
    Replaced,
    /// [`clear`](crate::ExpiryMap::clear) removed the entry.
    Cleared,
    /// A shutdown handed the entry back.
    HandedBack,
    /// The last clone of the map was dropped, or its receiver was lost, with
    /// [`ReceiverLost::Close`].
    Dropped,
}

/// What a map does after the last receiver of its expired entries was dropped. The receiver is that
/// of the channel of [`build_channel`](crate::ExpiryMapBuilder::build_channel), or the stream of
/// `build_stream`.
///
/// Set it by [`when_receiver_lost`](crate::ExpiryMapBuilder::when_receiver_lost).
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, ReceiverLost};
///
/// let (sessions, expired) = ExpiryMap::<u64, String>::builder()
///     .when_receiver_lost(ReceiverLost::Close)
///     .build_channel(64)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum ReceiverLost {
    /// The map stays open. Entries that expire are dropped and counted in
    /// [`ExpiryStats::unreceived`](crate::ExpiryStats::unreceived). This is the default.
    #[default]
    Drop,
    /// The map closes at the next expiry, as if its last clone had been dropped. The other entries
    /// are dropped undelivered and count as cancelled. Later insertions are refused.
    Close,
}

impl<V, T: Tag> MapEntry<V, T> {
    /// Returns why the entry has ended when an insertion replaces it.
    pub(super) fn replaced_for(&self, clock: &Clock) -> Reason {
        match (self.tag.is_evicted(), self.lives_now(clock)) {
            (true, _) => Reason::GroupFull,
            (false, true) => Reason::Replaced,
            (false, false) => Reason::Lifetime,
        }
    }

    /// Converts the entry to what is delivered. The entry leaves its group first.
    fn expire<K>(self, key: K, deadline: Time, started: Time) -> Expired<K, V> {
        let is_evicted = self.tag.is_evicted();
        // An entry that a handler gets must not count in its group any more.
        drop(self.tag);
        Expired {
            key,
            value: self.value,
            deadline,
            lateness: started.since(deadline),
            // Only `RunNow` starts a delivery before the deadline.
            reason: if is_evicted {
                Reason::GroupFull
            } else if started < deadline {
                Reason::Shutdown
            } else if self.end <= deadline {
                Reason::Lifetime
            } else {
                Reason::Idle
            },
        }
    }
}

pub(crate) type Handler<K, V, S> = Box<dyn Fn(&ExpiryMap<K, V, S>, Expired<K, V>) + Send + Sync>;

pub(crate) type BatchHandler<K, V, S> =
    Box<dyn Fn(&ExpiryMap<K, V, S>, Vec<Expired<K, V>>) + Send + Sync>;

/// The destination of expired entries.
pub(crate) enum Delivery<K, V, S>
where
    S: MapHasher,
{
    Handler(Handler<K, V, S>),
    Batches(NonZeroUsize, BatchHandler<K, V, S>),
    /// A channel, until the map has ended or its last receiver is gone.
    BoundedSender(BoundedSender<Expired<K, V>>),
    /// Futures, on a runtime.
    #[cfg(feature = "tokio")]
    Futures(Box<dyn SpawnsFutures<K, V, S>>),
}

/// A delivery whose runs continue on a runtime.
#[cfg(feature = "tokio")]
pub(crate) trait SpawnsFutures<K, V, S: MapHasher>: Send + Sync {
    /// Waits until there is room for a future, takes the run over, and spawns the future. Sets
    /// `detached` when it has taken the run over.
    fn spawn(
        &self,
        map: &ExpiryMap<K, V, S>,
        info: &RunInfo<'_, K>,
        expired: Expired<K, V>,
        detached: &mut bool,
    );

    /// Returns whether there is room for a future.
    #[cfg(any(test, feature = "test-util"))]
    fn has_room(&self) -> bool;

    /// Returns how many entries expired after the runtime had ended.
    fn unreceived(&self) -> u64;
}

/// Called once, with the first entry that nobody received.
pub(super) type OnReceiverLost<K, V> = Box<dyn Fn(&Expired<K, V>) + Send + Sync>;

/// The listener of a map.
pub(super) struct OnRemoval<K, V>(Box<Listener<K, V>>);

type Listener<K, V> = dyn Fn(&K, &V, Reason) + Send + Sync;

impl<K, V> OnRemoval<K, V> {
    pub(super) fn new(tell: impl Fn(&K, &V, Reason) + Send + Sync + 'static) -> Self {
        OnRemoval(Box::new(tell))
    }

    /// Calls the listener. A panic of it must not reach the call that removed the entry.
    #[cold]
    pub(super) fn removed(&self, key: &K, value: &V, reason: Reason) {
        let _ = catch_panic(|| (self.0)(key, value, reason));
    }
}

/// The state of this front end besides the engine.
pub(crate) struct MapFrontend<K, V, S>
where
    S: MapHasher,
{
    pub(super) hasher: S,
    pub(super) expiry: Expiry,
    pub(super) delivery: Delivery<K, V, S>,
    pub(super) on_panic: Option<OnPanic<K>>,
    #[cfg(feature = "tracing")]
    pub(super) show_key: Option<crate::trace::ShowKey<K>>,
    pub(super) when_receiver_lost: ReceiverLost,
    pub(super) on_receiver_lost: Option<OnReceiverLost<K, V>>,
    pub(super) on_removal: Option<OnRemoval<K, V>>,
    /// The number of delivered entries that were evicted.
    pub(super) evicted: AtomicU64,
    /// The number of touches by `touch_many` that found nothing, which are counted together.
    pub(super) missed: AtomicU64,
    pub(super) groups: S::Index,
    /// Made by the first call that computes a value with others waiting for it.
    pub(super) flights: OnceLock<Arc<Flights<K, Computed<V>>>>,
}

impl<K, V, S: MapHasher> MapFrontend<K, V, S> {
    /// Returns the number of entries that expired without a receiver.
    pub(super) fn unreceived(&self) -> u64 {
        match &self.delivery {
            Delivery::BoundedSender(sender) => sender.unsent(),
            #[cfg(feature = "tokio")]
            Delivery::Futures(delivery) => delivery.unreceived(),
            Delivery::Handler(_) | Delivery::Batches(..) => 0,
        }
    }

    /// Makes what is delivered of a claimed entry.
    #[inline(always)]
    fn expire(info: &RunInfo<'_, K>, session: MapEntry<V, S::Tag>) -> Expired<K, V>
    where
        K: Clone + Send + 'static,
        V: Send + 'static,
    {
        let key = match catch_unwind(AssertUnwindSafe(|| info.key.clone())) {
            Ok(key) => key,
            Err(panic) => {
                // Dropped before the panic continues: the value's drop is user code and may panic,
                // too.
                let _ = catch_panic(|| drop(session));
                resume_unwind(panic);
            }
        };
        session.expire(key, info.deadline, info.started)
    }
}

impl<K, V, S> FrontendTypes for MapFrontend<K, V, S>
where
    S: MapHasher,
{
    type Key = K;
    type Payload = MapEntry<V, S::Tag>;
    type Access = ExpiryMap<K, V, S>;
}

impl<K, V, S> Frontend for MapFrontend<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    const ENDS: bool = true;

    #[cfg(feature = "tracing")]
    const KIND: &'static str = "map";

    #[cfg(feature = "tracing")]
    fn show_key(&self) -> Option<crate::trace::ShowKey<K>> {
        self.show_key
    }

    #[cfg(all(feature = "tracing", feature = "tokio"))]
    fn is_span_elsewhere(map: &ExpiryMap<K, V, S>, _: &MapEntry<V, S::Tag>) -> bool {
        matches!(map.engine.frontend.delivery, Delivery::Futures(_))
    }

    fn access(engine: &Arc<Engine<Self>>) -> ExpiryMap<K, V, S> {
        ExpiryMap::of(Arc::clone(engine))
    }

    fn run(map: &ExpiryMap<K, V, S>, info: &RunInfo<'_, K>, session: MapEntry<V, S::Tag>) {
        let expired = Self::expire(info, session);
        map.leaves(&expired);
        match &map.engine.frontend.delivery {
            Delivery::Handler(handle) => handle(map, expired),
            Delivery::Batches(..) => unreachable!("`run_batch` runs batches"),
            #[cfg(feature = "tokio")]
            Delivery::Futures(_) => unreachable!("`run_to_its_end` detaches these runs"),
            Delivery::BoundedSender(sender) => {
                if let Err(unsent) = sender.send(expired) {
                    receiver_lost(map, unsent);
                }
            }
        }
    }

    #[cfg(feature = "tokio")]
    #[inline]
    fn run_to_its_end(
        map: &ExpiryMap<K, V, S>,
        info: &RunInfo<'_, K>,
        session: MapEntry<V, S::Tag>,
    ) -> RunOutcome<MapEntry<V, S::Tag>> {
        // Set out here, since a run that is detached may panic afterwards.
        let mut detached = false;
        let ended = catch_panic(|| match &map.engine.frontend.delivery {
            Delivery::Futures(delivery) => {
                let expired = Self::expire(info, session);
                map.leaves(&expired);
                delivery.spawn(map, info, expired, &mut detached);
            }
            _ => Self::run(map, info, session),
        });
        let panicked = ended.is_err();
        if let Err(message) = ended {
            let _ = catch_panic(|| Self::panicked(map, info, &message));
        }
        if detached {
            RunOutcome::Detached
        } else {
            RunOutcome::Done { panicked }
        }
    }

    fn batch(map: &ExpiryMap<K, V, S>) -> Option<NonZeroUsize> {
        match &map.engine.frontend.delivery {
            Delivery::Batches(limit, _) => Some(*limit),
            _ => None,
        }
    }

    fn run_batch(map: &ExpiryMap<K, V, S>, batch: Vec<Batched<K, MapEntry<V, S::Tag>>>) {
        let Delivery::Batches(_, handle) = &map.engine.frontend.delivery else {
            unreachable!("only a front end with a batch limit gets batches");
        };
        let expired = batch
            .into_iter()
            .map(|run| run.value.expire(run.key, run.deadline, run.started))
            .inspect(|expired| map.leaves(expired));
        handle(map, expired.collect());
    }

    fn panicked(map: &ExpiryMap<K, V, S>, info: &RunInfo<'_, K>, message: &str) {
        #[cfg(feature = "tracing")]
        map.engine.tell_panic(info.key, message);
        if let Some(tell) = &map.engine.frontend.on_panic {
            tell(&TaskPanic {
                key: info.key,
                deadline: info.deadline,
                message,
            });
        }
    }

    /// Removes nothing: entries may wait. This is where all entries that leave together with the
    /// map pass.
    fn keep_back(&self, taken: &mut Vec<Taken<K, MapEntry<V, S::Tag>>>, handed_back: bool) {
        let reason = match handed_back {
            true => Reason::HandedBack,
            false => Reason::Dropped,
        };
        for (key, _, session) in taken {
            if let (Some(tell), Some(key)) = (&self.on_removal, key) {
                tell.removed(key, &session.value, reason);
            }
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    fn room(&self) -> Option<bool> {
        match &self.delivery {
            Delivery::BoundedSender(sender) => Some(sender.is_ready()),
            #[cfg(feature = "tokio")]
            Delivery::Futures(delivery) => Some(delivery.has_room()),
            Delivery::Handler(_) | Delivery::Batches(..) => None,
        }
    }

    /// Releases the callers that wait for a computation, which may hang (FLIGHT-5).
    fn closing(&self) {
        if is_under_lock() {
            // The thread panics, and may hold a lock that is taken here. The end of the shutdown
            // calls this again.
            return;
        }
        // Made here if there are none, so that a caller that comes later finds these, which are
        // closed. Nobody waits any more, so one lock is enough.
        self.flights
            .get_or_init(|| Arc::new(Flights::with_shards(1)))
            .close();
    }

    /// Ends the channel. A receiver sees the end after it has received everything that was sent.
    fn ended(&self) {
        if let Delivery::BoundedSender(sender) = &self.delivery {
            sender.end();
        }
    }
}

/// Handles an entry that nobody receives. Runs without a lock on the worker that was to send the
/// entry. The callback and the drops are user code.
pub(super) fn receiver_lost<K, V, S>(map: &ExpiryMap<K, V, S>, unsent: Unsent<Expired<K, V>>)
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    let Unsent { item, is_first } = unsent;
    let frontend = &map.engine.frontend;
    // Closing comes before the callback, which must find the map closed. It drops the other
    // entries, and a panic of these drops must not keep the callback from running.
    let closed = catch_panic(|| {
        if frontend.when_receiver_lost == ReceiverLost::Close {
            map.engine.abandon();
        }
    });
    if let Some(tell) = frontend.on_receiver_lost.as_ref().filter(|_| is_first) {
        let _ = catch_panic(|| tell(&item));
    }
    // Dropped separately: two panics at once would end the process.
    drop_catching((item.key, item.value));
    if let Err(message) = closed {
        resume_unwind(Box::new(message));
    }
}

impl<K, V> ExpiryReport<K, V> {
    pub(crate) fn of<T>(ending: Option<Ending<K, MapEntry<V, T>>>) -> Self {
        let Some(ending) = ending else {
            return ExpiryReport::default();
        };
        let hand_back = |(key, deadline, session): (Option<K>, Time, MapEntry<V, T>)| {
            key.map(|key| ExpiryHandedBack {
                key,
                value: session.value,
                deadline,
            })
        };
        ExpiryReport {
            handed_back: ending.taken.into_iter().filter_map(hand_back).collect(),
            still_running: ending.still_running,
            already_closed: false,
        }
    }
}

impl<V, T> fmt::Debug for MapEntry<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
