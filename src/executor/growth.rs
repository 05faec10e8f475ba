//! When to start more workers: pure logic over times, counters and what is seen of the workers.
//!
//! Two things must come together.
//!
//! **A ticket is old.** A ticker that sees tickets wait adds the number of unclaimed tickets to the
//! number of claims: the *mark*. If claims have not reached the mark one limit later, fewer tickets
//! were claimed than had waited. So one of those still waits, in whatever order they are claimed,
//! and it is at least one limit old. If claims have reached the mark, the ticker sets a new one.
//!
//! **The workers are blocked.** A worker is *able* if its thread runs, could run, is about to start
//! or sleeps for want of tickets. The pool keeps as many able workers as were asked for
//! (`workers`). If there are fewer in two looks, half a limit apart, the others wait for something
//! inside their tasks, and more are started. Two looks, since a worker also waits for a moment when
//! it meets another one at a lock.
//!
//! Workers that only compute are able, also while other processes have the cores: more of them
//! would not make anything faster, and the pool does not grow. There is one exception. When nothing
//! at all was claimed for a limit, all workers are in long tasks. Then one more able worker is
//! worth its thread: it takes the short tasks. That is `workers` + 1 in all, and no more.
//!
//! One worker is started, then two, then four, as long as the looks find the new ones blocked as
//! well: with a hundred blocking tasks the number doubles instead of growing one by one.
//!
//! Where nobody can say whether a thread waits, age alone decides, and one worker is started per
//! [`BLIND_GAP`] in the whole pool.

use std::time::Duration;

use crate::tick::Time;

/// The longest pause between two looks of a ticker that can't start anybody.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause, in limits, after a look that found enough able workers. A look costs system
/// calls, and a pool that computes for a minute need not pay for thousands of them.
const LONGEST_PAUSE_IF_ABLE: u32 = 8;

/// So many looks in succession have to find blocked workers.
const LOOKS: u32 = 2;

/// How long after a worker that was started by age alone the next one may be.
pub(crate) const BLIND_GAP: Duration = Duration::from_millis(10);

/// What a ticker can ask about the workers, cheapest first.
pub(crate) trait Crew {
    /// How many tickets were claimed so far.
    fn claims(&self) -> u64;
    /// How many tickets wait to be claimed.
    fn unclaimed(&self) -> usize;
    /// How many more workers there could be.
    fn free_seats(&self) -> usize;
    /// How many workers should be able.
    fn wanted(&self) -> usize;
    /// Looks at the workers' threads. What it answers stands until the ticker has started those it
    /// wants to start: no other ticker starts any meanwhile.
    fn look(&mut self) -> Look;
    /// After [`Look::Blind`]: whether this ticker may start a worker all the same. If so it does,
    /// and nobody may for the next [`BLIND_GAP`].
    fn may_start_blindly(&mut self, now: Time) -> bool;
}

/// What a look at the workers' threads says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// So many are able.
    Able(usize),
    /// Threads can't be looked at here.
    Blind,
    /// Another ticker is looking.
    Later,
}

/// One per ticker.
#[derive(Debug)]
pub(crate) struct GrowthWatch {
    limit: Duration,
    stall: Option<Stall>,
}

/// Tickets that wait since the mark was set.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// When as many were claimed, all that waited then is claimed.
    mark: u64,
    since: Time,
    /// When the ticker was here last.
    seen: Time,
    /// When the workers are looked at next.
    due: Time,
    /// The last known number of claims, and since when it has been that.
    claims: u64,
    still_since: Time,
    /// Looks in succession that found blocked workers.
    looks: u32,
    /// How many were started last.
    started: usize,
    /// How long to wait after the next look that finds nothing to do.
    pause: Duration,
}

/// What a ticker should do about the number of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// Nothing waits: sleep as long as the wheels allow.
    Calm,
    /// Sleep until this moment at most, and look again.
    LookAgain(Time),
    /// Start this many workers, and look again.
    Start { count: usize, look_again: Time },
}

impl GrowthWatch {
    /// `limit`: how long tickets wait before a worker may be started.
    pub(crate) fn new(limit: Duration) -> Self {
        GrowthWatch { limit, stall: None }
    }

    /// Called by a ticker before it sleeps. `waiting`: a ticket of its is unclaimed.
    pub(crate) fn look(&mut self, now: Time, waiting: bool, crew: &mut dyn Crew) -> Growth {
        if !waiting {
            self.stall = None;
            return Growth::Calm;
        }
        let claims = crew.claims();
        let step = self.limit / LOOKS;
        let stall = match &mut self.stall {
            // A clock that was set back says nothing about the age, nor when a look is due.
            Some(stall) if !has_reached(claims, stall.mark) && now >= stall.seen => stall,
            before => {
                // Others wait already, so what was learnt of the steps stays.
                let started = before.as_ref().map_or(0, |stall| stall.started);
                self.stall = Some(Stall {
                    mark: claims.wrapping_add(crew.unclaimed() as u64),
                    since: now,
                    seen: now,
                    due: now + step,
                    claims,
                    still_since: now,
                    looks: 0,
                    started,
                    pause: step,
                });
                return Growth::LookAgain(now + step);
            }
        };
        stall.seen = now;
        if stall.claims != claims {
            stall.claims = claims;
            stall.still_since = now;
        }
        if now < stall.due {
            return Growth::LookAgain(stall.due);
        }
        let free = crew.free_seats();
        if free == 0 {
            return stall.give_up(now, LONGEST_PAUSE.max(self.limit));
        }
        let old = now.since(stall.since) >= self.limit;
        let still = now.since(stall.still_since) >= self.limit;
        let wanted = crew.wanted();
        let count = match crew.look() {
            Look::Able(able) if able < wanted => {
                stall.looks += 1;
                if stall.looks < LOOKS {
                    return stall.wait(now, step);
                }
                // More than there are tickets would have nothing to do.
                let most = free.min(crew.unclaimed().max(1));
                stall.started.saturating_mul(2).clamp(1, most)
            }
            Look::Able(able) if able == wanted && still => 1,
            Look::Blind if old && crew.may_start_blindly(now) => 1,
            Look::Able(_) => {
                return stall.give_up(now, self.limit.saturating_mul(LONGEST_PAUSE_IF_ABLE));
            }
            Look::Blind | Look::Later => return stall.wait(now, step),
        };
        stall.wait(now, step);
        stall.looks = 0;
        stall.started = count;
        // The first claims of those are still to come.
        stall.still_since = now;
        Growth::Start {
            count,
            look_again: stall.due,
        }
    }
}

impl Stall {
    /// The next look comes after `pause`.
    fn wait(&mut self, now: Time, pause: Duration) -> Growth {
        self.pause = pause;
        self.due = now + pause;
        Growth::LookAgain(self.due)
    }

    /// Nobody can or need be started. Each pause is twice as long as the one before, up to
    /// `longest`.
    fn give_up(&mut self, now: Time, longest: Duration) -> Growth {
        self.looks = 0;
        self.started = 0;
        let pause = self.pause;
        self.wait(now, pause);
        self.pause = pause.saturating_mul(2).min(longest);
        Growth::LookAgain(self.due)
    }
}

/// Whether a counter that may wrap around has come to `mark`.
fn has_reached(counter: u64, mark: u64) -> bool {
    counter.wrapping_sub(mark) < 1 << 63
}

#[cfg(all(test, not(loom)))]
mod tests;
