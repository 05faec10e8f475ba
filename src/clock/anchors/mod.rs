//! Times from the counter of the processor, between readings of the system's clock.
//!
//! Reading the system's clock takes `rdtscp`, which waits until all earlier reads of memory have
//! their data. So two calls that read it never share a cache miss. Plain `rdtsc` does not wait. But
//! a count alone is no time: its unit has to be measured, and it may jump when the machine is
//! suspended or moved.
//!
//! So the counter is trusted for 0.1 ms at a time. An *anchor* is a count and a time that belong
//! together. Each thread has one. A reading within 0.1 ms of its thread's anchor is the time of the
//! anchor plus the counts since then. Every other reading takes a new anchor.
//!
//! # The rules
//!
//! - **ANCHOR-1** An anchor is taken as *count, time, count*. It is the time and the second count,
//!   so what passes in between makes readings earlier, never later. If the counts are more than 3
//!   us apart, the thread was interrupted, and the anchor is rejected.
//! - **ANCHOR-2** An anchor serves for 0.1 ms, and only while the counter moves forward.
//! - **ANCHOR-3** Counts are converted at 7/8 of the measured rate. So a reading is not ahead of
//!   the system's clock, even if that is slowed down by an eighth: NTP slows it by less than a
//!   tenth.
//! - **ANCHOR-4** The rate is measured between two anchors of one thread that are 20 ms to 1 s
//!   apart, and confirmed by the next two. Without the second measurement, a suspension during the
//!   first one would give a rate that is wrong by any factor.
//! - **ANCHOR-5** Each anchor is compared with an earlier one of its thread. If time and counts
//!   disagree by more than a sixteenth, the anchor is rejected. A suspension causes one
//!   disagreement. The third within a second means that the counter is no clock: all threads give
//!   it up until the process ends.
//!
//! Until the rate is known, and after it was given up, a reading is one of the system's clock.
//!
//! # Threads
//!
//! A thread's anchor belongs to that thread. What threads share are two numbers: the rate, and how
//! many disagreements there were. Each of them stands for itself and orders nothing else, so all
//! accesses are relaxed. A thread that has not yet seen that the counter was given up uses its
//! anchor for another 0.1 ms at most.
//!
//! Each thread has an anchor from before a suspension. The first one that disagrees advances the
//! number of disagreements. Those of the others carry the old number, so they do not count once
//! more.

use std::cell::Cell;

use super::reading::MARGIN;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a reading is made of. A test has its own.
pub(crate) trait TimeSource {
    /// The counter of the processor.
    fn counter(&self) -> u64;

    /// The nanoseconds that the system's clock has counted since some moment.
    fn nanos(&self) -> u64;
}

// The numbers in the rules. Teeth change one at a time, to show what it is for.

/// How long an anchor serves, in nanoseconds.
const WINDOW: u64 = 100_000;
/// The most that lies between the two counts of an anchor, in nanoseconds.
const MOST_GAP: u64 = 3_000;
/// Counts are converted at a rate lower by one part in so many.
const SLOWER_BY: u64 = 8;
/// The least and the most time over which the rate is measured.
const MEASURED_OVER: (u64, u64) = (20_000_000, 1_000_000_000);
/// Anchors disagree if they are off by more than one part in so many.
const OFF_BY: u64 = 16;
/// Within this time the third disagreement is the last.
const SOON: u64 = 1_000_000_000;

/// The rate is not known yet.
const UNKNOWN: u64 = 0;
/// The counter was given up.
const GIVEN_UP: u64 = u64::MAX;

/// Rates are nanoseconds per count, with so many fractional bits.
const FRACTION: u32 = 32;
/// Rates of counters between 1 MHz and 100 GHz. Others are taken for wrong.
const PLAUSIBLE: std::ops::Range<u64> = (1 << FRACTION) / 100..1_000 << FRACTION;

/// A count and a time, as they were read.
#[derive(Clone, Copy, Debug)]
struct Pair {
    counter: u64,
    nanos: u64,
    /// The counts between the two readings of the counter.
    gap: u64,
}

impl Pair {
    fn take(source: &impl TimeSource) -> Self {
        let first = source.counter();
        let nanos = source.nanos();
        let second = source.counter();
        Pair {
            counter: second,
            nanos,
            gap: second.wrapping_sub(first),
        }
    }
}

