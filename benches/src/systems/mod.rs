//! The systems that are compared. One file and one line in `systems!` each; how to add one is
//! told in the README of this package.

mod bare;
mod by_number;
mod delay_queue;
mod drivers;
mod hash_wheel;
mod hash_wheel_thread;
mod heap;
mod moka;
mod on_tokio;
mod sharded;
mod sweep;
#[cfg(test)]
mod tests;
mod tokio_sleep;
mod tokio_task;
mod tourbillon;

use std::io;
use std::sync::OnceLock;

use crate::child::Child;
use crate::foreign::{self, Driver, Foreign};
use crate::machine;
use crate::system::{Handles, Keyed, Pooled, Sessions, Sleeps, System};
use crate::workload::{By, Workload};
use crate::workloads;

/// What a child is to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) system: String,
    pub(crate) workload: String,
    pub(crate) keys: u64,
    pub(crate) set_up: SetUp,
}

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
            match counts {
                [] => vec![None],
                counts => counts.iter().copied().map(Some).collect(),
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

/// A system in the table.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) most_keys: u64,
    floor_of: &'static [&'static str],
    may_be_early: bool,
    /// How it serves workloads, by how these name their timers.
    served: &'static [(By, Serve)],
    /// It runs in another language, if what that needs is installed.
    pub(crate) driver: Option<&'static Driver>,
    /// What every system must do.
    #[cfg(test)]
    checks: &'static [tests::Check],
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
        let mut served = self.served.iter();
        served.find_map(|(by, serve)| (*by == workload.by).then_some(*serve))
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
            may_be_early: false,
            served: &[],
            driver: None,
            #[cfg(test)]
            checks: &[],
        }
    }
}

const fn system<S: System>() -> Entry {
    Entry {
        most_keys: S::MOST_KEYS,
        floor_of: S::FLOOR_OF,
        may_be_early: S::MAY_BE_EARLY,
        ..Entry::of(S::NAME, S::ABOUT)
    }
}

const fn keyed<S: Keyed>() -> Entry {
    Entry {
        served: &[(By::Key, workloads::serve_keyed::<S>)],
        #[cfg(test)]
        checks: &[tests::keyed::<S>],
        ..system::<S>()
    }
}

const fn pooled<S: Pooled>() -> Entry {
    Entry {
        served: &[
            (By::Key, workloads::serve_keyed::<S>),
            (By::Pool, workloads::serve_pooled::<S>),
        ],
        ..keyed::<S>()
    }
}

const fn handles<S: Handles>() -> Entry {
    Entry {
        served: &[(By::Handle, workloads::serve_handles::<S>)],
        #[cfg(test)]
        checks: &[tests::handles::<S>],
        ..system::<S>()
    }
}

/// A system whose two faces go by one name.
const fn both<K: Keyed, H: Handles>() -> Entry {
    Entry {
        served: &[
            (By::Key, workloads::serve_keyed::<K>),
            (By::Handle, workloads::serve_handles::<H>),
        ],
        #[cfg(test)]
        checks: &[tests::keyed::<K>, tests::handles::<H>],
        ..keyed::<K>()
    }
}

const fn sessions<S: Sessions>() -> Entry {
    Entry {
        served: &[(By::Session, workloads::serve_sessions::<S>)],
        #[cfg(test)]
        checks: &[tests::sessions::<S>],
        ..system::<S>()
    }
}

const fn sleeps<S: Sleeps>() -> Entry {
    Entry {
        served: &[(By::Sleep, workloads::serve_sleeps::<S>)],
        #[cfg(test)]
        checks: &[tests::sleeps::<S>],
        ..Entry::of(S::NAME, S::ABOUT)
    }
}

const fn foreign<F: Foreign>() -> Entry {
    Entry {
        served: &[
            (By::Key, foreign::serve::<F>),
            (By::Handle, foreign::serve::<F>),
        ],
        driver: Some(&F::DRIVER),
        #[cfg(test)]
        checks: &[tests::foreign::<F>],
        ..Entry::of(F::DRIVER.name, F::DRIVER.about)
    }
}

/// A line for each file: the types in it that are systems, and what they are.
macro_rules! systems {
    ($($file:ident: $($kind:ident($($system:ident),+)),+;)+) => {
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
    sharded: keyed(ByKey), sessions(SessionMap), keyed(ByKeyPublished), sessions(SessionMapPublished);
    sweep: keyed(ByKey), sessions(SessionMap);
    bare: keyed(ByKey), sessions(StripedSessions), sessions(SessionsOfOneMap);
    drivers: foreign(Netty), foreign(Jdk), foreign(Go);
}

/// The entries of that name: a system has one for each kind of workload that it is set up for in
/// another way.
pub(crate) fn named(name: &str) -> impl Iterator<Item = &'static Entry> {
    ALL.iter()
        .filter(move |system| system.name.eq_ignore_ascii_case(name))
}

/// Why the system of that name is a floor and no peer, if it is one.
pub(crate) fn floor(name: &str) -> Option<&'static str> {
    let entry = named(name).find(|entry| entry.is_floor())?;
    Some(["no timers", "may be early"][usize::from(entry.may_be_early)])
}

/// Does what a child was started for, until the parent closes its input.
pub(crate) fn serve(order: &Order) -> io::Result<()> {
    machine::end_with_the_parent();
    order.set_up.choose();
    let unknown = |what: &str| io::Error::other(format!("no {what} of that name"));
    let workload = workloads::find(&order.workload).ok_or_else(|| unknown("workload"))?;
    let serve = named(&order.system)
        .find_map(|system| system.serves(workload))
        .ok_or_else(|| unknown("system for it"))?;
    serve(&mut Child {
        workload,
        keys: order.keys,
        driver: None,
    })
}
