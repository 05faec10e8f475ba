//! Usual calls: which they are, and that they answer as all others do.

use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::clock::reading::QuickReading;
use crate::clock::{Clock, ManualClock};
use crate::tick::Time;
use crate::{Expiry, ExpiryMap, Reschedule, Scheduler, Touch};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const CENTURY: u64 = 1 << 62;

thread_local! {
    static HASHED: Cell<u32> = const { Cell::new(0) };
}

/// A key that counts how often it is hashed. A usual call does that once, and a call that begins anew does
/// it once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.set(HASHED.get() + 1);
        self.0.hash(state);
    }
}

fn is_usual(call: impl FnOnce()) -> bool {
    HASHED.set(0);
    call();
    match HASHED.get() {
        1 => true,
        2 => false,
        other => panic!("hashed {other} times"),
    }
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
        (idle(MINUTE).time_to_live(MINUTE), false), // The deadline stays, and could be near.
        (idle(MINUTE).time_to_live(10 * MINUTE), true),
        (idle(SECOND - Duration::from_nanos(1)), false),
        (Expiry::NEVER.time_to_live(MINUTE), false),
        (Expiry::NEVER, false),
        (idle(MINUTE).jitter(10), true),
    ];
    for (number, (expiry, _)) in (0..).zip(entries) {
        map.insert_with(Key(number), number, expiry).unwrap();
    }
    stepped.advance(SECOND / 2);
    for (number, (expiry, usual)) in (0..).zip(entries) {
        let key = Key(number);
        let touched = is_usual(|| assert!(map.touch(&key).is_alive()));
        // A deadline that does not move is usual, too.
        let usual = usual || expiry.lifetime() == expiry.idle() && expiry.idle() == Some(MINUTE);
        assert_eq!(touched, usual, "{expiry:?}");
    }
    assert!(!is_usual(|| assert_eq!(
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
    let set = |expiry, usual| {
        let was = is_usual(|| assert!(map.set_expiry(&Key(1), expiry).is_alive()));
        assert_eq!(was, usual, "{expiry:?}");
        map.deadline(&Key(1)).unwrap().since(map.now())
    };
    let idle = |idle| Expiry::NEVER.time_to_idle(idle);
    assert_eq!(set(idle(MINUTE), true), MINUTE);
    assert_eq!(
        set(idle(3 * MINUTE).time_to_live(2 * MINUTE), true),
        2 * MINUTE
    );
    assert_eq!(set(idle(MINUTE), false), MINUTE);
    assert!(set(idle(3 * MINUTE).jitter(10), false) > 2 * MINUTE);
    assert!(set(Expiry::NEVER, false) > 1_000_000 * MINUTE);
    assert_eq!(set(idle(SECOND / 2), false), SECOND / 2);
}

#[test]
fn a_reschedule_is_usual_to_a_later_time_of_a_timer_that_waits() {
    let scheduler = Scheduler::<Key>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    timers.schedule(Key(1), MINUTE, |_| ()).unwrap();
    let moved = |delay, usual| {
        let before = timers.get(&Key(1)).unwrap().deadline;
        let was = is_usual(|| {
            assert_eq!(
                timers.reschedule(&Key(1), delay),
                Reschedule::Moved { before }
            );
        });
        assert_eq!(was, usual, "{delay:?}");
        assert_eq!(
            timers.get(&Key(1)).unwrap().deadline,
            scheduler.now() + delay
        );
    };
    moved(MINUTE, true);
    moved(2 * MINUTE, true);
    moved(MINUTE, false);
    moved(SECOND / 2, false);
    // A queued timer is in no wheel.
    timers.schedule(Key(1), Duration::ZERO, |_| ()).unwrap();
    moved(MINUTE, false);
    moved(MINUTE, true);
    let absent = || assert_eq!(timers.reschedule(&Key(2), MINUTE), Reschedule::NotFound);
    assert!(!is_usual(absent));
}

#[test]
fn an_exact_clock_has_no_usual_calls_and_locks_once() {
    for clock in [Clock::system(), Clock::boottime()] {
        assert!(!clock.has_quick_readings());
        assert!(clock.quick_reading().is_none());
        let builder = ExpiryMap::<Key, u64>::builder()
            .time_to_idle(MINUTE)
            .clock(clock);
        let map = builder.build(|_, _| ()).unwrap();
        map.insert(Key(1), 1).unwrap();
        assert!(!is_usual(|| assert!(map.touch(&Key(1)).is_alive())));
    }
}

thread_local! {
    /// Whether two keys with the same number are equal, from now on.
    static COMPARED: Cell<bool> = const { Cell::new(false) };
}

/// A key that can be made to differ from all others in the next comparison. So a call does not take the usual
/// way.
#[derive(Clone, Eq, Debug)]
struct Fickle(u64);

impl PartialEq for Fickle {
    fn eq(&self, other: &Self) -> bool {
        COMPARED.replace(true) && self.0 == other.0
    }
}

impl Hash for Fickle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Borrow<u64> for Fickle {
    fn borrow(&self) -> &u64 {
        &self.0
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
                    let builder = ExpiryMap::<Fickle, u64>::builder()
                        .time_to_idle(idle)
                        .time_to_live(life)
                        .clock(Clock::behind(&hand, Duration::from_micros(100)));
                    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
                    let map = stepped.map();
                    for key in [1, 2] {
                        COMPARED.set(true);
                        map.insert(Fickle(key), key).unwrap();
                    }
                    // Not stepped, so what is due is still there.
                    hand.advance(step);
                    let expiry = Expiry::NEVER.time_to_idle(again);
                    let both = |call: &dyn Fn(&Fickle) -> Touch| {
                        COMPARED.set(true);
                        let usual = call(&Fickle(1));
                        COMPARED.set(false);
                        let other = call(&Fickle(2));
                        assert_eq!(usual, other, "{idle:?}, {life:?}, {again:?}, {step:?}");
                        let deadlines = [1, 2].map(|key: u64| map.deadline(&key));
                        assert_eq!(deadlines[0], deadlines[1]);
                    };
                    both(&|key| map.touch(key));
                    both(&|key| map.set_expiry(key, expiry));
                    hand.advance(step);
                    both(&|key| map.touch(key));
                    both(&|key| map.set_expiry(key, expiry.time_to_live(life)));
                }
            }
        }
    }
}
