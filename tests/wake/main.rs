//! When a ticker wakes: always in time, and not without a reason.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use kit::wait::{next, until};
use tourbillon::{Clock, ExpiryMap, Firing, Handle, ManualClock, Scheduler, Time, Touch};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Only one scheduler with threads at a time: a thread is found by its name.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    #[cfg(target_os = "linux")]
    kit::naps::none_is_left();
    one
}

fn on_manual_clock(stripes: usize) -> (Scheduler<u32>, Handle<u32>, ManualClock) {
    // The one before may still end.
    #[cfg(target_os = "linux")]
    kit::naps::none_is_left();
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .stripes(stripes)
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    (scheduler, timers, hand)
}

// === in time ===

/// By default the kernel may wake a thread 50 us late.
#[cfg(target_os = "linux")]
#[test]
fn tickers_are_woken_exactly() {
    use rustix::thread::{current_timer_slack, set_current_timer_slack};
    let _alone = alone();
    let scheduler = Scheduler::<u32>::builder()
        .shards(1)
        .inline()
        .build()
        .unwrap();
    let (tell, told) = channel();
    // An inline task runs on the thread of its ticker.
    let task = move |_: &Firing<'_, u32>| tell.send(current_timer_slack().unwrap()).unwrap();
    scheduler.handle().schedule(1, TICK, task).unwrap();
    let of_ticker = next(&told);
    // A sandbox may refuse to change it. Then a scheduler runs as well, with the default.
    let other = thread::spawn(|| {
        let _ = set_current_timer_slack(std::num::NonZero::new(1));
        current_timer_slack().unwrap()
    });
    assert_eq!(of_ticker, other.join().unwrap());
    let of_test = current_timer_slack().unwrap();
    assert!(of_test > 1, "the thread that builds it keeps {of_test} ns");
}

// === nothing is slept through ===

#[test]
fn c139_an_insert_that_races_with_the_clock_is_not_slept_through() {
    const ROUNDS: u32 = 5_000;
    let _alone = alone();
    for far in [false, true] {
        let (_scheduler, timers, hand) = on_manual_clock(4);
        if far {
            timers.schedule(u32::MAX, HOUR * 24, |_| ()).unwrap();
        }
        let (tell, told) = channel();
        let (start, started) = channel::<Time>();
        thread::scope(|scope| {
            let mover = &hand;
            scope.spawn(move || {
                for time in started {
                    mover.set(time);
                }
            });
            for round in 1..=ROUNDS {
                let due = Time::ZERO + TICK * round;
                let tell = tell.clone();
                start.send(due).unwrap();
                // Before, after, or while the clock gets there and the ticker goes to sleep.
                timers
                    .schedule(round % 97, due, move |_| tell.send(round).unwrap())
                    .unwrap();
                assert_eq!(next(&told), round);
            }
            drop(start);
        });
    }
}

#[test]
fn c139_the_earlier_of_two_inserts_that_race_is_not_slept_through() {
    const ROUNDS: u32 = 3_000;
    let _alone = alone();
    let (_scheduler, timers, hand) = on_manual_clock(4);
    let (tell, told) = channel();
    let (start, started) = channel::<Time>();
    let (done, far_is_in) = channel();
    thread::scope(|scope| {
        let far = timers.clone();
        scope.spawn(move || {
            for time in started {
                far.schedule(u32::MAX, time + HOUR, |_| ()).unwrap();
                done.send(()).unwrap();
            }
        });
        for round in 1..=ROUNDS {
            let due = Time::ZERO + TICK * round;
            start.send(due).unwrap();
            let tell = tell.clone();
            timers
                .schedule(round % 97, due, move |_| tell.send(round).unwrap())
                .unwrap();
            next(&far_is_in);
            hand.set(due);
            assert_eq!(next(&told), round);
        }
        drop(start);
    });
}

