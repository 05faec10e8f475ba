//! When timers fire: never early, never more than a tick late, at every distance and at every
//! moment of a clock's life.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tourbillon::test_util::{Fired, Stepped};
use tourbillon::wheel::{Tick, Wheel};
use tourbillon::{
    Cancel, Clock, Firing, ManualClock, PullIn, Reschedule, Scheduler, Time, TimerState,
};

/// How long a test waits for a thread before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `count` ticks of `tick`, saturating.
fn ticks(tick: Duration, count: u64) -> Duration {
    Duration::from_nanos(nanos(tick).saturating_mul(count))
}

/// When a timer with this deadline has to fire: at the first tick at or after it. `None`: no tick
/// comes after it any more.
fn due(tick: Duration, deadline: Time) -> Option<Time> {
    deadline
        .as_nanos()
        .div_ceil(nanos(tick))
        .checked_mul(nanos(tick))
        .map(Time::from_nanos)
}

/// A scheduler on a clock that starts at `start`, with few stripes, so that timers meet.
#[derive(Clone, Copy, Debug)]
struct Rig {
    tick: Duration,
    start: Time,
    seed: u64,
}

impl Rig {
    fn new() -> Self {
        Rig {
            tick: MS,
            start: Time::ZERO,
            seed: 1,
        }
    }

    fn build(self) -> Stepped<u64> {
        Scheduler::builder()
            .tick(self.tick)
            .shards(2)
            .stripes(4)
            .workers(2)
            .clock(Clock::manual(&ManualClock::starting_at(self.start)))
            .build_stepped(self.seed)
            .unwrap()
    }

    fn ticks(self, count: u64) -> Duration {
        ticks(self.tick, count)
    }

    /// One timer of this delay: pending up to the last moment before its tick, and fired at it.
    #[track_caller]
    fn fires_exactly(self, delay: Duration) {
        let scheduler = self.build();
        let timers = scheduler.handle();
        let accepted = timers.schedule(7, delay, |_| ()).unwrap();
        let deadline = self.start + delay;
        assert_eq!(accepted.deadline, deadline, "{self:?} {delay:?}");
        if delay.is_zero() {
            assert_eq!(keys(&scheduler.settle()), [7], "{self:?}");
            return;
        }
        let Some(due) = due(self.tick, deadline) else {
            assert_eq!(scheduler.advance_to(Time::MAX), [], "{self:?} {delay:?}");
            return;
        };
        let before = due - Duration::from_nanos(1);
        assert_eq!(scheduler.advance_to(before), [], "{self:?} {delay:?}");
        // c020: however far it has come down the levels, it is there, once.
        assert_eq!(timers.len(), 1);
        let info = timers.get(&7).expect("it is pending");
        assert_eq!((info.deadline, info.state), (deadline, TimerState::Pending));
        assert_eq!(timers.pending().count(), 1);
        let fired = scheduler.advance_to(due);
        assert_eq!(keys(&fired), [7], "{self:?} {delay:?}");
        assert_eq!((fired[0].deadline, fired[0].at), (deadline, due));
        assert_eq!(timers.get(&7), None);
        assert_eq!(
            scheduler.advance_to_next(),
            None,
            "{self:?} {delay:?}: twice"
        );
    }

    /// The same in one jump over the moment.
    #[track_caller]
    fn fires_in_a_jump(self, delay: Duration) {
        let scheduler = self.build();
        let timers = scheduler.handle();
        timers.schedule(7, delay, |_| ()).unwrap();
        let due = due(self.tick, self.start + delay).expect("a tick comes after it");
        if due > self.start {
            assert_eq!(scheduler.jump_to(due - Duration::from_nanos(1)), []);
        }
        assert_eq!(keys(&scheduler.jump_to(due)), [7], "{self:?} {delay:?}");
        assert!(timers.is_empty());
    }
}

fn keys<K: Clone>(fired: &[Fired<K>]) -> Vec<K> {
    fired.iter().map(|fired| fired.key.clone()).collect()
}

fn sorted(fired: &[Fired<u64>]) -> Vec<u64> {
    let mut keys = keys(fired);
    keys.sort_unstable();
    keys
}

fn wait<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver
        .recv_timeout(PATIENCE)
        .expect("what is waited for happens")
}

#[test]
fn c001_does_not_run_before_its_delay() {
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    timers.schedule(1, Duration::from_secs(10), |_| ()).unwrap();
    assert_eq!(scheduler.advance(Duration::from_secs(3)), []);
    let info = timers.get(&1).expect("still pending");
    assert_eq!(info.state, TimerState::Pending);
    assert_eq!(info.remaining(scheduler.now()), Duration::from_secs(7));
}

