//! The face with the payload in the entry, without a box per timer. No public one is built upon it
//! yet; this is the least that measures it, behind the feature `__inline` and out of the docs.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Face, Fire, Parts, Place, Server};
use crate::error::BuildError;
use crate::job::drop_each;
use crate::scheduler::{RandomState, Stats, collect_stats};
use crate::shard::{Arming, Cancelling, KeyHash, Moving};
use crate::sync::Arc;

/// Timers by key, each with a value that one handler takes when it is due.
pub struct Inline<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    server: Arc<Server<Handler<K, V>>>,
}

/// What runs is one function for all.
struct Handler<K, V> {
    hasher: RandomState,
    handle: fn(&K, V),
}

impl<K, V> Face for Handler<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    type Key = K;
    type Payload = V;
    type Access = fn(&K, V);

    fn access(engine: &Arc<Engine<Self>>) -> fn(&K, V) {
        engine.face.handle
    }

    fn run(handle: &fn(&K, V), fire: &Fire<'_, K>, value: V) {
        handle(fire.key, value);
    }

    fn panicked(_: &fn(&K, V), _: &Fire<'_, K>, _: &str) {}
}

impl<K, V> Inline<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
{
    /// With the defaults of a scheduler.
    ///
    /// # Errors
    ///
    /// [`BuildError::Spawn`] if a thread did not start.
    pub fn new(handle: fn(&K, V)) -> Result<Self, BuildError> {
        let (server, seats) = Engine::assemble(
            Parts {
                config: Config::new().validate(num_cpus::get())?,
                clock: Clock::system(),
                place: Place::Pool,
                seed: None,
                stepped: false,
            },
            Handler {
                hasher: RandomState::default(),
                handle,
            },
        );
        Engine::start(&server, seats).map_err(BuildError::Spawn)?;
        Ok(Inline { server })
    }

    fn hash_of(&self, key: &K) -> (usize, KeyHash) {
        let engine = self.server.engine();
        let hash = engine.shards().fold(engine.face.hasher.hash_one(key));
        (engine.shards().stripe_of(hash), hash)
    }

    /// Arms `key`, in the place of what is pending. Whether it was accepted.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn start(&self, key: K, value: V, delay: Duration) -> bool {
        let engine = self.server.engine();
        let (stripe, hash) = self.hash_of(&key);
        let now = engine.now();
        let mut given = Some((key, value));
        let answer = engine.arm(
            stripe,
            &mut given,
            |stripe, (key, _)| stripe.admit(hash, key, false),
            |stripe, admission, (key, value)| {
                stripe.arm(admission, hash, key, value, now + delay, now)
            },
        );
        match answer {
            Ok(Arming { dropped, .. }) => {
                drop_each([dropped]);
                true
            }
            Err(_) => false,
        }
    }

    /// Cancels. The value, if it was pending.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn stop(&self, key: &K) -> Option<V> {
        let (stripe, hash) = self.hash_of(key);
        match (self.server.engine()).with(stripe, |stripe| stripe.cancel(hash, key)) {
            Cancelling::Cancelled {
                dropped: (_, value),
                ..
            } => value,
            Cancelling::Running(_) | Cancelling::NotFound => None,
        }
    }

    /// Moves to `delay` from now. Whether it was pending.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn touch(&self, key: &K, delay: Duration) -> bool {
        let engine = self.server.engine();
        let (stripe, hash) = self.hash_of(key);
        let now = engine.now();
        let moving = engine.with(stripe, |stripe| {
            stripe.reschedule(hash, key, now + delay, now, false)
        });
        matches!(moving, Moving::Moved { .. })
    }

    /// Counters, queue depth and lateness.
    #[must_use]
    pub fn stats(&self) -> Stats {
        collect_stats(self.server.engine())
    }
}

impl<K, V> Drop for Inline<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    fn drop(&mut self) {
        self.server.engine().abandon();
    }
}

impl<K, V> fmt::Debug for Inline<K, V>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inline").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    static RAN: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn what_is_started_runs_once_unless_it_is_stopped_or_moved() {
        let far = Duration::from_secs(3_600);
        let timers = Inline::new(|key: &u64, value: u64| {
            // Relaxed: a sum; the wait below polls it.
            RAN.fetch_add(key + value, Ordering::Relaxed);
        })
        .expect("threads start");
        assert!(timers.start(1, 10, far) && timers.start(2, 20, far));
        assert!(timers.start(1, 11, far), "in the place of the first");
        assert_eq!(timers.stats().pending, 2);
        assert!(timers.touch(&1, Duration::ZERO));
        assert_eq!(timers.stop(&2), Some(20));
        assert_eq!(timers.stop(&2), None);
        assert!(!timers.touch(&2, far));
        while RAN.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(RAN.load(Ordering::Relaxed), 12);
    }
}
