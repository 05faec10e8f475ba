//! The face of the engine: a value in each entry, and one delivery for all.

use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::{Expiry, ExpiryMap, Grouping};
use crate::engine::{Batched, Engine, Face, Fire};
use crate::job::{contain, drop_pair};
use crate::outlet::{Outlet, Unsent};
use crate::scheduler::{OnPanic, TaskPanic};
use crate::sync::Arc;
use crate::tick::Time;

/// An entry that has expired, as it is delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Expired<K, V> {
    /// A clone of its key, made when it was taken for delivery.
    pub key: K,
    /// Its value.
    pub value: V,
    /// When it was due.
    pub deadline: Time,
    /// How long after that its delivery began.
    pub lateness: Duration,
    /// Why it expired.
    pub reason: Reason,
}

/// Why an entry expired.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody had touched it for its time to idle.
    Idle,
    /// Its time to live was over.
    Lifetime,
    /// The map was shut down by [`Shutdown::RunNow`](crate::Shutdown::RunNow), before its deadline.
    Shutdown,
}

/// What a map does after the last receiver of its expired entries has been dropped: of the channel
/// of [`build_channel`](crate::ExpiryMapBuilder::build_channel), or the stream of `build_stream`.
///
/// Given to [`when_receiver_lost`](crate::ExpiryMapBuilder::when_receiver_lost).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum ReceiverLost {
    /// The map lives on. Entries that expire are dropped and counted in
    /// [`Stats::unreceived`](crate::Stats::unreceived). The default.
    #[default]
    Drop,
    /// The map closes at the next expiry, as if its last clone had been dropped. The other entries
    /// are dropped undelivered and count as cancelled. Later insertions are refused.
    Close,
}

/// What an entry holds beside its key.
pub(crate) struct Session<V, T> {
    /// What it holds of its group, which it leaves before the value is dropped.
    pub(super) tag: T,
    pub(super) value: V,
    /// Nanoseconds; `u64::MAX` is for good.
    idle: u64,
    /// The end of its lifetime.
    end: Time,
}

impl<V, T: Default> Session<V, T> {
    /// In no group. `luck` decides on the jitter.
    pub(super) fn new(value: V, expiry: Expiry, luck: u64, now: Time) -> Self {
        let (idle, lifetime) = expiry.drawn(luck);
        let end = after(now, lifetime);
        Session {
            tag: T::default(),
            value,
            idle,
            end,
        }
    }
}

impl<V, T> Session<V, T> {
    pub(super) fn set_expiry(&mut self, expiry: Expiry, luck: u64, now: Time) {
        let (idle, lifetime) = expiry.drawn(luck);
        self.idle = idle;
        self.end = after(now, lifetime);
    }

    /// Whether its lifetime is not over.
    #[inline]
    pub(super) fn lives(&self, now: Time) -> bool {
        now < self.end
    }

    /// What is delivered of it. It has left its group by then.
    fn expire<K>(self, key: K, deadline: Time, started: Time) -> Expired<K, V> {
        drop(self.tag);
        Expired {
            key,
            value: self.value,
            deadline,
            lateness: started.since(deadline),
            reason: if started < deadline {
                Reason::Shutdown
            } else if self.end <= deadline {
                Reason::Lifetime
            } else {
                Reason::Idle
            },
        }
    }

    /// Its deadline if it is touched now.
    #[inline]
    pub(super) fn deadline(&self, now: Time) -> Time {
        after(now, self.idle).min(self.end)
    }
}

#[inline]
fn after(now: Time, nanos: u64) -> Time {
    Time::from_nanos(now.as_nanos().saturating_add(nanos))
}

pub(super) type Handler<K, V, S, G> =
    Box<dyn Fn(&ExpiryMap<K, V, S, G>, Expired<K, V>) + Send + Sync>;

pub(super) type BatchHandler<K, V, S, G> =
    Box<dyn Fn(&ExpiryMap<K, V, S, G>, Vec<Expired<K, V>>) + Send + Sync>;

/// Where expired entries go.
pub(super) enum Delivery<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    Handler(Handler<K, V, S, G>),
    Batches(NonZeroUsize, BatchHandler<K, V, S, G>),
    /// Until the map has ended or nobody receives any more.
    Outlet(Outlet<Expired<K, V>>),
}

