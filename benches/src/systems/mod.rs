//! The systems that are compared. One file and one line in `systems!` each; how to add one is
//! told in the README of this package.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use crate::child::Child;
use crate::foreign::{self, Driver, Foreign};
use crate::workloads::{self, By, Workload};

/// What a run chooses of ours in place of their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetUp {
    pub(crate) shards: Option<usize>,
    pub(crate) stripes: Option<usize>,
}

/// That of this process: a child has one system.
static SET_UP: OnceLock<SetUp> = OnceLock::new();

impl SetUp {
    /// Each of the one with each of the other. One of the defaults if nothing is chosen.
    pub(crate) fn all(shards: &[usize], stripes: &[usize]) -> Vec<Self> {
        let chosen = |counts: &[usize]| -> Vec<Option<usize>> {
            let counts: Vec<_> = counts.iter().copied().map(Some).collect();
            if counts.is_empty() {
                vec![None]
            } else {
                counts
            }
        };
        let with = |shards| {
            let stripes = chosen(stripes).into_iter();
            stripes.map(move |stripes| SetUp { shards, stripes })
        };
        chosen(shards).into_iter().flat_map(with).collect()
    }

    /// Behind the name of a system.
    pub(crate) fn in_words(&self) -> String {
        let part = |count: Option<usize>, of| match count {
            Some(count) => format!(", {count} {of}"),
            None => String::new(),
        };
        part(self.shards, "shards") + &part(self.stripes, "stripes")
    }

    /// Chooses it for the systems that this process makes.
    pub(crate) fn choose(self) {
        let _ = SET_UP.set(self);
    }

    /// The one of this process.
    fn chosen() -> Self {
        SET_UP.get().copied().unwrap_or_default()
    }
}

/// Timers of one kind, with whatever threads they need. What fires calls
/// [`fired`](crate::recorder::fired) with eight bytes that it kept.
pub(crate) trait System: Sync + Sized + 'static {
    /// For command line and tables.
    const NAME: &'static str;
    const ABOUT: &'static str;
    /// Whether its timers may run before they are due, for a reason that its file tells. Others
    /// fail a round in which that happens; here it is counted and stands in the table.
    const MAY_BE_EARLY: bool = false;
    /// The most timers that it is filled with, unless it is asked for by name: some take so much memory or
    /// time that all of them together would not fit.
    const MOST_KEYS: u64 = u64::MAX;
    /// If there are any, it has no timers and fires nothing: a floor for these workloads and no peer.
    const FLOOR_OF: &'static [&'static str] = &[];

    /// How many timers are pending.
    fn pending(&self) -> usize;

    /// Waits until the work is done that calls left to others: what is queued is not done.
    fn settle(&self);

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

/// A map whose entries expire when nobody has touched them for a while: sessions. Keys and values are
/// eight bytes each; what expires calls [`fired`](crate::recorder::fired) with its value.
pub(crate) trait Sessions: System {
    /// Empty, for entries that live as long as nobody leaves them alone for `idle`.
    fn new(idle: Duration) -> Self;

    /// In the place of the entry that is there, which does not expire then.
    fn insert(&self, key: u64, value: u64);

    /// The value; for some systems that is a touch.
    fn get(&self, key: u64) -> Option<u64>;

    /// The entry of `key` lives for `idle` from now on. Whether there is one.
    fn touch(&self, key: u64) -> bool;

    /// A touch of each; how many there are. A system with a way of its own for many keys takes it.
    fn touch_many(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|key| self.touch(**key)).count()
    }

    /// Takes the entry out. It does not expire then.
    fn remove(&self, key: u64) -> Option<u64>;
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
trait Payload: Copy + Default + std::fmt::Debug + Send + 'static {
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

/// A system in the table.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) most_keys: u64,
    floor_of: &'static [&'static str],
    keyed: Option<Serve>,
    handles: Option<Serve>,
    sessions: Option<Serve>,
    sleeps: Option<Serve>,
    pooled: Option<Serve>,
    /// It runs in another language, if what that needs is installed.
    pub(crate) driver: Option<&'static Driver>,
    /// What every system must do.
    #[cfg(test)]
    checks: [Option<tests::Check>; 2],
}

/// Serves a child's workload.
pub(crate) type Serve = fn(&mut Child) -> io::Result<()>;

impl Entry {
    /// How this system serves `workload`, if it can.
    pub(crate) fn serves(&self, workload: &Workload) -> Option<Serve> {
        if self.is_floor() && !self.floor_of.contains(&workload.name) {
            return None;
        }
        if self.driver.is_some() && !Driver::does(workload.name) {
            return None;
        }
        match workload.by {
            By::Key => self.keyed,
            By::Handle => self.handles,
            By::Session => self.sessions,
            By::Sleep => self.sleeps,
            By::Pool => self.pooled,
        }
    }