#[test]
fn c002_runs_once_after_its_delay() {
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    timers
        .schedule(1, Duration::from_secs(2), move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let fired = scheduler.advance(Duration::from_secs(3));
    assert_eq!(keys(&fired), [1]);
    assert_eq!(fired[0].at, Time::ZERO + Duration::from_secs(2));
    assert_eq!(scheduler.advance(Duration::from_secs(100)), []);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!((timers.get(&1), timers.len()), (None, 0));
    let stats = timers.stats();
    assert_eq!((stats.scheduled, stats.ran), (1, 1));
}

#[test]
fn c003_never_early_in_many_samples() {
    // Real threads and a real clock: that nothing is early may be asserted on any machine.
    let scheduler = Scheduler::<u64>::builder().workers(2).build().unwrap();
    let timers = scheduler.handle();
    let (send, early) = mpsc::channel();
    for key in 0..300 {
        let send = send.clone();
        let delay = MS * (key as u32 * 137 % 100) + Duration::from_micros(key);
        let armed = Instant::now();
        timers
            .schedule(key, delay, move |firing| {
                let real = Instant::now();
                let missing = (armed + delay).saturating_duration_since(real);
                send.send((missing, firing.handle().now() >= firing.deadline()))
                    .unwrap();
            })
            .unwrap();
    }
    for _ in 0..300 {
        assert_eq!(wait(&early), (Duration::ZERO, true));
    }
}

#[test]
fn c004_lateness_is_bounded_under_load() {
    let rig = Rig {
        tick: MS * 200,
        ..Rig::new()
    };
    let scheduler = rig.build();
    let timers = scheduler.handle();
    let delay = MS * 125;
    let count = 100_000_u64;
    // Scheduled over 100 ms, in the middle of a tick or at its end.
    for key in 0..count {
        if key % 1_000 == 0 {
            scheduler.clock().advance(MS);
        }
        timers.schedule(key, delay, |_| ()).unwrap();
    }
    let mut fired = Vec::new();
    // Whoever polls at its own pace adds that to the tick, and nothing else.
    let poll = MS * 30;
    for _ in 0..40 {
        fired.extend(scheduler.jump_to(scheduler.now() + poll));
    }
    assert_eq!(fired.len() as u64, count);
    for run in &fired {
        assert!(run.at >= run.deadline, "{run:?} is early");
        assert!(run.at.since(run.deadline) < rig.tick + poll, "{run:?}");
    }
    let stats = timers.stats();
    assert!(stats.balances());
    assert_eq!(stats.lateness().count, count);
    assert!(stats.lateness().max < rig.tick + poll);
}

#[test]
fn c005_a_spread_of_delays_fires_each_in_its_tick() {
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    let delays = [1, 5, 10, 50, 100, 500, 1_000];
    for delay in delays {
        timers
            .schedule(delay, Duration::from_millis(delay), |_| ())
            .unwrap();
    }
    let fired = scheduler.advance(Duration::from_secs(2));
    assert_eq!(keys(&fired), delays);
    for run in fired {
        assert_eq!(run.at.since(Time::ZERO), Duration::from_millis(run.key));
    }
}

#[test]
fn c006_a_deadline_on_a_ticks_edge_fires_with_that_tick() {
    let rig = Rig::new();
    let scheduler = rig.build();
    scheduler
        .handle()
        .schedule(1, rig.ticks(5), |_| ())
        .unwrap();
    assert_eq!(scheduler.jump_to(Time::ZERO + rig.ticks(4)), []);
    let edge = Time::ZERO + rig.ticks(5);
    assert_eq!(scheduler.jump_to(edge - Duration::from_nanos(1)), []);
    assert_eq!(keys(&scheduler.jump_to(edge)), [1]);
}

#[test]
fn c007_a_deadline_right_after_an_edge_is_not_early() {
    let rig = Rig::new();
    let scheduler = rig.build();
    let deadline = Time::ZERO + rig.ticks(5) + Duration::from_nanos(1);
    scheduler.handle().schedule(1, deadline, |_| ()).unwrap();
    // A deadline goes up to the next tick: firing at 5 ticks would be early by a nanosecond.
    assert_eq!(scheduler.jump_to(Time::ZERO + rig.ticks(5)), []);
    let fired = scheduler.jump_to(Time::ZERO + rig.ticks(6));
    assert_eq!(keys(&fired), [1]);
    assert!(fired[0].at.since(deadline) < rig.tick);
}

#[test]
fn c008_fires_at_its_deadline_and_not_only_after_it() {
    let rig = Rig::new();
    let scheduler = rig.build();
    let timers = scheduler.handle();
    let deadline = Time::ZERO + rig.ticks(3);
    timers.schedule(1, deadline, |_| ()).unwrap();
    let fired = scheduler.jump_to(deadline);
    assert_eq!((keys(&fired), fired[0].at), (vec![1], deadline));
    // Armed for this very moment.
    timers.schedule(2, deadline, |_| ()).unwrap();
    assert_eq!(keys(&scheduler.settle()), [2]);
}

#[test]
fn c009_the_clock_may_start_anywhere() {
    let tick = MS;
    for start in [Time::ZERO + tick * 100, Time::ZERO + tick * 100 + tick / 3] {
        let rig = Rig {
            start,
            ..Rig::new()
        };
        let scheduler = rig.build();
        scheduler
            .handle()
            .schedule(1, rig.ticks(5), |_| ())
            .unwrap();
        let due = due(tick, start + rig.ticks(5)).unwrap();
        assert_eq!(scheduler.jump_to(due - Duration::from_nanos(1)), []);
        assert_eq!(keys(&scheduler.jump_to(due)), [1]);
        rig.fires_exactly(rig.ticks(5));
    }
}

#[test]
fn c010_less_than_a_tick_fires_with_the_next_tick() {
    let rig = Rig::new();
    for offset in [0, 1, 400_000, 500_000, 500_001, 999_999] {
        let rig = Rig {
            start: Time::from_nanos(offset),
            ..rig
        };
        let scheduler = rig.build();
        scheduler
            .handle()
            .schedule(1, rig.tick / 2, |_| ())
            .unwrap();
        let due = due(rig.tick, rig.start + rig.tick / 2).unwrap();
        let fired = scheduler.advance(rig.ticks(3));
        assert_eq!((keys(&fired), fired[0].at), (vec![1], due), "{offset}");
    }
}

#[test]
fn c011_zero_delay_runs_without_waiting_for_a_tick() {
    // Nobody ever moves the clock.
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    let accepted = timers.schedule(1, Duration::ZERO, |_| ()).unwrap();
    assert_eq!(accepted.deadline, scheduler.now());
    assert_eq!((accepted.replaced, accepted.after_run), (None, false));
    assert_eq!(timers.get(&1).unwrap().state, TimerState::Queued);
    assert_eq!(keys(&scheduler.settle()), [1]);
    assert_eq!(timers.get(&1), None);
    let again = timers.schedule_if_absent(1, Duration::ZERO, |_| ());
    assert!(again.is_ok(), "the key is free");

    let hand = ManualClock::starting_at(Time::ZERO + MS / 2);
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .workers(1)
        .build()
        .unwrap();
    let (send, ran) = mpsc::channel();
    for round in 0..100 {
        let send = send.clone();
        scheduler
            .handle()
            .schedule(1, Duration::ZERO, move |_| send.send(round).unwrap())
            .unwrap();
        assert_eq!(wait(&ran), round);
    }
}

#[test]
fn c012_times_in_the_past_run_at_once() {
    let rig = Rig {
        start: Time::ZERO + MS * 100,
        ..Rig::new()
    };
    for seed in 0..20 {
        let scheduler = Rig { seed, ..rig }.build();
        let timers = scheduler.handle();
        timers.schedule(100, MS * 2, |_| ()).unwrap();
        timers.schedule(101, Duration::ZERO, |_| ()).unwrap();
        for back in 1..=5 {
            let accepted = timers.schedule(back, rig.start - MS * back as u32, |_| ());
            assert_eq!(accepted.unwrap().deadline, rig.start - MS * back as u32);
        }
        let fired = scheduler.settle();
        assert_eq!(sorted(&fired), [1, 2, 3, 4, 5, 101]);
        assert!(fired.iter().all(|run| run.at == rig.start));
        let fired = scheduler.advance(MS * 5);
        assert_eq!(
            (keys(&fired), fired[0].at),
            (vec![100], rig.start + MS * 2),
            "the one in the future keeps its time"
        );
    }
}

#[test]
fn c013_a_time_long_past_is_like_zero() {
    let start = Time::ZERO + MS * 500_000_000;
    let rig = Rig {
        start,
        ..Rig::new()
    };
    let scheduler = rig.build();
    let timers = scheduler.handle();
    timers.schedule(1, MS, |_| ()).unwrap();
    timers.schedule(2, Time::ZERO, |_| ()).unwrap();
    timers.schedule(3, start - Duration::MAX, |_| ()).unwrap();
    assert_eq!(sorted(&scheduler.settle()), [2, 3]);
    let fired = scheduler.advance(MS * 2);
    assert_eq!((keys(&fired), fired[0].at), (vec![1], start + MS));
}

#[test]
fn c014_an_absolute_deadline_in_the_past_fires_at_the_next_look() {
    let rig = Rig {
        start: Time::ZERO + MS * 50,
        ..Rig::new()
    };
    let scheduler = rig.build();
    let timers = scheduler.handle();
    let (send, lateness) = mpsc::channel();
    timers
        .schedule(1, rig.start - MS * 3, move |firing: &Firing<'_, u64>| {
            send.send(firing.lateness()).unwrap();
        })
        .unwrap();
    let fired = scheduler.settle();
    assert_eq!(
        (keys(&fired), fired[0].deadline),
        (vec![1], rig.start - MS * 3)
    );
    assert_eq!(lateness.try_recv(), Ok(MS * 3));
    // And so does one that is moved there.
    timers.schedule(2, MS * 5, |_| ()).unwrap();
    let moved = timers.reschedule(&2, rig.start - MS);
    assert_eq!(
        moved,
        Reschedule::Moved {
            before: rig.start + MS * 5
        }
    );
    assert_eq!(keys(&scheduler.settle()), [2]);
}

