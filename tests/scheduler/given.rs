//! Calls that are given the time, for event loops that have read it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::map::{IDLE, LIFE, S, at, builder, collecting, keys};
use kit::steps::{narrow, stepped};
use tourbillon::{Clock, ExpiryMap, ManualClock, Reason, Scheduler, Time, Timer, Touch, When};

#[test]
fn a_delay_is_counted_from_the_time_that_is_given() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    scheduler.advance(10 * S);
    // The present, an older time, one that is so old that the task is due, and one ahead of the
    // clock.
    for (key, now, due) in [(1, 10, 40), (2, 5, 35), (3, 0, 30), (4, 20, 50)] {
        let armed = timers
            .schedule(key, When::after(at(now), 30 * S), |_| ())
            .unwrap();
        assert_eq!(armed.deadline, at(due));
    }
    let fired = scheduler.advance(60 * S);
    let runs: Vec<_> = fired.iter().map(|fired| (fired.key, fired.at)).collect();
    assert_eq!(runs, [(3, at(30)), (2, at(35)), (1, at(40)), (4, at(50))]);
}

#[test]
fn a_time_ahead_of_the_clock_begins_nothing_before_it() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    timers
        .schedule(1, When::after(at(5), Duration::ZERO), |_| ())
        .unwrap();
    timers
        .schedule(2, When::after(Time::MAX, Duration::ZERO), |_| ())
        .unwrap();
    let fired = scheduler.advance(60 * S);
    let runs: Vec<_> = fired.iter().map(|fired| (fired.key, fired.at)).collect();
    assert_eq!(runs, [(1, at(5))]);

    for idle in [Duration::ZERO, IDLE] {
        let (stepped, gone) = collecting(builder().time_to_idle(idle), 1);
        let map = stepped.map();
        map.entry(1).at(at(600)).insert(String::new()).unwrap();
        map.entry(2).at(Time::MAX).insert(String::new()).unwrap();
        stepped.advance_to(at(600) + idle - Duration::from_nanos(1));
        assert!(keys(&gone).is_empty());
        stepped.advance_to(at(600) + idle);
        assert_eq!(keys(&gone), [1]);
    }
}

#[test]
fn times_ahead_of_the_clock_make_no_other_timer_late() {
    let scheduler = narrow(1);
    let timers = scheduler.handle();
    // More than a stripe stages, so its wheel files them.
    for key in 0..1_000 {
        timers
            .schedule(key, When::after(at(3_600), S), |_| ())
            .unwrap();
    }
    timers.schedule(7, S, |_| ()).unwrap();
    let fired = scheduler.advance(60 * S);
    let runs: Vec<_> = fired.iter().map(|fired| (fired.key, fired.at)).collect();
    assert_eq!(runs, [(7, at(1))]);
    assert_eq!(scheduler.advance_to(at(3_601)).len(), 999);
}

#[test]
fn the_listener_is_told_by_the_clock_whether_a_lifetime_was_over() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let told_here = Arc::clone(&told);
    let builder = builder()
        .time_to_live(LIFE)
        .on_removal(move |_, _, reason| told_here.lock().unwrap().push(reason));
    let (stepped, _gone) = collecting(builder, 1);
    let map = stepped.map();
    for now in [at(0), at(1_000), Time::MAX] {
        map.entry(1).at(now).insert(String::new()).unwrap();
    }
    assert_eq!(*told.lock().unwrap(), [Reason::Replaced; 2]);
}

#[test]
fn a_delay_that_has_passed_since_the_given_time_is_due_at_once() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    // The wheel is past both deadlines.
    timers.schedule(0, 9 * S, |_| ()).unwrap();
    scheduler.advance(10 * S);
    for (key, delay) in [(1, S), (2, Duration::ZERO)] {
        timers
            .schedule(key, When::after(at(3), delay), |_| ())
            .unwrap();
    }
    let mut fired: Vec<_> = scheduler.settle().into_iter().map(|run| run.key).collect();
    fired.sort_unstable();
    assert_eq!(fired, [1, 2]);
    assert!(timers.stats().balances());
}

#[test]
fn an_old_time_never_takes_back_what_a_touch_gave() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    map.insert(1, String::new()).unwrap();
    stepped.advance(10 * S);
    let deadline = at(70);
    assert_eq!(map.touch_at(&1, at(10)), Touch::Touched { deadline });
    for old in [at(9), at(3), Time::ZERO] {
        assert_eq!(map.touch_at(&1, old), Touch::Unchanged { deadline });
    }
    assert_eq!(map.touch_at(&2, at(10)), Touch::NotFound);
    stepped.advance_to(deadline - Duration::from_nanos(1));
    assert!(keys(&gone).is_empty());
    stepped.advance_to(deadline);
    assert_eq!(keys(&gone), [1]);
}

#[test]
fn an_old_time_does_not_prolong_a_lifetime() {
    let (stepped, _gone) = collecting(builder().time_to_idle(LIFE).time_to_live(LIFE), 1);
    let map = stepped.map();
    map.insert(1, String::new()).unwrap();
    // The hand is moved and nothing is delivered meanwhile.
    stepped.clock().set(at(0) + LIFE - S);
    assert!(map.touch_at(&1, Time::ZERO).is_alive());
    stepped.clock().set(at(0) + LIFE);
    for now in [Time::ZERO, at(99), at(100), at(1_000)] {
        assert_eq!(map.touch_at(&1, now), Touch::Expired);
    }
}

