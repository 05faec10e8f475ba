//! Decides when to start more workers: pure logic over times, counters and observations of the
//! workers.
//!
//! More workers are started when two conditions hold.
//!
//! **A ticket is old.** A ticker that sees tickets wait adds the number of unclaimed tickets to the
//! number of claims: the *mark*. If claims have reached the mark one limit later, the ticker sets a
//! new one. If not, at least one of the tickets that waited when the mark was set still waits,
//! whatever the order of claims, and it is at least one limit old.
//!
//! **The workers are blocked.** A worker is *able* if its thread runs, could run, is about to
//! start, or sleeps because there are no tickets. The pool keeps as many able workers as were asked
//! for (`workers`). If two checks, half a limit apart, find fewer, the other workers wait for
//! something inside their tasks, and more workers are started. A worker that waits for a stripe's
//! lock is able, see `crew.rs`. One check is not enough, because a worker also waits for a moment
//! when it meets another one at another lock, such as one of the allocator's.
//!
//! Workers that only compute count as able, also while other processes use the cores. More workers
//! would not be faster, so the pool does not grow. There is one exception: when nothing at all
//! was claimed for a limit and no worker is about to claim, all workers are in long tasks. Then one
//! more able worker is worth its thread, because it takes the short tasks. That makes `workers` + 1
//! in all, and no more.
//!
//! Pools may share their workers. **RT-ONE** If a ticket is old, no worker is in its pool, and each
//! worker is in another one, then one worker is started, whatever the others do. If enough workers
//! are able, or there are as many as there may be, it is a spare one (`workers.rs`). Without this
//! rule, tasks of one pool could hold up those of another for as long as they take, and a task that
//! waits for one of another pool could wait for ever.
//!
//! **RT-STUCK** If a ticket is old, and the workers that are in its pool are all blocked, a spare
//! worker is started, up to the bound of workers, also if others compute and count as able. Without
//! this rule, tasks of another pool that compute could hold up all that is behind a blocked task.
//!
//! One worker is started, then two, then four, while the checks find the new ones blocked as well.
//! So with a hundred blocking tasks the number of workers doubles instead of growing one by one.
//!
//! Where the system can't say whether a thread waits, age alone decides, and one worker is started
//! per [`BLIND_GAP`] in the whole pool.
//!
//! If the system refuses a thread, the whole pool asks for none during [`REFUSED_FIRST`]. With each
//! further refusal this pause doubles, up to [`REFUSED_AT_MOST`]. A thread that starts ends it.

use std::time::Duration;

use crate::tick::Time;

/// Longest pause between two checks of a ticker that can't start any worker.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause, in limits, after a check that found enough able workers. A check costs system
/// calls, and a pool that computes for a minute need not pay for thousands of them.
const LONGEST_PAUSE_IF_ABLE: u32 = 8;

/// Number of successive checks that must find blocked workers.
const LOOKS: u32 = 2;

/// Claims that are further apart than this are those of workers in long tasks. For shorter tasks,
/// the order of the tickets costs less than it would cost to sift them.
const LONG_TASK: Duration = Duration::from_micros(5);

/// How long the tickers go by what one of them was told by the kernel, so that the questions to it
/// do not grow with the number of pools. Not longer than the time between two checks of a ticker,
/// so that each check goes by another answer.
pub(super) const FRESH: Duration = Duration::from_millis(1);

/// Shortest time between two workers that are started because of age alone.
pub(crate) const BLIND_GAP: Duration = Duration::from_millis(10);

/// How long no thread is asked for after the system has refused one. A failed start costs more than
/// 100 us of a core.
pub(crate) const REFUSED_FIRST: Duration = Duration::from_millis(10);

/// How long no thread is asked for at most.
pub(crate) const REFUSED_AT_MOST: Duration = Duration::from_secs(1);

/// Questions that a ticker can ask about the workers, cheapest first.
pub(crate) trait Crew {
    /// Returns how many tickets were claimed so far.
    fn claims(&self) -> u64;
    /// Returns how many tickets were served by tickers, which are no claims.
    fn helped(&self) -> u64;
    /// Returns how many tickets wait to be claimed.
    fn unclaimed(&self) -> usize;
    /// Returns how many more workers there may be.
    fn free_slots(&self) -> usize;
    /// Returns whether no worker is in this pool, and each is in another one.
    fn is_left_alone(&self) -> bool;
    /// Returns whether workers are in this pool, which shares them with others, and each of them is
    /// blocked.
    fn is_stuck(&self) -> bool;
    /// Returns how many workers should be able.
    fn wanted(&self) -> usize;
    /// Returns whether a worker is between two tasks: it will claim as soon as it has a core.
    fn one_claims(&self) -> bool;
    /// Checks the workers' threads. The answer remains valid until the ticker has started the
    /// workers that it wants to start: no other ticker starts any meanwhile.
    fn look(&mut self, now: Time) -> Look;
    /// After [`Look::Blind`]: returns whether this ticker may start a worker nevertheless. If so,
    /// the ticker must start one, and no ticker may start another one for the next [`BLIND_GAP`].
    fn may_start_blindly(&mut self) -> bool;
}

