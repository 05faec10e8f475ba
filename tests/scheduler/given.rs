//! Calls that are given the time, for event loops that have read it.

use std::time::Duration;

use kit::map::{IDLE, LIFE, S, at, builder, collecting, keys};
use kit::steps::stepped;
use tourbillon::{ExpiryMap, Inserted, Scheduler, Time, Touch};

#[test]
fn a_delay_is_counted_from_the_time_that_is_given() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    scheduler.advance(10 * S);
    // The present, an older time, one that is so old that the task is due, and one ahead of the clock.
    for (key, now, due) in [(1, 10, 40), (2, 5, 35), (3, 0, 30), (4, 20, 50)] {
        let armed = timers.schedule_from(at(now), key, 30 * S, |_| ()).unwrap();
        assert_eq!(armed.deadline, at(due));
    }
    let fired = scheduler.advance(60 * S);
    let runs: Vec<_> = fired.iter().map(|fired| (fired.key, fired.at)).collect();
    assert_eq!(runs, [(3, at(30)), (2, at(35)), (1, at(40)), (4, at(50))]);
}

#[test]
fn a_delay_that_has_passed_since_the_given_time_is_due_at_once() {
    let scheduler = stepped(1);
    let timers = scheduler.handle();
    // The wheel is past both deadlines.
    timers.schedule(0, 9 * S, |_| ()).unwrap();
    scheduler.advance(10 * S);
    for (key, delay) in [(1, S), (2, Duration::ZERO)] {
        timers.schedule_from(at(3), key, delay, |_| ()).unwrap();
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
        map.insert_at(1, String::new(), at(100)).unwrap(),
        Inserted::New
    );
    assert_eq!(map.deadline(&1), Some(at(100) + IDLE));
    // As if it had been inserted then, and with the times of a replacement.
    let replaced = map.insert_at(1, String::new(), at(90)).unwrap();
    assert!(replaced.replaced().is_some());
    assert_eq!(map.deadline(&1), Some(at(90) + IDLE));
    // Its time has passed already.
    map.insert_at(2, String::new(), at(10)).unwrap();
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
    map.insert_at(1, 1, Time::ZERO).unwrap();
    let error = map.insert_at(2, 7, Time::ZERO).unwrap_err();
    assert_eq!((error.key, error.value), (2, 7));
    let scheduler = Scheduler::<u32>::builder()
        .max_pending(1)
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    timers.schedule_from(Time::ZERO, 1, S, |_| ()).unwrap();
    assert!(timers.schedule_from(Time::ZERO, 2, S, |_| ()).is_err());
}