    const fn is_floor(&self) -> bool {
        !self.floor_of.is_empty()
    }

    const fn of(name: &'static str, about: &'static str) -> Self {
        Entry {
            name,
            about,
            most_keys: u64::MAX,
            floor_of: &[],
            keyed: None,
            handles: None,
            sessions: None,
            sleeps: None,
            pooled: None,
            driver: None,
            #[cfg(test)]
            checks: [None; 2],
        }
    }
}

const fn system<S: System>() -> Entry {
    Entry {
        most_keys: S::MOST_KEYS,
        floor_of: S::FLOOR_OF,
        ..Entry::of(S::NAME, S::ABOUT)
    }
}

const fn keyed<S: Keyed>() -> Entry {
    Entry {
        keyed: Some(workloads::serve_keyed::<S>),
        #[cfg(test)]
        checks: [Some(tests::keyed::<S>), None],
        ..system::<S>()
    }
}

const fn pooled<S: Pooled>() -> Entry {
    Entry {
        pooled: Some(workloads::serve_pooled::<S>),
        ..keyed::<S>()
    }
}

const fn handles<S: Handles>() -> Entry {
    Entry {
        handles: Some(workloads::serve_handles::<S>),
        #[cfg(test)]
        checks: [Some(tests::handles::<S>), None],
        ..system::<S>()
    }
}

/// A system whose two faces go by one name.
const fn both<K: Keyed, H: Handles>() -> Entry {
    Entry {
        handles: handles::<H>().handles,
        #[cfg(test)]
        checks: [Some(tests::keyed::<K>), Some(tests::handles::<H>)],
        ..keyed::<K>()
    }
}

const fn sessions<S: Sessions>() -> Entry {
    Entry {
        sessions: Some(workloads::serve_sessions::<S>),
        #[cfg(test)]
        checks: [Some(tests::sessions::<S>), None],
        ..system::<S>()
    }
}

const fn sleeps<S: Sleeps>() -> Entry {
    Entry {
        sleeps: Some(workloads::serve_sleeps::<S>),
        #[cfg(test)]
        checks: [Some(tests::sleeps::<S>), None],
        ..Entry::of(S::NAME, S::ABOUT)
    }
}

const fn foreign<F: Foreign>() -> Entry {
    Entry {
        keyed: Some(foreign::serve::<F>),
        handles: Some(foreign::serve::<F>),
        driver: Some(&F::DRIVER),
        #[cfg(test)]
        checks: [Some(tests::foreign::<F>), None],
        ..Entry::of(F::DRIVER.name, F::DRIVER.about)
    }
}

/// A line for each file: the types in it that are systems, and what they are.
macro_rules! systems {
    ($($file:ident: $($kind:ident($($system:ident),+)),+;)+) => {
        $(mod $file;)+

        /// Ours first: the others are compared with them.
        pub(crate) const ALL: &[Entry] = &[$($($kind::<$($file::$system),+>(),)+)+];
    };
}

systems! {
    tourbillon: pooled(Boxed), keyed(Map), handles(Keyless), sessions(SessionMap),
        sleeps(SleepInline), sleeps(SleepByWorkers);
    delay_queue: keyed(WithMap), handles(Bare), sessions(SessionMap);
    heap: both(ByKey, ById), sessions(SessionMap);
    hash_wheel: both(ByKey, ById), sessions(SessionMap);
    hash_wheel_thread: both(ByKey, ById);
    tokio_sleep: both(ByKey, ByHandle), sessions(SessionMap), sleeps(Futures);
    tokio_task: both(ByKey, ByHandle);
    moka: keyed(ByKey), sessions(SessionMap);
    bare: keyed(Loaded), sessions(StripedSessions), sessions(SessionsOfOneMap), keyed(Instants),
        sessions(StripedSessionsByInstant), sessions(SessionsOfOneMapByInstant);
    drivers: foreign(Netty), foreign(Jdk), foreign(Go);
}

/// The entries of that name: a system has one for each kind of workload that it is set up for in
/// another way.
pub(crate) fn named(name: &str) -> impl Iterator<Item = &'static Entry> {
    ALL.iter()
        .filter(move |system| system.name.eq_ignore_ascii_case(name))
}

/// Whether the system of that name has no timers.
pub(crate) fn is_floor(name: &str) -> bool {
    named(name).any(Entry::is_floor)
}

/// The one of them that does this workload.
pub(crate) fn find(name: &str, workload: &Workload) -> Option<Serve> {
    named(name).find_map(|system| system.serves(workload))
}