/// Arms itself again without a delay until the number is used up or the flag is up.
fn chain(firing: &Firing<'_, u64>, left: u64, stop: Arc<AtomicBool>) {
    // Relaxed: nothing else is read by it.
    if left == 0 || stop.load(Ordering::Relaxed) {
        return;
    }
    let key = *firing.key();
    let next = firing
        .handle()
        .schedule(key, Duration::ZERO, move |firing| {
            chain(firing, left - 1, stop);
        });
    assert!(next.unwrap().after_run);
}

#[test]
fn c015_zero_timers_that_arm_zero_timers_do_not_starve_others() {
    let never = Arc::new(AtomicBool::new(false));
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    let stop = Arc::clone(&never);
    timers
        .schedule(1, Duration::ZERO, move |firing| chain(firing, 500, stop))
        .unwrap();
    let fired = scheduler.settle();
    assert_eq!(fired.len(), 501);
    assert!(fired.iter().all(|run| run.at == Time::ZERO), "no tick");
    assert_eq!(timers.stats().panicked, 0);

    // Two chains that end when a timer that is due in a tick has run, on one worker.
    let scheduler = Scheduler::<u64>::builder()
        .shards(1)
        .workers(1)
        .max_running(1)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let stop = Arc::new(AtomicBool::new(false));
    for key in 1..=2 {
        let stop = Arc::clone(&stop);
        timers
            .schedule(key, Duration::ZERO, move |firing| {
                chain(firing, u64::MAX, stop);
            })
            .unwrap();
    }
    let (send, ran) = mpsc::channel();
    timers
        .schedule(3, MS * 3, move |_| {
            // Relaxed: the chains look again and again.
            stop.store(true, Ordering::Relaxed);
            send.send(()).unwrap();
        })
        .unwrap();
    wait(&ran);
}

