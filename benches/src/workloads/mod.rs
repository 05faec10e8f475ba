//! The workloads. One file each, a line in [`ALL`] and an arm in [`serve`].

mod memory;
mod start_stop;
mod touch;

use std::io;
use std::time::Duration;

use crate::child::Child;
use crate::rng::Rng;
use crate::systems::System;

/// A workload in the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// What is measured on one fill, one after the other.
    pub(crate) cases: &'static [Case],
    /// Operations of a round, of the full and of the quick form.
    pub(crate) operations: [u64; 2],
    /// The fill is what is measured: every round needs a new child.
    pub(crate) fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Producers.
    pub(crate) threads: usize,
}

pub(crate) const ALL: &[Workload] = &[start_stop::ABOUT, touch::ABOUT, memory::ABOUT];

pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter()
        .find(|workload| workload.name.eq_ignore_ascii_case(name))
}

/// Serves the child's workload with the system `S`.
pub(crate) fn serve<S: System>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "W1k" => start_stop::serve::<S>(child),
        "W2" => touch::serve::<S>(child),
        "W7" => memory::serve::<S>(child),
        other => unreachable!("{other} is not in the table"),
    }
}

/// Arms keys below `keys` from one thread, each `delay` from now.
fn fill<S: System>(system: &S, keys: u64, mut delay: impl FnMut(&mut Rng) -> Duration) {
    let mut rng = Rng::new(0xf111);
    system.on_thread(|| {
        for key in 0..keys {
            system.start(key, delay(&mut rng));
        }
    });
    system.settle();
    assert_eq!(
        system.pending() as u64,
        keys,
        "nothing fires while it fills"
    );
}

/// Evenly from `from` to `to`.
fn between(rng: &mut Rng, from: Duration, to: Duration) -> Duration {
    from + Duration::from_nanos(rng.below((to - from).as_nanos() as u64))
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}
