//! Computes when the rounds of one key are due. It has no clock, no lock and no engine: times are
//! arguments.

use std::time::{Duration, SystemTime};

use super::calendar::Calendar;
use super::missed::{DueRound, Missed, first_from, plan};
use super::next::Next;
use super::period::{AfterPanic, Period, PeriodKind, Schedule, SoFar};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::shard::{Start, splitmix64};
use crate::tick::Time;

/// How often in a row a round may be put off. Without a limit, a machine that is always late by
/// more than the grace would never run a round.
pub(crate) const PUT_OFF_AT_MOST: u32 = 3;

/// The reason why a period yields no cadence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InvalidCadence {
    /// The period or delay is zero.
    Zero,
    /// The schedule function or the calendar returns no first time.
    NoRound,
    /// An option was set that such a period does not have.
    Option,
}

/// The times of one repeating timer: its grid or delay, and what happened so far.
pub(crate) struct Cadence {
    beat: Beat,
    /// The deadline that the cadence asked for. If a round is woken at another one, a call moved
    /// it; if this is `None`, the task itself moved it.
    expected: Option<Time>,
    /// An extra round that a call has asked for (REPEAT-4).
    extra: Option<ExtraRound>,
    jitter: u64,
    policy: Missed,
    grace: Duration,
    after_panic: AfterPanic,
    random: Random,
    /// How often in a row the next round was put off.
    put_off: u32,
    /// Rounds that were skipped and are not reported yet.
    missed: u64,
    /// The number of rounds that have run.
    rounds: u64,
    /// The number of rounds in a row that panicked.
    panics: u32,
    /// The answer of the round that ran last; `None` if it panicked.
    answer: Option<Next>,
}

/// A round between two rounds of the cadence.
#[derive(Clone, Copy, Debug)]
struct ExtraRound {
    /// When it is due. If the timer is woken at another time, a call moved it, and it is no extra
    /// round any more.
    at: Time,
    /// When the round was due that was pending before it.
    kept: Time,
}

/// The rule for the next time.
enum Beat {
    Rate {
        period: u64,
        /// The first point of the grid that is not handled yet.
        point: Time,
    },
    Delay(Duration),
    Schedule(Schedule),
    Calendar(Box<Calendar>),
}

/// What a round knows of the repetition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::scheduler) struct RoundInfo {
    pub(in crate::scheduler) number: u64,
    /// The number of rounds that were skipped before it.
    pub(in crate::scheduler) missed: u64,
    pub(in crate::scheduler) scheduled_for: Option<SystemTime>,
}