/// Slots per level.
const SLOTS: u64 = 64;

#[test]
fn c016_a_delay_of_a_whole_wheel_is_neither_a_turn_early_nor_late() {
    for level in 1..=6 {
        for turns in 1..=3 {
            for seed in 0..4 {
                let rig = Rig {
                    tick: Duration::from_micros(1),
                    seed,
                    ..Rig::new()
                };
                let delay = rig.ticks(turns * SLOTS.pow(level));
                rig.fires_exactly(delay);
                rig.fires_in_a_jump(delay);
            }
        }
    }
}

#[test]
fn c017_a_delay_of_more_than_one_turn() {
    let rig = Rig::new();
    for delay in [63, SLOTS + 63, 3 * SLOTS + 63, 1_000 * SLOTS + 15] {
        rig.fires_exactly(rig.ticks(delay));
        rig.fires_exactly(rig.ticks(delay) - Duration::from_nanos(1));
    }
}

#[test]
fn c018_one_below_and_one_above_each_border() {
    for border in [
        16,
        256,
        SLOTS,
        SLOTS.pow(2),
        SLOTS.pow(3),
        SLOTS.pow(5),
        SLOTS.pow(6),
    ] {
        for delay in border - 1..=border + 1 {
            for seed in 0..4 {
                let rig = Rig {
                    seed,
                    start: Time::ZERO + MS * (seed as u32 * 61),
                    ..Rig::new()
                };
                rig.fires_exactly(rig.ticks(delay));
                rig.fires_in_a_jump(rig.ticks(delay));
            }
        }
    }
}

#[test]
fn c019_higher_levels_are_exact() {
    let rig = Rig::new();
    for delay in [500, 70_000, 17_000_000] {
        rig.fires_exactly(rig.ticks(delay));
        rig.fires_exactly(rig.ticks(delay) + MS / 3);
        rig.fires_in_a_jump(rig.ticks(delay));
    }
}

