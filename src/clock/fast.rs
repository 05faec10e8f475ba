//! The counter of this process, and who may use it.

use std::time::Instant;

use super::anchors::{Anchors, ThreadAnchor, TimeSource};
use super::reading::{MARGIN, QuickReading};
use crate::sync::{OnceLock, thread_local};
use crate::tick::Time;

/// The anchors of the process, with the moment from which its times count.
static PROCESS: OnceLock<Option<Process>> = OnceLock::new();

thread_local! {
    static THREAD: ThreadAnchor = const { ThreadAnchor::new() };
}

#[derive(Debug)]
pub(super) struct Process {
    anchors: Anchors,
    source: SystemSource,
}

/// The counter of the processor and `Instant`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemSource {
    zero: Instant,
}

impl TimeSource for SystemSource {
    #[inline]
    fn counter(&self) -> u64 {
        // It is there: `Process::new` has seen it.
        tourbillon_tsc::counter().unwrap_or(0)
    }

    #[inline]
    fn nanos(&self) -> u64 {
        // A process that runs for 584 years has other worries.
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What Linux says about the source of its clock.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Returns whether the kernel's own clock is made of the counter, which means that the kernel has
/// found it to run steadily and alike on all cores. Not known means no.
pub(super) fn kernel_trusts_counter(answer: std::io::Result<String>) -> bool {
    answer.is_ok_and(|source| source.trim_end() == "tsc")
}

impl Process {
    pub(super) fn new() -> Option<Self> {
        tourbillon_tsc::counter()?;
        Some(Process {
            anchors: Anchors::new(),
            source: SystemSource {
                zero: Instant::now(),
            },
        })
    }

    /// Returns whether a clock may use the counter, by what the kernel says about it now.
    pub(super) fn serves(&self, clock_source: std::io::Result<String>) -> bool {
        let is_known = clock_source.is_ok();
        if kernel_trusts_counter(clock_source) {
            return true;
        }
        // The kernel may change its mind while the process runs. Then the clocks that were made
        // before are exact from now on, too. An answer that can't be read says nothing about them.
        if is_known {
            self.anchors.give_up();
        }
        false
    }

    #[cfg(test)]
    pub(super) fn is_given_up(&self) -> bool {
        self.anchors.is_given_up()
    }
}

/// The system's clock, with cheap readings for calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastClock {
    start: Instant,
    /// The start, in the times of the process.
    offset: u64,
    /// The margin minus `offset`, modulo 2^64.
    shift: u64,
    process: &'static Process,
}

impl FastClock {
    /// Returns a clock that starts now, or `None` where the counter can't be used.
    pub(super) fn new() -> Option<Self> {
        let process = PROCESS.get_or_init(Process::new).as_ref()?;
        if !process.serves(std::fs::read_to_string(CLOCK_SOURCE)) {
            return None;
        }
        let start = Instant::now();
        let offset = start.saturating_duration_since(process.source.zero);
        let offset = u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX);
        Some(FastClock {
            start,
            offset,
            shift: MARGIN.wrapping_sub(offset),
            process,
        })
    }

    #[cfg(test)]
    pub(super) fn is_measured(&self) -> bool {
        self.process.anchors.is_measured()
    }

    #[inline]
    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// Returns a moment that is not after the present, and the margin of a deadline that is counted
    /// from it.
    #[inline]
    pub(super) fn low(&self) -> (Time, u64) {
        let Process { anchors, source } = self.process;
        match THREAD.with(|thread| anchors.low_at(thread, source.counter())) {
            Some(low) => self.since_start(low),
            None => self.low_by_new_anchor(),
        }
    }

    /// Returns the moment of a new anchor, and the margin. This finds the thread's anchors by
    /// itself, so that nothing is kept for it in a reading that needs none.
    #[cold]
    #[inline(never)]
    fn low_by_new_anchor(&self) -> (Time, u64) {
        let Process { anchors, source } = self.process;
        self.since_start(THREAD.with(|thread| anchors.take_anchor(thread, source)))
    }

    /// Like [`low`](Self::low), but takes no anchor: returns `None` if the thread's anchor does not
    /// serve.
    #[inline(always)]
    pub(super) fn quick(&self) -> Option<QuickReading> {
        let counter = self.process.source.counter();
        let nanos = THREAD.with(|thread| thread.time_at(counter))?;
        // The true sum is not negative: a reading is less than the margin before the clock's start.
        // And no process runs for a century.
        let start = Time::from_nanos(nanos.wrapping_add(self.shift));
        Some(QuickReading::new(start, MARGIN))
    }

    /// Converts a time of the process.
    #[inline]
    fn since_start(&self, (nanos, margin): (u64, u64)) -> (Time, u64) {
        (Time::from_nanos(nanos.saturating_sub(self.offset)), margin)
    }
}
