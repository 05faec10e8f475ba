//! Timers that repeat by dates: a wall clock that is set, rounds that were missed, and what a round
//! knows of its date.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kit::quiet::{WANTED, hush};
use kit::steps::{for_each_seed, stepped};
use tourbillon::test_util::Stepped;
use tourbillon::{
    ManualClock, Missed, Next, Period, Reschedule, ScheduleError, Scheduler, Shutdown,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The date that is `since` after the start of 2026, by UTC.
fn date(since: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_454 * DAY + since
}

/// The first date after `after` at which a whole number of periods has passed since 1970.
fn each(period: Duration) -> impl Fn(SystemTime) -> Option<SystemTime> + Send + 'static {
    move |after| {
        let since = after.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let next = (since.as_nanos() / period.as_nanos() + 1) * period.as_nanos();
        Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(next).ok()?))
    }
}

/// What a round was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    /// Its date, since the start of 2026.
    date: Option<Duration>,
    /// What the wall clock showed, without the part of a second.
    wall: Duration,
    missed: u64,
}

/// A stepped scheduler with one timer by dates, whose wall clock stands at the start of 2026.
struct Rig {
    scheduler: Stepped<u64>,
    hand: ManualClock,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Rig {
    fn new(period: Period) -> Self {
        let scheduler = stepped(7);
        let hand = scheduler.clock();
        hand.set_wall(date(Duration::ZERO));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, clock) = (Arc::clone(&seen), hand.clone());
        let armed = scheduler.handle().repeat(1, period, move |round| {
            let since = |date: SystemTime| date.duration_since(self::date(Duration::ZERO)).unwrap();
            noted.lock().unwrap().push(Seen {
                date: round.scheduled_for().map(since),
                wall: Duration::from_secs(since(clock.wall()).as_secs()),
                missed: round.missed(),
            });
        });
        assert!(armed.is_ok());
        Rig {
            scheduler,
            hand,
            seen,
        }
    }

    fn daily() -> Self {
        Self::new(Period::calendar(each(DAY)))
    }

    /// Sets the wall clock to this time of 2026.
    fn set(&self, since: Duration) {
        self.hand.set_wall(date(since));
    }