#[test]
fn c020_a_cascade_keeps_the_timer() {
    for level in 0..=6 {
        for base in [0, 1, 63, 64, 4_095, 4_096, 262_143, 1 << 36, (1 << 40) - 1] {
            let rig = Rig {
                start: Time::ZERO + MS * 1_000 + ticks(Duration::from_micros(1), base),
                tick: Duration::from_micros(1),
                seed: base,
            };
            // c020: asserted there, too, right before it is due.
            rig.fires_exactly(rig.ticks(3 * SLOTS.pow(level) + 2 * SLOTS.pow(level) / 3));
        }
    }
}

#[test]
fn c021_beyond_the_top_level_fires_at_its_own_time() {
    let rig = Rig {
        tick: Duration::from_micros(1),
        ..Rig::new()
    };
    let span = SLOTS.pow(6);
    for delay in [
        span,
        span + 1,
        2 * span - 1,
        3 * span + 17,
        1_000 * span + 5,
    ] {
        rig.fires_exactly(rig.ticks(delay));
        rig.fires_in_a_jump(rig.ticks(delay));
        let scheduler = rig.build();
        scheduler
            .handle()
            .schedule(1, rig.ticks(delay), |_| ())
            .unwrap();
        assert_eq!(scheduler.settle(), [], "not at once");
        assert_eq!(
            scheduler.advance(rig.ticks(span - 1)),
            [],
            "nor a turn early"
        );
    }
}

#[test]
fn c022_the_greatest_delay_never_fires_and_can_be_cancelled() {
    for start in [Time::ZERO, Time::from_nanos(12_345_678)] {
        let rig = Rig {
            start,
            ..Rig::new()
        };
        let scheduler = rig.build();
        let timers = scheduler.handle();
        let never = [
            Duration::MAX,
            Duration::from_millis(u64::MAX),
            Duration::from_nanos(u64::MAX),
        ];
        for (key, delay) in (0..).zip(never) {
            let accepted = timers.schedule(key, delay, |_| ()).unwrap();
            assert_eq!(accepted.deadline, Time::MAX);
        }
        timers.schedule(3, Time::MAX, |_| ()).unwrap();
        timers.schedule(4, rig.ticks(2), |_| ()).unwrap();
        assert_eq!(
            timers.reschedule(&4, Duration::MAX),
            Reschedule::Moved {
                before: start + rig.ticks(2)
            }
        );
        assert_eq!(scheduler.advance_to_next(), None, "nothing ever will");
        assert_eq!(scheduler.advance_to(Time::from_nanos(u64::MAX - 1)), []);
        assert_eq!(timers.len(), 5);
        let cancelled = Cancel::Cancelled {
            deadline: Time::MAX,
            running: false,
        };
        for key in 0..5 {
            assert_eq!(timers.cancel(&key), cancelled);
        }
        assert!(timers.is_empty() && timers.stats().balances());
    }
}

#[test]
fn the_clock_may_stand_at_its_end() {
    // c022: the last moment there is; a scheduler that is idle or waits for ever stays quiet then.
    let rig = Rig::new();
    let scheduler = rig.build();
    let timers = scheduler.handle();
    timers.schedule(1, Duration::MAX, |_| ()).unwrap();
    // No tick comes after this deadline.
    timers
        .schedule(2, Time::MAX - Duration::from_nanos(1), |_| ())
        .unwrap();
    assert_eq!(scheduler.advance_to(Time::MAX), []);
    assert_eq!(scheduler.jump_to(Time::MAX), []);
    assert_eq!(timers.len(), 2);
    timers.cancel_all();
    assert_eq!(scheduler.settle(), []);
}

#[test]
fn c023_very_long_delays_shorten_as_time_passes() {
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    for (key, delay) in [(1, MS * (1 << 31)), (2, Duration::from_millis(1 << 33))] {
        timers.schedule(key, delay, |_| ()).unwrap();
        let before = scheduler.now();
        scheduler.advance(MS * 200);
        let left = timers.get(&key).unwrap().remaining(scheduler.now());
        assert_eq!(delay - left, MS * 200);
        assert_eq!(timers.get(&key).unwrap().remaining(before), delay);
    }
}

#[test]
fn c024_no_delay_is_too_long() {
    // Promise 8: no input of run time is refused for its value, and none panics.
    let scheduler = Rig::new().build();
    let timers = scheduler.handle();
    for delay in [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_nanos(u64::MAX),
        Duration::from_nanos(u64::MAX - 1),
    ] {
        timers.schedule(1, delay, |_| ()).unwrap();
        timers.cancel(&1);
        assert!(timers.schedule_if_absent(1, delay, |_| ()).is_ok());
        assert!(matches!(
            timers.reschedule(&1, delay),
            Reschedule::Moved { .. }
        ));
        assert!(matches!(
            timers.pull_in(&1, delay),
            PullIn::Unchanged { .. }
        ));
        assert_eq!(scheduler.settle(), []);
        assert_eq!(timers.reschedule_many(&[1], delay).len(), 1);
    }
    assert_eq!(timers.len(), 1);
    assert!(timers.stats().balances());
}

