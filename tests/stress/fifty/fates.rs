//! What became of the armings of one instance, by the count of the test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tourbillon::{Cancel, Time};

use super::world::World;

/// Number of keys of an instance.
pub(super) const KEYS: u32 = 32;

/// The counts of one instance: a scheduler, a map or a timer.
#[derive(Debug)]
pub(super) struct Fates {
    /// Number of tokens that were made, and of those that were dropped.
    made: AtomicU64,
    gone: AtomicU64,
    refused: AtomicU64,
    ran: AtomicU64,
    cancelled: AtomicU64,
    replaced: AtomicU64,
    /// For each key, whether its task runs.
    running: Vec<AtomicBool>,
    /// Whether a shutdown was begun, and whether it may run tasks before their time.
    pub(super) is_shut: AtomicBool,
    pub(super) is_hurried: AtomicBool,
    /// What the report of the shutdown said, unless it was dropped.
    told: Mutex<Option<Told>>,
}

/// A report of any kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) handed_back: usize,
    pub(super) already_closed: bool,
}

/// The counters of an instance of any kind.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) scheduled: u64,
    pub(super) ran: u64,
    pub(super) cancelled: u64,
    pub(super) replaced: u64,
    pub(super) handed_back: u64,
    pub(super) pending: u64,
    pub(super) running: u64,
    pub(super) ticker_panics: u64,
    pub(super) balances: bool,
}

impl Fates {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Fates {
            made: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            running: (0..KEYS).map(|_| AtomicBool::new(false)).collect(),
            is_shut: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
            told: Mutex::default(),
        })
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn replaced(&self, was_replaced: bool) {
        self.replaced
            .fetch_add(u64::from(was_replaced), Ordering::SeqCst);
    }

    pub(super) fn cancelled(&self, answer: Cancel) {
        self.removed(usize::from(answer.is_cancelled()));
    }

    pub(super) fn removed(&self, count: usize) {
        self.cancelled.fetch_add(count as u64, Ordering::SeqCst);
    }

    /// Notes a report, except those of calls that did not begin the shutdown.
    pub(super) fn told(&self, told: Told) {
        if !told.already_closed {
            *self.told.lock().unwrap() = Some(told);
        }
    }

    /// Whether each token is gone. For an instance that nobody calls any more.
    pub(super) fn are_settled(&self) -> bool {
        // A task holds a token while it makes others, so in this order a sum that is equal is final.
        let gone = self.gone.load(Ordering::SeqCst);
        gone == self.made.load(Ordering::SeqCst)
    }

    /// Compares what was counted with what the instance has counted. All tokens are gone.
    pub(super) fn compare(&self, totals: &Totals) {
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let accepted = count(&self.made) - count(&self.refused);
        assert!(totals.balances, "{totals:?} {self:?}");
        assert_eq!(totals.ticker_panics, 0);
        assert_eq!(totals.scheduled, accepted, "{totals:?} {self:?}");
        assert_eq!(totals.ran, count(&self.ran), "{totals:?} {self:?}");
        assert_eq!(
            totals.replaced,
            count(&self.replaced),
            "{totals:?} {self:?}"
        );
        // A drop counts what it drops as cancelled.
        let cancelled = count(&self.cancelled);
        let dropped = totals.cancelled.checked_sub(cancelled);
        let may_drop = !self.is_shut.load(Ordering::SeqCst);
        assert!(
            dropped == Some(0) || may_drop && dropped.is_some(),
            "{totals:?} {self:?}"
        );
        if let Some(told) = *self.told.lock().unwrap() {
            assert_eq!(
                totals.handed_back, told.handed_back as u64,
                "{totals:?} {self:?}"
            );
        }
    }

    /// The number of armings that have ended, without those that were refused.
    pub(super) fn ended(&self) -> u64 {
        self.gone.load(Ordering::SeqCst) - self.refused.load(Ordering::SeqCst)
    }
}

/// Travels with a task, or is the value of an entry. Its drop is counted.
pub(super) struct Token {
    fates: Arc<Fates>,
    world: Arc<World>,
    /// It must not run before that time.
    earliest: Arc<AtomicU64>,
    /// What its task does.
    pub(super) seed: u64,
}

impl Token {
    pub(super) fn new(fates: &Arc<Fates>, world: &Arc<World>, earliest: Time, seed: u64) -> Self {
        fates.made.fetch_add(1, Ordering::SeqCst);
        Token {
            fates: Arc::clone(fates),
            world: Arc::clone(world),
            earliest: Arc::new(AtomicU64::new(earliest.as_nanos())),
            seed,
        }
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The earliest time at which it may run, for who moves it.
    pub(super) fn earliest(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.earliest)
    }

    /// Notes that the task begins now. `deadline` is what the instance says.
    pub(super) fn runs(&self, now: Time, deadline: Time) {
        self.fates.ran.fetch_add(1, Ordering::SeqCst);
        let earliest = Time::from_nanos(self.earliest.load(Ordering::SeqCst)).max(deadline);
        if now < earliest && !self.fates.is_hurried.load(Ordering::SeqCst) {
            self.world.fault(format!(
                "due at {earliest:?} at the earliest, ran at {now:?}"
            ));
        }
    }

    /// Notes that the task of this key runs, until the returned value is dropped.
    pub(super) fn occupies(&self, key: u32) -> Occupied {
        let occupied = Occupied(Arc::clone(&self.fates), key as usize);
        if occupied.flag().swap(true, Ordering::SeqCst) {
            self.world.fault(format!("two runs of key {key}"));
        }
        occupied
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.fates.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// The task of a key runs.
pub(super) struct Occupied(Arc<Fates>, usize);

impl Occupied {
    fn flag(&self) -> &AtomicBool {
        &self.0.running[self.1]
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.flag().store(false, Ordering::SeqCst);
    }
}
