//! Decides which dates of a calendar have come, and which of them run.
//!
//! A look reads the wall clock and asks the calendar for all dates after the last one that was dealt
//! with. It runs without a lock, since the calendar is user code (REPEAT-5).
//!
//! - **DATE-1** A date is dealt with once: it becomes a round, or counts as missed. So after the wall
//!   clock was set back a little, dates that come again are not run again. All dates up to the last
//!   look are dealt with, also by rules that have changed since.
//! - **DATE-2** If the wall clock was set back by more than [`SET_BACK`], the time before was wrong.
//!   All dates from the present on are new.
//! - **DATE-3** A round never starts before its date, by the wall clock as its look has read it.
//! - **DATE-4** A look takes a bounded time: it counts [`COUNTED`] dates, and then leaps to the last
//!   hour, where it counts as many again.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use super::missed::Missed;
use crate::clock::Clock;
use crate::tick::Time;

/// The time between two looks at the wall clock.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// A greater step back means that the wall clock was wrong before. Vixie's cron takes three hours,
/// too.
const SET_BACK: Duration = Duration::from_secs(3 * 3600);

/// The number of missed dates that are counted one by one.
const COUNTED: usize = 10_000;

/// After more missed dates than that, only those of this time before the present may still run.
const LEAP_TO: Duration = Duration::from_secs(3600);

/// Returns the first date after a time.
pub(super) type NextTime = Box<dyn FnMut(SystemTime) -> Option<SystemTime> + Send>;

pub(super) struct Calendar {
    next: NextTime,
    clock: Clock,
    policy: Missed,
    /// `None`: the latest date that has come is not missed, whenever that was.
    grace: Option<Duration>,
    /// All dates up to this time are dealt with (DATE-1).
    dealt: SystemTime,
    /// The dates that have come, and whose rounds still have to run.
    due: VecDeque<SystemTime>,
    /// The date of the round that begins.
    date: Option<SystemTime>,
    /// Dates that were skipped since the last call of [`take_missed`](Self::take_missed).
    missed: u64,
}

impl Calendar {
    pub(super) fn new(
        next: NextTime,
        clock: Clock,
        policy: Missed,
        grace: Option<Duration>,
    ) -> Self {
        Calendar {
            next,
            dealt: clock.wall_anchor().system_time(),
            clock,
            policy,
            grace,
            due: VecDeque::new(),
            date: None,
            missed: 0,
        }
    }

    /// Returns when to look at the wall clock again, after `now`. Returns `None` if no round
    /// follows.
    pub(super) fn next_look(&mut self, now: Time) -> Option<Time> {
        if !self.due.is_empty() {
            return Some(now);
        }
        let anchor = self.clock.wall_anchor();
        self.notice_set_back(anchor.system_time());
        let date = self.ask(self.dealt)?;
        Some(anchor.time_of(date).max(now).min(now + LOOK_EVERY))
    }

    /// Looks at the wall clock, and returns whether a round is due.
    pub(super) fn look(&mut self) -> bool {
        if self.due.is_empty() {
            self.find_due();
        }
        self.date = self.due.pop_front();
        self.date.is_some()
    }

    /// Deals with all dates that have come: a round that was moved takes their place.
    pub(super) fn pass(&mut self) {
        self.date = None;
        self.due.clear();
        self.dealt = self.dealt.max(self.clock.wall_anchor().system_time());
    }

    pub(super) fn take_date(&mut self) -> Option<SystemTime> {
        self.date.take()
    }

    pub(super) fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Asks for the first date after `after`. A date that is not later is none: to ask for it again
    /// would never end.
    fn ask(&mut self, after: SystemTime) -> Option<SystemTime> {
        (self.next)(after).filter(|date| *date > after)
    }

    /// Begins anew after a great step back (DATE-2).
    fn notice_set_back(&mut self, wall: SystemTime) {
        if self
            .dealt
            .duration_since(wall)
            .is_ok_and(|ahead| ahead > SET_BACK)
        {
            self.dealt = wall;
        }
    }

    /// Finds the dates that have come since the last look, and decides which of them run.
    fn find_due(&mut self) {
        let wall = self.clock.wall_anchor().system_time();
        self.notice_set_back(wall);
        let mut leapt = false;
        let mut counted = 0;
        while let Some(date) = self.ask(self.dealt).filter(|date| *date <= wall) {
            self.dealt = date;
            self.due.push_back(date);
            counted += 1;
            if counted == COUNTED {
                // DATE-4. The dates that are leapt over are dealt with, and not counted.
                let leap_to = match leapt {
                    false => wall.checked_sub(LEAP_TO).unwrap_or(date),
                    true => wall,
                };
                if leap_to > self.dealt {
                    self.dealt = leap_to;
                    if !leapt {
                        self.missed = self.missed.saturating_add(self.due.len() as u64);
                        self.due.clear();
                    }
                }
                (leapt, counted) = (true, 0);
            }
        }
        // Dates that changed rules put before this look are not made up.
        self.dealt = self.dealt.max(wall);
        let runs = self.runs(wall);
        let skipped = self.due.len() - runs;
        self.due.drain(..skipped);
        self.missed = self.missed.saturating_add(skipped as u64);
    }

    /// Returns how many of the dates that have come run: the latest ones.
    fn runs(&self, wall: SystemTime) -> usize {
        let in_time = match self.grace {
            // The only one that the next date has not followed yet.
            None => self.due.len().min(1),
            Some(grace) => {
                let is_missed =
                    |date: &SystemTime| wall.duration_since(*date).is_ok_and(|late| late >= grace);
                self.due.len() - self.due.partition_point(is_missed)
            }
        };
        let made = self.policy.made(self.due.len() as u64);
        in_time.max(usize::try_from(made).unwrap_or(usize::MAX))
    }
}
