//! Tests of the clocks that a user can choose.

use std::time::{Duration, Instant};

use crate::clock::*;
use crate::sync::{Arc, Parker};

#[test]
fn moving_the_clock_wakes_who_waits_for_it() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let until = Time::from_nanos(10);
    let sleeper = std::thread::spawn(move || {
        let parker = Parker::new();
        while clock.now() < until {
            clock.park_until(&parker, Some(until));
        }
        clock.now()
    });
    hand.advance(Duration::from_nanos(4));
    hand.advance(Duration::from_nanos(6));
    assert_eq!(sleeper.join().unwrap(), until);
}

#[test]
fn a_parked_thread_is_woken_by_its_clock_and_by_its_unparker() {
    let hand = ManualClock::new();
    let parker = ClockParker::new(&Clock::manual(&hand));
    let unparker = Arc::new(parker.unparker());
    // The token is kept until the thread parks.
    unparker.unpark();
    parker.park_until(Time::MAX);
    std::task::Waker::from(Arc::clone(&unparker)).wake_by_ref();
    parker.park_until(Time::MAX);
    hand.advance(Duration::from_nanos(10));
    parker.park_until(Time::from_nanos(10));
    let sleeper = std::thread::spawn(move || parker.park_until(Time::from_nanos(20)));
    hand.advance(Duration::from_nanos(10));
    sleeper.join().unwrap();
    let parker = ClockParker::new(&Clock::system());
    parker.park_for(Duration::from_nanos(1));
}

#[test]
fn instants_become_times_of_the_clock() {
    let clock = Clock::system();
    let now = Instant::now();
    let later = clock.time_of(now + Duration::from_secs(1));
    assert_eq!(later.since(clock.time_of(now)), Duration::from_secs(1));
    let hand = ManualClock::starting_at(Time::ZERO + Duration::from_secs(60));
    let past = Instant::now().checked_sub(Duration::from_secs(5));
    let clock = Clock::manual(&hand);
    assert!(past.is_none_or(|past| clock.time_of(past) < hand.now()));
    assert!(clock.time_of(Instant::now() + Duration::from_secs(5)) > hand.now());
}

#[test]
fn boottime_is_there_where_it_is_promised() {
    let has_it = cfg!(any(target_os = "linux", target_os = "android"));
    assert_eq!(Clock::boottime().counts_suspend(), has_it);
    assert!(Clock::boottime().as_manual().is_none());
    assert!(!Clock::system().counts_suspend());
    assert!(!Clock::manual(&ManualClock::new()).counts_suspend());
}

#[test]
fn boottime_goes_at_least_as_far_as_the_systems_clock_and_never_back() {
    let clock = Clock::boottime();
    let (begin, start) = (clock.now(), Instant::now());
    let mut last = begin;
    while last.since(begin) < Duration::from_millis(5) {
        let elapsed = start.elapsed();
        let now = clock.now();
        assert!(now >= last);
        assert!(now.since(begin) >= elapsed);
        last = now;
    }
}

#[test]
fn all_boottime_clocks_show_one_time() {
    let one = Clock::boottime();
    let begin = one.now();
    while one.now().since(begin) < Duration::from_millis(2) {}
    let other = Clock::boottime();
    if one.counts_suspend() {
        let (first, second, third) = (one.now(), other.now(), one.now());
        assert!(first <= second && second <= third);
    }
}

#[test]
fn instants_become_times_since_boot() {
    let clock = Clock::boottime();
    let away = Duration::from_secs(5);
    let before = clock.now();
    let instant = Instant::now();
    let present = clock.time_of(instant);
    let ahead = clock.time_of(instant + away);
    let behind = instant.checked_sub(away).map(|past| clock.time_of(past));
    let after = clock.now();
    assert!(before <= present && present <= after);
    assert!(before + away <= ahead && ahead <= after + away);
    if let Some(behind) = behind.filter(|_| clock.counts_suspend()) {
        assert!(before - away <= behind && behind <= after - away);
    }
}

#[test]
fn a_scheduler_counts_by_boottime() {
    let clock = Clock::boottime();
    let built = clock.now();
    let scheduler = crate::Scheduler::<u32>::builder()
        .clock(clock.clone())
        .shards(1)
        .workers(1)
        .build()
        .unwrap();
    let handle = scheduler.handle();
    assert!(built <= handle.now() && handle.now() <= clock.now());
    let (told, runs) = std::sync::mpsc::channel();
    let deadline = clock.now() + Duration::from_millis(20);
    for (key, time) in [(1, deadline), (2, built)] {
        let (clock, told) = (clock.clone(), told.clone());
        let tell = move |firing: &crate::Firing<'_, u32>| {
            told.send((*firing.key(), firing.deadline(), clock.now()))
                .unwrap();
        };
        handle.schedule(key, time, tell).unwrap();
    }
    for _ in 0..2 {
        let (key, asked, started) = runs.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(asked, if key == 1 { deadline } else { built });
        assert!(started >= asked, "{started:?} is before {asked:?}");
    }
}
