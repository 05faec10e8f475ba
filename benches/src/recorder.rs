//! What fired, and when: every timer that fires calls [`fired`] with the eight bytes that it kept.
//!
//! Each thread writes to lines of its own, so that two workers don't fight over a counter; the sums
//! are read when a round is over.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Buckets per octave: a percentile is at most 1/32 above the truth.
const PER_OCTAVE: u64 = 32;
const BUCKETS: usize = 34 * PER_OCTAVE as usize;

/// A long task takes so long.
pub(crate) const LONG: Duration = Duration::from_millis(500);

/// What the eight bytes of a timer say where lateness is asked for: when it is due, whether its
/// task is a long one, and a number that makes it a key of its own.
///
/// ```text
/// 63                       25     24     23            0
/// | due, us after the start | long task |    number    |
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) due: Instant,
    pub(crate) long: bool,
    pub(crate) number: u32,
}

impl Stamp {
    const NUMBER_BITS: u32 = 24;

    /// As eight bytes. The microsecond is rounded down, so a lateness never comes out too small.
    pub(crate) fn encode(self) -> u64 {
        assert!(self.number >> Self::NUMBER_BITS == 0, "16 M timers at most");
        let micros = self.due.duration_since(start()).as_micros() as u64;
        micros << (Self::NUMBER_BITS + 1)
            | u64::from(self.long) << Self::NUMBER_BITS
            | u64::from(self.number)
    }

    fn decode(value: u64) -> Self {
        Stamp {
            due: start() + Duration::from_micros(value >> (Self::NUMBER_BITS + 1)),
            long: value >> Self::NUMBER_BITS & 1 != 0,
            number: (value & ((1 << Self::NUMBER_BITS) - 1)) as u32,
        }
    }
}

/// The moment from which stamps count: that of the first call.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// What one thread wrote. Only that thread writes, so that a load and a store make an addition.
struct Local {
    fired: AtomicU64,
    sum: AtomicU64,
    /// Those with a stamp; long tasks are not among them.
    lateness: Box<[AtomicU64; BUCKETS]>,
    latest: AtomicU64,
    last_ran: AtomicU64,
    /// Those that ran before they were due, long tasks included, and by how much at most.
    early: AtomicU64,
    earliest: AtomicU64,
}

/// How long the task of a timer with a stamp takes, if it is no long one, in microseconds.
static TASKS_TAKE: AtomicU64 = AtomicU64::new(0);
/// Timers that are due before this moment are not recorded. In microseconds after the start.
static RECORD_FROM: AtomicU64 = AtomicU64::new(0);
static STAMPED: AtomicBool = AtomicBool::new(false);
static LOCALS: Mutex<Vec<Arc<Local>>> = Mutex::new(Vec::new());

thread_local! {
    static LOCAL: RefCell<Option<Arc<Local>>> = const { RefCell::new(None) };
}

/// From now on values are stamps.
pub(crate) fn expect_stamps() {
    start();
    STAMPED.store(true, Ordering::SeqCst);
}

/// From now on each task with a stamp sleeps for so long.
pub(crate) fn tasks_take(time: Duration) {
    TASKS_TAKE.store(time.as_micros() as u64, Ordering::Relaxed);
}

/// From now on how late those are that are due before `moment` is not recorded.
pub(crate) fn record_from(moment: Instant) {
    let micros = moment.saturating_duration_since(start()).as_micros() as u64;
    RECORD_FROM.store(micros, Ordering::Relaxed);
}

/// What every fired timer calls, so that its eight bytes are used.
pub(crate) fn fired(value: u64) {
    #[cfg(test)]
    observed::note(value);
    LOCAL.with_borrow_mut(|local| {
        let local = local.get_or_insert_with(register);
        if STAMPED.load(Ordering::Relaxed) {
            local.stamped(Stamp::decode(value));
        }
        add(&local.sum, value);
        // Last, and a release: who sees the count sees what was recorded before it.
        let fired = local.fired.load(Ordering::Relaxed);
        local.fired.store(fired + 1, Ordering::Release);
    });
}

/// Counts timers that fired in another process.
pub(crate) fn fired_elsewhere(count: u64) {
    LOCAL.with_borrow_mut(|local| add(&local.get_or_insert_with(register).fired, count));
}

