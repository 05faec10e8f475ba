//! When the rounds of one key are due. No clock in here, no lock and no engine: the times are
//! arguments.

use std::time::Duration;

use super::missed::{Due, Missed, first_from, plan};
use super::next::Next;
use super::period::{AfterPanic, Kind, Period, Schedule, SoFar};
use crate::shard::{Start, mix};
use crate::tick::Time;

/// So often in a row a round is put off. On a machine that is always late by more than the grace it
/// would never run otherwise.
const PUT_OFF_AT_MOST: u32 = 3;

/// Why there is no rhythm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoRhythm {
    /// A period of zero.
    Zero,
    /// The schedule function knows no first time.
    NoRound,
}

pub(crate) struct Rhythm {
    beat: Beat,
    /// The deadline that was asked for. One that wakes at another was moved; after `None` the task
    /// itself moved it.
    expected: Option<Time>,
    jitter: u64,
    policy: Missed,
    grace: Duration,
    after_panic: AfterPanic,
    random: Random,
    /// How often in a row the next round was put off.
    put_off: u32,
    /// Left out and not told yet.
    missed: u64,
    /// How many have run.
    rounds: u64,
    /// How many panicked in a row.
    panics: u32,
    /// Of the round that ran last; `None` if it panicked.
    answer: Option<Next>,
}

enum Beat {
    Rate {
        period: u64,
        /// The first point of the grid that is not done with.
        point: Time,
    },
    Delay(Duration),
    Schedule(Schedule),
}

impl Rhythm {
    /// The rhythm and the first deadline. Calls a schedule function, so this is user code.
    pub(super) fn begin(
        asked: Period,
        now: Time,
        random: u64,
        least_grace: Duration,
    ) -> Result<(Self, Time), NoRhythm> {
        let mut random = Random(random);
        let mut kind = asked.kind;
        let length = match &kind {
            Kind::Rate(length) | Kind::Delay(length) => Some(*length),
            Kind::Schedule(_) => None,
        };
        if length == Some(Duration::ZERO) {
            return Err(NoRhythm::Zero);
        }
        let mut first = match (asked.first, &mut kind) {
            (Some(first), _) => now + first,
            (None, Kind::Rate(_) | Kind::Delay(_)) if asked.random_phase => now,
            (None, Kind::Rate(length) | Kind::Delay(length)) => now + *length,
            (None, Kind::Schedule(next)) => {
                let so_far = SoFar {
                    rounds: 0,
                    deadline: None,
                    now,
                };
                next(&so_far).ok_or(NoRhythm::NoRound)?
            }
        };
        if let Some(length) = length.filter(|_| asked.random_phase) {
            first = first + Duration::from_nanos(random.below(nanos(length)));
        }
        let jitter = nanos(asked.jitter).min(match &kind {
            Kind::Rate(period) => nanos(*period) / 2,
            Kind::Delay(delay) => nanos(*delay),
            Kind::Schedule(_) => u64::MAX,
        });
        let mut rhythm = Rhythm {
            beat: match kind {
                Kind::Rate(period) => Beat::Rate {
                    period: nanos(period),
                    point: first,
                },
                Kind::Delay(delay) => Beat::Delay(delay),
                Kind::Schedule(next) => Beat::Schedule(next),
            },
            expected: None,
            jitter,
            policy: asked.missed,
            grace: asked.grace.or(length).unwrap_or_default().max(least_grace),
            after_panic: asked.after_panic,
            random,
            put_off: 0,
            missed: 0,
            rounds: 0,
            panics: 0,
            answer: None,
        };
        let deadline = rhythm.expect(first, now);
        Ok((rhythm, deadline))
    }

    /// How the round that was due at `deadline` starts. Under a lock: arithmetic alone (REPEAT-1).
    pub(super) fn start(&mut self, deadline: Time, now: Time) -> Start {
        let Beat::Rate { period, point } = &mut self.beat else {
            return Start::Round(deadline);
        };
        if self.expected != Some(deadline) {
            // REPEAT-2. What was moved into the past begins where it runs.
            let late = now.since(deadline) >= self.grace;
            let begins = if late { now } else { deadline };
            *point = begins + Duration::from_nanos(*period);
            self.put_off = 0;
            return Start::Round(deadline);
        }
        let due = Due {
            point: *point,
            period: *period,
            deadline,
        };
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

    /// A round starts: its number, and how many were left out before it.
    pub(super) fn begin_round(&mut self) -> (u64, u64) {
        self.answer = None;
        self.rounds = self.rounds.saturating_add(1);
        (self.rounds, std::mem::take(&mut self.missed))
    }

    /// The round has ended well.
    pub(super) fn end_round(&mut self, answer: Next) {
        self.answer = Some(answer);
    }

    /// What the round answered; `None` if it panicked.
    pub(crate) fn take_answer(&mut self) -> Option<Next> {
        self.answer.take()
    }

    /// After the round that was due at `deadline` and ended at `ended`: when the next one is due,
    /// if there is one. Calls a schedule function, so this is user code.
    pub(crate) fn next(&mut self, deadline: Time, ended: Time) -> Option<Time> {
        self.expected = None;
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
                let times = 1_u32.checked_shl(self.panics).unwrap_or(u32::MAX);
                no_earlier = ended + first.saturating_mul(times).min(most);
                self.panics = self.panics.saturating_add(1);
            }
        }
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