impl Cadence {
    /// Makes the cadence and the first deadline: `first`, if the period has one. This calls a
    /// schedule function or a calendar, which is user code.
    pub(super) fn begin(
        asked: Period,
        first: Option<Time>,
        now: Time,
        clock: &Clock,
        random: u64,
        least_grace: Duration,
    ) -> Result<(Self, Time), InvalidCadence> {
        let mut random = Random(random);
        let mut kind = asked.kind;
        let has_first = first.is_some();
        // Otherwise a caller who counts on the option would never learn that it does nothing.
        let (has_grid, has_length, has_jitter) = match &kind {
            PeriodKind::Rate(_) => (true, true, true),
            PeriodKind::Delay(_) => (false, true, true),
            PeriodKind::Schedule(_) => (false, false, true),
            PeriodKind::Calendar(_) => (true, false, false),
        };
        if (!has_grid && (asked.missed.is_some() || asked.grace.is_some()))
            || (!has_length && asked.random_phase)
            || (!has_jitter && !asked.jitter.is_zero())
        {
            return Err(InvalidCadence::Option);
        }
        let length = match &kind {
            PeriodKind::Rate(length) | PeriodKind::Delay(length) => Some(*length),
            PeriodKind::Schedule(_) | PeriodKind::Calendar(_) => None,
        };
        // Refused also with `first`: all later rounds would be due at once.
        if length == Some(Duration::ZERO) {
            return Err(InvalidCadence::Zero);
        }
        // A random phase counts from `first`, or from the call; then the period is not added.
        let mut first = match (first, &mut kind) {
            (Some(first), _) => first,
            (None, PeriodKind::Rate(_) | PeriodKind::Delay(_)) if asked.random_phase => now,
            (None, PeriodKind::Rate(length) | PeriodKind::Delay(length)) => now + *length,
            (None, PeriodKind::Schedule(next)) => {
                let so_far = SoFar {
                    rounds: 0,
                    deadline: None,
                    now,
                };
                next(&so_far).ok_or(InvalidCadence::NoRound)?
            }
            (None, PeriodKind::Calendar(_)) => now,
        };
        if let Some(length) = length.filter(|_| asked.random_phase) {
            first = first + Duration::from_nanos(random.below(nanos(length)));
        }
        // With more jitter a round could come before the round before it.
        let jitter = nanos(asked.jitter).min(match &kind {
            PeriodKind::Rate(period) => nanos(*period) / 2,
            PeriodKind::Delay(delay) => nanos(*delay),
            PeriodKind::Schedule(_) | PeriodKind::Calendar(_) => u64::MAX,
        });
        // A first round that was asked for has no date, as one that was moved.
        let moved = has_first && matches!(kind, PeriodKind::Calendar(_));
        let mut cadence = Cadence {
            beat: match kind {
                PeriodKind::Rate(period) => Beat::Rate {
                    period: nanos(period),
                    point: first,
                },
                PeriodKind::Delay(delay) => Beat::Delay(delay),
                PeriodKind::Schedule(next) => Beat::Schedule(next),
                PeriodKind::Calendar(next) => {
                    let policy = asked.missed.unwrap_or_default();
                    let grace = asked.grace.map(|grace| grace.max(least_grace));
                    let calendar = Calendar::new(next, clock.clone(), policy, grace);
                    let mut calendar = Box::new(calendar);
                    let look = calendar.next_look(now).ok_or(InvalidCadence::NoRound)?;
                    if !has_first {
                        first = look;
                    }
                    Beat::Calendar(calendar)
                }
            },
            expected: None,
            extra: None,
            jitter,
            policy: asked.missed.unwrap_or_default(),
            grace: asked.grace.or(length).unwrap_or_default().max(least_grace),
            after_panic: asked.after_panic,
            random,
            put_off: 0,
            missed: 0,
            rounds: 0,
            panics: 0,
            answer: None,
        };
        let deadline = cadence.expect(first, now);
        if moved {
            cadence.expected = None;
        }
        Ok((cadence, deadline))
    }

    /// Decides how the round that was due at `deadline` starts. Called under a lock, so it is
    /// arithmetic alone (REPEAT-1).
    pub(in crate::scheduler) fn start(&mut self, deadline: Time, now: Time) -> Start {
        if let Some(extra) = &self.extra {
            if extra.at == deadline {
                return Start::Round(deadline);
            }
            self.extra = None;
        }
        // Without a grid no round is missed.
        let Beat::Rate { period, point } = &mut self.beat else {
            return Start::Round(deadline);
        };
        if self.expected != Some(deadline) {
            // REPEAT-2: the round was moved. If it was moved into the past, the grid begins where
            // it runs.
            let late = now.since(deadline) >= self.grace;
            let begins = if late { now } else { deadline };
            *point = begins + Duration::from_nanos(*period);
            self.put_off = 0;
            return Start::Round(deadline);
        }
        let due = DueRound {
            point: *point,
            period: *period,
            deadline,
        };
        // Put off too often in a row: run the latest round instead of skipping it.
        let policy = match self.policy {
            Missed::Skip | Missed::AtMost(0) if self.put_off >= PUT_OFF_AT_MOST => Missed::Once,
            policy => policy,
        };
        let plan = plan(due, now, policy, self.grace);
        self.missed = self.missed.saturating_add(plan.missed);
        *point = plan.next;
        if let Some(deadline) = plan.runs {
            self.put_off = 0;
            return Start::Round(deadline);
        }
        self.put_off += 1;
        Start::PutOff(self.expect(plan.next, now))
    }

    /// Makes the pending round, which is due at `kept`, an extra round that is due at `at`
    /// (REPEAT-4).
    pub(in crate::scheduler) fn run_now(&mut self, kept: Time, at: Time) {
        self.extra = Some(ExtraRound { at, kept });
    }

    /// Returns whether a calendar says when the rounds are due, so that [`look`](Self::look) has to
    /// be asked before a round.
    pub(in crate::scheduler) fn has_calendar(&self) -> bool {
        matches!(self.beat, Beat::Calendar(_))
    }

