//! The systems that are compared. One file and one line in [`ALL`] each.

mod delay_queue;
mod tourbillon;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::child::Child;
use crate::workloads;

/// Keyed timers, as a service would use them: the caller knows a key and nothing else.
pub(crate) trait System: Sync + Sized + 'static {
    /// For command line and tables.
    const NAME: &'static str;
    const ABOUT: &'static str;

    /// Empty, with whatever threads it needs.
    fn new() -> Self;

    /// Arms the timer of `key`, in the place of one that is pending. What fires calls [`fired`]
    /// with eight bytes that it kept.
    fn start(&self, key: u64, delay: Duration);

    /// Cancels the timer of `key`. Whether there was one.
    fn stop(&self, key: u64) -> bool;

    /// Moves the timer of `key` to `delay` from now. Whether there was one.
    fn touch(&self, key: u64, delay: Duration) -> bool;

    /// How many timers are pending.
    fn pending(&self) -> usize;

    /// Waits until the work is done that calls left to others: what is queued is not done.
    fn settle(&self);

    /// Runs a producer's work on its thread, in whatever context that needs.
    fn on_thread<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// A system in the table.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Serves a child's workload with this system.
    pub(crate) serve: fn(&mut Child) -> io::Result<()>,
}

const fn entry<S: System>() -> Entry {
    Entry {
        name: S::NAME,
        about: S::ABOUT,
        serve: workloads::serve::<S>,
    }
}

/// Ours first.
pub(crate) const ALL: &[Entry] = &[
    entry::<tourbillon::Boxed>(),
    entry::<delay_queue::DelayQueueMap>(),
];

pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter()
        .find(|system| system.name.eq_ignore_ascii_case(name))
}

static FIRED: AtomicU64 = AtomicU64::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);

/// What every fired timer calls, so that its eight bytes are used.
pub(crate) fn fired(value: u64) {
    // Relaxed: counts.
    SUM.fetch_add(value, Ordering::Relaxed);
    FIRED.fetch_add(1, Ordering::Relaxed);
}

/// How many timers have fired.
pub(crate) fn fired_so_far() -> u64 {
    // Relaxed: a count. The sum is read so that nothing may leave it out.
    std::hint::black_box(SUM.load(Ordering::Relaxed));
    FIRED.load(Ordering::Relaxed)
}