    /// Lets time pass, and returns the rounds.
    fn pass(&self, by: Duration) -> Vec<Seen> {
        self.scheduler.advance(by);
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// As [`pass`](Self::pass). Returns the dates alone.
    fn dates(&self, by: Duration) -> Vec<Option<Duration>> {
        self.pass(by).iter().map(|seen| seen.date).collect()
    }

    /// The machine is suspended: the wall clock goes on, and the clock of the timers does not.
    fn suspend(&self, by: Duration) {
        self.hand.set_wall(self.hand.wall() + by);
    }
}

// === dates ===

#[test]
fn a_round_knows_its_date_exactly() {
    // Midnight is never the day before.
    let rig = Rig::new(Period::calendar(each(DAY)));
    let seen = rig.pass(400 * DAY);
    assert_eq!(seen.len(), 400);
    for (day, seen) in (1..).zip(seen) {
        assert_eq!((seen.date, seen.wall), (Some(day * DAY), day * DAY));
    }
    // Also dates within a second, which lie between two ticks.
    let period = Duration::from_nanos(1_234_567);
    let rig = Rig::new(Period::calendar(each(period)));
    for date in rig.dates(Duration::from_secs(1)) {
        let since = date.unwrap() + 20_454 * DAY;
        assert_eq!(since.as_nanos() % period.as_nanos(), 0);
    }
}

#[test]
fn a_round_starts_at_its_date_or_within_a_tick_and_never_before() {
    let rig = Rig::new(Period::calendar(each(Duration::from_nanos(17_000_333))));
    let clock = rig.hand.clone();
    let (early, late) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (noted_early, noted_late) = (Arc::clone(&early), Arc::clone(&late));
    let period = Period::calendar(each(Duration::from_nanos(17_000_333)));
    let armed = rig.scheduler.handle().repeat(2, period, move |round| {
        match clock.wall().duration_since(round.scheduled_for().unwrap()) {
            Ok(by) if by <= Duration::from_millis(1) => {}
            Ok(_) => drop(noted_late.fetch_add(1, Ordering::Relaxed)),
            Err(_) => drop(noted_early.fetch_add(1, Ordering::Relaxed)),
        }
    });
    assert!(armed.is_ok());
    assert!(rig.pass(MINUTE).len() > 3_000);
    assert_eq!(
        (early.load(Ordering::Relaxed), late.load(Ordering::Relaxed)),
        (0, 0)
    );
}

#[test]
fn looks_are_no_rounds() {
    let asked = Arc::new(AtomicU64::new(0));
    let (noted, midnight) = (Arc::clone(&asked), each(7 * DAY));
    let rig = Rig::new(Period::calendar(move |after| {
        noted.fetch_add(1, Ordering::Relaxed);
        midnight(after)
    }));
    let fired = rig.scheduler.advance(DAY / 2);
    assert_eq!(fired, [], "no round, and none is logged");
    let asked = asked.load(Ordering::Relaxed);
    assert!(
        (12..=40).contains(&asked),
        "the calendar is asked each hour: {asked}"
    );
    assert!(rig.scheduler.handle().contains(&1));
    let next = rig.scheduler.handle().next_deadline().unwrap();
    assert!(next.since(rig.scheduler.now()) <= HOUR);
    let mut seen = rig.pass(7 * DAY);
    let seen = seen.pop().unwrap();
    assert_eq!(seen.missed, 0);
}

#[test]
fn changed_rules_move_a_pending_round() {
    let rule = Arc::new(Mutex::new(6 * HOUR));
    let read = Arc::clone(&rule);
    let rig = Rig::new(Period::calendar(move |after| {
        let at = *read.lock().unwrap();
        each(DAY)(after - at).map(|midnight| midnight + at)
    }));
    assert_eq!(rig.dates(DAY), [Some(6 * HOUR)]);
    // Later, and after that earlier.
    *rule.lock().unwrap() = 9 * HOUR;
    assert_eq!(rig.dates(DAY), [Some(DAY + 9 * HOUR)]);
    *rule.lock().unwrap() = 3 * HOUR;
    assert_eq!(rig.dates(DAY), [Some(2 * DAY + 3 * HOUR)]);
}

// === a wall clock that is set ===

#[test]
fn a_step_forward_over_a_date_runs_it_within_an_hour() {
    let rig = Rig::daily();
    assert_eq!(rig.pass(12 * HOUR), []);
    rig.set(DAY + 2 * HOUR);
    let seen = rig.pass(HOUR);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].date, Some(DAY));
    assert!(seen[0].wall >= DAY + 2 * HOUR && seen[0].wall <= DAY + 3 * HOUR);
    assert_eq!(rig.dates(DAY), [Some(2 * DAY)]);
}

#[test]
fn a_step_forward_before_a_date_brings_it_nearer() {
    let rig = Rig::daily();
    rig.pass(12 * HOUR);
    rig.set(20 * HOUR);
    let seen = rig.pass(4 * HOUR);
    assert_eq!((seen[0].date, seen[0].wall), (Some(DAY), DAY));
}

#[test]
fn a_step_back_puts_a_round_off() {
    let rig = Rig::daily();
    rig.pass(23 * HOUR + 30 * MINUTE);
    rig.set(20 * HOUR);
    assert_eq!(rig.pass(3 * HOUR), [], "the round would have been early");
    let seen = rig.pass(HOUR);
    assert_eq!((seen[0].date, seen[0].wall), (Some(DAY), DAY));
}

#[test]
fn after_a_small_step_back_no_date_runs_twice() {
    let rig = Rig::new(Period::calendar(each(HOUR)));
    assert_eq!(rig.dates(3 * HOUR + MINUTE).len(), 3);
    // The dates at two and three come again.
    rig.set(HOUR + 30 * MINUTE);
    assert_eq!(rig.dates(3 * HOUR), [Some(4 * HOUR)]);
}

#[test]
fn after_a_great_step_back_dates_run_again() {
    let rig = Rig::new(Period::calendar(each(HOUR)));
    rig.pass(10 * HOUR + MINUTE);
    rig.set(5 * HOUR + 30 * MINUTE);
    // The look at the next full hour by the old time notices it.
    let dates = rig.dates(4 * HOUR);
    let expected = [7, 8, 9].map(|hour| Some(hour * HOUR));
    assert!(dates.ends_with(&expected), "{dates:?}");
    assert!(dates.len() <= 4);
}

