//! Which calls use a cheap reading, on a manual clock whose readings are 0.1 ms behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::clock::{Clock, ManualClock};
use crate::test_util::{Stepped, SteppedMap};
use crate::tick::Time;
use crate::{Expiry, ExpiryMap, InsertError, Scheduler, Timer, Touch};

const NANO: Duration = Duration::from_nanos(1);
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const BEHIND: Duration = Duration::from_micros(100);

/// When each test begins.
const BEGIN: Time = Time::from_nanos(10_000_000_000);

fn behind() -> (Clock, ManualClock) {
    let hand = ManualClock::starting_at(BEGIN);
    (Clock::behind(&hand, BEHIND), hand)
}

/// The deadline of a call with a delay that is not short.
fn later(begun: Time, delay: Duration) -> Time {
    begun - BEHIND + MILLI + delay
}

fn scheduler() -> Stepped<u32> {
    let builder = Scheduler::<u32>::builder().clock(behind().0);
    builder.build_stepped(1).unwrap()
}

fn map(idle: Duration, lifetime: Duration) -> (SteppedMap<u32, u32>, ManualClock) {
    let (clock, hand) = behind();
    let builder = ExpiryMap::<u32, u32>::builder()
        .time_to_idle(idle)
        .time_to_live(lifetime)
        .clock(clock);
    (builder.build_stepped(1, |_, _| ()).unwrap(), hand)
}

#[test]
fn delays_of_a_second_or_more_are_counted_from_a_cheap_reading() {
    let scheduler = scheduler();
    let timers = scheduler.handle();
    for (delay, deadline) in [
        (SECOND - NANO, BEGIN + SECOND - NANO),
        (SECOND, later(BEGIN, SECOND)),
        (5 * SECOND, later(BEGIN, 5 * SECOND)),
        (Duration::ZERO, BEGIN),
        (Duration::MAX, Time::MAX),
    ] {
        let armed = timers.schedule(1, delay, |_| ()).unwrap();
        assert_eq!(armed.deadline, deadline);
        timers.schedule(2, 9 * SECOND, |_| ()).unwrap();
        let _ = timers.reschedule(&2, delay);
        assert_eq!(timers.get(&2).unwrap().deadline, deadline);
        let third = timers.schedule(3, 9 * SECOND, |_| ()).unwrap();
        let _ = timers.by_id(third.id).reschedule(delay);
        assert_eq!(timers.get(&3).unwrap().deadline, deadline);
        timers.cancel(&4);
        let armed = timers.schedule_if_absent(4, delay, |_| ()).unwrap();
        assert_eq!(armed.deadline, deadline);
    }
}

#[test]
fn no_task_starts_before_its_delay_has_passed() {
    let scheduler = scheduler();
    let timers = scheduler.handle();
    for (key, delay) in [SECOND - NANO, SECOND, 90 * SECOND].into_iter().enumerate() {
        let key = u32::try_from(key).unwrap();
        let begun = scheduler.now();
        timers.schedule(key, delay, |_| ()).unwrap();
        assert!(scheduler.advance_to(begun + delay - NANO).is_empty());
        let fired = scheduler.advance(3 * MILLI);
        assert_eq!(fired.len(), 1);
        assert!(fired[0].at >= fired[0].deadline && fired[0].at < fired[0].deadline + MILLI);
    }
}

#[test]
fn moments_that_are_given_stay_as_they_are() {
    let scheduler = scheduler();
    let timers = scheduler.handle();
    for at in [BEGIN + SECOND, BEGIN + 2 * MILLI, BEGIN + NANO, BEGIN] {
        assert_eq!(timers.schedule(1, at, |_| ()).unwrap().deadline, at);
        let _ = timers.reschedule(&1, at);
        assert_eq!(timers.get(&1).unwrap().deadline, at);
    }
    // What is due is seen to be due, though a cheap reading lies before it.
    assert_eq!(scheduler.settle().len(), 1);
    timers.schedule(2, BEGIN + HALF, |_| ()).unwrap();
    assert!(scheduler.settle().is_empty());
    assert_eq!(scheduler.advance(MILLI).len(), 1);
}

const HALF: Duration = Duration::from_micros(50);

