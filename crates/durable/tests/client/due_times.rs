//! Due times, in all forms that a caller may give them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use tourbillon_durable::store::StoreTime;
use tourbillon_durable::{
    CallError, DueAt, Durable, Invalid, Memory, MemoryCall, MemoryFault, WallClock,
};

/// The seconds of the store's clock.
const NOW: i64 = 1_800_000_000;

const SECOND: Duration = Duration::from_secs(1);

fn client() -> (Memory, Durable, WallClock) {
    let clock = WallClock::manual(now());
    let store = Memory::with_clock(clock.clone());
    let timers = Durable::builder(store.clone()).start().unwrap();
    (store, timers, clock)
}

/// The microseconds from the store's clock to the due time of a timer that is scheduled so.
fn due(timers: &Durable, when: impl Into<DueAt>) -> i64 {
    let scheduled = timers.schedule("q", "k", when, &()).wait().unwrap();
    StoreTime::from(scheduled.due).as_micros() - NOW * 1_000_000
}

fn now() -> SystemTime {
    UNIX_EPOCH + SECOND * u32::try_from(NOW).unwrap()
}

fn timestamp() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

#[test]
fn a_delay_and_a_time_say_the_same_in_all_types() {
    let (_, timers, _) = client();
    let zone = TimeZone::fixed(jiff::tz::offset(-7));
    let later = timestamp().to_zoned(zone) + 90.seconds();
    let stored = StoreTime::from_micros((NOW + 90) * 1_000_000);
    let all = [
        due(&timers, SECOND * 90),
        due(&timers, now() + SECOND * 90),
        due(&timers, stored),
        due(&timers, timestamp() + SECOND * 90),
        due(&timers, &later),
        due(&timers, later),
        due(&timers, DueAt::After(SECOND * 90)),
        due(&timers, DueAt::from(stored)),
    ];
    assert_eq!(all, [90_000_000; 8]);
}

#[test]
fn what_is_past_or_zero_is_due_now() {
    let (_, timers, _) = client();
    let before_1970 = -SignedDuration::from_hours(24 * 365 * 100);
    let old = timestamp() - SignedDuration::from_secs(NOW) + before_1970;
    let all = [
        due(&timers, Duration::ZERO),
        due(&timers, now()),
        due(&timers, now() - SECOND),
        due(&timers, UNIX_EPOCH),
        due(&timers, UNIX_EPOCH - Duration::from_nanos(1)),
        due(&timers, UNIX_EPOCH - SECOND * 86_400 * 365 * 100),
        due(&timers, StoreTime::from_micros(i64::MIN)),
        due(&timers, timestamp() - SECOND),
        due(&timers, old),
        due(&timers, Timestamp::MIN),
        due(&timers, Timestamp::MIN.to_zoned(TimeZone::UTC)),
    ];
    assert_eq!(all, [0; 11]);
}

#[test]
fn parts_of_a_microsecond_are_rounded_up() {
    let (_, timers, _) = client();
    for (nanos, micros) in [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (1_000_001, 1_001)] {
        let span = Duration::from_nanos(nanos);
        let all = [
            due(&timers, span),
            due(&timers, now() + span),
            due(&timers, timestamp() + span),
        ];
        assert_eq!(all, [micros; 3], "{nanos} ns");
    }
    // Before 1970, too: nothing is early.
    for (nanos, micros) in [(-1, 0), (-999, 0), (-1_000, -1), (-1_001, -1), (-1_999, -1)] {
        let time = DueAt::from(Timestamp::from_nanosecond(nanos).unwrap());
        let stored = StoreTime::from_micros(micros);
        assert_eq!(time, DueAt::from(stored), "{nanos} ns");
        let span = Duration::from_nanos(u64::try_from(-nanos).unwrap());
        assert_eq!(StoreTime::from(UNIX_EPOCH - span), stored, "{nanos} ns");
    }
}

#[test]
fn the_last_time_is_the_end_of_the_year_9999() {
    let (_, timers, _) = client();
    let year_10_000 = UNIX_EPOCH + SECOND * 2_000_000_000 * 126 + SECOND * 1_402_300_800;
    let last = year_10_000 - Duration::from_micros(1);
    let latest = StoreTime::LATEST.as_micros() - NOW * 1_000_000;
    assert_eq!(due(&timers, last), latest);
    assert_eq!(due(&timers, StoreTime::LATEST), latest);
    // That library ends some hours earlier, so none of its times is refused.
    assert!(due(&timers, Timestamp::MAX) < latest);

    let far = || Err(CallError::Invalid(Invalid::TooFar));
    let schedule = |when: DueAt| timers.schedule("q", "far", when, &()).wait();
    let latest = Duration::from_micros(u64::try_from(StoreTime::LATEST.as_micros()).unwrap());
    for when in [
        DueAt::from(year_10_000),
        DueAt::from(last + Duration::from_nanos(1)),
        DueAt::from(StoreTime::from_micros(i64::MAX)),
        DueAt::from(Duration::MAX),
        DueAt::from(Duration::from_secs(u64::MAX)),
        // From the clock of this machine, which is later than 1970.
        DueAt::from(latest),
    ] {
        assert_eq!(schedule(when), far(), "{when:?}");
    }
    assert_eq!(timers.get("q", "far").wait().unwrap(), None);
}

#[test]
fn a_delay_counts_from_the_moment_at_which_the_store_carries_out_the_call() {
    let (store, timers, clock) = client();
    store.inject(|call| match call {
        MemoryCall::Write(_) => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let delay = timers.schedule("q", "delay", SECOND * 90, &());
    let time = timers.schedule("q", "time", now() + SECOND * 90, &());
    // The outage lasts a minute.
    clock.advance(SECOND * 60);
    store.heal();
    assert_eq!(delay.wait().unwrap().due, now() + SECOND * 150);
    assert_eq!(time.wait().unwrap().due, now() + SECOND * 90);
}