/// What one thread knows.
pub(crate) struct ThreadAnchor {
    // The anchor in use. The window is zero if there is none, which no count lies within.
    counter: Cell<u64>,
    nanos: Cell<u64>,
    window: Cell<u64>,
    scale: Cell<u64>,
    /// The counts from the anchor to the last reading.
    passed: Cell<u64>,
    /// The anchor that the next one is compared with, and the number of disagreements before it.
    previous: Cell<Option<(Pair, u64)>>,
    /// Where a measurement of the rate began, and the rate of the one before it.
    measuring: Cell<Option<(Pair, Option<u64>)>>,
}

impl ThreadAnchor {
    pub(crate) const fn new() -> Self {
        ThreadAnchor {
            counter: Cell::new(0),
            nanos: Cell::new(0),
            window: Cell::new(0),
            scale: Cell::new(0),
            passed: Cell::new(0),
            previous: Cell::new(None),
            measuring: Cell::new(None),
        }
    }

    /// Returns the time of a count, if the anchor serves for it.
    #[inline(always)]
    pub(crate) fn time_at(&self, counter: u64) -> Option<u64> {
        let passed = counter.wrapping_sub(self.counter.get());
        // ANCHOR-2: a counter that went back is far ahead here.
        if passed <= self.passed.get() || passed >= self.window.get() {
            return None;
        }
        self.passed.set(passed);
        // No overflow: the window is so many counts that the product stays below 0.1 ms, shifted.
        Some(self.nanos.get() + ((passed * self.scale.get()) >> FRACTION))
    }
}

/// What all threads of the process know.
#[derive(Debug)]
pub(crate) struct Anchors {
    /// The measured rate, or one of the two constants.
    rate: AtomicU64,
    disagreements: AtomicU64,
    /// When the last two disagreements were.
    last_two: Mutex<[Option<u64>; 2]>,
}

impl Anchors {
    pub(crate) fn new() -> Self {
        Anchors {
            rate: AtomicU64::new(UNKNOWN),
            disagreements: AtomicU64::new(0),
            last_two: Mutex::new([None; 2]),
        }
    }

    /// Returns a time that is not after the present, and the margin that makes a deadline of it, if
    /// the thread's anchor serves for the count. Otherwise the caller takes an anchor.
    #[inline]
    pub(crate) fn low_at(&self, thread: &ThreadAnchor, counter: u64) -> Option<(u64, u64)> {
        let nanos = thread.time_at(counter)?;
        Some((nanos, MARGIN))
    }

    /// Does both, as a clock does.
    #[cfg(any(test, loom))]
    pub(crate) fn low(&self, thread: &ThreadAnchor, source: &impl TimeSource) -> (u64, u64) {
        self.low_at(thread, source.counter())
            .unwrap_or_else(|| self.take_anchor(thread, source))
    }