#[test]
fn a_timer_that_is_pulled_in_is_not_later_than_asked() {
    let scheduler = scheduler();
    let timers = scheduler.handle();
    timers.schedule(1, 9 * SECOND, |_| ()).unwrap();
    let _ = timers.pull_in(&1, 2 * SECOND);
    assert_eq!(timers.get(&1).unwrap().deadline, BEGIN + 2 * SECOND);
    let id = timers.schedule(1, 9 * SECOND, |_| ()).unwrap().id;
    let _ = timers.by_id(id).pull_in(2 * SECOND);
    assert_eq!(timers.get(&1).unwrap().deadline, BEGIN + 2 * SECOND);
}

#[test]
fn a_timer_lies_within_its_window() {
    let scheduler = scheduler();
    let timers = scheduler.handle();
    for width in [Duration::ZERO, MILLI / 2, 10 * MILLI, SECOND] {
        let window = 3 * SECOND..=3 * SECOND + width;
        let deadline = timers.schedule(1, window, |_| ()).unwrap().deadline;
        assert!(deadline >= BEGIN + 3 * SECOND && deadline <= BEGIN + 3 * SECOND + width);
    }
}

#[test]
fn entries_of_a_map_expire_after_their_times() -> Result<(), InsertError<u32, u32>> {
    for (idle, lifetime, deadline) in [
        (2 * SECOND, 9 * SECOND, later(BEGIN, 2 * SECOND)),
        (9 * SECOND, 2 * SECOND, later(BEGIN, 2 * SECOND)),
        (SECOND - NANO, 9 * SECOND, BEGIN + SECOND - NANO),
        (9 * SECOND, SECOND - NANO, BEGIN + SECOND - NANO),
    ] {
        let (stepped, _hand) = map(idle, lifetime);
        let map = stepped.map();
        map.insert(1, 1)?;
        assert_eq!(map.deadline(&1), Some(deadline));
        map.entry(2).expiry(Expiry::NEVER).insert(2)?;
        let expiry = Expiry::NEVER.time_to_idle(idle).time_to_live(lifetime);
        assert!(map.set_expiry(&2, expiry).is_alive());
        assert_eq!(map.deadline(&2), Some(deadline));
    }
    Ok(())
}

#[test]
fn a_touch_counts_a_short_idle_time_exactly() -> Result<(), InsertError<u32, u32>> {
    for (idle, margin) in [(SECOND - NANO, false), (SECOND, true)] {
        let (stepped, _hand) = map(idle, 60 * SECOND);
        let map = stepped.map();
        map.insert(1, 1)?;
        stepped.advance(SECOND / 2);
        let begun = stepped.now();
        let deadline = if margin {
            later(begun, idle)
        } else {
            begun + idle
        };
        assert_eq!(map.touch(&1), Touch::Touched { deadline });
        assert_eq!(map.touch_many([&1]), [Touch::Unchanged { deadline }]);
        assert_eq!(map.get_and_touch(&1), Some(1));
        assert_eq!(map.deadline(&1), Some(deadline));
    }
    Ok(())
}

#[test]
fn the_end_of_a_lifetime_is_judged_exactly() -> Result<(), InsertError<u32, u32>> {
    let (stepped, hand) = map(20 * SECOND, 10 * SECOND);
    let map = stepped.map();
    map.insert(1, 1)?;
    let end = map.deadline(&1).unwrap();
    // The hand is moved and nothing is delivered meanwhile.
    for (moment, lives) in [
        (end - 3 * MILLI, true),
        (end - MILLI, true),
        (end - NANO, true),
        // A cheap reading lies before the end here.
        (end, false),
        (end + HALF, false),
    ] {
        hand.set(moment);
        assert_eq!(map.touch(&1).is_alive(), lives, "{moment:?}");
        assert_eq!(map.get(&1).is_some(), lives, "{moment:?}");
        assert_eq!(map.update(&1, |_| ()).is_some(), lives, "{moment:?}");
        assert_eq!(map.get_and_touch(&1).is_some(), lives, "{moment:?}");
        assert_eq!(map.iter().count() == 1, lives, "{moment:?}");
        let set = map.set_expiry(&1, Expiry::NEVER.time_to_live(end.since(moment)));
        assert_eq!(set.is_alive(), lives, "{moment:?}");
    }
    // It counts as absent.
    assert!(map.entry(1).insert_if_absent(2)?.replaced.is_some());
    Ok(())
}