fn register() -> Arc<Local> {
    let local = Arc::new(Local {
        fired: AtomicU64::new(0),
        sum: AtomicU64::new(0),
        lateness: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
        latest: AtomicU64::new(0),
        last_ran: AtomicU64::new(0),
        early: AtomicU64::new(0),
        earliest: AtomicU64::new(0),
    });
    locals().push(Arc::clone(&local));
    local
}

fn locals() -> std::sync::MutexGuard<'static, Vec<Arc<Local>>> {
    LOCALS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Local {
    fn stamped(&self, stamp: Stamp) {
        let now = Instant::now();
        if let Some(early) = stamp.due.checked_duration_since(now)
            && !early.is_zero()
        {
            add(&self.early, 1);
            raise(&self.earliest, early.as_nanos() as u64);
        }
        if stamp.long {
            thread::sleep(LONG);
            return;
        }
        let due = stamp.due.saturating_duration_since(start());
        if due.as_micros() as u64 >= RECORD_FROM.load(Ordering::Relaxed) {
            let late = now.saturating_duration_since(stamp.due).as_nanos() as u64;
            add(&self.lateness[bucket(late)], 1);
            raise(&self.latest, late);
        }
        raise(&self.last_ran, (now - start()).as_nanos() as u64);
        let takes = TASKS_TAKE.load(Ordering::Relaxed);
        if takes > 0 {
            thread::sleep(Duration::from_micros(takes));
        }
    }
}

/// Adds to what only this thread writes.
fn add(to: &AtomicU64, number: u64) {
    // Relaxed: a count, read after the work.
    let sum = to.load(Ordering::Relaxed).wrapping_add(number);
    to.store(sum, Ordering::Relaxed);
}

fn raise(to: &AtomicU64, number: u64) {
    if number > to.load(Ordering::Relaxed) {
        to.store(number, Ordering::Relaxed);
    }
}