/// Result of a check of the workers' threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// This many workers are able.
    Able(usize),
    /// Threads can't be checked on this system.
    Blind,
    /// Another ticker has the turn.
    Later,
    /// The system has refused a thread, and none is asked for before this moment.
    Refused(Time),
}

/// State that the tickers share between their checks.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// When a worker was last started because of age alone.
    pub(super) last_blind: Option<Time>,
    /// Number of the thread with which the next check begins.
    pub(super) begin: usize,
    /// How many workers were able by the last answer of the kernel, and when. `None` after a start
    /// of workers.
    pub(super) able: Option<(Time, usize)>,
    /// Since when the system refuses threads, and how long none is asked for from then on.
    pub(super) refused: Option<(Time, Duration)>,
}

/// The growth logic of one ticker.
#[derive(Debug)]
pub(crate) struct GrowthWatch {
    limit: Duration,
    stall: Option<Stall>,
}

/// State since the mark was set: tickets have been waiting since then.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Number of claims, and of tickets that tickers served, at which all tickets that waited then
    /// are gone.
    mark: u64,
    /// Number of claims when the mark was set.
    begun: u64,
    /// When the mark was set.
    since: Time,
    /// When the ticker called last.
    seen: Time,
    /// When the workers are checked next.
    due: Time,
    /// The last known number of claims.
    claims: u64,
    /// Since when the number of claims has not changed.
    claimless_since: Time,
    /// The same, but not before the last start of workers.
    still_since: Time,
    /// Number of successive checks that found blocked workers.
    looks: u32,
    /// How many workers were started last.
    started: usize,
    /// Pause after the next check that finds nothing to do.
    pause: Duration,
}

/// Decision of a ticker about the number of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// No ticket waits: the ticker may sleep until its next timer.
    Calm,
    /// The ticker may sleep until this moment at most, and must check again.
    LookAgain(Time),
    /// The ticker must start these workers, and check again.
    Start {
        workers: NewWorkers,
        look_again: Time,
    },
}

/// Workers that are to be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewWorkers {
    pub(crate) count: usize,
    /// Whether they are started even if there are as many as there may be, and serve only pools
    /// without a worker.
    pub(crate) spare: bool,
}

/// What a ticker has found of tickets that wait, for people and probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OldTickets {
    /// When the mark was set: one of the tickets that wait still is at least that old.
    pub(crate) since: Time,
    /// As in `Stall`.
    mark: u64,
    claims: u64,
    claimless_since: Time,
}

impl OldTickets {
    /// Returns whether one of these tickets waits still. `gone` is the number of claims, and of
    /// tickets that tickers served.
    pub(crate) fn wait_still(&self, gone: u64) -> bool {
        !has_reached(gone, self.mark)
    }

    /// Returns since when nothing was claimed, if that is still so.
    pub(crate) fn none_claimed(&self, claims: u64) -> Option<Time> {
        (claims == self.claims).then_some(self.claimless_since)
    }
}

impl GrowthWatch {
    /// Creates the logic. `limit` is the age of a ticket from which on a worker may be started.
    pub(crate) fn new(limit: Duration) -> Self {
        GrowthWatch { limit, stall: None }
    }

