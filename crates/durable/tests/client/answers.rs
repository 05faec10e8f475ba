//! What each call answers, and what it leaves in the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tourbillon_durable::Revived;
use tourbillon_durable::{
    CallError, CancelAnswer, Durable, IfAbsentAnswer, Invalid, Memory, Paging, RescheduleAnswer,
    TimerFilter, WallClock,
};

const SECOND: Duration = Duration::from_secs(1);

/// A client whose store has a clock that stands at this number of seconds.
fn client_at(seconds: u64) -> (Durable, WallClock) {
    let clock = WallClock::manual(at(seconds));
    let store = Memory::with_clock(clock.clone());
    (Durable::builder(store).start().unwrap(), clock)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + SECOND * u32::try_from(seconds).unwrap()
}

#[test]
fn schedule_answers_the_due_time_and_what_it_replaced() {
    let (timers, _clock) = client_at(100);
    let first = timers.schedule("q", "k", SECOND * 5, &1).wait().unwrap();
    assert_eq!(
        (first.due, first.replaced, first.running),
        (at(105), None, false)
    );
    let second = timers.schedule("q", "k", SECOND * 7, &2).wait().unwrap();
    assert_eq!((second.due, second.replaced), (at(107), Some(at(105))));
    let timer = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!((timer.due, timer.planned), (at(107), at(107)));
    assert_eq!(timer.payload_as::<i32>().unwrap(), 2);
    assert!(timer.payload_as::<String>().is_err());
}

#[test]
fn a_time_that_has_passed_is_due_at_once() {
    let (timers, _clock) = client_at(100);
    assert_eq!(
        timers.schedule("q", "a", at(50), &()).wait().unwrap().due,
        at(100)
    );
    assert_eq!(
        timers.schedule("q", "b", at(150), &()).wait().unwrap().due,
        at(150)
    );
    let old = UNIX_EPOCH - SECOND;
    assert_eq!(
        timers.schedule("q", "c", old, &()).wait().unwrap().due,
        at(100)
    );
    assert_eq!(
        timers
            .schedule("q", "d", Duration::ZERO, &())
            .wait()
            .unwrap()
            .due,
        at(100)
    );
    assert!(
        timers
            .reschedule("q", "b", at(20))
            .wait()
            .unwrap()
            .is_moved()
    );
    assert_eq!(timers.get("q", "b").wait().unwrap().unwrap().due, at(100));
}

#[test]
fn schedule_if_absent_leaves_a_timer_that_is_there() {
    let (timers, _clock) = client_at(100);
    let first = timers
        .schedule_if_absent("q", "k", SECOND, &1)
        .wait()
        .unwrap();
    assert!(matches!(first, IfAbsentAnswer::Scheduled(scheduled) if scheduled.due == at(101)));
    let second = timers
        .schedule_if_absent("q", "k", SECOND * 9, &2)
        .wait()
        .unwrap();
    assert!(matches!(second, IfAbsentAnswer::Exists { due, running: false, .. } if due == at(101)));
    assert!(first.is_scheduled() && !second.is_scheduled());
    let timer = timers.get("q", "k").wait().unwrap().unwrap();
    assert_eq!(timer.payload_as::<i32>().unwrap(), 1);
}

#[test]
fn reschedule_moves_and_keeps_the_payload() {
    let (timers, clock) = client_at(100);
    timers
        .schedule("q", "k", SECOND * 5, "text")
        .wait()
        .unwrap();
    clock.advance(SECOND);
    let moved = timers.reschedule("q", "k", SECOND * 5).wait().unwrap();
    let RescheduleAnswer::Moved {
        from, to, running, ..
    } = moved
    else {
        panic!("{moved:?}");
    };
    assert_eq!((from, to, running), (at(105), at(106), false));
    assert_eq!(
        timers.get("q", "k").wait().unwrap().unwrap().payload,
        "\"text\""
    );
    assert_eq!(
        timers.reschedule("q", "other", SECOND).wait().unwrap(),
        RescheduleAnswer::NotFound
    );
    assert_eq!(
        timers.reschedule("other", "k", SECOND).wait().unwrap(),
        RescheduleAnswer::NotFound
    );
    assert!(!RescheduleAnswer::NotFound.is_moved());
}

#[test]
fn cancel_removes_a_timer() {
    let (timers, _clock) = client_at(100);
    timers.schedule("q", "k", SECOND * 5, &()).wait().unwrap();
    let cancelled = timers.cancel("q", "k").wait().unwrap();
    assert!(matches!(cancelled, CancelAnswer::Cancelled { due, .. } if due == at(105)));
    assert!(cancelled.is_cancelled());
    assert_eq!(
        timers.cancel("q", "k").wait().unwrap(),
        CancelAnswer::NotFound
    );
    assert_eq!(timers.get("q", "k").wait().unwrap(), None);
}

#[test]
fn many_timers_are_answered_in_their_order() {
    let (timers, _clock) = client_at(100);
    let many = (0..2_500_u64).map(|n| (format!("k{n}"), SECOND * u32::try_from(n).unwrap(), n));
    let results = timers.schedule_many("q", many).wait().unwrap();
    assert_eq!(results.len(), 2_500);
    for (n, result) in (0..).zip(&results) {
        assert_eq!(result.as_ref().unwrap().due, at(100 + n));
    }
    let keys = ["k7", "nothing", "k8"];
    let results = timers.cancel_many("q", keys).wait().unwrap();
    assert!(results[0].as_ref().unwrap().is_cancelled());
    assert_eq!(results[1], Ok(CancelAnswer::NotFound));
    assert!(results[2].as_ref().unwrap().is_cancelled());
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.cancelled), (2_500, 2));
    assert_eq!(
        timers.counts().wait().unwrap()[0].waiting + timers.counts().wait().unwrap()[0].overdue,
        2_498
    );
}