#[test]
fn what_has_just_come_is_due_at_once() {
    // A cheap reading lies before these moments, and the tick that they end in is not over.
    let present = BEGIN + 12 * HALF;
    let come = present - HALF;
    let hand = ManualClock::starting_at(present);
    let builder = Scheduler::<u32>::builder().clock(Clock::behind(&hand, BEHIND));
    let scheduler = builder.build_stepped(1).unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, come, |_| ()).unwrap();
    assert_eq!(scheduler.settle().len(), 1);
    timers.schedule(1, 9 * SECOND, |_| ()).unwrap();
    let _ = timers.reschedule(&1, come);
    assert_eq!(scheduler.settle().len(), 1);
    let id = timers.schedule(1, 9 * SECOND, |_| ()).unwrap().id;
    let _ = timers.by_id(id).reschedule(come);
    assert_eq!(scheduler.settle().len(), 1);
}

#[test]
fn whether_a_lifetime_is_over_is_asked_of_each_entry() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, hand) = behind();
    let stepped = ExpiryMap::<u32, u32>::builder()
        .time_to_live(10 * SECOND)
        .clock(clock)
        .groups::<u32>()
        .build_stepped(1, |_, _| ())?;
    let map = stepped.map();
    map.entry(1).group(&7).insert(1)?;
    let end = map.deadline(&1).ok_or("it is there")?;
    for (moment, lives) in [(end - NANO, true), (end, false)] {
        hand.set(moment);
        assert_eq!(map.group_of(&1).is_some(), lives);
        assert_eq!(map.group_entries(&7).len(), usize::from(lives));
        assert_eq!(map.touch_group(&7), usize::from(lives));
        let mut asked = 0;
        map.retain(|_, _| {
            asked += 1;
            true
        });
        assert_eq!(asked, i32::from(lives));
    }
    Ok(())
}

#[test]
fn a_touch_with_an_older_reading_leaves_the_deadline() -> Result<(), InsertError<u32, u32>> {
    let (stepped, hand) = map(2 * SECOND, 60 * SECOND);
    let map = stepped.map();
    map.insert(1, 1)?;
    hand.set(BEGIN + MILLI);
    let deadline = later(BEGIN + MILLI, 2 * SECOND);
    assert_eq!(map.touch(&1), Touch::Touched { deadline });
    // As if another thread had read its clock before, and got the lock now.
    hand.set(BEGIN + MILLI - HALF);
    assert_eq!(map.touch(&1), Touch::Unchanged { deadline });
    Ok(())
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_on_tokio_do_the_same() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let scheduler = scheduler();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    for (key, delay, deadline) in [
        (1, SECOND - NANO, BEGIN + SECOND - NANO),
        (2, SECOND, later(BEGIN, SECOND)),
    ] {
        let armed = timers.schedule(key, delay, async |_| ()).unwrap();
        assert_eq!(armed.deadline, deadline);
        let armed = timers.schedule_if_absent(key + 5, delay, async |_| ());
        assert_eq!(armed.unwrap().deadline, deadline);
    }
    Ok(())
}

#[test]
fn timeouts_and_sleeps_do_the_same() {
    let (clock, hand) = behind();
    let timer = Timer::builder().clock(clock).workers(1).build().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    for (delay, remaining) in [
        (SECOND - NANO, SECOND - NANO),
        (SECOND, SECOND + MILLI - BEHIND),
    ] {
        let run = Arc::clone(&runs);
        let task = move || {
            run.fetch_add(1, Ordering::SeqCst);
        };
        let timeout = timer.after(delay, task).unwrap();
        assert_eq!(timeout.remaining(), Some(remaining));
        let _ = timeout.reschedule(9 * SECOND);
        assert_eq!(timeout.remaining(), Some(9 * SECOND + MILLI - BEHIND));
        let _ = timeout.reschedule(delay);
        assert_eq!(timeout.remaining(), Some(remaining));
        timeout.cancel();
        let mut sleep = timer.sleep(delay);
        assert_eq!(sleep.deadline(), BEGIN + remaining);
        sleep.reset(9 * SECOND);
        assert_eq!(sleep.deadline(), later(BEGIN, 9 * SECOND));
        sleep.reset(delay);
        assert_eq!(sleep.deadline(), BEGIN + remaining);
    }
    // A sleep is over when its moment has come, and not before.
    let sleep = timer.sleep(BEGIN + SECOND);
    hand.set(BEGIN + SECOND - NANO);
    assert!(!sleep.is_elapsed());
    hand.set(BEGIN + SECOND);
    assert!(sleep.is_elapsed());
    // Nobody has to wake a task for that.
    let mut sleep = std::pin::pin!(sleep);
    let mut context = Context::from_waker(Waker::noop());
    assert!(sleep.as_mut().poll(&mut context).is_ready());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}