#[test]
fn a_clock_that_was_years_ahead_does_not_silence_a_timer() {
    let rig = Rig::daily();
    rig.set(3_650 * DAY + HOUR);
    assert_eq!(rig.dates(2 * DAY).len(), 3);
    rig.set(10 * DAY + HOUR);
    assert_eq!(rig.dates(2 * DAY), [Some(11 * DAY), Some(12 * DAY)]);
}

#[test]
fn a_clock_that_starts_in_1970_counts_a_bounded_number_of_dates() {
    // As on a machine without a battery, once its clock is set.
    let scheduler = stepped(1);
    let asked = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&asked);
    let dates = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&dates);
    let period = Period::calendar(move |after| {
        noted.fetch_add(1, Ordering::Relaxed);
        each(Duration::from_secs(1))(after)
    });
    let armed = scheduler
        .handle()
        .repeat(1, period.missed(Missed::All), move |round| {
            seen.lock()
                .unwrap()
                .push((round.scheduled_for().unwrap(), round.missed()));
        });
    assert!(armed.is_ok());
    scheduler.clock().set_wall(date(Duration::ZERO));
    scheduler.advance(Duration::from_secs(1));
    let dates = dates.lock().unwrap();
    // Those of the last hour, each once, and the first of them reports the others.
    assert!((3_600..=3_602).contains(&dates.len()), "{}", dates.len());
    assert!(dates[0].1 >= 9_999);
    assert!(dates[1..].iter().all(|(_, missed)| *missed == 0));
    assert!(dates.is_sorted());
    assert!(asked.load(Ordering::Relaxed) < 30_000);
}

// === a machine that was suspended ===

#[test]
fn a_suspended_machine_runs_the_latest_round_when_it_is_back() {
    let rig = Rig::daily();
    rig.pass(22 * HOUR);
    rig.suspend(8 * HOUR);
    let seen = rig.pass(HOUR);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].date, Some(DAY));
    assert!(seen[0].wall <= DAY + 7 * HOUR);
}

#[test]
fn missed_rounds_are_skipped_or_made_up_as_the_policy_says() {
    let hours =
        |hours: std::ops::RangeInclusive<u32>| hours.map(|hour| Some(hour * HOUR)).collect();
    let none: Vec<Option<Duration>> = Vec::new();
    // From 00:30 to 10:40. The next look is at one by the clock of the timers.
    let cases: [(Missed, Option<Duration>, Vec<Option<Duration>>); 12] = [
        // Without a grace, the latest one is not missed.
        (Missed::Skip, None, hours(11..=11)),
        (Missed::Once, None, hours(11..=11)),
        (Missed::AtMost(0), None, hours(11..=11)),
        (Missed::AtMost(3), None, hours(9..=11)),
        (Missed::AtMost(100), None, hours(1..=11)),
        (Missed::All, None, hours(1..=11)),
        // At 11:10, the one at eleven is ten minutes late.
        (Missed::Skip, Some(10 * MINUTE), none),
        (Missed::Skip, Some(11 * MINUTE), hours(11..=11)),
        (Missed::Once, Some(10 * MINUTE), hours(11..=11)),
        (Missed::Skip, Some(3 * HOUR), hours(9..=11)),
        (Missed::AtMost(2), Some(3 * HOUR), hours(9..=11)),
        (Missed::AtMost(4), Some(MINUTE), hours(8..=11)),
    ];
    for (policy, grace, expected) in cases {
        let period = Period::calendar(each(HOUR)).missed(policy);
        let rig = Rig::new(match grace {
            Some(grace) => period.grace(grace),
            None => period,
        });
        rig.pass(30 * MINUTE);
        rig.suspend(10 * HOUR + 10 * MINUTE);
        let seen = rig.pass(30 * MINUTE);
        let dates: Vec<_> = seen.iter().map(|seen| seen.date).collect();
        assert_eq!(dates, expected, "{policy:?} {grace:?}");
        // Then the rounds go on, and each date has run or was reported as missed.
        let later = rig.pass(3 * HOUR);
        assert_eq!(later[0].date, Some(12 * HOUR));
        let missed: u64 = seen.iter().chain(&later).map(|seen| seen.missed).sum();
        assert_eq!(missed, 11 - dates.len() as u64, "{policy:?} {grace:?}");
    }
}

