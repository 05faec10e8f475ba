//! Usual calls: which they are, and that they answer as all others do.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::clock::reading::QuickReading;
use crate::clock::{Clock, ManualClock};
use crate::tick::Time;
use crate::{Expiry, ExpiryMap, Reschedule, Scheduler, Timer, Touch};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const CENTURY: u64 = 1 << 62;

thread_local! {
    static HASHED: Cell<u32> = const { Cell::new(0) };
    static NEXT_DIFFERS: Cell<bool> = const { Cell::new(false) };
}

/// A key that counts how often it is hashed, and that can be made to differ from all keys in the
/// next comparison.
#[derive(Clone, Copy, Eq, Debug)]
struct Key(u64);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        !NEXT_DIFFERS.take() && self.0 == other.0
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.set(HASHED.get() + 1);
        self.0.hash(state);
    }
}

/// Returns whether a call was not usual, and that became known only under the lock. Then it hashes
/// its key once more.
fn begins_anew(call: impl FnOnce()) -> bool {
    HASHED.set(0);
    call();
    match HASHED.get() {
        1 => false,
        2 => true,
        other => panic!("hashed {other} times"),
    }
}

/// Returns whether a call tries to be a usual one. It is not one, since its first comparison fails.
fn tries(call: impl FnOnce()) -> bool {
    NEXT_DIFFERS.set(true);
    begins_anew(call)
}

#[test]
fn a_quick_reading_counts_delays_of_a_second_to_a_century() {
    let start = Time::from_nanos(5_000_000_000);
    let reading = QuickReading::new(start, 1_000_000);
    assert_eq!(reading.low(), Time::from_nanos(4_999_000_000));
    for (delay, after) in [
        (0, None),
        (999_999_999, None),
        (1_000_000_000, Some(6_000_000_000)),
        (CENTURY - 1, Some(CENTURY + 4_999_999_999)),
        (CENTURY, None),
        (u64::MAX, None),
    ] {
        assert_eq!(
            reading.after_nanos(delay),
            after.map(Time::from_nanos),
            "{delay}"
        );
    }
    let century = Duration::from_secs(u64::from(u32::MAX)) + SECOND - Duration::from_nanos(1);
    for (delay, counted) in [
        (Duration::ZERO, false),
        (SECOND - Duration::from_nanos(1), false),
        (SECOND, true),
        (MINUTE + Duration::from_nanos(7), true),
        (century, true),
        (century + Duration::from_nanos(1), false),
        (Duration::MAX, false),
    ] {
        let nanos = counted.then(|| u64::try_from(delay.as_nanos()).unwrap());
        assert_eq!(QuickReading::counted(delay), nanos, "{delay:?}");
        assert!(nanos.is_none_or(QuickReading::counts));
    }
    assert!(!reading.is_well_before(Time::ZERO));
    assert!(!reading.is_well_before(start + Duration::from_nanos(1_999_999)));
    assert!(reading.is_well_before(start + Duration::from_millis(2)));
    assert!(reading.is_well_before(Time::MAX));
    // So sums do not overflow.
    let latest = QuickReading::exact(Time::from_nanos(CENTURY - 1)).unwrap();
    assert!(latest.after_nanos(CENTURY - 1).unwrap() < Time::MAX);
    assert!(QuickReading::exact(Time::from_nanos(CENTURY)).is_none());
}

#[test]
fn touches_are_usual_if_a_single_write_is_enough() {
    let stepped = ExpiryMap::<Key, u64>::builder()
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let idle = |idle| Expiry::NEVER.time_to_idle(idle);
    let entries = [
        (idle(MINUTE), true),
        (idle(SECOND), true),
        (idle(MINUTE).time_to_live(MINUTE), true),
        (idle(MINUTE).time_to_live(10 * MINUTE), true),
        (idle(SECOND - Duration::from_nanos(1)), false),
        (Expiry::NEVER.time_to_live(MINUTE), false),
        (Expiry::NEVER, false),
        (idle(MINUTE).jitter(10), true),
    ];
    for (number, (expiry, _)) in (0..).zip(entries) {
        map.entry(Key(number))
            .expiry(expiry)
            .insert(number)
            .unwrap();
    }
    stepped.advance(SECOND / 2);
    for (number, (expiry, usual)) in (0..).zip(entries) {
        let key = Key(number);
        let anew = begins_anew(|| assert!(map.touch(&key).is_alive()));
        assert_eq!(anew, !usual, "{expiry:?}");
    }
    assert!(begins_anew(|| assert_eq!(
        map.touch(&Key(99)),
        Touch::NotFound
    )));
    assert_eq!(map.stats().touched, entries.len() as u64);
    assert_eq!(map.stats().missed, 1);
}

