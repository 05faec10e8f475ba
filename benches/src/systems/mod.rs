//! The systems that are compared. One file and one line in `systems!` each; how to add one is
//! told in the README of this package.

#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use crate::child::Child;
use crate::workloads::{self, By, Workload};

/// Timers of one kind, with whatever threads they need. What fires calls
/// [`fired`](crate::recorder::fired) with eight bytes that it kept.
pub(crate) trait System: Sync + Sized + 'static {
    /// For command line and tables.
    const NAME: &'static str;
    const ABOUT: &'static str;
    /// Whether its timers may run before they are due, for a reason that its file tells. Others
    /// fail a round in which that happens; here it is counted and stands in the table.
    const MAY_BE_EARLY: bool = false;

    /// Empty.
    fn new(tasks: Tasks) -> Self;

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
    /// Arms the timer of `key`, in the place of one that is pending. The eight bytes that it keeps
    /// are the key.
    fn start(&self, key: u64, delay: Duration);

    /// Cancels the timer of `key`. Whether there was one.
    fn stop(&self, key: u64) -> bool;

    /// Moves the timer of `key` to `delay` from now. Whether there was one.
    fn touch(&self, key: u64, delay: Duration) -> bool;
}

/// Timers without keys: the caller keeps what the system returned.
pub(crate) trait Handles: System {
    type Timeout;

    /// Starts a timer that keeps `value`.
    fn start(&self, value: u64, delay: Duration) -> Self::Timeout;

    /// Cancels. Whether it had not fired.
    fn stop(&self, timeout: Self::Timeout) -> bool;
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
    keyed: Option<Serve>,
    handles: Option<Serve>,
    /// What every system must do.
    #[cfg(test)]
    checks: [Option<tests::Check>; 2],
}

/// Serves a child's workload.
pub(crate) type Serve = fn(&mut Child) -> io::Result<()>;

impl Entry {
    /// How this system serves `workload`, if it can.
    pub(crate) fn serves(&self, workload: &Workload) -> Option<Serve> {
        match workload.by {
            By::Key => self.keyed,
            By::Handle => self.handles,
        }
    }
}

const fn keyed<S: Keyed>() -> Entry {
    Entry {
        name: S::NAME,
        about: S::ABOUT,
        keyed: Some(workloads::serve_keyed::<S>),
        handles: None,
        #[cfg(test)]
        checks: [Some(tests::keyed::<S>), None],
    }
}

const fn handles<S: Handles>() -> Entry {
    Entry {
        name: S::NAME,
        about: S::ABOUT,
        keyed: None,
        handles: Some(workloads::serve_handles::<S>),
        #[cfg(test)]
        checks: [None, Some(tests::handles::<S>)],
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

/// A line for each file: the types in it that are systems, and what they are.
macro_rules! systems {
    ($($file:ident: $($kind:ident($($system:ident),+)),+;)+) => {
        $(mod $file;)+

        /// Ours first: the others are compared with them.
        pub(crate) const ALL: &[Entry] = &[$($($kind::<$($file::$system),+>(),)+)+];
    };
}

systems! {
    tourbillon: keyed(Boxed), keyed(Map), handles(Keyless);
    delay_queue: keyed(WithMap), handles(Bare);
    heap: both(ByKey, ById);
    hash_wheel: both(ByKey, ById);
    hash_wheel_thread: both(ByKey, ById);
}

pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter()
        .find(|system| system.name.eq_ignore_ascii_case(name))
}