#[test]
fn a_round_that_takes_longer_than_the_calendar_misses_dates() {
    let scheduler = stepped(3);
    let hand = scheduler.clock();
    let dates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&dates);
    let armed = scheduler
        .handle()
        .repeat(1, Period::calendar(each(HOUR)), move |round| {
            let date = round.scheduled_for().unwrap();
            noted.lock().unwrap().push((date, round.missed()));
            if round.number() == 1 {
                hand.advance(3 * HOUR + 30 * MINUTE);
            }
        });
    assert!(armed.is_ok());
    scheduler.advance(6 * HOUR);
    let at = |hour: u32| SystemTime::UNIX_EPOCH + hour * HOUR;
    let expected = [(at(1), 0), (at(4), 2), (at(5), 0), (at(6), 0)];
    assert_eq!(*dates.lock().unwrap(), expected);
}

// === calls ===

fn is_moved(answer: Reschedule) -> bool {
    matches!(answer, Reschedule::Moved { .. })
}

#[test]
fn a_round_that_was_moved_has_no_date_and_the_calendar_goes_on_after_it() {
    let rig = Rig::daily();
    let timers = rig.scheduler.handle();
    assert!(is_moved(timers.reschedule(&1, 5 * HOUR)));
    assert_eq!(rig.dates(6 * HOUR), [None]);
    assert_eq!(rig.dates(DAY), [Some(DAY)]);
    // Moved over its date: that date is not made up.
    rig.pass(10 * HOUR);
    assert!(is_moved(timers.reschedule(&1, 12 * HOUR)));
    assert_eq!(rig.dates(12 * HOUR), [None]);
    assert_eq!(rig.dates(DAY), [Some(3 * DAY)]);
}

#[test]
fn an_extra_round_has_no_date_and_the_pending_one_keeps_its_own() {
    let rig = Rig::daily();
    rig.pass(6 * HOUR + 10 * MINUTE);
    let _ = rig.scheduler.handle().run_now(&1);
    assert_eq!(rig.dates(Duration::ZERO), [None]);
    assert_eq!(rig.dates(DAY), [Some(DAY)]);
}

#[test]
fn a_first_round_that_was_asked_for_has_no_date() {
    let rig = Rig::new(Period::calendar(each(DAY)).first(Duration::ZERO));
    assert_eq!(rig.dates(2 * DAY), [None, Some(DAY), Some(2 * DAY)]);
}

#[test]
fn a_paused_timer_makes_up_nothing() {
    let rig = Rig::daily();
    let timers = rig.scheduler.handle();
    rig.pass(HOUR);
    assert!(is_moved(timers.reschedule(&1, Duration::MAX)));
    assert_eq!(rig.pass(10 * DAY), []);
    assert!(is_moved(timers.reschedule(&1, HOUR)));
    assert_eq!(rig.dates(DAY), [None, Some(11 * DAY)]);
}

#[test]
fn a_task_may_end_or_move_its_rounds() {
    for_each_seed(|scheduler, timers| {
        let answers = [Next::Again, Next::After(HOUR), Next::Again, Next::Stop];
        let armed = timers.repeat(1, Period::calendar(each(DAY)), move |round| {
            let expected = [true, true, false, true];
            let number = usize::try_from(round.number()).unwrap() - 1;
            assert_eq!(round.scheduled_for().is_some(), expected[number]);
            answers[number]
        });
        assert!(armed.is_ok());
        assert_eq!(scheduler.advance(20 * DAY).len(), 4);
        assert!(!timers.contains(&1));
        assert_eq!(timers.stats().panicked, 0);
    });
}

#[test]
fn a_timer_that_is_cancelled_between_two_looks_is_gone() {
    let rig = Rig::daily();
    rig.pass(3 * HOUR + MINUTE);
    assert!(rig.scheduler.handle().cancel(&1).is_cancelled());
    assert_eq!(rig.pass(3 * DAY), []);
}

