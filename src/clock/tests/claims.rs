//! What a claim reports by a cheap reading, and what is decided by an exact one (READING-6), on a
//! manual clock whose readings are 0.1 ms behind.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::{Clock, ManualClock};
use crate::test_util::Stepped;
use crate::tick::Time;
use crate::{Expired, ExpiryMap, Missed, Period, Reason, Scheduler, Shutdown};

const NANO: Duration = Duration::from_nanos(1);
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const BEHIND: Duration = Duration::from_micros(100);
const HALF: Duration = Duration::from_micros(50);

const BEGIN: Time = Time::from_nanos(10_000_000_000);

fn clock() -> (Clock, ManualClock) {
    let hand = ManualClock::starting_at(BEGIN);
    (Clock::behind(&hand, BEHIND), hand)
}

fn scheduler() -> (Stepped<u32>, ManualClock) {
    let (clock, hand) = clock();
    let builder = Scheduler::<u32>::builder().clock(clock);
    (builder.build_stepped(1).unwrap(), hand)
}

#[test]
fn a_start_is_reported_by_a_cheap_reading_and_never_before_the_deadline() {
    for (late, reported) in [
        (Duration::ZERO, Duration::ZERO),
        (HALF, Duration::ZERO),
        (BEHIND, Duration::ZERO),
        (BEHIND + NANO, NANO),
        (5 * MILLI, 5 * MILLI - BEHIND),
    ] {
        let (scheduler, hand) = scheduler();
        let timers = scheduler.handle();
        let told = Arc::new(Mutex::new(None));
        let tell = Arc::clone(&told);
        let deadline = BEGIN + SECOND;
        timers
            .schedule(1, deadline, move |firing| {
                *tell.lock().unwrap() = Some(firing.lateness());
            })
            .unwrap();
        hand.set(deadline + late);
        assert_eq!(scheduler.settle()[0].at, deadline + reported);
        assert_eq!(*told.lock().unwrap(), Some(reported));
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.lateness().count), (1, 1));
        assert!(stats.lateness().max >= reported);
    }
}

#[test]
fn entries_of_a_map_are_reported_in_the_same_way() -> Result<(), Box<dyn std::error::Error>> {
    // No earlier: the tick of the deadline begins only then.
    for (late, reported) in [(BEHIND, Duration::ZERO), (5 * MILLI, 5 * MILLI - BEHIND)] {
        for batches in [false, true] {
            let (clock, hand) = clock();
            let (tell, told) = channel();
            let note = move |expired: Expired<u32, u32>| tell.send(expired.lateness).unwrap();
            let builder = ExpiryMap::<u32, u32>::builder()
                .time_to_idle(SECOND)
                .clock(clock);
            let map = if batches {
                let note = move |batch: Vec<_>| batch.into_iter().for_each(&note);
                builder.build_batched(1, move |_, batch| note(batch))?
            } else {
                builder.build(move |_, expired| note(expired))?
            };
            map.insert(1, 1)?;
            hand.set(map.deadline(&1).ok_or("it is there")? + late);
            assert_eq!(told.recv()?, reported);
        }
    }
    Ok(())
}

/// A round is late by a little more than its grace, which a cheap reading would not show.
#[test]
fn which_rounds_were_missed_is_decided_by_the_present() {
    let grace = 20 * MILLI;
    for (late, missed) in [(grace - NANO, 0), (grace, 1), (grace + HALF, 1)] {
        let (scheduler, hand) = scheduler();
        let timers = scheduler.handle();
        let rounds = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&rounds);
        let beat = Period::fixed_rate(SECOND).missed(Missed::Skip).grace(grace);
        timers
            .repeat(1, beat, move |round| {
                told.lock()
                    .unwrap()
                    .push((round.missed(), round.lateness()));
            })
            .unwrap();
        let due = timers.get(&1).unwrap().deadline;
        hand.set(due + late);
        scheduler.settle();
        if missed == 0 {
            // Its start was decided by an exact reading, so that is what it reports.
            assert_eq!(*rounds.lock().unwrap(), [(0, late)]);
        } else {
            assert_eq!(*rounds.lock().unwrap(), []);
        }
        // The grid stays where it was.
        assert_eq!(timers.get(&1).unwrap().deadline, due + SECOND);
        hand.set(due + SECOND);
        scheduler.settle();
        let last = rounds.lock().unwrap().last().copied();
        assert_eq!(last, Some((missed, Duration::ZERO)));
    }
}

#[test]
fn a_grid_begins_anew_where_a_round_runs_that_was_moved_into_the_past() {
    let (scheduler, hand) = scheduler();
    let timers = scheduler.handle();
    let beat = Period::fixed_rate(SECOND).grace(20 * MILLI);
    timers.repeat(1, beat, |_| ()).unwrap();
    let present = BEGIN + SECOND / 2;
    hand.set(present);
    let _ = timers.reschedule(&1, present - 30 * MILLI);
    assert_eq!(scheduler.settle().len(), 1);
    assert_eq!(timers.get(&1).unwrap().deadline, present + SECOND);
}

#[test]
fn what_follows_a_run_is_due_by_the_present() {
    let (scheduler, hand) = scheduler();
    let timers = scheduler.handle();
    // No tick begins at this moment, and a cheap reading lies before it.
    let come = BEGIN + SECOND + 12 * HALF;
    timers
        .schedule(1, BEGIN + SECOND, move |firing| {
            let handle = firing.handle();
            handle.schedule(1, come, |_| ()).unwrap();
        })
        .unwrap();
    hand.set(come + HALF);
    let fired: Vec<Time> = scheduler.settle().iter().map(|run| run.deadline).collect();
    assert_eq!(
        fired,
        [BEGIN + SECOND, come],
        "the second waits for no tick"
    );
}

/// The end of an entry that has just come when a shutdown runs everything is no early one.
#[test]
fn a_shutdown_is_the_reason_only_before_the_deadline() -> Result<(), Box<dyn std::error::Error>> {
    for (moment, reason) in [
        (SECOND - NANO, Reason::Shutdown),
        (SECOND, Reason::Idle),
        (SECOND + HALF, Reason::Idle),
    ] {
        let (clock, hand) = clock();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let stepped = ExpiryMap::<u32, u32>::builder()
            .time_to_idle(SECOND)
            .clock(clock)
            .build_stepped(1, move |_, expired| {
                tell.lock().unwrap().push(expired.reason);
            })?;
        let map = stepped.map();
        map.insert(1, 1)?;
        let deadline = map.deadline(&1).ok_or("it is there")?;
        hand.set(deadline - SECOND + moment);
        let _ = stepped.shutdown(Shutdown::RunNow);
        assert_eq!(*told.lock().unwrap(), [reason], "{moment:?}");
    }
    Ok(())
}