#[test]
fn a_new_expiry_is_usual_if_it_ends_later_and_has_no_jitter() {
    let builder = ExpiryMap::<Key, u64>::builder().time_to_idle(MINUTE);
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    map.insert(Key(1), 1).unwrap();
    let set = |expiry, anew| {
        let was = begins_anew(|| assert!(map.set_expiry(&Key(1), expiry).is_alive()));
        assert_eq!(was, anew, "{expiry:?}");
        map.deadline(&Key(1)).unwrap().since(map.now())
    };
    let idle = |idle| Expiry::NEVER.time_to_idle(idle);
    assert_eq!(set(idle(MINUTE), false), MINUTE);
    assert_eq!(
        set(idle(3 * MINUTE).time_to_live(2 * MINUTE), false),
        2 * MINUTE
    );
    assert_eq!(set(idle(MINUTE), true), MINUTE);
    // That the others are not usual is known before the lock.
    assert!(set(idle(3 * MINUTE).jitter(10), false) > 2 * MINUTE);
    assert!(set(Expiry::NEVER, false) > 1_000_000 * MINUTE);
    assert_eq!(set(idle(SECOND / 2), false), SECOND / 2);
}

#[test]
fn a_reschedule_is_usual_to_a_later_time_of_a_timer_that_waits() {
    let scheduler = Scheduler::<Key>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    timers.schedule(Key(1), MINUTE, |_| ()).unwrap();
    let moved = |delay, anew| {
        let before = timers.get(&Key(1)).unwrap().deadline;
        let was = begins_anew(|| {
            let moved = timers.reschedule(&Key(1), delay);
            assert_eq!(moved, Reschedule::Moved { before });
        });
        assert_eq!(was, anew, "{delay:?}");
        let after = timers.get(&Key(1)).unwrap().deadline;
        assert_eq!(after, scheduler.now() + delay);
    };
    moved(MINUTE, false);
    moved(2 * MINUTE, false);
    moved(MINUTE, true);
    // A queued timer is in no wheel.
    timers.schedule(Key(1), Duration::ZERO, |_| ()).unwrap();
    moved(MINUTE, true);
    moved(MINUTE, false);
    // That this is not usual is known before the lock.
    moved(SECOND / 2, false);
    let absent = || assert_eq!(timers.reschedule(&Key(2), MINUTE), Reschedule::NotFound);
    assert!(begins_anew(absent));
}

#[test]
fn calls_try_to_be_usual_if_their_delays_are_long() {
    let stepped = ExpiryMap::<Key, u64>::builder()
        .time_to_idle(MINUTE)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let scheduler = Scheduler::<Key>::builder().build_stepped(1).unwrap();
    let (map, timers, key) = (stepped.map(), scheduler.handle(), &Key(1));
    map.insert(Key(1), 1).unwrap();
    timers.schedule(Key(1), MINUTE, |_| ()).unwrap();
    let idle = |idle| Expiry::NEVER.time_to_idle(idle);
    for (expiry, usual) in [
        (idle(SECOND), true),
        (idle(SECOND).time_to_live(SECOND), true),
        (idle(SECOND / 2), false),
        (idle(SECOND).time_to_live(SECOND / 2), false),
        (idle(SECOND).jitter(1), false),
        (Expiry::NEVER, false),
    ] {
        let tried = tries(|| assert!(map.set_expiry(key, expiry).is_alive()));
        assert_eq!(tried, usual, "{expiry:?}");
    }
    for (delay, usual) in [(SECOND, true), (SECOND / 2, false), (Duration::MAX, false)] {
        let tried = tries(|| {
            let moved = timers.reschedule(key, delay);
            assert!(matches!(moved, Reschedule::Moved { .. }));
        });
        assert_eq!(tried, usual, "{delay:?}");
    }
}