    /// Returns whether a ticket was old when the ticker looked last, and the workers are in long
    /// tasks: blocked, or computing.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stall.is_some_and(|stall| {
            let age = stall.seen.since(stall.since);
            let claims = stall.claims.wrapping_sub(stall.begun);
            age >= self.limit && u128::from(claims) < age.as_nanos() / LONG_TASK.as_nanos()
        })
    }

    /// Returns what the last look has found of tickets that wait, if any did.
    pub(crate) fn old_tickets(&self) -> Option<OldTickets> {
        self.stall.map(|stall| OldTickets {
            since: stall.since,
            mark: stall.mark,
            claims: stall.claims,
            claimless_since: stall.claimless_since,
        })
    }

    /// Decides whether to start workers. A ticker calls this before it sleeps; `waiting` says
    /// whether one of its tickets is unclaimed.
    pub(crate) fn look(&mut self, now: Time, waiting: bool, crew: &mut dyn Crew) -> Growth {
        if !waiting {
            self.stall = None;
            return Growth::Calm;
        }
        let claims = crew.claims();
        let gone = claims.wrapping_add(crew.helped());
        let step = self.limit / LOOKS;
        let stall = match &mut self.stall {
            // A clock that was set back says nothing about the age, nor about when a check is due.
            Some(stall) if !has_reached(gone, stall.mark) && now >= stall.seen => stall,
            before => {
                // Other tickets wait already, so the size of the last start is kept: the next one
                // may double it.
                let started = before.as_ref().map_or(0, |stall| stall.started);
                self.stall = Some(Stall {
                    mark: gone.wrapping_add(crew.unclaimed() as u64),
                    begun: claims,
                    since: now,
                    seen: now,
                    due: now + step,
                    claims,
                    claimless_since: now,
                    still_since: now,
                    looks: 0,
                    started,
                    pause: step,
                });
                return Growth::LookAgain(now + step);
            }
        };
        stall.seen = now;
        // A claim since the last call means that not all workers are in long tasks.
        if stall.claims != claims {
            stall.claims = claims;
            stall.claimless_since = now;
            stall.still_since = now;
        }
        if now < stall.due {
            return Growth::LookAgain(stall.due);
        }
        // From here on the questions cost more, so they are asked only when a check is due.
        let old = now.since(stall.since) >= self.limit;
        let still = now.since(stall.still_since) >= self.limit;
        let free = crew.free_slots();
        let alone = old && still && crew.is_left_alone();
        if free == 0 && !alone {
            // No worker can be started, so the checks become rare.
            return stall.give_up(now, LONGEST_PAUSE.max(self.limit));
        }
        let wanted = crew.wanted();
        let mut spare = free == 0;
        let look = crew.look(now);
        // Asked again, since now no other ticker starts a worker, and one may just have done so.
        let alone = alone && crew.is_left_alone();
        let count = match look {
            Look::Able(able) if able < wanted && free > 0 => {
                stall.looks += 1;
                if stall.looks < LOOKS {
                    return stall.wait(now, step);
                }
                // Workers beyond the number of tickets would have nothing to do.
                let most = free.min(crew.unclaimed().max(1));
                stall.started.saturating_mul(2).clamp(1, most)
            }
            // All workers compute, and nothing was claimed for a limit: one more takes the short
            // tasks.
            Look::Able(able) if able == wanted && free > 0 && still && !crew.one_claims() => 1,
            // Whatever the workers do elsewhere.
            Look::Able(_) if alone && !crew.one_claims() => {
                spare = true;
                1
            }
            Look::Able(_) if free > 0 && old && still && crew.is_stuck() && !crew.one_claims() => {
                spare = true;
                1
            }
            Look::Blind if old && (free > 0 || alone) && crew.may_start_blindly() => 1,
            Look::Able(_) => {
                // Enough workers are able. Each check costs system calls, so the pauses grow.
                return stall.give_up(now, self.limit.saturating_mul(LONGEST_PAUSE_IF_ABLE));
            }
            // Until a ticket is old, the ticker looks again for its own sake: it may have to help.
            Look::Refused(until) if old => return stall.wait(now, until.since(now)),
            Look::Blind | Look::Later | Look::Refused(_) => return stall.wait(now, step),
        };
        stall.wait(now, step);
        stall.looks = 0;
        stall.started = count;
        // The new workers have not claimed anything yet.
        stall.still_since = now;
        Growth::Start {
            workers: NewWorkers { count, spare },
            look_again: stall.due,
        }
    }
}

impl Stall {
    /// Sets the next check after `pause`.
    fn wait(&mut self, now: Time, pause: Duration) -> Growth {
        self.pause = pause;
        self.due = now + pause;
        Growth::LookAgain(self.due)
    }

    /// Sets the next check when no worker can or need be started. Each pause is twice the one
    /// before, up to `longest`.
    fn give_up(&mut self, now: Time, longest: Duration) -> Growth {
        self.looks = 0;
        self.started = 0;
        let pause = self.pause;
        self.wait(now, pause);
        self.pause = pause.saturating_mul(2).min(longest);
        Growth::LookAgain(self.due)
    }
}

/// Returns whether a counter that may wrap around has reached `mark`.
fn has_reached(counter: u64, mark: u64) -> bool {
    counter.wrapping_sub(mark) < 1 << 63
}

#[cfg(all(test, not(loom)))]
mod tests;