    /// The deadline of the round that is due at `time`, give or take the jitter, which brings it no
    /// nearer than `now`.
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

/// Repeats with its seed, which comes from the engine's.
struct Random(u64);

impl Random {
    /// Any number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix(self.0);
        ((u128::from(self.0) * u128::from(bound)) >> u64::BITS) as u64
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const P: Duration = Duration::from_nanos(100);
    const FINE: Duration = Duration::from_nanos(1);

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn begin(period: Period, now: u64) -> (Rhythm, Time) {
        match Rhythm::begin(period, at(now), 7, FINE) {
            Ok(begun) => begun,
            Err(why) => panic!("{why:?}"),
        }
    }

    /// A round that starts on time and takes so long. The next deadline.
    fn round(
        rhythm: &mut Rhythm,
        deadline: Time,
        takes: u64,
        answer: Option<Next>,
    ) -> Option<Time> {
        assert_eq!(rhythm.start(deadline, deadline), Start::Round(deadline));
        rhythm.begin_round();
        if let Some(answer) = answer {
            rhythm.end_round(answer);
        }
        rhythm.next(deadline, deadline + Duration::from_nanos(takes))
    }

    #[test]
    fn a_period_of_zero_is_none() {
        for period in [
            Period::fixed_rate(Duration::ZERO),
            Period::fixed_delay(Duration::ZERO).first_after(P),
        ] {
            let refused = Rhythm::begin(period, at(5), 7, FINE);
            assert_eq!(refused.err(), Some(NoRhythm::Zero));
        }
        let refused = Rhythm::begin(Period::schedule(|_| None), at(5), 7, FINE);
        assert_eq!(refused.err(), Some(NoRhythm::NoRound));
    }