#[test]
fn calls_try_to_be_usual_if_the_clock_has_quick_readings() {
    // Nothing expires: on the system's clock an hour does not pass here.
    let hour = 60 * MINUTE;
    let hand = ManualClock::new();
    for (clock, quick) in [(Clock::manual(&hand), true), (Clock::system(), false)] {
        let map = ExpiryMap::<Key, u64>::builder().time_to_idle(hour);
        let map = map.clock(clock.clone()).build(|_, _| ()).unwrap();
        let scheduler = Scheduler::<Key>::builder().clock(clock).build().unwrap();
        let (timers, key, now) = (scheduler.handle(), &Key(1), map.now());
        let expiry = Expiry::NEVER.time_to_idle(2 * hour);
        map.insert(Key(1), 1).unwrap();
        timers.schedule(Key(1), hour, |_| ()).unwrap();
        let touch = || assert!(map.touch(key).is_alive());
        let touch_at = || assert!(map.touch_at(key, now).is_alive());
        let set = || assert!(map.set_expiry(key, expiry).is_alive());
        let moved = || {
            let moved = timers.reschedule(key, hour);
            assert!(matches!(moved, Reschedule::Moved { .. }));
        };
        assert_eq!(
            [tries(touch), tries(touch_at), tries(set), tries(moved)],
            // A call that is given its moment needs no reading, so it tries on every clock.
            [quick, true, quick, quick]
        );
    }
}

#[test]
fn a_touch_at_a_given_moment_takes_one_pass_on_every_clock() {
    let hour = 60 * MINUTE;
    let hand = ManualClock::new();
    for clock in [Clock::manual(&hand), Clock::system(), Clock::boottime()] {
        let map = ExpiryMap::<Key, u64>::builder().time_to_idle(hour);
        let map = map.clock(clock).build(|_, _| ()).unwrap();
        let idle = Expiry::NEVER.time_to_idle(hour);
        for (number, expiry) in (0..).zip([idle, idle.time_to_live(10 * hour)]) {
            map.entry(Key(number))
                .expiry(expiry)
                .insert(number)
                .unwrap();
            let now = map.now();
            let touch = || assert!(map.touch_at(&Key(number), now).is_alive());
            assert!(!begins_anew(touch), "{expiry:?}, {:?}", map.clock());
        }
    }
}

#[test]
fn an_exact_clock_has_no_quick_readings() {
    for clock in [Clock::system(), Clock::boottime()] {
        assert!(!clock.has_quick_readings());
        assert!(clock.quick_reading().is_none());
    }
}

#[test]
fn usual_calls_answer_as_all_others() {
    let idles = [SECOND / 2, SECOND, 2 * SECOND, 3 * SECOND, Duration::MAX];
    let lives = [SECOND, 3 * SECOND, MINUTE, Duration::MAX];
    let steps = [0, 1, 400, 999, 1_000, 1_001, 1_999, 2_000, 3_000].map(Duration::from_millis);
    for idle in idles {
        for life in lives {
            for again in idles {
                for step in steps {
                    let hand = ManualClock::starting_at(Time::from_nanos(7_000_000_000));
                    let builder = ExpiryMap::<Key, u64>::builder()
                        .time_to_idle(idle)
                        .time_to_live(life)
                        .clock(Clock::behind(&hand, Duration::from_micros(100)));
                    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
                    let map = stepped.map();
                    for key in [1, 2] {
                        map.insert(Key(key), key).unwrap();
                    }
                    // Not stepped, so what is due is still there.
                    hand.advance(step);
                    let expiry = Expiry::NEVER.time_to_idle(again);
                    let both = |call: &dyn Fn(&Key) -> Touch| {
                        let usual = call(&Key(1));
                        NEXT_DIFFERS.set(true);
                        let other = call(&Key(2));
                        NEXT_DIFFERS.set(false);
                        assert_eq!(usual, other, "{idle:?}, {life:?}, {again:?}, {step:?}");
                        assert_eq!(map.deadline(&Key(1)), map.deadline(&Key(2)));
                    };
                    both(&|key| map.touch(key));
                    both(&|key| map.set_expiry(key, expiry));
                    hand.advance(step);
                    both(&|key| map.touch(key));
                    both(&|key| map.set_expiry(key, expiry.time_to_live(life)));
                    let now = map.now();
                    for given in [now, now - step, now + step, now + MINUTE] {
                        both(&|key| map.touch_at(key, given));
                    }
                }
            }
        }
    }
}

