//! Timers over a store in memory whose clock the test moves.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tourbillon_durable::test_util::DurableSteps;
use tourbillon_durable::{Due, Durable, Memory, WallClock};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A run as its handler has seen it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) due: SystemTime,
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) late: Duration,
}

impl Seen {
    pub(crate) fn of<T>(due: &Due<T>) -> Self {
        Seen {
            key: due.key().to_owned(),
            due: due.due(),
            attempt: due.attempt(),
            crashes: due.crashes(),
            late: due.lateness(),
        }
    }
}

pub(crate) fn memory() -> Memory {
    Memory::with_clock(WallClock::manual(UNIX_EPOCH))
}

pub(crate) fn at(span: Duration) -> SystemTime {
    UNIX_EPOCH + span
}

/// A handler that tells what it saw.
pub(crate) fn telling(told: &Sender<Seen>) -> impl Fn(&Due<u64>) + Clone + Send + Sync + 'static {
    let told = told.clone();
    move |due| told.send(Seen::of(due)).expect("the test listens")
}

/// Starts timers with the queue `q`. The receiver gets each run.
pub(crate) fn timers() -> (Durable, DurableSteps, Receiver<Seen>) {
    let (told, seen) = channel();
    let builder = Durable::builder(memory()).handle("q", telling(&told));
    let (timers, steps) = builder.start_stepped().expect("the clock is the test's");
    (timers, steps, seen)
}

pub(crate) fn schedule(timers: &Durable, key: &str, delay: Duration) {
    let sent = timers.schedule("q", key, delay, &7_u64);
    sent.wait().expect("the store takes it");
}

pub(crate) fn advance(steps: &DurableSteps, by: Duration) {
    steps.advance(by).wait().expect("the clock is the test's");
}

pub(crate) fn keys(seen: &Receiver<Seen>) -> Vec<String> {
    seen.try_iter().map(|seen| seen.key).collect()
}
