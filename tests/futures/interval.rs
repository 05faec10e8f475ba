//! `Timer::interval`: ticks at a fixed period, like those of tokio.

use std::panic::catch_unwind;
use std::task::Poll;
use std::time::Duration;

use kit::wakes::{Wakes, poll};
use tokio_stream::StreamExt;
use tourbillon::{Clock, Interval, ManualClock, Missed, SleepError, Time, Timer};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// The ticks that are ready now.
fn ready(ticks: &mut Interval) -> Vec<u64> {
    let mut ready = Vec::new();
    while let Poll::Ready(tick) = poll(&mut ticks.tick(), &Wakes::new()) {
        ready.push(tick.unwrap().since(Time::ZERO).as_secs());
    }
    ready
}

#[test]
fn ticks_come_at_once_and_then_on_the_grid() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    stepped.run_until(async {
        let mut ticks = timer.interval(10 * SECOND);
        assert_eq!(ticks.period(), 10 * SECOND);
        for due in [0, 10, 20, 30] {
            assert_eq!(ticks.tick().await, Ok(at(due)));
            assert_eq!(timer.now(), at(due));
            // The time between two ticks does not move the grid.
            timer.sleep(7 * SECOND).await.unwrap();
        }
        // Nor does a dropped future.
        let limit = timer.timeout(SECOND, ticks.tick()).await;
        assert!(limit.is_err());
        assert_eq!(ticks.tick().await, Ok(at(40)));
        ticks.reset();
        timer.sleep(9 * SECOND).await.unwrap();
        ticks.reset();
        assert_eq!(ticks.tick().await, Ok(at(59)));
        assert_eq!(ticks.tick().await, Ok(at(69)));
        let mut later = timer.interval(SECOND).first(at(75));
        assert_eq!(later.tick().await, Ok(at(75)));
        assert_eq!(timer.now(), at(75));
        // The grid is that of the period, and begins anew where it is set again.
        assert_eq!(later.tick().await, Ok(at(76)));
        let mut anew = later.first(SECOND * 4);
        assert_eq!(anew.tick().await, Ok(at(80)));
        assert_eq!(anew.tick().await, Ok(at(81)));
    });
    assert_eq!(timer.stats().pending, 0, "a dropped interval has no timer");
}

#[test]
fn what_comes_after_missed_ticks() {
    for (policy, late, next) in [
        (None, vec![1, 2, 3, 4, 5], 6),
        (Some(Missed::All), vec![1, 2, 3, 4, 5], 6),
        (Some(Missed::Once), vec![5], 6),
        (Some(Missed::AtMost(2)), vec![4, 5], 6),
        (Some(Missed::AtMost(0)), vec![], 6),
        (Some(Missed::Skip), vec![], 6),
    ] {
        let hand = ManualClock::new();
        let timer = Timer::builder()
            .clock(Clock::manual(&hand))
            .build()
            .unwrap();
        let mut ticks = timer.interval(SECOND);
        if let Some(policy) = policy {
            ticks = ticks.missed(policy);
        }
        assert_eq!(ready(&mut ticks), [0]);
        hand.advance(5 * SECOND + SECOND / 2);
        assert_eq!(ready(&mut ticks), late, "{policy:?}");
        hand.advance(SECOND);
        assert_eq!(ready(&mut ticks), [next], "{policy:?}");
        // Late by less than a period.
        hand.advance(SECOND);
        assert_eq!(ready(&mut ticks), [next + 1], "{policy:?}");
    }
}

/// Tokio's `Delay`.
#[test]
fn a_reset_after_a_late_tick_begins_a_new_grid() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let mut ticks = timer.interval(2 * SECOND).missed(Missed::Once);
    hand.advance(5 * SECOND);
    let wakes = Wakes::new();
    assert_eq!(poll(&mut ticks.tick(), &wakes), Poll::Ready(Ok(at(4))));
    ticks.reset();
    assert!(poll(&mut ticks.tick(), &wakes).is_pending());
    hand.advance(10 * SECOND);
    assert_eq!(poll(&mut ticks.tick(), &wakes), Poll::Ready(Ok(at(15))));
}

#[test]
fn with_skip_a_late_tick_comes_after_three_that_were_skipped() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let mut ticks = timer.interval(SECOND).missed(Missed::Skip);
    let mut seen = Vec::new();
    for _ in 0..8 {
        hand.advance(2 * SECOND + SECOND / 2);
        seen.push(ready(&mut ticks).len());
    }
    assert_eq!(seen, [0, 0, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn an_interval_reports_a_full_or_closed_timer_and_its_stream_ends() {
    let stepped = Timer::builder().max_pending(1).build_stepped(1).unwrap();
    let timer = stepped.timer();
    let mut ticks = timer.interval(SECOND).first(at(5));
    let wakes = Wakes::new();
    let other = timer.after(SECOND, || ()).unwrap();
    let full = poll(&mut ticks.tick(), &wakes);
    assert_eq!(full, Poll::Ready(Err(SleepError::Full)));
    assert!(other.cancel().is_cancelled());
    stepped.run_until(async {
        assert_eq!(ticks.next().await, Some(Ok(at(5))));
        assert_eq!(ticks.next().await, Some(Ok(at(6))));
    });
    assert!(poll(&mut Box::pin(ticks.next()), &wakes).is_pending());
    drop(timer);
    drop(stepped);
    assert_eq!(wakes.count(), 1);
    let closed = poll(&mut Box::pin(ticks.next()), &wakes);
    assert_eq!(closed, Poll::Ready(Some(Err(SleepError::Closed))));
    assert_eq!(poll(&mut Box::pin(ticks.next()), &wakes), Poll::Ready(None));
}

#[test]
fn the_ends_of_the_clock_and_of_the_period() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let mut ticks = timer.interval(Duration::MAX);
    assert_eq!(ready(&mut ticks), [0]);
    assert!(format!("{ticks:?}").starts_with("Interval"));
    let none = catch_unwind(std::panic::AssertUnwindSafe(|| {
        timer.interval(Duration::ZERO)
    }));
    assert!(none.is_err());
}