/// What every start of a clock has to bear: the rows on single timers, in short.
fn battery(rig: Rig) {
    let room = Time::MAX.since(rig.start + rig.tick * 2);
    let one = Duration::from_nanos(1);
    // c001 c002 c006 c007 c008 c009 c010 c011: and around ticks.
    for delay in [
        Duration::ZERO,
        one,
        rig.tick / 2,
        rig.tick,
        rig.tick + one,
        rig.ticks(5),
    ] {
        rig.fires_exactly(delay);
    }
    // c016 c017 c018 c019 c020 c021: as far as the clock goes.
    for level in 1..=6 {
        for delay in [
            SLOTS.pow(level) - 1,
            SLOTS.pow(level),
            SLOTS.pow(level) + 1,
            3 * SLOTS.pow(level) + 1,
        ] {
            if rig.ticks(delay) < room {
                rig.fires_exactly(rig.ticks(delay));
                rig.fires_in_a_jump(rig.ticks(delay) + one);
            }
        }
    }
    let scheduler = rig.build();
    let timers = scheduler.handle();
    // c012 c013 c014: the past, as far as there is one.
    timers
        .schedule(1, rig.start - rig.tick * 3, |_| ())
        .unwrap();
    timers.schedule(2, Time::ZERO, |_| ()).unwrap();
    // c003 c005: a spread of delays.
    let delays = [1, 5, 10, 50, 100, 500, 1_000];
    for delay in delays {
        timers
            .schedule(1_000 + delay, rig.ticks(delay), |_| ())
            .unwrap();
    }
    assert_eq!(sorted(&scheduler.settle()), [1, 2]);
    let fired = scheduler.advance(rig.ticks(1_001));
    let reachable = delays
        .iter()
        .filter(|delay| due(rig.tick, rig.start + rig.ticks(**delay)).is_some())
        .map(|delay| 1_000 + delay);
    assert!(keys(&fired).into_iter().eq(reachable), "{rig:?}");
    for run in fired {
        assert!(run.at >= run.deadline && run.at.since(run.deadline) < rig.tick);
    }
    // c015: no time passes.
    let now = scheduler.now();
    let stop = Arc::new(AtomicBool::new(false));
    timers
        .schedule(3, Duration::ZERO, move |firing| chain(firing, 10, stop))
        .unwrap();
    let fired = scheduler.settle();
    assert_eq!(fired.len(), 11);
    assert!(fired.iter().all(|run| run.at == now));
}

#[test]
fn c025_all_of_it_holds_near_the_ends_of_the_clock() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for tick in [Duration::from_micros(1), MS, Duration::from_secs(1)] {
        let before_the_end = [10, 100, 5_000, 300_000_000, 90_000_000_000_000]
            .map(|count| u64::MAX - ticks(tick, count).as_nanos() as u64);
        let middle = [0, 1, i64::MAX as u64 - 1_000, i64::MAX as u64 + 1];
        let random = std::iter::repeat_with(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        });
        for start in before_the_end
            .into_iter()
            .chain(middle)
            .chain(random.take(5))
        {
            battery(Rig {
                tick,
                start: Time::from_nanos(start),
                seed: start,
            });
        }
    }
}

/// Values at all distances up to the last tick; each expires exactly in its tick.
#[track_caller]
fn wheel_is_exact(mut wheel: Wheel<u64>, ahead: &[u64]) {
    let start = wheel.now().get();
    let mut dues: Vec<u64> = ahead
        .iter()
        .filter_map(|ahead| start.checked_add(*ahead))
        .collect();
    dues.sort_unstable();
    dues.dedup();
    for due in &dues {
        wheel.insert(Tick::new(*due), *due);
    }
    let mut expired = Vec::new();
    for due in &dues {
        if *due > start {
            let early = wheel.advance(Tick::new(due - 1), usize::MAX, |_| ());
            assert_eq!((early.expired, early.more), (0, false), "{start} {due}");
        }
        assert!(wheel.next_wake().is_some_and(|wake| wake.get() <= *due));
        let progress = wheel.advance(Tick::new(*due), usize::MAX, |it| expired.push(it.value));
        assert_eq!((progress.expired, progress.more), (1, false));
    }
    assert_eq!(expired, dues);
    assert!(wheel.is_empty());
}