/// Linear up to 64 ns, then [`PER_OCTAVE`] to an octave.
fn bucket(nanos: u64) -> usize {
    if nanos < 2 * PER_OCTAVE {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - PER_OCTAVE.ilog2();
    let bucket = u64::from(shift) * PER_OCTAVE + (nanos >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The greatest number of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PER_OCTAVE {
        return bucket;
    }
    let shift = bucket / PER_OCTAVE - 1;
    ((bucket - shift * PER_OCTAVE + 1) << shift) - 1
}

/// How many timers have fired.
pub(crate) fn fired_so_far() -> u64 {
    let locals = locals();
    // The sum is read so that nothing may leave it out.
    for local in locals.iter() {
        black_box(local.sum.load(Ordering::Relaxed));
    }
    let fired = locals.iter();
    fired.map(|local| local.fired.load(Ordering::Acquire)).sum()
}

/// How many timers with a stamp have run before they were due.
pub(crate) fn early_so_far() -> u64 {
    let locals = locals();
    let early = locals.iter();
    early.map(|local| local.early.load(Ordering::Relaxed)).sum()
}

/// Waits until `count` timers have fired in all; those that don't come are an error.
pub(crate) fn wait_until_fired(count: u64, limit: Duration) {
    let began = Instant::now();
    while fired_so_far() < count {
        if began.elapsed() >= limit {
            let fired = fired_so_far();
            panic!("only {fired} of {count} timers have fired {limit:?} later");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// How late those were that fired since the last call.
#[derive(Debug)]
pub(crate) struct Lateness {
    counts: Vec<u64>,
    latest: u64,
    last_ran: u64,
    earliest: u64,
}

/// Takes what was recorded. For the time between two rounds, when nothing fires.
pub(crate) fn take_lateness() -> Lateness {
    let mut taken = Lateness::of(vec![0; BUCKETS], 0);
    let greatest = |of: &mut u64, local: &AtomicU64| {
        *of = local.swap(0, Ordering::Relaxed).max(*of);
    };
    for local in locals().iter() {
        for (sum, count) in taken.counts.iter_mut().zip(local.lateness.iter()) {
            *sum += count.swap(0, Ordering::Relaxed);
        }
        greatest(&mut taken.latest, &local.latest);
        greatest(&mut taken.last_ran, &local.last_ran);
        greatest(&mut taken.earliest, &local.earliest);
    }
    taken
}

impl Lateness {
    fn of(counts: Vec<u64>, latest: u64) -> Self {
        Lateness {
            counts,
            latest,
            last_ran: 0,
            earliest: 0,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In milliseconds; so many per mille were at most so late.
    pub(crate) fn per_mille(&self, per_mille: u64) -> f64 {
        let rank = (self.count() * per_mille).div_ceil(1_000).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        at.map_or(0, |bucket| upper_end(bucket).min(self.latest)) as f64 / 1e6
    }

    /// These parts of a thousand and the maximum, as figures in milliseconds.
    pub(crate) fn figures(&self, per_mille: &[u64]) -> Vec<Option<f64>> {
        let parts = per_mille.iter().map(|part| Some(self.per_mille(*part)));
        parts.chain([Some(self.max())]).collect()
    }

    /// In milliseconds.
    pub(crate) fn max(&self) -> f64 {
        self.latest as f64 / 1e6
    }

    /// How far before its due moment one ran at most.
    pub(crate) fn early(&self) -> Duration {
        Duration::from_nanos(self.earliest)
    }

    /// How long after `moment` the last one ran, in milliseconds.
    pub(crate) fn last_ran_after(&self, moment: Instant) -> f64 {
        let since = (moment - start()).as_nanos() as u64;
        self.last_ran.saturating_sub(since) as f64 / 1e6
    }
}

/// Which values fired when, for tests.
#[cfg(test)]
pub(crate) mod observed {
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Instant;

    static FIRED: Mutex<Vec<(u64, Instant)>> = Mutex::new(Vec::new());

    /// Held by whoever lets timers fire or stamps them: what is recorded belongs to the whole
    /// process.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all() -> MutexGuard<'static, Vec<(u64, Instant)>> {
        FIRED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(value: u64) {
        note_at(value, Instant::now());
    }

    /// Of a timer in another process.
    pub(crate) fn note_at(value: u64, at: Instant) {
        all().push((value, at));
    }

    /// Each time that `value` fired.
    pub(crate) fn times(value: u64) -> Vec<Instant> {
        let all = all();
        let of_value = all.iter().filter(|(fired, _)| *fired == value);
        of_value.map(|(_, at)| *at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_end_where_the_next_one_begins() {
        for bucket in 0..BUCKETS - 1 {
            let end = upper_end(bucket);
            assert_eq!(super::bucket(end), bucket);
            assert_eq!(super::bucket(end + 1), bucket + 1);
        }
        assert_eq!(super::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_stamp_comes_back_from_its_bytes() {
        let due = start() + Duration::from_secs(3_600);
        for (long, number) in [(false, 0), (true, 1), (false, (1 << 24) - 1)] {
            let stamp = Stamp::decode(Stamp { due, long, number }.encode());
            assert_eq!((stamp.due, stamp.long, stamp.number), (due, long, number));
        }
    }

    #[test]
    fn what_is_late_and_what_is_early_is_told_apart() {
        let _alone = observed::alone();
        expect_stamps();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut dues = vec![now - (now - start()), now + 60 * second];
        dues.extend([now; 8]);
        let fired_before = fired_so_far();
        thread::scope(|scope| {
            for (number, due) in (0..).zip(dues) {
                let long = false;
                scope.spawn(move || fired(Stamp { due, long, number }.encode()));
            }
        });
        assert_eq!(fired_so_far() - fired_before, 10);
        let taken = take_lateness();
        assert_eq!((taken.count(), early_so_far()), (10, 1));
        assert!(taken.early() > 50 * second);
        assert!(taken.last_ran_after(now) > 0.0);
        assert_eq!(take_lateness().count(), 0);
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut counts = vec![0; BUCKETS];
        for late in 1..=1_000 {
            counts[bucket(late * 1_000_000)] += 1;
        }
        let lateness = Lateness::of(counts, 1_000_000_000);
        for (per_mille, truth) in [(500, 500.0), (990, 990.0), (999, 999.0)] {
            let found = lateness.per_mille(per_mille);
            assert!((truth..truth * 1.04).contains(&found), "{found}");
        }
        assert_eq!(lateness.max(), 1_000.0);
        assert_eq!(lateness.count(), 1_000);
    }
}
