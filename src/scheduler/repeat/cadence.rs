//! Computes when the rounds of one key are due. It has no clock, no lock and no engine: times are
//! arguments.

use std::time::Duration;

use super::missed::{DueRound, Missed, first_from, plan};
use super::next::Next;
use super::period::{AfterPanic, Period, PeriodKind, Schedule, SoFar};
use crate::backoff::Backoff;
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
    /// The schedule function returns no first time.
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
}

impl Cadence {
    /// Makes the cadence and the first deadline: `first`, if the period has one. This calls a
    /// schedule function, which is user code.
    pub(super) fn begin(
        asked: Period,
        first: Option<Time>,
        now: Time,
        random: u64,
        least_grace: Duration,
    ) -> Result<(Self, Time), InvalidCadence> {
        let mut random = Random(random);
        let mut kind = asked.kind;
        // Otherwise a caller who counts on the option would never learn that it does nothing.
        let (has_grid, has_length) = match &kind {
            PeriodKind::Rate(_) => (true, true),
            PeriodKind::Delay(_) => (false, true),
            PeriodKind::Schedule(_) => (false, false),
        };
        if (!has_grid && (asked.missed.is_some() || asked.grace.is_some()))
            || (!has_length && asked.random_phase)
        {
            return Err(InvalidCadence::Option);
        }
        let length = match &kind {
            PeriodKind::Rate(length) | PeriodKind::Delay(length) => Some(*length),
            PeriodKind::Schedule(_) => None,
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
        };
        if let Some(length) = length.filter(|_| asked.random_phase) {
            first = first + Duration::from_nanos(random.below(nanos(length)));
        }
        // With more jitter a round could come before the round before it.
        let jitter = nanos(asked.jitter).min(match &kind {
            PeriodKind::Rate(period) => nanos(*period) / 2,
            PeriodKind::Delay(delay) => nanos(*delay),
            PeriodKind::Schedule(_) => u64::MAX,
        });
        let mut cadence = Cadence {
            beat: match kind {
                PeriodKind::Rate(period) => Beat::Rate {
                    period: nanos(period),
                    point: first,
                },
                PeriodKind::Delay(delay) => Beat::Delay(delay),
                PeriodKind::Schedule(next) => Beat::Schedule(next),
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

    /// Begins a round. Returns its number, and how many rounds were skipped before it.
    pub(in crate::scheduler) fn begin_round(&mut self) -> (u64, u64) {
        self.answer = None;
        self.rounds = self.rounds.saturating_add(1);
        (self.rounds, std::mem::take(&mut self.missed))
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
    /// `deadline` and ended at `ended`. This calls a schedule function, which is user code.
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
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::tick::TickSize;

    const P: Duration = Duration::from_nanos(100);
    const FINE: Duration = Duration::from_nanos(1);

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn begin(period: Period, now: u64) -> (Cadence, Time) {
        match try_begin(period, now, 7) {
            Ok(begun) => begun,
            Err(why) => panic!("{why:?}"),
        }
    }

    /// Begins with the first time that the period has, as `repeat` does.
    fn try_begin(period: Period, now: u64, random: u64) -> Result<(Cadence, Time), InvalidCadence> {
        let (clock, ticks) = (ManualClock::new(), TickSize::from_nanos(1));
        let first =
            (period.first).map(|when| when.deadline_from(at(now), &Clock::manual(&clock), ticks));
        Cadence::begin(period, first, at(now), random, FINE)
    }

    /// Runs a round that starts on time and takes `takes` nanoseconds. Returns the next deadline.
    fn round(
        cadence: &mut Cadence,
        deadline: Time,
        takes: u64,
        answer: Option<Next>,
    ) -> Option<Time> {
        assert_eq!(cadence.start(deadline, deadline), Start::Round(deadline));
        cadence.begin_round();
        if let Some(answer) = answer {
            cadence.end_round(answer);
        }
        cadence.next(deadline, deadline + Duration::from_nanos(takes))
    }

    #[test]
    fn a_period_of_zero_is_none() {
        for period in [
            Period::fixed_rate(Duration::ZERO),
            Period::fixed_delay(Duration::ZERO).first(P),
        ] {
            let refused = try_begin(period, 5, 7);
            assert_eq!(refused.err(), Some(InvalidCadence::Zero));
        }
        let refused = try_begin(Period::schedule(|_| None), 5, 7);
        assert_eq!(refused.err(), Some(InvalidCadence::NoRound));
    }

    #[test]
    fn an_option_that_a_period_does_not_have_is_refused() {
        let delay = || Period::fixed_delay(P);
        let schedule = || Period::schedule(|so_far| Some(so_far.now + P));
        for refused in [
            // Also with the default value: the caller counts on it.
            delay().missed(Missed::default()),
            delay().grace(P),
            schedule().missed(Missed::All),
            schedule().grace(P),
            schedule().random_phase(),
            schedule().random_phase().first(P),
        ] {
            let what = format!("{refused:?}");
            let begun = try_begin(refused, 5, 7);
            assert_eq!(begun.err(), Some(InvalidCadence::Option), "{what}");
        }
        for taken in [
            delay().random_phase().jitter(P).on_panic(AfterPanic::Stop),
            schedule().jitter(P).first(P),
        ] {
            assert!(try_begin(taken, 5, 7).is_ok());
        }
    }

    #[test]
    fn the_first_round() {
        for (period, first) in [
            (Period::fixed_rate(P), 150),
            (Period::fixed_delay(P), 150),
            (Period::fixed_rate(P).first(Duration::ZERO), 50),
            (Period::fixed_delay(P).first(7 * P), 750),
            (Period::schedule(|so_far| Some(so_far.now + 2 * P)), 250),
            (Period::schedule(|_| None).first(P), 150),
        ] {
            assert_eq!(begin(period, 50).1, at(first));
        }
        let never = Period::fixed_rate(Duration::MAX);
        assert_eq!(begin(never, 50).1, Time::MAX);
    }

    #[test]
    fn a_random_phase_lies_within_one_period() {
        let mut seen = Vec::new();
        for seed in 0..200 {
            let period = Period::fixed_rate(P).random_phase();
            let (_, first) = try_begin(period, 1_000, seed).ok().unwrap();
            assert!((at(1_000)..at(1_100)).contains(&first));
            let period = Period::fixed_delay(P).random_phase().first(3 * P);
            let (_, later) = try_begin(period, 1_000, seed).ok().unwrap();
            assert_eq!(later, first + 3 * P, "the same seed gives the same phase");
            seen.push(first);
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 60, "{}", seen.len());
    }

    #[test]
    fn a_rate_keeps_its_grid_and_a_delay_its_distance() {
        let (mut rate, mut due) = begin(Period::fixed_rate(P), 0);
        for beat in 1..50 {
            assert_eq!(due, at(beat * 100));
            due = round(&mut rate, due, beat * 7 % 90, Some(Next::Again)).unwrap();
        }
        let (mut delay, mut due) = begin(Period::fixed_delay(P), 0);
        for beat in 1..50 {
            let next = round(&mut delay, due, beat, Some(Next::Again)).unwrap();
            assert_eq!(next.since(due), Duration::from_nanos(100 + beat));
            due = next;
        }
    }

    #[test]
    fn jitter_never_adds_up_and_is_symmetric() {
        let (mut cadence, mut due) = begin(Period::fixed_rate(P).jitter(20 * FINE), 0);
        let (mut earliest, mut latest, mut sum) = (0, 0, 0);
        for beat in 1..2_000_i64 {
            let off = due.as_nanos() as i64 - beat * 100;
            assert!((-20..=20).contains(&off), "{off}");
            (earliest, latest, sum) = (earliest.min(off), latest.max(off), sum + off);
            due = round(&mut cadence, due, 1, Some(Next::Again)).unwrap();
        }
        assert_eq!((earliest, latest), (-20, 20));
        assert!(sum.abs() < 2_000, "{sum}");
        // The jitter is half a period at most, and no round is due before the end of the round
        // before.
        let (mut cadence, mut due) = begin(Period::fixed_rate(P).jitter(Duration::MAX), 0);
        for beat in 1..500 {
            let off = due.as_nanos().abs_diff(beat * 100);
            assert!(off <= 50, "{off}");
            let ended = due + 30 * FINE;
            due = round(&mut cadence, due, 30, Some(Next::Again)).unwrap();
            assert!(due >= ended.min(at((beat + 1) * 100)));
        }
    }

    #[test]
    fn after_a_move_the_grid_begins_there() {
        let (mut cadence, first) = begin(Period::fixed_rate(P), 0);
        let due = round(&mut cadence, first, 1, Some(Next::Again)).unwrap();
        assert_eq!(due, at(200));
        // Moved to 333, and only a little late.
        assert_eq!(cadence.start(at(333), at(340)), Start::Round(at(333)));
        assert_eq!(cadence.begin_round(), (2, 0));
        cadence.end_round(Next::Again);
        assert_eq!(cadence.next(at(333), at(341)), Some(at(433)));
        // Moved to 350 and woken very late: the round is not missed, and the grid begins anew.
        let moved = cadence.start(at(350), at(9_000));
        assert_eq!(moved, Start::Round(at(350)));
        assert_eq!(cadence.begin_round(), (3, 0));
        cadence.end_round(Next::Again);
        assert_eq!(cadence.next(at(350), at(9_001)), Some(at(9_100)));
        assert_eq!(
            cadence.start(at(9_100), at(9_350)),
            Start::PutOff(at(9_400))
        );
        let on_time = cadence.start(at(9_400), at(9_440));
        assert_eq!(on_time, Start::Round(at(9_400)));
        assert_eq!(cadence.begin_round(), (4, 3));
    }

    #[test]
    fn the_task_moves_its_next_round() {
        // Each row has the answer, the deadline, the start, and the deadline after that.
        for (next, expected, starts, then) in [
            (Next::After(3 * P), 405, 405, 505),
            (Next::After(3 * P), 405, 450, 505),
            (Next::After(3 * P), 405, 800, 900),
            (Next::At(at(777)), 777, 777, 877),
            (Next::At(at(3)), 3, 105, 205),
        ] {
            let (mut cadence, first) = begin(Period::fixed_rate(P), 0);
            let due = round(&mut cadence, first, 5, Some(next)).unwrap();
            assert_eq!(due, at(expected));
            assert_eq!(cadence.start(due, at(starts)), Start::Round(due));
            cadence.begin_round();
            cadence.end_round(Next::Again);
            assert_eq!(cadence.next(due, at(starts + 1)), Some(at(then)));
        }
        let (mut cadence, first) = begin(Period::fixed_rate(P), 0);
        assert_eq!(round(&mut cadence, first, 5, Some(Next::Stop)), None);
    }

    #[test]
    fn who_is_always_late_runs_now_and_then() {
        let (mut cadence, mut due) = begin(Period::fixed_rate(P), 0);
        let (mut runs, mut points, mut told) = (0, 0, 0);
        for _ in 0..40 {
            // Each start is two and a half periods late.
            let now = due + 250 * FINE;
            match cadence.start(due, now) {
                Start::PutOff(next) => {
                    assert!(next > now);
                    due = next;
                }
                Start::Round(_) => {
                    runs += 1;
                    told += cadence.begin_round().1;
                    cadence.end_round(Next::Again);
                    due = cadence.next(due, now).unwrap();
                    points = due.as_nanos() / 100 - 1;
                }
                Start::Once => unreachable!("a repeating timer does not start once"),
            }
        }
        assert_eq!(runs, 10);
        assert_eq!(
            runs + told,
            points,
            "REPEAT-3: every point ran or was skipped"
        );
    }

    #[test]
    fn c098_backing_off_doubles_up_to_its_limit() {
        let back_off = AfterPanic::BackOff {
            first: 150 * FINE,
            most: 700 * FINE,
        };
        let (mut cadence, mut due) = begin(Period::fixed_rate(P).on_panic(back_off), 0);
        // The delay counts from the end of the round; then comes the next point of the grid.
        for next in [300, 700, 1_400, 2_200, 3_000] {
            due = round(&mut cadence, due, 10, None).unwrap();
            assert_eq!(due, at(next));
        }
        due = round(&mut cadence, due, 10, Some(Next::Again)).unwrap();
        assert_eq!(due, at(3_100));
        due = round(&mut cadence, due, 10, None).unwrap();
        assert_eq!(due, at(3_300), "a round without a panic resets the delay");

        let (mut cadence, first) = begin(Period::fixed_delay(P).on_panic(back_off), 0);
        assert_eq!(round(&mut cadence, first, 10, None), Some(at(260)));
        let (mut cadence, first) = begin(Period::fixed_delay(4 * P).on_panic(back_off), 0);
        assert_eq!(round(&mut cadence, first, 10, None), Some(at(810)));
        for _ in 0..100 {
            let due = at(5_000);
            let next = round(&mut cadence, due, 0, None).unwrap();
            assert!(next.since(due) <= 700 * FINE);
        }

        let (mut cadence, first) = begin(Period::fixed_rate(P).on_panic(AfterPanic::Stop), 0);
        assert_eq!(round(&mut cadence, first, 10, None), None);
        let (mut cadence, first) = begin(Period::fixed_rate(P), 0);
        assert_eq!(round(&mut cadence, first, 10, None), Some(at(200)));
    }

    #[test]
    fn the_numeric_end_saturates() {
        let period = Period::fixed_rate(P).jitter(10 * FINE);
        let (mut cadence, first) = begin(period, u64::MAX - 3);
        assert_eq!(
            first,
            Time::MAX,
            "a deadline at the end of the clock never comes"
        );
        let late = cadence.start(at(u64::MAX - 1), Time::MAX);
        assert_eq!(late, Start::Round(at(u64::MAX - 1)));
        cadence.begin_round();
        cadence.end_round(Next::Again);
        assert_eq!(cadence.next(at(u64::MAX - 1), Time::MAX), Some(Time::MAX));
    }
}