#[test]
fn no_timers_at_all_are_no_error() {
    let (timers, _clock) = client_at(100);
    let none: [(&str, Duration, ()); 0] = [];
    assert_eq!(timers.schedule_many("q", none).wait().unwrap(), []);
    assert_eq!(timers.cancel_many("q", [""; 0]).wait().unwrap(), []);
}

#[test]
fn a_bad_timer_of_many_fails_alone() {
    let (timers, _clock) = client_at(100);
    let many = [
        ("a", SECOND, 1),
        ("", SECOND, 2),
        ("b", Duration::MAX, 3),
        ("c", SECOND, 4),
    ];
    let results = timers.schedule_many("q", many).wait().unwrap();
    assert!(results[0].is_ok() && results[3].is_ok());
    assert_eq!(results[1], Err(CallError::Invalid(Invalid::KeyLength(0))));
    assert_eq!(results[2], Err(CallError::Invalid(Invalid::TooFar)));
    let bad = timers.cancel_many("q", ["", "a"]).wait().unwrap();
    assert_eq!(bad[0], Err(CallError::Invalid(Invalid::KeyLength(0))));
    assert!(bad[1].as_ref().unwrap().is_cancelled());
    let all = timers
        .schedule_many("q", [("\0", SECOND, ())])
        .wait()
        .unwrap();
    assert_eq!(all, [Err(CallError::Invalid(Invalid::KeyNul))]);
}

#[test]
fn the_same_key_twice_refuses_all() {
    let (timers, _clock) = client_at(100);
    let many = [("a", SECOND, 1), ("b", SECOND, 2), ("a", SECOND, 3)];
    let error = timers.schedule_many("q", many).wait().unwrap_err();
    assert_eq!(error, CallError::Invalid(Invalid::SameKey("a".into())));
    assert_eq!(timers.get("q", "b").wait().unwrap(), None);
    let error = timers.cancel_many("q", ["x", "x"]).wait().unwrap_err();
    assert_eq!(error, CallError::Invalid(Invalid::SameKey("x".into())));
}

#[test]
fn a_list_has_pages_and_ranges() {
    let (timers, _clock) = client_at(0);
    let many = (1..=10).map(|n| (format!("k{n}"), SECOND * n, n));
    timers.schedule_many("q", many).wait().unwrap();
    timers.schedule("other", "k", SECOND, &()).wait().unwrap();

    let mut seen = Vec::new();
    let mut paging = Paging::first(3);
    loop {
        let page = timers.list("q", &paging).wait().unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 3);
        paging = Paging::after(last, 3);
        seen.extend(page.into_iter().map(|timer| timer.key));
    }
    let all: Vec<String> = (1..=10).map(|n| format!("k{n}")).collect();
    assert_eq!(seen, all);

    let count = |page: Vec<_>| page.len();
    let ten = Paging::first(10);
    assert_eq!(
        count(
            timers
                .list(TimerFilter::queue("q").due(at(3)..at(5)), &ten)
                .wait()
                .unwrap()
        ),
        2
    );
    assert_eq!(
        count(
            timers
                .list(TimerFilter::queue("q").due(at(3)..=at(5)), &ten)
                .wait()
                .unwrap()
        ),
        3
    );
    assert_eq!(
        count(
            timers
                .list(TimerFilter::queue("q").due(..at(3)), &ten)
                .wait()
                .unwrap()
        ),
        2
    );
    assert_eq!(
        count(
            timers
                .list(TimerFilter::queue("q").due(at(9)..), &ten)
                .wait()
                .unwrap()
        ),
        2
    );
    let behind = (std::ops::Bound::Excluded(at(9)), std::ops::Bound::Unbounded);
    assert_eq!(
        count(
            timers
                .list(TimerFilter::queue("q").due(behind), &ten)
                .wait()
                .unwrap()
        ),
        1
    );
    assert_eq!(count(timers.list("nothing", &ten).wait().unwrap()), 0);
}

#[test]
fn counts_show_all_queues_and_their_pauses() {
    let (timers, clock) = client_at(0);
    timers.schedule("a", "1", SECOND, &()).wait().unwrap();
    timers.schedule("a", "2", SECOND * 10, &()).wait().unwrap();
    timers.schedule("b", "1", SECOND * 10, &()).wait().unwrap();
    timers.pause("b").wait().unwrap();
    clock.advance(SECOND * 2);
    let counts = timers.counts().wait().unwrap();
    let of = |queue: &str| counts.iter().find(|counts| counts.queue == queue).unwrap();
    assert_eq!(
        (of("a").waiting, of("a").overdue, of("a").paused),
        (1, 1, false)
    );
    assert_eq!(
        (of("b").waiting, of("b").overdue, of("b").paused),
        (1, 0, true)
    );
    timers.resume("b").wait().unwrap();
    let counts = timers.counts().wait().unwrap();
    assert!(counts.iter().all(|counts| !counts.paused));
}

#[test]
fn there_are_no_dead_letters_without_failures() {
    let (timers, _clock) = client_at(0);
    assert_eq!(timers.dead("q", 0, 10).wait().unwrap(), []);
    assert_eq!(timers.revive(7).wait().unwrap(), Revived::NotFound);
}

#[test]
fn clones_share_their_counters() {
    let (timers, _clock) = client_at(0);
    let clone = timers.clone();
    clone.schedule("q", "k", SECOND, &()).wait().unwrap();
    clone.reschedule("q", "k", SECOND * 2).wait().unwrap();
    drop(clone);
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.moved, stats.runs), (1, 1, 0));
    assert!(stats.commits >= 2);
    assert!(format!("{timers:?}").contains("Durable"));
}
