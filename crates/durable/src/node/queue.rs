//! One queue of a node: what it may start now, and its upcoming timers.

use std::time::Duration;

use super::interface::{Mono, QueueConfig};
use super::upcoming::UpcomingTimers;

/// The greatest number of timers that are known of one queue.
const MOST_UPCOMING: usize = 2_000;
/// The bytes that a payload of unknown length counts before one of its queue is known.
const UNKNOWN_BYTES: u64 = 256 * 1024;
/// The least such number, so that a slow pace does not cause many polls.
const LEAST_UPCOMING: usize = 64;

/// The state of one queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) config: QueueConfig,
    pub(super) paused: bool,
    /// Whether too many of its ends are not settled, so that nothing more is claimed.
    pub(super) is_clogged: bool,
    pub(super) upcoming: UpcomingTimers,
    /// Runs that were claimed and have not ended, and runs of an earlier epoch that still go on.
    pub(super) running: usize,
    /// Timers in the claim that is under way.
    pub(super) claiming: usize,
    /// Whether a timer was claimed since the queue was polled.
    pub(super) progressed: bool,
    /// The mean length of the payloads of the last claim.
    pub(super) usual_bytes: u64,
    pace: Option<Pace>,
}

impl Queue {
    pub(super) fn new(config: QueueConfig, poll_interval: Duration) -> Self {
        let limit = match config.pace {
            // The number of timers that can start until the poll after the next one.
            Some(pace) => {
                let soon = Duration::from_secs(u64::from(pace)).as_secs_f64()
                    * poll_interval.as_secs_f64();
                (2.0 * soon).min(1e6) as usize + config.running.min(MOST_UPCOMING)
            }
            None => MOST_UPCOMING,
        };
        Queue {
            upcoming: UpcomingTimers::new(limit.clamp(LEAST_UPCOMING, MOST_UPCOMING)),
            pace: config.pace.map(Pace::new),
            config,
            paused: false,
            is_clogged: false,
            running: 0,
            claiming: 0,
            progressed: false,
            usual_bytes: UNKNOWN_BYTES,
        }
    }

    /// The number of runs for which there is room.
    pub(super) fn room(&self) -> usize {
        match self.paused {
            true => 0,
            false => self.free(),
        }
    }

    /// The same for what the node has claimed already, which a pause does not hold up.
    pub(super) fn free(&self) -> usize {
        match self.is_clogged {
            true => 0,
            false => {
                let taken = self.running + self.claiming;
                self.config.running.saturating_sub(taken)
            }
        }
    }

    /// The number of runs that may start now.
    pub(super) fn startable(&self, now: Mono) -> usize {
        let room = self.room();
        self.pace
            .as_ref()
            .map_or(room, |pace| room.min(pace.free(now)))
    }

    /// The time at which the pace allows a run.
    pub(super) fn next_free(&self) -> Mono {
        self.pace.as_ref().map_or(Mono::ZERO, Pace::next_free)
    }

    /// Counts timers that are claimed from now on.
    pub(super) fn take(&mut self, now: Mono, count: usize) {
        self.claiming += count;
        if let Some(pace) = &mut self.pace {
            pace.take(now, count);
        }
    }

    /// Ends a claim of `wanted` timers, of which `claimed` are to run.
    pub(super) fn taken(&mut self, wanted: usize, claimed: usize) {
        self.claiming -= wanted;
        self.progressed |= claimed > 0;
        if let Some(pace) = &mut self.pace {
            pace.give_back(wanted.saturating_sub(claimed));
        }
    }

    /// Whether timers that the last poll left unread are wanted before the next poll is due.
    pub(super) fn is_hungry(&self) -> bool {
        !self.paused && self.progressed && self.upcoming.runs_out()
    }
}

/// A bound on the rate of starts (the generic cell rate algorithm): within any span, at most what
/// the rate allows in it and in 50 ms more.
#[derive(Debug)]
struct Pace {
    /// The time between two starts.
    gap: Duration,
    /// The starts that may happen at one moment.
    burst: u32,
    /// The time at which the bucket is full again.
    full_at: Mono,
}

impl Pace {
    fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        Pace {
            // Not zero, with which no run would ever be allowed.
            gap: (Duration::from_secs(1) / per_second).max(Duration::from_nanos(1)),
            burst: (per_second / 20).max(1),
            full_at: Mono::ZERO,
        }
    }

    fn free(&self, now: Mono) -> usize {
        let filled = self.gap * self.burst;
        let missing = self.full_at.saturating_sub(now);
        let free = filled.saturating_sub(missing).as_nanos() / self.gap.as_nanos().max(1);
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    fn next_free(&self) -> Mono {
        self.full_at.saturating_sub(self.gap * (self.burst - 1))
    }

    fn take(&mut self, now: Mono, count: usize) {
        self.full_at = self.full_at.max(now) + self.times(count);
    }

    fn give_back(&mut self, count: usize) {
        self.full_at = self.full_at.saturating_sub(self.times(count));
    }

    fn times(&self, count: usize) -> Duration {
        self.gap
            .saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
    }
}