#[test]
fn c139_by_the_clocks_of_real_time() {
    let _alone = alone();
    for clock in kit::clocks::real() {
        let builder = Scheduler::<u32>::builder()
            .shards(2)
            .workers(2)
            .clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let (tell, told) = channel();
        for round in 0..200 {
            timers.schedule(u32::MAX - round, HOUR, |_| ()).unwrap();
            let tell = tell.clone();
            let delay = Duration::from_micros(u64::from(round) * 10);
            timers
                .schedule(round % 50, delay, move |_| tell.send(round).unwrap())
                .unwrap();
            assert_eq!(next(&told), round);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn promise_6_no_work_by_the_clocks_of_real_time() {
    use kit::naps::naps;
    let _alone = alone();
    for clock in kit::clocks::real() {
        // The one before may still end.
        kit::naps::none_is_left();
        let builder = Scheduler::<u32>::builder()
            .shards(1)
            .workers(1)
            .clock(clock);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        timers.schedule(0, HOUR, |_| ()).unwrap();
        until("the ticker sleeps", || naps("tb-tick-0") > 0);
        let (ticker, worker) = (naps("tb-tick-0"), naps("tb-work-0"));
        // Later deadlines and touches wake nobody, also when a call takes an anchor.
        for key in 1..=5_000 {
            timers.schedule(key, HOUR * 2, |_| ()).unwrap();
            let _ = timers.reschedule(&key, HOUR * 3);
        }
        let woken = naps("tb-tick-0") - ticker;
        // With many wheels, the first timer of each has its own moment of the next level.
        assert!(woken <= NOISE + 40, "the ticker woke {woken} times");
        let woken = naps("tb-work-0") - worker;
        assert!(woken <= NOISE, "the worker woke {woken} times");
        drop(scheduler.shutdown(tourbillon::Shutdown::HandBack));
    }
}

#[test]
fn c139_a_worker_that_goes_to_sleep_misses_no_task() {
    let _alone = alone();
    let (_scheduler, timers, _hand) = on_manual_clock(4);
    let (tell, told) = channel();
    for round in 0..20_000 {
        let tell = tell.clone();
        timers
            .schedule(round % 7, Duration::ZERO, move |_| {
                tell.send(round).unwrap();
            })
            .unwrap();
        assert_eq!(next(&told), round);
    }
}

fn again(rounds: &Arc<AtomicU32>, firing: &Firing<'_, u32>) {
    if rounds.fetch_sub(1, Ordering::SeqCst) > 1 {
        let rounds = Arc::clone(rounds);
        firing
            .handle()
            .schedule(*firing.key(), TICK * 6, move |firing| {
                again(&rounds, firing);
            })
            .unwrap();
    }
}

#[test]
fn c140_300_000_serial_re_arms_do_not_stall() {
    const ROUNDS: u32 = 300_000;
    let scheduler = Scheduler::<u32>::builder()
        .shards(1)
        .stripes(1)
        .workers(1)
        .build_stepped(140)
        .unwrap();
    let timers = scheduler.handle();
    let rounds = Arc::new(AtomicU32::new(ROUNDS));
    let first = Arc::clone(&rounds);
    timers
        .schedule(7, TICK * 6, move |firing| again(&first, firing))
        .unwrap();
    let fired = scheduler.advance(TICK * 6 * ROUNDS);
    assert_eq!(rounds.load(Ordering::SeqCst), 0);
    assert_eq!(fired.len(), ROUNDS as usize);
    for (round, fired) in (1..).zip(&fired) {
        assert_eq!(fired.at, Time::ZERO + TICK * 6 * round);
    }
    assert!(timers.is_empty());
}

#[test]
fn c140_with_threads() {
    const ROUNDS: u32 = 20_000;
    let _alone = alone();
    let (_scheduler, timers, hand) = on_manual_clock(2);
    let rounds = Arc::new(AtomicU32::new(ROUNDS));
    let first = Arc::clone(&rounds);
    timers
        .schedule(7, TICK * 6, move |firing| again(&first, firing))
        .unwrap();
    // All of them may take any time, and each one is waited for.
    while rounds.load(Ordering::SeqCst) > 0 {
        let last = rounds.load(Ordering::SeqCst);
        until("it goes through a round", || {
            let now = rounds.load(Ordering::SeqCst);
            // A clock that runs ahead would only skip waiting; one step a round waits in each.
            if now == last && timers.stats().ran == u64::from(ROUNDS - now) {
                hand.advance(TICK * 6);
                thread::yield_now();
            }
            now < last
        });
    }
}

// === nothing wakes it for nothing ===

#[test]
fn c146_an_insert_earlier_than_the_promised_wake_up_comes_in_time() {
    let _alone = alone();
    for stripes in [1, 128] {
        let (_scheduler, timers, hand) = on_manual_clock(stripes);
        let (tell, told) = channel();
        // Each is earlier than all before it, and the ticker may sleep until any of them.
        for key in (1..=50).rev() {
            let tell = tell.clone();
            timers
                .schedule(key, TICK * key, move |_| tell.send(key).unwrap())
                .unwrap();
            thread::yield_now();
        }
        for key in 1..=50 {
            hand.advance(TICK);
            assert_eq!(next(&told), key);
        }
        // Moved to an earlier time instead of inserted there.
        for key in 1..=20 {
            let tell = tell.clone();
            timers
                .schedule(key, HOUR, move |_| tell.send(key).unwrap())
                .unwrap();
            let _ = timers.pull_in(&key, TICK);
            hand.advance(TICK);
            assert_eq!(next(&told), key);
        }
    }
}

/// A few switches may be the system's own doing.
#[cfg(target_os = "linux")]
const NOISE: u64 = 5;

#[cfg(target_os = "linux")]
#[test]
fn c146_a_later_insert_wakes_nobody() {
    use kit::naps::naps;
    const INSERTS: u32 = 5_000;
    let _alone = alone();
    // With many wheels, each has its own moments at which it hands a far timer to a lower level,
    // and the ticker has to know the earliest of them: that comes down a few times at the
    // beginning.
    for (stripes, more) in [(1, 0), (128, 40)] {
        let (scheduler, timers, hand) = on_manual_clock(stripes);
        timers.schedule(0, HOUR, |_| ()).unwrap();
        let (ticker, worker) = (naps("tb-tick-0"), naps("tb-work-0"));
        for key in 1..=INSERTS {
            timers.schedule(key, HOUR + TICK * key, |_| ()).unwrap();
        }
        // Touched, moved on, cancelled: no reason either.
        for key in 1..=INSERTS {
            let _ = timers.reschedule(&key, HOUR * 2);
            if key % 2 == 0 {
                timers.cancel(&key);
            }
        }
        let woken = naps("tb-tick-0") - ticker;
        assert!(
            woken <= NOISE + more,
            "{woken} times with {stripes} stripes"
        );
        let woken = naps("tb-work-0") - worker;
        assert!(woken <= NOISE, "a worker was woken {woken} times");
        // The count does show what wakes a ticker.
        let ticker = naps("tb-tick-0");
        for round in 0..200 {
            timers.schedule(1_000_000, TICK, |_| ()).unwrap();
            hand.advance(TICK);
            until("it ran", || timers.stats().ran > round);
            naps("tb-tick-0");
        }
        assert!(naps("tb-tick-0") - ticker >= 200);
        drop(scheduler.shutdown(tourbillon::Shutdown::HandBack));
    }
}

/// A touch that only puts an entry off is one write: it wakes nobody, and the wheel looks at the
/// entry no more often than the old deadlines and its levels ask for.
#[cfg(target_os = "linux")]
#[test]
fn c148_touches_are_no_work_for_a_ticker() {
    use kit::naps::naps;
    const ENTRIES: u32 = 2_000;
    let _alone = alone();
    for stripes in [1, 128] {
        // The one before may still end.
        kit::naps::none_is_left();
        let hand = ManualClock::new();
        let map = ExpiryMap::<u32, u32>::builder()
            .time_to_idle(HOUR)
            .clock(Clock::manual(&hand))
            .shards(1)
            .stripes(stripes)
            .workers(1)
            .max_running(1)
            .build(|_, _| ())
            .unwrap();
        for key in 0..ENTRIES {
            map.insert(key, key).unwrap();
        }
        let (ticker, worker) = (naps("tb-tick-0"), naps("tb-work-0"));
        // Within one interval: unchanged, and no work at all.
        for key in 0..ENTRIES {
            assert!(matches!(map.touch(&key), Touch::Unchanged { .. }));
        }
        // Put off, one by one and many at once.
        for _ in 0..20 {
            hand.advance(TICK / 100);
            for key in 0..ENTRIES {
                assert!(matches!(map.touch(&key), Touch::Touched { .. }));
            }
            hand.advance(TICK / 100);
            let all: Vec<u32> = (0..ENTRIES).collect();
            assert!(map.touch_many(&all).iter().all(|touch| touch.is_alive()));
        }
        let woken = naps("tb-tick-0") - ticker;
        assert!(woken <= NOISE, "{woken} times with {stripes} stripes");
        let woken = naps("tb-work-0") - worker;
        assert!(woken <= NOISE, "a worker was woken {woken} times");
        drop(map.shutdown(tourbillon::Shutdown::HandBack));
    }
}

#[test]
fn c147_with_the_earliest_cancelled_the_others_come_in_time() {
    for seed in 0..50 {
        let scheduler = Scheduler::<u32>::builder()
            .shards(2)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        for key in 1..=20 {
            timers.schedule(key, TICK * key * 50, |_| ()).unwrap();
        }
        for key in 1..=19 {
            assert!(timers.cancel(&key).is_cancelled());
            assert!(scheduler.advance(TICK * 50).is_empty());
        }
        let fired = scheduler.advance_to_next().unwrap();
        assert_eq!(fired.len(), 1);
        assert_eq!((fired[0].key, fired[0].at), (20, Time::ZERO + TICK * 1_000));
        assert!(scheduler.advance_to_next().is_none());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn c147_a_cancelled_earliest_wakes_at_most_once() {
    use kit::naps::naps;
    let _alone = alone();
    for stripes in [1, 128] {
        let (scheduler, timers, hand) = on_manual_clock(stripes);
        let (tell, told) = channel();
        timers
            .schedule(1, TICK * 1_000, move |_| tell.send(()).unwrap())
            .unwrap();
        timers.schedule(2, TICK * 10, |_| ()).unwrap();
        let first = naps("tb-tick-0");
        assert!(timers.cancel(&2).is_cancelled());
        // Far more steps than there can be reasons: the cancelled one's moment, and the moments at
        // which the far one changes its level.
        for _ in 0..999 {
            hand.advance(TICK);
            naps("tb-tick-0");
        }
        let woken = naps("tb-tick-0") - first;
        assert!(
            woken <= NOISE + 1 + 6,
            "{woken} times with {stripes} stripes"
        );
        assert_eq!(timers.stats().ran, 0);
        hand.advance(TICK);
        next(&told);
        drop(scheduler.shutdown(tourbillon::Shutdown::HandBack));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn promise_6_no_work_when_there_is_nothing_to_do() {
    use kit::naps::naps;
    let _alone = alone();
    let (scheduler, timers, hand) = on_manual_clock(1);
    timers.schedule(1, HOUR, |_| ()).unwrap();
    let (ticker, worker) = (naps("tb-tick-0"), naps("tb-work-0"));
    // An hour less a second, with a look at every second of it.
    for _ in 1..3_600 {
        hand.advance(TICK * 1_000);
    }
    // The far timer changes its level a few times on its way.
    let woken = naps("tb-tick-0") - ticker;
    assert!(woken <= NOISE + 6, "the ticker woke {woken} times");
    let woken = naps("tb-work-0") - worker;
    assert!(woken <= NOISE, "the worker woke {woken} times");
    assert_eq!(timers.stats().ran, 0);
    hand.advance(TICK * 1_000);
    until("it ran in time", || timers.stats().ran == 1);
    drop(scheduler);
}
