//! `When`: all calls that arm or move take all of its forms, and mean the same by them.

use std::time::{Duration, Instant};

use kit::map::{S, at};
use kit::steps::stepped;
use tourbillon::{
    Clock, Handle, ManualClock, Period, PullIn, Reschedule, Scheduler, Time, Timer, When,
};

/// The moment of all calls.
const NOW: Duration = Duration::from_secs(100);

/// The forms, and the deadline of each at `NOW`.
fn forms() -> Vec<(&'static str, When, Time)> {
    let huge = Duration::MAX;
    vec![
        ("a delay", (30 * S).into(), at(130)),
        ("a short delay", (S / 4).into(), at(100) + S / 4),
        ("no delay", Duration::ZERO.into(), at(100)),
        ("an endless delay", huge.into(), Time::MAX),
        ("a time", at(170).into(), at(170)),
        ("a time in the past", at(3).into(), at(3)),
        ("never", Time::MAX.into(), Time::MAX),
        ("a window of one moment", (40 * S..=40 * S).into(), at(140)),
        ("a window backwards", (40 * S..=S).into(), at(140)),
        ("a given time", When::after(at(90), 30 * S), at(120)),
        ("a given time ahead", When::after(at(200), 30 * S), at(230)),
        ("a given time long ago", When::after(Time::ZERO, S), at(1)),
        ("a given end", When::after(Time::MAX, huge), Time::MAX),
    ]
}

/// A call, and the deadline that it leaves behind.
type Call = (&'static str, fn(&Handle<u64>, When) -> Time);

fn deadline(timers: &Handle<u64>) -> Time {
    timers.get(&1).expect("armed").deadline
}

fn armed(timers: &Handle<u64>) -> tourbillon::TimerId {
    timers.schedule(1, 9 * S, |_| ()).unwrap().id
}

const CALLS: &[Call] = &[
    ("schedule", |timers, when| {
        let armed = timers.schedule(1, when, |_| ()).unwrap();
        assert_eq!(armed.deadline, deadline(timers));
        armed.deadline
    }),
    ("schedule_if_absent", |timers, when| {
        timers.schedule_if_absent(1, when, |_| ()).unwrap().deadline
    }),
    ("repeat", |timers, when| {
        let period = Period::fixed_rate(7 * S).first(when);
        timers.repeat(1, period, |_| ()).unwrap().deadline
    }),
    ("reschedule", |timers, when| {
        armed(timers);
        let before = at(100) + 9 * S;
        assert_eq!(timers.reschedule(&1, when), Reschedule::Moved { before });
        deadline(timers)
    }),
    ("reschedule by id", |timers, when| {
        let id = armed(timers);
        let before = at(100) + 9 * S;
        let moved = timers.by_id(id).reschedule(when);
        assert_eq!(moved, Reschedule::Moved { before });
        deadline(timers)
    }),
    ("reschedule_many", |timers, when| {
        armed(timers);
        let _ = timers.reschedule_many(&[1], when);
        deadline(timers)
    }),
    ("pull_in", |timers, when| {
        timers.schedule(1, Duration::MAX, |_| ()).unwrap();
        let _ = timers.pull_in(&1, when);
        deadline(timers)
    }),
    ("pull_in by id", |timers, when| {
        let id = timers.schedule(1, Duration::MAX, |_| ()).unwrap().id;
        let _ = timers.by_id(id).pull_in(when);
        deadline(timers)
    }),
];

#[test]
fn all_calls_mean_the_same_by_all_forms() {
    for (call, run) in CALLS {
        for (form, when, due) in forms() {
            let scheduler = stepped(1);
            scheduler.advance(NOW);
            assert_eq!(run(&scheduler.handle(), when), due, "{call} with {form}");
        }
    }
}

#[test]
fn timers_without_a_key_take_all_forms() {
    for (form, when, due) in forms() {
        let stepped = Timer::builder().build_stepped(1).unwrap();
        stepped.advance(NOW);
        let timer = stepped.timer();
        let sleep = timer.sleep(when);
        assert_eq!(sleep.deadline(), due, "sleep with {form}");
        assert_eq!(sleep.is_elapsed(), due <= at(100), "sleep with {form}");
        let mut sleep = timer.sleep(9 * S);
        sleep.reset(when);
        assert_eq!(sleep.deadline(), due, "reset with {form}");
        let limited = timer.timeout(when, std::future::pending::<()>());
        assert_eq!(limited.deadline(), due, "timeout with {form}");

        let far = due.since(at(100)).min(10_000 * S);
        for moved in [false, true] {
            let handle = match moved {
                false => timer.after(when, || ()).unwrap(),
                true => timer.after(5_000 * S, || ()).unwrap(),
            };
            if moved {
                let _ = handle.reschedule(when);
            }
            let left = handle.remaining().expect("pending").min(10_000 * S);
            assert_eq!(left, far, "{form}, moved: {moved}");
            handle.cancel();
        }

        let mut ticks = timer.interval(7 * S).first(when);
        if due != Time::MAX {
            assert_eq!(stepped.run_until(ticks.tick()), Ok(due), "{form}");
        }
    }
}

#[test]
fn pull_in_takes_what_is_earlier_alone() {
    for (form, when, due) in forms() {
        let scheduler = stepped(1);
        scheduler.advance(NOW);
        let timers = scheduler.handle();
        let before = timers.schedule(1, at(135), |_| ()).unwrap().deadline;
        let answer = timers.pull_in(&1, when);
        let expected = match due < before {
            true => PullIn::Moved { before },
            false => PullIn::Unchanged { deadline: before },
        };
        assert_eq!(answer, expected, "{form}");
    }
}

#[test]
fn an_instant_is_a_time_of_the_clock() {
    // Such a clock and an instant have one source.
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::system())
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let instant = Instant::now() + 3_600 * S;
    let armed = timers.schedule(1, instant, |_| ()).unwrap();
    assert_eq!(armed.deadline, timers.time_of(instant));
    let past = timers.now();
    let armed = timers.schedule(2, Instant::now() - S, |_| ()).unwrap();
    assert!(armed.deadline <= past + S);

    // On a clock of its own, it is as far ahead as it is ahead of the system's.
    let hand = ManualClock::new();
    hand.advance(NOW);
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let instant = Instant::now() + 3_600 * S;
    let armed = timers.schedule(1, instant, |_| ()).unwrap();
    assert!(armed.deadline > at(100));
    assert!(armed.deadline <= at(3_700), "{:?}", armed.deadline);
    let armed = timers.schedule(2, Instant::now() - S, |_| ()).unwrap();
    assert!(armed.deadline <= at(100), "{:?}", armed.deadline);
}

#[test]
fn the_text_of_a_form_says_what_it_is() {
    let text = |when: When| format!("{when:?}");
    assert_eq!(text(S.into()), "after 1s");
    assert_eq!(text(at(3).into()), "at 3s");
    assert_eq!(text(Time::MAX.into()), "never");
    assert_eq!(text((S..=2 * S).into()), "after 1s to 2s");
    assert_eq!(text(When::after(at(3), S)), "1s after 3s");
    assert!(text(Instant::now().into()).starts_with("at Instant"));
}