#[test]
fn an_entry_lives_for_its_time_from_the_time_that_is_given() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    stepped.advance(100 * S);
    assert_eq!(
        map.entry(1)
            .at(at(100))
            .insert(String::new())
            .unwrap()
            .replaced,
        None
    );
    assert_eq!(map.deadline(&1), Some(at(100) + IDLE));
    // As if it had been inserted then, and with the times of a replacement.
    let replaced = map.entry(1).at(at(90)).insert(String::new()).unwrap();
    assert!(replaced.replaced.is_some());
    assert_eq!(map.deadline(&1), Some(at(90) + IDLE));
    // Its time has passed already.
    map.entry(2).at(at(10)).insert(String::new()).unwrap();
    stepped.settle();
    assert_eq!(keys(&gone), [2]);
    stepped.advance_to(at(90) + IDLE);
    assert_eq!(keys(&gone), [1]);
}

#[test]
fn calls_that_are_given_the_time_are_refused_like_others() {
    let builder = ExpiryMap::<u32, u32>::builder().max_pending(1);
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    map.entry(1).at(Time::ZERO).insert(1).unwrap();
    let error = map.entry(2).at(Time::ZERO).insert(7).unwrap_err();
    assert_eq!((error.key, error.value), (2, 7));
    let scheduler = Scheduler::<u32>::builder()
        .max_pending(1)
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    timers
        .schedule(1, When::after(Time::ZERO, S), |_| ())
        .unwrap();
    assert!(
        timers
            .schedule(2, When::after(Time::ZERO, S), |_| ())
            .is_err()
    );
}

#[test]
fn the_earliest_deadline_follows_every_change() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    assert_eq!(timers.next_deadline(), None);
    timers.schedule(0, Duration::MAX, |_| ()).unwrap();
    assert_eq!(timers.next_deadline(), None, "it is never due");
    for key in 1..1_000 {
        let delay = Duration::from_secs(2_000 - key);
        timers.schedule(key, delay, |_| ()).unwrap();
    }
    assert_eq!(timers.next_deadline(), Some(at(1_001)));
    // A deadline that moves back leaves its wheel entry where it was.
    let _ = timers.reschedule(&999, 5_000 * S);
    assert_eq!(timers.next_deadline(), Some(at(1_002)));
    timers.cancel(&998);
    assert_eq!(timers.next_deadline(), Some(at(1_003)));
    let _ = timers.reschedule(&1, S);
    assert_eq!(timers.next_deadline(), Some(at(1)));
    let info = timers.get(&0).unwrap();
    assert_eq!(info.remaining(timers.now()), Duration::MAX);
    scheduler.advance(6_000 * S);
    assert_eq!((timers.next_deadline(), timers.len()), (None, 1));
}

#[test]
fn a_timer_that_waits_for_the_run_of_its_key_counts_and_one_that_is_due_does_not() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    timers
        .schedule(1, S, |firing| {
            firing.handle().schedule(1, 5 * S, |_| ()).unwrap();
            assert_eq!(firing.handle().next_deadline(), Some(at(6)));
            firing.handle().schedule(2, Duration::ZERO, |_| ()).unwrap();
            assert_eq!(firing.handle().next_deadline(), Some(at(6)));
        })
        .unwrap();
    scheduler.advance(S);
    assert_eq!(timers.next_deadline(), Some(at(6)));
}

#[test]
fn a_timer_knows_its_earliest_deadline() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    assert_eq!(timer.next_deadline(), None);
    let first = timer.after(S, || ()).unwrap();
    let _second = timer.after(2 * S, || ()).unwrap();
    assert_eq!(timer.next_deadline(), Some(at(1)));
    assert!(first.cancel().is_cancelled());
    assert_eq!(timer.next_deadline(), Some(at(2)));
    stepped.advance(2 * S);
    assert_eq!(timer.next_deadline(), None);
}

#[test]
fn instants_and_times_convert_both_ways() {
    let hand = ManualClock::starting_at(at(100));
    let clocks = [
        Clock::system(),
        Clock::fast(),
        Clock::boottime(),
        Clock::manual(&hand),
    ];
    for clock in clocks {
        let scheduler = Scheduler::<u32>::builder().clock(clock).build().unwrap();
        let timers = scheduler.handle();
        let clock = timers.clock();
        for time in [timers.now() + 5 * S, timers.now()] {
            let instant = clock.instant_of(time).expect("an instant can hold it");
            let again = clock.time_of(instant);
            // A clock that is not the system's is read at another moment than the instant.
            let apart = time.since(again).max(again.since(time));
            assert!(apart < S, "{time:?} {again:?} {clock:?}");
        }
        assert_eq!(clock.instant_of(Time::MAX), None);
    }
    // On a manual clock an instant is as far from now as its time.
    let clock = Clock::manual(&hand);
    let before = Instant::now();
    let instant = clock.instant_of(at(160)).unwrap();
    assert!(before + 60 * S <= instant && instant <= Instant::now() + 60 * S);
    let past = clock.instant_of(at(99)).unwrap();
    assert!(past + S <= Instant::now());
}