#[test]
fn a_calendar_that_ends_ends_the_timer() {
    let last = date(3 * DAY);
    for (ends, rounds) in [
        (
            Period::calendar(move |after| each(DAY)(after).filter(|date| *date <= last)),
            3,
        ),
        // A date that is not later than the time that was asked for.
        (
            Period::calendar(move |after| each(DAY)(after).map(|date| date.min(last))),
            3,
        ),
    ] {
        let rig = Rig::new(ends);
        assert_eq!(rig.pass(10 * DAY).len(), rounds);
        assert!(!rig.scheduler.handle().contains(&1));
    }
    // The end comes with dates that have still to be made up.
    let ends = Period::calendar(move |after| each(HOUR)(after).filter(|date| *date <= last));
    let rig = Rig::new(ends.missed(Missed::All));
    rig.suspend(10 * DAY);
    assert_eq!(rig.pass(HOUR).len(), 72);
    assert!(!rig.scheduler.handle().contains(&1));
}

#[test]
fn a_calendar_without_a_date_is_refused() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    for period in [Period::calendar(|_| None), Period::calendar(Some)] {
        let refused = timers.repeat(1, period, |_| ());
        assert!(matches!(refused, Err(ScheduleError::NoRound(_))));
    }
    for period in [
        Period::calendar(each(DAY)).jitter(MINUTE),
        Period::calendar(each(DAY)).random_phase(),
    ] {
        let refused = timers.repeat(1, period, |_| ());
        assert!(matches!(refused, Err(ScheduleError::PeriodOption(_))));
    }
    assert!(timers.is_empty());
}

#[test]
fn a_calendar_that_panics_ends_the_timer_and_is_counted() {
    hush();
    for_each_seed(|scheduler, timers| {
        let before = timers.stats().panicked;
        let asked = AtomicU64::new(0);
        let period = Period::calendar(move |after| {
            assert!(asked.fetch_add(1, Ordering::Relaxed) < 5, "{WANTED}");
            each(HOUR)(after)
        });
        assert!(timers.repeat(1, period, |_| ()).is_ok());
        scheduler.advance(DAY);
        assert!(!timers.contains(&1));
        assert_eq!(timers.stats().panicked - before, 1);
    });
}

#[test]
fn a_calendar_may_call_the_scheduler_and_set_the_clock() {
    let scheduler = stepped(2);
    let (timers, hand) = (scheduler.handle(), scheduler.clock());
    let period = Period::calendar(move |after| {
        // Were the calendar asked under a lock, this would fail.
        assert!(timers.schedule(2, HOUR, |_| ()).is_ok());
        hand.set_wall(hand.wall());
        each(HOUR)(after)
    });
    assert!(scheduler.handle().repeat(1, period, |_| ()).is_ok());
    let fired = scheduler.advance(10 * HOUR);
    assert_eq!(fired.iter().filter(|fired| fired.key == 1).count(), 10);
}

#[test]
fn a_shutdown_that_runs_everything_runs_a_round_without_a_date() {
    let rig = Rig::daily();
    rig.pass(HOUR + MINUTE);
    rig.scheduler.shutdown(Shutdown::RunNow);
    let seen = std::mem::take(&mut *rig.seen.lock().unwrap());
    assert_eq!(
        seen.iter().map(|seen| seen.date).collect::<Vec<_>>(),
        [None]
    );
}

#[test]
fn real_threads_follow_the_wall_clock_of_a_manual_clock() {
    use std::sync::mpsc;
    let hand = ManualClock::new();
    let clock = tourbillon::Clock::manual(&hand);
    let scheduler = Scheduler::<u64>::builder().clock(clock).build().unwrap();
    let (send, receive) = mpsc::channel();
    let armed = scheduler
        .handle()
        .repeat(1, Period::calendar(each(HOUR)), move |round| {
            let _ = send.send(round.scheduled_for());
        });
    assert!(armed.is_ok());
    hand.set_wall(date(Duration::ZERO));
    hand.advance(HOUR);
    let first = receive.recv().unwrap().unwrap();
    assert_eq!(first, date(HOUR));
}