    #[test]
    fn the_first_round() {
        for (period, first) in [
            (Period::fixed_rate(P), 150),
            (Period::fixed_delay(P), 150),
            (Period::fixed_rate(P).first_after(Duration::ZERO), 50),
            (Period::fixed_delay(P).first_after(7 * P), 750),
            (Period::schedule(|so_far| Some(so_far.now + 2 * P)), 250),
            (Period::schedule(|_| None).first_after(P), 150),
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
            let (_, first) = Rhythm::begin(period, at(1_000), seed, FINE).ok().unwrap();
            assert!((at(1_000)..at(1_100)).contains(&first));
            let period = Period::fixed_delay(P).random_phase().first_after(3 * P);
            let (_, later) = Rhythm::begin(period, at(1_000), seed, FINE).ok().unwrap();
            assert_eq!(later, first + 3 * P, "the same seed, the same phase");
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
        let (mut rhythm, mut due) = begin(Period::fixed_rate(P).jitter(20 * FINE), 0);
        let (mut earliest, mut latest, mut sum) = (0, 0, 0);
        for beat in 1..2_000_i64 {
            let off = due.as_nanos() as i64 - beat * 100;
            assert!((-20..=20).contains(&off), "{off}");
            (earliest, latest, sum) = (earliest.min(off), latest.max(off), sum + off);
            due = round(&mut rhythm, due, 1, Some(Next::Again)).unwrap();
        }
        assert_eq!((earliest, latest), (-20, 20));
        assert!(sum.abs() < 2_000, "{sum}");
        // Half a period at most, and never before the end of the round before.
        let (mut rhythm, mut due) = begin(Period::fixed_rate(P).jitter(Duration::MAX), 0);
        for beat in 1..500 {
            let off = due.as_nanos().abs_diff(beat * 100);
            assert!(off <= 50, "{off}");
            let ended = due + 30 * FINE;
            due = round(&mut rhythm, due, 30, Some(Next::Again)).unwrap();
            assert!(due >= ended.min(at((beat + 1) * 100)));
        }
    }

    #[test]
    fn after_a_move_the_grid_begins_there() {
        let (mut rhythm, first) = begin(Period::fixed_rate(P), 0);
        let due = round(&mut rhythm, first, 1, Some(Next::Again)).unwrap();
        assert_eq!(due, at(200));
        // Moved to 333, and as late as any.
        assert_eq!(rhythm.start(at(333), at(340)), Start::Round(at(333)));
        assert_eq!(rhythm.begin_round(), (2, 0));
        rhythm.end_round(Next::Again);
        assert_eq!(rhythm.next(at(333), at(341)), Some(at(433)));
        // Moved to 350, and woken very late: it is not missed, and begins anew.
        let moved = rhythm.start(at(350), at(9_000));
        assert_eq!(moved, Start::Round(at(350)));
        assert_eq!(rhythm.begin_round(), (3, 0));
        rhythm.end_round(Next::Again);
        assert_eq!(rhythm.next(at(350), at(9_001)), Some(at(9_100)));
        assert_eq!(rhythm.start(at(9_100), at(9_350)), Start::PutOff(at(9_400)));
        let on_time = rhythm.start(at(9_400), at(9_440));
        assert_eq!(on_time, Start::Round(at(9_400)));
        assert_eq!(rhythm.begin_round(), (4, 3));
    }

    #[test]
    fn the_task_moves_its_next_round() {
        // When it starts, and when the one after it is due.
        for (next, expected, starts, then) in [
            (Next::After(3 * P), 405, 405, 505),
            (Next::After(3 * P), 405, 450, 505),
            (Next::After(3 * P), 405, 800, 900),
            (Next::At(at(777)), 777, 777, 877),
            (Next::At(at(3)), 3, 105, 205),
        ] {
            let (mut rhythm, first) = begin(Period::fixed_rate(P), 0);
            let due = round(&mut rhythm, first, 5, Some(next)).unwrap();
            assert_eq!(due, at(expected));
            assert_eq!(rhythm.start(due, at(starts)), Start::Round(due));
            rhythm.begin_round();
            rhythm.end_round(Next::Again);
            assert_eq!(rhythm.next(due, at(starts + 1)), Some(at(then)));
        }
        let (mut rhythm, first) = begin(Period::fixed_rate(P), 0);
        assert_eq!(round(&mut rhythm, first, 5, Some(Next::Stop)), None);
    }

    #[test]
    fn who_is_always_late_runs_now_and_then() {
        let (mut rhythm, mut due) = begin(Period::fixed_rate(P), 0);
        let (mut runs, mut points, mut told) = (0, 0, 0);
        for _ in 0..40 {
            // Two and a half periods late, every time.
            let now = due + 250 * FINE;
            match rhythm.start(due, now) {
                Start::PutOff(next) => {
                    assert!(next > now);
                    due = next;
                }
                Start::Round(_) => {
                    runs += 1;
                    told += rhythm.begin_round().1;
                    rhythm.end_round(Next::Again);
                    due = rhythm.next(due, now).unwrap();
                    points = due.as_nanos() / 100 - 1;
                }
                Start::Once => unreachable!("it repeats"),
            }
        }
        assert_eq!(runs, 10);
        assert_eq!(runs + told, points, "REPEAT-3");
    }

    #[test]
    fn c098_backing_off_doubles_up_to_its_limit() {
        let back_off = AfterPanic::BackOff {
            first: 150 * FINE,
            most: 700 * FINE,
        };
        let (mut rhythm, mut due) = begin(Period::fixed_rate(P).on_panic(back_off), 0);
        // Counted from the end, and then to the next point of the grid.
        for next in [300, 700, 1_400, 2_200, 3_000] {
            due = round(&mut rhythm, due, 10, None).unwrap();
            assert_eq!(due, at(next));
        }
        due = round(&mut rhythm, due, 10, Some(Next::Again)).unwrap();
        assert_eq!(due, at(3_100));
        due = round(&mut rhythm, due, 10, None).unwrap();
        assert_eq!(due, at(3_300), "it begins anew");

        let (mut rhythm, first) = begin(Period::fixed_delay(P).on_panic(back_off), 0);
        assert_eq!(round(&mut rhythm, first, 10, None), Some(at(260)));
        let (mut rhythm, first) = begin(Period::fixed_delay(4 * P).on_panic(back_off), 0);
        assert_eq!(round(&mut rhythm, first, 10, None), Some(at(810)));
        for _ in 0..100 {
            let due = at(5_000);
            let next = round(&mut rhythm, due, 0, None).unwrap();
            assert!(next.since(due) <= 700 * FINE);
        }

        let (mut rhythm, first) = begin(Period::fixed_rate(P).on_panic(AfterPanic::Stop), 0);
        assert_eq!(round(&mut rhythm, first, 10, None), None);
        let (mut rhythm, first) = begin(Period::fixed_rate(P), 0);
        assert_eq!(round(&mut rhythm, first, 10, None), Some(at(200)));
    }

    #[test]
    fn the_numeric_end_saturates() {
        let period = Period::fixed_rate(P).jitter(10 * FINE);
        let (mut rhythm, first) = begin(period, u64::MAX - 3);
        assert_eq!(first, Time::MAX, "never");
        let late = rhythm.start(at(u64::MAX - 1), Time::MAX);
        assert_eq!(late, Start::Round(at(u64::MAX - 1)));
        rhythm.begin_round();
        rhythm.end_round(Next::Again);
        assert_eq!(rhythm.next(at(u64::MAX - 1), Time::MAX), Some(Time::MAX));
    }
}
