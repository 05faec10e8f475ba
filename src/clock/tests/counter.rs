//! The counter of this machine, if its kernel trusts it. Where it does not, the tests say so: their
//! clock is the system's then, and they hold all the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::fast::{FastClock, Process, kernel_trusts_counter};
use crate::clock::reading::MARGIN;
use crate::clock::{Clock, ClockKind};
use crate::tick::Time;

/// A fast clock that has measured its counter.
fn measured() -> Option<FastClock> {
    let Clock(ClockKind::Fast(clock)) = Clock::fast() else {
        eprintln!("skipped: this kernel does not trust the counter of the processor");
        return None;
    };
    let begun = Instant::now();
    while !clock.is_measured() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never measured");
        let _ = clock.low();
        thread::yield_now();
    }
    Some(clock)
}

fn instant_of(clock: &FastClock) -> u64 {
    u64::try_from(clock.start().elapsed().as_nanos()).unwrap()
}

#[test]
fn readings_are_not_ahead_of_the_clock() {
    let Some(clock) = measured() else { return };
    let mut counted = 0;
    for round in 0..2_000_000_u64 {
        let (low, margin) = clock.low();
        let now = instant_of(&clock);
        assert!(low.as_nanos() <= now, "round {round}: {low:?}, {now}");
        counted += u64::from(margin == MARGIN);
    }
    // The margin is there as long as the counter was not given up.
    assert!(counted == 2_000_000);
}

#[test]
fn quick_readings_are_not_ahead_of_the_clock_either() {
    let Some(clock) = measured() else { return };
    let mut last = Time::ZERO;
    let mut read = 0;
    for _ in 0..2_000_000 {
        let Some(reading) = clock.quick() else {
            // This takes the anchor that is missing.
            let _ = clock.low();
            continue;
        };
        let now = instant_of(&clock);
        let deadline = reading.after_nanos(1_000_000_000).unwrap();
        // A deadline is counted from the reading and its margin.
        assert_eq!(
            deadline.as_nanos(),
            reading.low().as_nanos() + MARGIN + 1_000_000_000
        );
        assert!(reading.low().as_nanos() <= now);
        assert!(deadline >= last);
        last = deadline;
        read += 1;
    }
    // All but those for which the anchor was too old.
    assert!(read > 1_000_000, "{read}");
}

#[test]
fn the_first_quick_readings_do_not_wrap() {
    if measured().is_none() {
        return;
    }
    // A reading may lie before the start of a clock that has just been made.
    for _ in 0..1_000 {
        let Clock(ClockKind::Fast(clock)) = Clock::fast() else {
            return;
        };
        let _ = clock.low();
        let Some(reading) = clock.quick() else {
            continue;
        };
        assert!(reading.low().as_nanos() <= instant_of(&clock));
        let deadline = reading.after_nanos(1_000_000_000).unwrap();
        assert!(deadline.as_nanos() < 60_000_000_000);
    }
}

/// How often a reading, and `margin`, lay before an instant that another thread had handed over.
fn handed_over(clock: FastClock, margin: u64, limit: Duration) -> u64 {
    let (newest, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut early = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                newest.store(instant_of(&clock), Ordering::Release);
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < limit && (margin > 0 || early == 0) {
            for _ in 0..1_000 {
                let seen = newest.load(Ordering::Acquire);
                let (low, _) = clock.low();
                early += u64::from(low.as_nanos() + margin < seen);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    early
}

#[test]
fn no_deadline_lies_before_an_instant_that_was_handed_over() {
    let Some(clock) = measured() else { return };
    assert_eq!(handed_over(clock, MARGIN, Duration::from_secs(1)), 0);
    // Without the margin it does, so the test would see it.
    assert!(handed_over(clock, 0, Duration::from_secs(10)) > 0);
}

#[test]
fn a_kernel_that_does_not_say_tsc_does_not_trust_the_counter() {
    assert!(kernel_trusts_counter(Ok("tsc\n".to_owned())));
    for other in [
        "hpet\n",
        "kvm-clock\n",
        "hyperv_clocksource_tsc_page\n",
        "tsc-early\n",
        "",
    ] {
        assert!(!kernel_trusts_counter(Ok(other.to_owned())), "{other}");
    }
    let missing = std::fs::read_to_string("/no/such/file");
    assert!(missing.is_err() && !kernel_trusts_counter(missing));
}

#[test]
fn a_kernel_that_changes_its_mind_makes_all_clocks_exact() {
    // None where there is no counter.
    let Some(process) = Process::new() else {
        return;
    };
    assert!(process.serves(Ok("tsc\n".to_owned())) && !process.is_given_up());
    let unreadable = std::fs::read_to_string("/no/such/file");
    assert!(!process.serves(unreadable) && !process.is_given_up());
    assert!(!process.serves(Ok("hpet\n".to_owned())) && process.is_given_up());
    // It stays so.
    assert!(process.serves(Ok("tsc\n".to_owned())) && process.is_given_up());
}

#[test]
fn a_clock_that_has_just_begun_is_not_below_zero() {
    if measured().is_none() {
        return;
    }
    for _ in 0..2_000 {
        // An anchor of this thread may be older than the clock.
        let low = Clock::fast().reading().low();
        assert!(low < Time::ZERO + Duration::from_secs(60));
    }
}

#[test]
fn a_fast_clock_is_the_systems_clock_for_everything_else() {
    let clock = Clock::fast();
    assert!(clock.as_manual().is_none() && !clock.counts_suspend());
    let instant = Instant::now();
    let (before, at) = (clock.now(), clock.time_of(instant));
    assert!(at <= before && before <= clock.now());
    let second = Duration::from_secs(1);
    assert_eq!(clock.time_of(instant + second), at + second);
}

#[test]
fn clocks_of_one_process_have_starts_of_their_own() {
    let first = Clock::fast();
    while first.now() < Time::ZERO + Duration::from_millis(5) {
        thread::yield_now();
    }
    let second = Clock::fast();
    // In this order: what passes in between makes the difference greater.
    let other = second.reading().low();
    let one = first.reading().low();
    // A cheap reading is behind by much less than the millisecond that is left here.
    assert!(one.since(other) >= Duration::from_millis(4));
    // A reading at the very start is not below zero.
    assert!(Clock::fast().reading().low() >= Time::ZERO);
}