/// Distances around all borders of levels.
fn distances() -> Vec<u64> {
    let borders = (0..=9).map(|level| SLOTS.pow(level));
    let mut all: Vec<u64> = borders
        .flat_map(|border| [border - 1, border, border + 1, 2 * border + 5, 63 * border])
        .chain([1 << 62, u64::MAX])
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn c025_a_wheel_goes_to_the_last_tick_there_is() {
    let all = distances();
    for before_the_end in [0, 1, 63, 64, 4_095, 4_096, 1 << 36, (1 << 36) + 1, 1 << 63] {
        let start = u64::MAX - before_the_end;
        let to_the_end = all
            .iter()
            .copied()
            .chain([before_the_end])
            .collect::<Vec<_>>();
        for origin in [
            0,
            1,
            4_096,
            u64::MAX,
            start.wrapping_neg(),
            0x1234_5678_9abc_d000,
        ] {
            let wheel = Wheel::with_origin(Tick::new(start), origin);
            wheel_is_exact(wheel, &to_the_end);
            // In one jump, too.
            let mut wheel = Wheel::with_origin(Tick::new(start), origin);
            for ahead in &to_the_end {
                wheel.insert(Tick::new(start.saturating_add(*ahead)), *ahead);
            }
            let progress = wheel.advance(Tick::MAX, usize::MAX, drop);
            assert_eq!((progress.expired, progress.more), (to_the_end.len(), false));
            assert_eq!(wheel.now(), Tick::MAX);
        }
    }
}

#[test]
fn c026_a_wheel_whose_digits_cross_zero() {
    // The digits are those of tick plus origin: with these origins they stand a span before zero,
    // and are at zero and a span after it while the wheel turns.
    let all = distances();
    for level in 0..=7 {
        let span = SLOTS.pow(level);
        for start in [0, 1, 1_000, 1 << 40] {
            let origin = 0_u64.wrapping_sub(start).wrapping_sub(span);
            let around: Vec<u64> = [span - 1, span, span + 1, 2 * span, 2 * span + 1]
                .into_iter()
                .chain(all.iter().copied())
                .collect();
            wheel_is_exact(Wheel::with_origin(Tick::new(start), origin), &around);
        }
    }
}

#[test]
fn c026_from_the_clocks_zero_to_a_span_and_beyond() {
    // A clock begins at zero. A wheel's digits have an origin and cross zero at another place for
    // each stripe and seed.
    for seed in 0..20 {
        let rig = Rig {
            tick: Duration::from_micros(1),
            seed,
            ..Rig::new()
        };
        let scheduler = rig.build();
        let timers = scheduler.handle();
        timers.schedule(0, Time::ZERO, |_| ()).unwrap();
        for level in 0..=7 {
            let at = Time::ZERO + rig.ticks(SLOTS.pow(level));
            timers.schedule(level.into(), at, |_| ()).unwrap();
        }
        // Key 0 was replaced by the one of level 0.
        let fired = scheduler.advance(rig.ticks(SLOTS.pow(7)));
        assert_eq!(keys(&fired), [0, 1, 2, 3, 4, 5, 6, 7]);
        for run in fired {
            assert_eq!(run.at, run.deadline);
        }
    }
}

#[test]
fn c027_every_timer_fires_in_its_tick_where_32_bits_end() {
    for tick in [Duration::from_micros(1), MS] {
        for edge in [1_u64 << 31, 1 << 32] {
            let rig = Rig {
                tick,
                start: Time::ZERO + ticks(tick, edge - 100),
                seed: edge,
            };
            let scheduler = rig.build();
            let timers = scheduler.handle();
            for key in 0..40 {
                timers
                    .schedule(key, rig.ticks(5 * key + 3), |_| ())
                    .unwrap();
            }
            for key in 0..40 {
                let due = rig.start + rig.ticks(5 * key + 3);
                assert_eq!(scheduler.jump_to(due - Duration::from_nanos(1)), []);
                let fired = scheduler.jump_to(due);
                assert_eq!((keys(&fired), fired[0].at), (vec![key], due));
            }
        }
    }
}

#[test]
fn c028_a_jump_of_years_fires_each_once() {
    let rig = Rig {
        tick: Duration::from_micros(1),
        ..Rig::new()
    };
    let year = Duration::from_secs(365 * 24 * 3_600);
    for seed in 0..3 {
        let scheduler = Rig { seed, ..rig }.build();
        let timers = scheduler.handle();
        let count = 2_000;
        for key in 0..count {
            // From microseconds to a hundred years.
            let delay = Duration::from_micros(1 << (key % 52)) + Duration::from_micros(key);
            timers.schedule(key, delay.min(year * 100), |_| ()).unwrap();
        }
        // 10^16 ticks: whoever went through them one by one would not come to the end of this test.
        let fired = scheduler.jump_to(Time::ZERO + year * 500);
        assert!(sorted(&fired).into_iter().eq(0..count));
        assert_eq!(scheduler.jump_to(Time::ZERO + year * 550), []);
        assert!(timers.is_empty());
    }
}

#[test]
fn c029_a_clock_that_goes_back_fires_nothing_and_loses_nothing() {
    let span = SLOTS.pow(2);
    let rig = Rig::new();
    for seed in 0..5 {
        let start = Time::ZERO + rig.ticks(4 * span);
        let scheduler = Rig { seed, start, ..rig }.build();
        let timers = scheduler.handle();
        for key in 0..1_000 {
            timers
                .schedule(key, rig.ticks(100 + key * 7), |_| ())
                .unwrap();
        }
        let middle = start + rig.ticks(200);
        let before = scheduler.advance_to(middle).len();
        assert!(before > 0);
        assert_eq!(scheduler.jump_to(middle - rig.ticks(3 * span)), []);
        assert_eq!(timers.len(), 1_000 - before);
        // What happens to be armed meanwhile is not early either.
        let odd = timers.schedule(5_000, rig.ticks(10), |_| ()).unwrap();
        assert_eq!(
            scheduler.advance_to(odd.deadline - Duration::from_nanos(1)),
            []
        );
        assert_eq!(
            keys(&scheduler.advance_to(middle - Duration::from_nanos(1)))
                .into_iter()
                .filter(|key| *key != 5_000)
                .count(),
            0,
            "the others wait until the clock has caught up"
        );
        let fired = scheduler.advance(rig.ticks(3 * span));
        let fired: Vec<_> = fired.iter().filter(|run| run.key != 5_000).collect();
        assert_eq!(fired.len(), 1_000 - before);
        assert!(fired.iter().all(|run| run.at == run.deadline));
        assert!(timers.is_empty());
    }
}

#[test]
fn c030_polling_at_another_pace_misses_nothing() {
    let rig = Rig::new();
    for poll in [rig.tick * 9 / 10, rig.tick * 18 / 10, rig.tick * 7 / 3] {
        let scheduler = rig.build();
        let timers = scheduler.handle();
        for key in 0..500 {
            let delay = rig.tick * key as u32 / 3 + Duration::from_micros(key);
            timers.schedule(key, delay, |_| ()).unwrap();
        }
        let mut fired = scheduler.settle();
        while scheduler.now() < Time::ZERO + rig.ticks(500 / 3 + 5) {
            fired.extend(scheduler.jump_to(scheduler.now() + poll));
        }
        assert!(sorted(&fired).into_iter().eq(0..500), "{poll:?}");
        for run in fired {
            assert!(run.at >= run.deadline);
            assert!(run.at.since(run.deadline) < rig.tick + poll, "{run:?}");
        }
    }
}

#[test]
fn c031_passing_time_does_nothing_to_later_timers() {
    let rig = Rig::new();
    let scheduler = rig.build();
    let timers = scheduler.handle();
    let id = timers.schedule(1, rig.ticks(10), |_| ()).unwrap().id;
    let before = timers.get(&1);
    for passed in 1..10 {
        assert_eq!(scheduler.advance(rig.tick), []);
        assert_eq!(timers.get(&1), before);
        assert_eq!(timers.by_id(id).get(), before);
        assert_eq!(
            before.unwrap().remaining(scheduler.now()),
            rig.ticks(10 - passed)
        );
    }
    assert_eq!(keys(&scheduler.advance(rig.tick)), [1]);
}

#[test]
fn c032_what_fires_is_what_is_due() {
    let strategy = (
        any::<u64>(),
        prop::collection::vec(0_u64..2_000_000_000_000, 5_000),
        prop::collection::vec(0_u64..300_000_000_000, 12),
    );
    let config = Config {
        cases: 4,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&strategy, |(seed, delays, steps)| {
        let rig = Rig { seed, ..Rig::new() };
        let scheduler = rig.build();
        let timers = scheduler.handle();
        for (key, delay) in (0..).zip(&delays) {
            timers
                .schedule(key, Duration::from_nanos(*delay), |_| ())
                .unwrap();
        }
        let is_due = |key: u64, now: Time| {
            let deadline = Time::from_nanos(delays[key as usize]);
            due(rig.tick, deadline).is_some_and(|due| due <= now)
        };
        let mut fired = Vec::new();
        for step in steps {
            fired.extend(scheduler.jump_to(scheduler.now() + Duration::from_nanos(step)));
            let now = scheduler.now();
            let all = 0..delays.len() as u64;
            prop_assert!(
                sorted(&fired)
                    .into_iter()
                    .eq(all.clone().filter(|key| is_due(*key, now)))
            );
            let mut rest: Vec<_> = timers.pending().map(|(key, _)| key).collect();
            rest.sort_unstable();
            prop_assert!(rest.into_iter().eq(all.filter(|key| !is_due(*key, now))));
        }
        Ok(())
    });
    result.unwrap();
}