#[test]
fn moves_by_id_answer_as_moves_by_key() {
    let steps = [0, 1, 999, 1_000, 1_001, 2_000, 3_000].map(Duration::from_millis);
    let delays = [SECOND / 2, SECOND, 2 * SECOND, MINUTE, Duration::MAX];
    for first in delays {
        for again in delays {
            for step in steps {
                let hand = ManualClock::starting_at(Time::from_nanos(7_000_000_000));
                let clock = Clock::behind(&hand, Duration::from_micros(100));
                let builder = Scheduler::<u64>::builder().clock(clock.clone());
                let scheduler = builder.build_stepped(1).unwrap();
                let timer = Timer::builder().clock(clock).build_stepped(1).unwrap();
                let timers = scheduler.handle();
                let id = timers.schedule(1, first, |_| ()).unwrap().id;
                timers.schedule(2, first, |_| ()).unwrap();
                let timeout = timer.timer().after(first, || ()).unwrap();
                // Not stepped, so what is due is still there.
                hand.advance(step);
                let moved = timers.reschedule(&2, again);
                assert_eq!(timers.by_id(id).reschedule(again), moved);
                assert_eq!(timeout.reschedule(again), moved);
                let left = timers.get(&2).unwrap().deadline.since(timers.now());
                let deadline = timers.get(&1).unwrap().deadline;
                let case = format!("{first:?}, {again:?}, {step:?}");
                assert_eq!(deadline.since(timers.now()), left, "{case}");
                assert_eq!(timeout.remaining(), Some(left), "{case}");
            }
        }
    }
}

#[test]
fn an_id_moves_its_own_arming_only() {
    let scheduler = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    let first = timers.schedule(1, MINUTE, |_| ()).unwrap();
    let second = timers.schedule(1, MINUTE, |_| ()).unwrap();
    let not_found = Reschedule::NotFound;
    assert_eq!(timers.by_id(first.id).reschedule(2 * MINUTE), not_found);
    assert_eq!(timers.get(&1).unwrap().deadline, second.deadline);
    let before = second.deadline;
    let moved = timers.by_id(second.id).reschedule(2 * MINUTE);
    assert_eq!(moved, Reschedule::Moved { before });
    // An id of another scheduler finds nothing.
    let other = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let others = other.handle();
    others.schedule(1, MINUTE, |_| ()).unwrap();
    assert_eq!(others.by_id(second.id).reschedule(MINUTE), not_found);

    let timer = Timer::builder().build_stepped(1).unwrap();
    let gone = timer.timer().after(MINUTE, || ()).unwrap();
    gone.cancel();
    // It takes the place that is free again.
    let next = timer.timer().after(MINUTE, || ()).unwrap();
    assert_eq!(gone.reschedule(2 * MINUTE), not_found);
    assert_eq!(next.remaining(), Some(MINUTE));
}

#[test]
fn a_moment_ahead_of_the_clock_makes_nothing_due() {
    for idle in [SECOND / 2, 5 * SECOND] {
        let builder = ExpiryMap::<Key, u64>::builder().time_to_idle(idle);
        let stepped = builder
            .time_to_live(10 * SECOND)
            .build_stepped(1, |_, _| ())
            .unwrap();
        let map = stepped.map();
        map.insert(Key(1), 1).unwrap();
        let end = map.now() + 10 * SECOND;
        let ahead = map.now() + 2 * MINUTE;
        assert_eq!(
            map.touch_at(&Key(1), ahead),
            Touch::Touched { deadline: end }
        );
        stepped.advance_to(end - Duration::from_nanos(1));
        assert_eq!(map.stats().expired, 0, "{idle:?}");
        stepped.advance(SECOND);
        assert_eq!(map.stats().expired, 1, "{idle:?}");
    }
}