    /// Returns whether a run that was due at `deadline` and has started at `started` is a round.
    /// This asks a calendar, which is user code.
    pub(in crate::scheduler) fn look(&mut self, deadline: Time, started: Time) -> bool {
        let Beat::Calendar(calendar) = &mut self.beat else {
            return true;
        };
        if self.extra.is_some() {
            return true;
        }
        // REPEAT-2. A shutdown runs rounds early, and these are none of the calendar either.
        if self.expected != Some(deadline) || started < deadline {
            calendar.pass();
            return true;
        }
        let is_round = calendar.look();
        self.missed = self.missed.saturating_add(calendar.take_missed());
        is_round
    }

    /// Returns when to look again after a look that was no round, if the calendar goes on.
    pub(in crate::scheduler) fn next_look(&mut self, now: Time) -> Option<Time> {
        let Beat::Calendar(calendar) = &mut self.beat else {
            return None;
        };
        let look = calendar.next_look(now)?;
        Some(self.expect(look, now))
    }

    /// Begins a round.
    pub(in crate::scheduler) fn begin_round(&mut self) -> RoundInfo {
        self.answer = None;
        self.rounds = self.rounds.saturating_add(1);
        RoundInfo {
            number: self.rounds,
            missed: std::mem::take(&mut self.missed),
            scheduled_for: match &mut self.beat {
                Beat::Calendar(calendar) => calendar.take_date(),
                _ => None,
            },
        }
    }

    /// Ends a round that did not panic.
    pub(in crate::scheduler) fn end_round(&mut self, answer: Next) {
        self.answer = Some(answer);
    }

    /// Takes the answer of the last round; `None` if it panicked.
    pub(crate) fn take_answer(&mut self) -> Option<Next> {
        self.answer.take()
    }

    /// Returns when the next round is due, if there is one, after the round that was due at
    /// `deadline` and ended at `ended`. This calls a schedule function or a calendar, which is user
    /// code.
    pub(crate) fn next(&mut self, deadline: Time, ended: Time) -> Option<Time> {
        let extra = self.extra.take();
        // REPEAT-2: if the task sets the next time itself, the grid begins anew there.
        let expected = self.expected.take();
        // Set by a back-off only.
        let mut no_earlier = Time::ZERO;
        match (self.take_answer(), self.after_panic) {
            (Some(answer), _) => {
                self.panics = 0;
                match answer {
                    Next::Again => {}
                    Next::After(delay) => return Some(ended + delay),
                    Next::At(time) => return Some(time),
                    Next::Stop => return None,
                }
            }
            (None, AfterPanic::Continue) => {}
            (None, AfterPanic::Stop) => return None,
            (None, AfterPanic::BackOff { first, most }) => {
                self.panics = self.panics.saturating_add(1);
                no_earlier = ended + Backoff::exponential(first..=most).delay(self.panics, 0);
            }
        }
        if let Some(extra) = extra.filter(|extra| extra.kept >= no_earlier) {
            self.expected = expected;
            return Some(extra.kept);
        }
        // A fixed rate skips points instead of leaving its grid.
        let time = match &mut self.beat {
            Beat::Rate { period, point } => {
                *point = first_from(*point, *period, no_earlier);
                *point
            }
            Beat::Delay(delay) => (ended + *delay).max(no_earlier),
            Beat::Schedule(next) => {
                let so_far = SoFar {
                    rounds: self.rounds,
                    deadline: Some(deadline),
                    now: ended,
                };
                next(&so_far)?.max(no_earlier)
            }
            Beat::Calendar(calendar) => calendar.next_look(ended)?.max(no_earlier),
        };
        Some(self.expect(time, ended))
    }

    /// Returns the deadline of the round that is due at `time`, with jitter. The jitter moves it no
    /// earlier than `now`.
    fn expect(&mut self, time: Time, now: Time) -> Time {
        let mut deadline = time;
        if self.jitter > 0 && time != Time::MAX {
            let span = self.jitter.saturating_mul(2).saturating_add(1);
            let off = self.random.below(span);
            deadline = match off.checked_sub(self.jitter) {
                Some(later) => time + Duration::from_nanos(later),
                None => (time - Duration::from_nanos(self.jitter - off)).max(now.min(time)),
            };
        }
        self.expected = Some(deadline);
        deadline
    }
}

/// A random number generator. It is seeded from the engine's seed, so it repeats with that seed.
struct Random(u64);

impl Random {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = splitmix64(self.0);
        ((u128::from(self.0) * u128::from(bound)) >> u64::BITS) as u64
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests;
