//! The faces of peers that have a map from a number to a timer: by key, where the number is the
//! caller's; by handle, where the peer counts and the caller keeps the number; and as a map of
//! sessions, whose values lie beside.

use std::time::Duration;

use crate::system::{Handles, Keyed, Payload, Sessions, System, Tasks};

pub(super) const WITH_VALUES: &str = "the same with values of 8 bytes in the map";

/// Timers by number, which store `V` beside.
pub(crate) trait ByNumber<V: Payload>: Sync + Sized + 'static {
    const NAME: &'static str;
    const ABOUT: &'static str;
    const OF_SESSIONS: &'static str = WITH_VALUES;
    const MAY_BE_EARLY: bool = false;
    const FLOOR_OF: &'static [&'static str] = &[];
    /// Whether callers by key use [`touch_many`](Self::touch_many), as sessions do.
    const MANY_BY_KEY: bool = false;

    fn new(tasks: Tasks) -> Self;

    fn pending(&self) -> usize;

    /// In the place of what is there.
    fn start(&self, number: u64, value: V, delay: Duration);

    fn remove(&self, number: u64) -> Option<V>;

    fn touch(&self, number: u64, delay: Duration) -> bool;

    fn get(&self, number: u64) -> Option<V>;

    /// A touch of each; how many there were.
    fn touch_many(&self, numbers: &[u64], delay: Duration) -> usize {
        let touched = numbers.iter().filter(|number| self.touch(**number, delay));
        touched.count()
    }

    /// There is nothing to wait for: each call is done when it returns. A timer that was moved stays
    /// at its old time until then, and nobody can hurry it.
    fn settle(&self) {}

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// One that counts.
pub(crate) trait Counting: ByNumber<u64> {
    /// Starts a timer with the next number, and returns that.
    fn start_next(&self, value: u64, delay: Duration) -> u64;
}

/// By the caller's key.
pub(crate) struct ByKey<P>(P);

/// By a number of the peer's own.
pub(crate) struct ById<P>(P);

/// With values in the map.
pub(crate) struct SessionMap<P> {
    peer: P,
    idle: Duration,
}

impl<P: ByNumber<()>> System for ByKey<P> {
    const NAME: &'static str = P::NAME;
    const ABOUT: &'static str = P::ABOUT;
    const MAY_BE_EARLY: bool = P::MAY_BE_EARLY;
    const FLOOR_OF: &'static [&'static str] = P::FLOOR_OF;

    fn pending(&self) -> usize {
        self.0.pending()
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.on_thread(work)
    }
}

impl<P: ByNumber<()>> Keyed for ByKey<P> {
    fn new(tasks: Tasks) -> Self {
        ByKey(P::new(tasks))
    }

    fn start(&self, key: u64, delay: Duration) {
        self.0.start(key, (), delay);
    }

    fn stop(&self, key: u64) -> bool {
        self.0.remove(key).is_some()
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.0.touch(key, delay)
    }

    fn touch_many(&self, keys: &[u64], delay: Duration) -> usize {
        if P::MANY_BY_KEY {
            return self.0.touch_many(keys, delay);
        }
        keys.iter().filter(|key| self.touch(**key, delay)).count()
    }
}

impl<P: Counting> System for ById<P> {
    const NAME: &'static str = P::NAME;
    const ABOUT: &'static str = P::ABOUT;

    fn pending(&self) -> usize {
        self.0.pending()
    }
}

impl<P: Counting> Handles for ById<P> {
    type Timeout = u64;

    fn new(tasks: Tasks) -> Self {
        ById(P::new(tasks))
    }

    fn start(&self, value: u64, delay: Duration) -> u64 {
        self.0.start_next(value, delay)
    }

    fn stop(&self, timeout: u64) -> bool {
        self.0.remove(timeout).is_some()
    }
}

impl<P: ByNumber<u64>> System for SessionMap<P> {
    const NAME: &'static str = P::NAME;
    const ABOUT: &'static str = P::OF_SESSIONS;
    const MAY_BE_EARLY: bool = P::MAY_BE_EARLY;
    const FLOOR_OF: &'static [&'static str] = P::FLOOR_OF;

    fn pending(&self) -> usize {
        self.peer.pending()
    }

    fn settle(&self) {
        self.peer.settle();
    }

    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        self.peer.on_thread(work)
    }
}

impl<P: ByNumber<u64>> Sessions for SessionMap<P> {
    fn new(idle: Duration) -> Self {
        let peer = P::new(Tasks::Short);
        SessionMap { peer, idle }
    }

    fn insert(&self, key: u64, value: u64) {
        self.peer.start(key, value, self.idle);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.peer.get(key)
    }

    fn touch(&self, key: u64) -> bool {
        self.peer.touch(key, self.idle)
    }

    fn touch_many(&self, keys: &[u64]) -> usize {
        self.peer.touch_many(keys, self.idle)
    }

    fn remove(&self, key: u64) -> Option<u64> {
        self.peer.remove(key)
    }
}
