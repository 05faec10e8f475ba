//! The calls that change nothing.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Instant;

use super::super::answers::TimerInfo;
use super::Handle;
use crate::engine::Lifecycle;
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns what is known of `key` at this moment.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<TimerInfo>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .shards()
            .peek(stripe, |stripe| stripe.get(hash, key))
            .map(|entry_info| TimerInfo::new(self.engine.tag(), stripe as u32, entry_info))
    }

    /// Returns whether `key` is pending, queued or running.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key).is_some()
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the current time of the scheduler's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// Converts `instant` to the time of the scheduler's clock.
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> Time {
        self.engine.clock().time_of(instant)
    }

    /// Returns the stage of the scheduler's life.
    #[must_use]
    pub fn state(&self) -> Lifecycle {
        self.engine.closing().state()
    }

    /// Returns the number of timers that have not started and were not cancelled, including queued
    /// ones. A repeating timer is pending between its rounds.
    ///
    /// # Complexity
    ///
    /// Takes one lock per stripe, one after the other. No snapshot while others arm and cancel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.pending()
    }

    /// Returns whether no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }
}
