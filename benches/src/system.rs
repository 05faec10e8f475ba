//! What a system is: keyed timers, timers with handles, sessions, or sleeps.

use std::time::Duration;

/// Timers of one kind, with whatever threads they need. What fires calls
/// [`fired`](crate::recorder::fired) with eight bytes that it kept.
pub(crate) trait System: Sync + Sized + 'static {
    /// For command line and tables.
    const NAME: &'static str;
    const ABOUT: &'static str;
    /// Whether its timers may run before they are due, for a reason that its file tells. Others
    /// fail a round in which that happens; here it is counted and stands in the table.
    const MAY_BE_EARLY: bool = false;
    /// The most timers that it is filled with, unless it is asked for by name: some take so much
    /// memory or time that all of them together would not fit.
    const MOST_KEYS: u64 = u64::MAX;
    /// If there are any, it has no timers and fires nothing, or it may be early: a floor for these
    /// workloads and no peer.
    const FLOOR_OF: &'static [&'static str] = &[];

    /// How many timers are pending.
    fn pending(&self) -> usize;

    /// Waits until the work is done that calls left to others: what is queued is not done. Where
    /// every call is done when it returns there is nothing to wait for.
    fn settle(&self) {}

    /// Runs a producer's work on its thread, in whatever context that needs.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// What a service knows beforehand of the tasks that its timers run; it chooses the set-up that is
/// natural for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tasks {
    /// Well under a microsecond each.
    Short,
    /// Some of them block for long.
    MayBlock,
}

/// Keyed timers, as a service would use them: the caller knows a key and nothing else.
pub(crate) trait Keyed: System {
    /// Empty.
    fn new(tasks: Tasks) -> Self;

    /// Arms the timer of `key`, in the place of one that is pending. The eight bytes that it keeps
    /// are the key.
    fn start(&self, key: u64, delay: Duration);

    /// Cancels the timer of `key`. Whether there was one.
    fn stop(&self, key: u64) -> bool;

    /// Moves the timer of `key` to `delay` from now. Whether there was one.
    fn touch(&self, key: u64, delay: Duration) -> bool;

    /// A start of each. A system with a way of its own for many keys takes it, here and below.
    fn start_many(&self, timers: &[(u64, Duration)]) {
        for (key, delay) in timers {
            self.start(*key, *delay);
        }
    }

    /// A stop of each; how many there were.
    fn stop_many(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|key| self.stop(**key)).count()
    }

    /// A touch of each; how many there were.
    fn touch_many(&self, keys: &[u64], delay: Duration) -> usize {
        keys.iter().filter(|key| self.touch(**key, delay)).count()
    }
}

/// Keyed timers whose tasks run on a pool that grows.
pub(crate) trait Pooled: Keyed {
    /// How many workers the pool has now.
    fn workers(&self) -> u64;
}

/// Timers without keys: the caller keeps what the system returned.
pub(crate) trait Handles: System {
    type Timeout;

    /// Empty.
    fn new(tasks: Tasks) -> Self;

    /// Starts a timer that keeps `value`.
    fn start(&self, value: u64, delay: Duration) -> Self::Timeout;

    /// Cancels. Whether it had not fired.
    fn stop(&self, timeout: Self::Timeout) -> bool;
}

/// A map whose entries expire when nobody has touched them for a while: sessions. Keys and values
/// are eight bytes each; what expires calls [`fired`](crate::recorder::fired) with its value.
pub(crate) trait Sessions: System {
    /// Empty, for entries that live as long as nobody leaves them alone for `idle`.
    fn new(idle: Duration) -> Self;

    /// In the place of the entry that is there, which does not expire then.
    fn insert(&self, key: u64, value: u64);

    /// The value; for some systems that is a touch.
    fn get(&self, key: u64) -> Option<u64>;

    /// The entry of `key` lives for `idle` from now on. Whether there is one.
    fn touch(&self, key: u64) -> bool;

    /// Takes the entry out. It does not expire then.
    fn remove(&self, key: u64) -> Option<u64>;

    /// An insertion of each as its own value. A system with a way of its own for many keys takes
    /// it, here and below.
    fn insert_many(&self, keys: &[u64]) {
        keys.iter().for_each(|key| self.insert(*key, *key));
    }

    /// A touch of each; how many there are.
    fn touch_many(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|key| self.touch(**key)).count()
    }

    /// A removal of each; how many there were.
    fn remove_many(&self, keys: &[u64]) -> usize {
        let removed = keys.iter().filter_map(|key| self.remove(*key));
        removed.count()
    }
}

/// Futures that are done after a while, for the tasks of a tokio runtime.
pub(crate) trait Sleeps: Sync + Sized + 'static {
    const NAME: &'static str;
    const ABOUT: &'static str;
    /// Whether the runtime brings its own timers along.
    const RUNTIME_WITH_TIME: bool;

    fn new() -> Self;

    /// Not before `delay` has passed.
    fn sleep(&'static self, delay: Duration) -> impl Future<Output = ()> + Send + 'static;
}

/// What a peer stores for a timer beside its id: nothing where the id is the caller's key, which is
/// then what the timer keeps too, and eight bytes where the id is a number of the system's own.
pub(crate) trait Payload: Copy + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The eight bytes that the timer of `id` keeps.
    fn value(self, id: u64) -> u64;
}

impl Payload for () {
    fn value(self, id: u64) -> u64 {
        id
    }
}

impl Payload for u64 {
    fn value(self, _: u64) -> u64 {
        self
    }
}