    /// Makes all threads use the system's clock from now on.
    pub(crate) fn give_up(&self) {
        // Relaxed: see "Threads" at the top. A swap, because the checker of the models does not
        // order a store against the exchange in `publish`, as the language does.
        self.rate.swap(GIVEN_UP, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn is_given_up(&self) -> bool {
        // Relaxed: see "Threads" at the top.
        self.rate.load(Ordering::Relaxed) == GIVEN_UP
    }

    #[cfg(test)]
    pub(crate) fn is_measured(&self) -> bool {
        // Relaxed: see "Threads" at the top.
        !matches!(self.rate.load(Ordering::Relaxed), UNKNOWN | GIVEN_UP)
    }

    /// Reads the system's clock, and takes an anchor for the readings that follow.
    pub(crate) fn take_anchor(
        &self,
        thread: &ThreadAnchor,
        source: &impl TimeSource,
    ) -> (u64, u64) {
        thread.window.set(0);
        // Relaxed, both: see "Threads" at the top. The number of disagreements is read before the
        // anchor is taken: one that another thread finds meanwhile makes this anchor an old one.
        let rate = self.rate.load(Ordering::Relaxed);
        let disagreements = self.disagreements.load(Ordering::Relaxed);
        if rate == GIVEN_UP {
            return (source.nanos(), 0);
        }
        let pair = Pair::take(source);
        if rate == UNKNOWN {
            self.measure(thread, pair);
        } else {
            self.accept(thread, pair, rate, disagreements);
        }
        // The margin is added here too, though the time is exact. Otherwise a deadline could be
        // earlier than that of a call before.
        (pair.nanos, MARGIN)
    }

    /// Uses an anchor, unless it was taken badly or disagrees with the previous one.
    fn accept(&self, thread: &ThreadAnchor, pair: Pair, rate: u64, disagreements: u64) {
        // ANCHOR-1.
        if pair.gap > counts(MOST_GAP, rate) {
            return;
        }
        match thread.previous.get() {
            Some((before, then)) if then == disagreements => {
                if !self.agree(before, pair, rate) {
                    // The next anchor has nothing to be compared with: this one's number is an old
                    // one.
                    self.disagree(disagreements, pair.nanos);
                    return;
                }
                // Over a shorter time, a disagreement is as small as what an anchor may be off by.
                if pair.nanos - before.nanos >= WINDOW / 2 {
                    thread.previous.set(Some((pair, disagreements)));
                }
            }
            _ => thread.previous.set(Some((pair, disagreements))),
        }
        thread.counter.set(pair.counter);
        thread.nanos.set(pair.nanos);
        thread.passed.set(0);
        // ANCHOR-3.
        thread.scale.set(rate - rate / SLOWER_BY);
        thread.window.set(counts(WINDOW, rate));
    }

    /// Returns whether as much time as counts passed between two anchors.
    fn agree(&self, before: Pair, after: Pair, rate: u64) -> bool {
        let (Some(counted), Some(passed)) = (
            after.counter.checked_sub(before.counter),
            after.nanos.checked_sub(before.nanos),
        ) else {
            return false;
        };
        let counted = (u128::from(counted) * u128::from(rate)) >> FRACTION;
        // Each anchor may be off by its gap.
        let most = u128::from(passed / OFF_BY + MOST_GAP);
        counted.abs_diff(u128::from(passed)) <= most
    }

    /// Counts a disagreement, unless another thread has counted it since `before`.
    fn disagree(&self, before: u64, now: u64) {
        // Relaxed, both: see "Threads" at the top. Only the number itself decides who counts.
        let relaxed = Ordering::Relaxed;
        let counted = (self.disagreements).compare_exchange(before, before + 1, relaxed, relaxed);
        if counted.is_err() {
            return;
        }
        // Only tried: a thread that finds the next disagreement meanwhile need not wait, and after
        // a fork the thread that holds the lock may be missing.
        let Some(mut last_two) = self.last_two.try_lock() else {
            return;
        };
        let [first, second] = *last_two;
        // ANCHOR-5.
        if first.is_some_and(|first| now.saturating_sub(first) <= SOON) {
            self.give_up();
        }
        *last_two = [second, Some(now)];
    }

    /// Goes on measuring the rate (ANCHOR-4).
    fn measure(&self, thread: &ThreadAnchor, pair: Pair) {
        let Some((begun, first)) = thread.measuring.get() else {
            thread.measuring.set(Some((pair, None)));
            return;
        };
        let (least, most) = MEASURED_OVER;
        let passed = pair.nanos.saturating_sub(begun.nanos);
        if passed < least && pair.counter >= begun.counter && pair.nanos >= begun.nanos {
            return;
        }
        let rate = if passed > most {
            None
        } else {
            rate_between(begun, pair, MOST_GAP)
        };
        match (first, rate) {
            (_, None) => thread.measuring.set(Some((pair, None))),
            (None, Some(rate)) => {
                thread.measuring.set(Some((pair, Some(rate))));
            }
            (Some(first), Some(rate)) if rate.abs_diff(first) > first / 64 => {
                thread.measuring.set(Some((pair, Some(rate))));
            }
            (_, Some(rate)) => {
                thread.measuring.set(None);
                self.publish(rate);
            }
        }
    }

    /// Makes the rate known. The first thread that has one decides, and a counter that was given up
    /// stays so.
    fn publish(&self, rate: u64) {
        // Relaxed, both: see "Threads" at the top.
        let relaxed = Ordering::Relaxed;
        let _ = self.rate.compare_exchange(UNKNOWN, rate, relaxed, relaxed);
    }
}

/// Returns how many counts so many nanoseconds are.
fn counts(nanos: u64, rate: u64) -> u64 {
    // The sum of a plausible rate's bits and those of the longest time stays below 64.
    (nanos << FRACTION) / rate
}

/// Returns the rate between two pairs, if both were taken well and the rate is plausible.
fn rate_between(before: Pair, after: Pair, most_gap: u64) -> Option<u64> {
    let counted = after.counter.checked_sub(before.counter)?;
    let passed = after.nanos.checked_sub(before.nanos)?;
    let rate = (u128::from(passed) << FRACTION).checked_div(u128::from(counted))?;
    let rate = u64::try_from(rate)
        .ok()
        .filter(|rate| PLAUSIBLE.contains(rate))?;
    let most = counts(most_gap, rate);
    (before.gap <= most && after.gap <= most).then_some(rate)
}

#[cfg(all(test, not(loom)))]
mod tests;
