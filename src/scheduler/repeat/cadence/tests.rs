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
    let clock = Clock::manual(&clock);
    Cadence::begin(period, first, at(now), &clock, random, FINE)
}

/// Runs a round that starts on time and takes `takes` nanoseconds. Returns the next deadline.
fn round(cadence: &mut Cadence, deadline: Time, takes: u64, answer: Option<Next>) -> Option<Time> {
    assert_eq!(cadence.start(deadline, deadline), Start::Round(deadline));
    cadence.begin_round();
    if let Some(answer) = answer {
        cadence.end_round(answer);
    }
    cadence.next(deadline, deadline + Duration::from_nanos(takes))
}

fn progress(cadence: &mut Cadence) -> (u64, u64) {
    let progress = cadence.begin_round();
    (progress.number, progress.missed)
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
    // A date that is not after the time that was asked for is none.
    for calendar in [Period::calendar(|_| None), Period::calendar(Some)] {
        let refused = try_begin(calendar.first(P), 5, 7);
        assert_eq!(refused.err(), Some(InvalidCadence::NoRound));
    }
}

#[test]
fn an_option_that_a_period_does_not_have_is_refused() {
    let delay = || Period::fixed_delay(P);
    let schedule = || Period::schedule(|so_far| Some(so_far.now + P));
    let calendar = || Period::calendar(|after| Some(after + P));
    for refused in [
        // Also with the default value: the caller counts on it.
        delay().missed(Missed::default()),
        delay().grace(P),
        schedule().missed(Missed::All),
        schedule().grace(P),
        schedule().random_phase(),
        schedule().random_phase().first(P),
        calendar().random_phase(),
        calendar().jitter(P),
    ] {
        let what = format!("{refused:?}");
        let begun = try_begin(refused, 5, 7);
        assert_eq!(begun.err(), Some(InvalidCadence::Option), "{what}");
    }
    for taken in [
        delay().random_phase().jitter(P).on_panic(AfterPanic::Stop),
        schedule().jitter(P).first(P),
        calendar().missed(Missed::All).grace(P).first(P),
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
    assert_eq!(progress(&mut cadence), (2, 0));
    cadence.end_round(Next::Again);
    assert_eq!(cadence.next(at(333), at(341)), Some(at(433)));
    // Moved to 350 and woken very late: the round is not missed, and the grid begins anew.
    let moved = cadence.start(at(350), at(9_000));
    assert_eq!(moved, Start::Round(at(350)));
    assert_eq!(progress(&mut cadence), (3, 0));
    cadence.end_round(Next::Again);
    assert_eq!(cadence.next(at(350), at(9_001)), Some(at(9_100)));
    assert_eq!(
        cadence.start(at(9_100), at(9_350)),
        Start::PutOff(at(9_400))
    );
    let on_time = cadence.start(at(9_400), at(9_440));
    assert_eq!(on_time, Start::Round(at(9_400)));
    assert_eq!(progress(&mut cadence), (4, 3));
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
                told += cadence.begin_round().missed;
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