/// Called once, with the first entry that nobody received.
pub(super) type OnReceiverLost<K, V> = Box<dyn Fn(&Expired<K, V>) + Send + Sync>;

/// What this face needs besides the engine.
pub(crate) struct Sessions<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    pub(super) hasher: S,
    pub(super) expiry: Expiry,
    pub(super) delivery: Delivery<K, V, S, G>,
    pub(super) on_panic: Option<OnPanic<K>>,
    pub(super) when_receiver_lost: ReceiverLost,
    pub(super) on_receiver_lost: Option<OnReceiverLost<K, V>>,
    pub(super) groups: G::Index,
}

impl<K, V, S, G> Face for Sessions<K, V, S, G>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    type Key = K;
    type Payload = Session<V, G::Tag>;
    type Access = ExpiryMap<K, V, S, G>;

    const ENDS: bool = true;

    fn access(engine: &Arc<Engine<Self>>) -> ExpiryMap<K, V, S, G> {
        ExpiryMap::of(Arc::clone(engine))
    }

    fn run(map: &ExpiryMap<K, V, S, G>, fire: &Fire<'_, K>, session: Session<V, G::Tag>) {
        let key = match catch_unwind(AssertUnwindSafe(|| fire.key.clone())) {
            Ok(key) => key,
            Err(panic) => {
                // Not while this panics: the value's drop is user code, too.
                let _ = contain(|| drop(session));
                resume_unwind(panic);
            }
        };
        let expired = session.expire(key, fire.deadline, fire.started);
        match &map.engine.face.delivery {
            Delivery::Handler(handle) => handle(map, expired),
            Delivery::Batches(..) => unreachable!("they are run by `run_batch`"),
            Delivery::Outlet(outlet) => {
                if let Err(unsent) = outlet.send(expired) {
                    receiver_lost(map, unsent);
                }
            }
        }
    }

    fn batch(map: &ExpiryMap<K, V, S, G>) -> Option<NonZeroUsize> {
        match &map.engine.face.delivery {
            Delivery::Batches(limit, _) => Some(*limit),
            Delivery::Handler(_) | Delivery::Outlet(_) => None,
        }
    }

    fn run_batch(map: &ExpiryMap<K, V, S, G>, batch: Vec<Batched<K, Session<V, G::Tag>>>) {
        let Delivery::Batches(_, handle) = &map.engine.face.delivery else {
            unreachable!("`batch` said none");
        };
        let expired = batch
            .into_iter()
            .map(|run| run.value.expire(run.key, run.deadline, run.started));
        handle(map, expired.collect());
    }

    fn panicked(map: &ExpiryMap<K, V, S, G>, fire: &Fire<'_, K>, message: &str) {
        if let Some(tell) = &map.engine.face.on_panic {
            tell(&TaskPanic {
                key: fire.key,
                deadline: fire.deadline,
                message,
            });
        }
    }

    fn unreceived(&self) -> u64 {
        match &self.delivery {
            Delivery::Outlet(outlet) => outlet.unsent(),
            Delivery::Handler(_) | Delivery::Batches(..) => 0,
        }
    }

    /// Receivers see the end when they have received what was sent.
    fn ended(&self) {
        if let Delivery::Outlet(outlet) = &self.delivery {
            outlet.end();
        }
    }
}

/// What becomes of an entry that nobody receives. Runs on the worker that was to send it, without a
/// lock; the callback and the drops are user code.
fn receiver_lost<K, V, S, G>(map: &ExpiryMap<K, V, S, G>, unsent: Unsent<Expired<K, V>>)
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Grouping,
{
    let Unsent { item, is_first } = unsent;
    let face = &map.engine.face;
    // The callback comes last: it finds the map closed if it is to close. The other entries go
    // before this one, and a panic in their drops must not keep the callback from running.
    let closed = contain(|| {
        if face.when_receiver_lost == ReceiverLost::Close {
            map.engine.abandon();
        }
    });
    if let Some(tell) = face.on_receiver_lost.as_ref().filter(|_| is_first) {
        let _ = contain(|| tell(&item));
    }
    // One by one: if both panicked at once the process would end.
    drop_pair((item.key, item.value));
    if let Err(message) = closed {
        resume_unwind(Box::new(message));
    }
}

impl<V, T> fmt::Debug for Session<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
