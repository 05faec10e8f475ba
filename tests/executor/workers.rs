//! The scheduler's own workers: where tasks run, what a blocked one holds up (nothing), how the
//! pool grows, what a panic leaves behind.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::ledger::Ledger;
use kit::wait::{next, until};
use tourbillon::{
    Clock, Firing, Handle, ManualClock, ScheduleError, Scheduler, Shutdown, TimerState,
};

const TICK: Duration = Duration::from_millis(1);
/// Far away: nothing of it is due in any of these tests.
const HOUR: Duration = Duration::from_secs(3_600);

fn name_of_this_thread() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// Moves the clock tick by tick until `holds`: time passes for the pool's growth, too.
#[track_caller]
fn until_with(hand: &ManualClock, what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || {
        let held = holds();
        if !held {
            hand.advance(TICK);
        }
        held
    });
}

/// Moves the clock by a tick, and waits until the tickers have come by since: they collect what is
/// due before they look at the pool. That no worker is free is up to the caller.
fn tick_seen_by_all_tickers(hand: &ManualClock, timers: &Handle<u32>) {
    // So many that each shard has some.
    let probes = u32::MAX - 16..u32::MAX;
    for key in probes.clone() {
        let delay = Duration::from_nanos(1);
        timers.schedule(key, delay, |_| ()).unwrap();
    }
    hand.advance(TICK);
    until("the tickers collected", || {
        let mut keys = probes.clone();
        keys.all(|key| {
            timers
                .get(&key)
                .is_none_or(|seen| seen.state == TimerState::Queued)
        })
    });
    for key in probes {
        let _ = timers.cancel(&key);
    }
}

/// Schedules a task that waits at the gate.
fn schedule_at_gate(timers: &Handle<u32>, key: u32, delay: Duration, gate: &Gate) {
    let gate = gate.clone();
    timers.schedule(key, delay, move |_| gate.pass()).unwrap();
}

// === where tasks run ===

#[test]
fn c104_tasks_run_on_workers_and_not_on_the_ticking_thread() {
    let scheduler = Scheduler::<u32>::builder().shards(2).workers(2).build();
    let scheduler = scheduler.unwrap();
    let timers = scheduler.handle();
    let (tell, told) = channel();
    for key in 0..20 {
        let tell = tell.clone();
        // Some through a tick, some due at once.
        let delay = TICK * (key % 4);
        timers
            .schedule(key, delay, move |_| {
                tell.send(name_of_this_thread()).unwrap();
            })
            .unwrap();
    }
    for _ in 0..20 {
        let name = next(&told);
        assert!(name.starts_with("tb-work-"), "{name}");
        assert!(name.len() <= 15, "{name}");
    }
}

#[test]
fn c104_inline_tasks_run_on_the_ticking_thread_of_their_shard() {
    let scheduler = Scheduler::<u32>::builder().shards(2).inline().build();
    let scheduler = scheduler.unwrap();
    let timers = scheduler.handle();
    let (tell, told) = channel();
    for key in 0..40 {
        let tell = tell.clone();
        timers
            .schedule(key, TICK * (key % 4), move |_| {
                tell.send(name_of_this_thread()).unwrap();
            })
            .unwrap();
    }
    for _ in 0..40 {
        let name = next(&told);
        assert!(name.starts_with("tb-tick-"), "{name}");
        assert!(name.len() <= 15, "{name}");
    }
    assert_eq!(timers.stats().workers, 2, "the tickers themselves");
}

#[cfg(target_os = "linux")]
#[test]
fn threads_are_named_with_at_most_fifteen_characters() {
    // What the system shows is cut at 15 characters, so a full name is found there only if it fits.
    let names = || -> HashSet<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .map(|name| name.trim_end().to_owned())
            .collect()
    };
    let scheduler = Scheduler::<u32>::builder().shards(12).workers(11).build();
    let scheduler = Arc::new(scheduler.unwrap());
    until("all threads have their names", || {
        let names = names();
        names.contains("tb-tick-11") && names.contains("tb-work-10")
    });
    // The thread of a shutdown that a task called for; it lives until that task has ended.
    let (tell, told) = channel();
    let itself = Arc::clone(&scheduler);
    scheduler
        .handle()
        .schedule(0, Duration::ZERO, move |_| {
            let closing = itself.shutdown(Shutdown::HandBack);
            until("the closing thread has its name", || {
                names().contains("tb-shutdown")
            });
            tell.send(closing).unwrap();
        })
        .unwrap();
    assert!(next(&told).wait().unwrap().handed_back.is_empty());
}

// === blocked tasks ===

#[test]
fn c105_a_blocked_task_delays_nothing_else() {
    const OTHERS: u32 = 10_000;
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .workers(2)
        .max_running(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    schedule_at_gate(&timers, u32::MAX, Duration::ZERO, &gate);
    gate.crowd(1);
    let late = Arc::new(AtomicUsize::new(0));
    let ran = Arc::new(AtomicUsize::new(0));
    for key in 0..OTHERS {
        let (late, ran) = (Arc::clone(&late), Arc::clone(&ran));
        timers
            .schedule(key, TICK * (1 + key % 50), move |firing| {
                // By the clock of the test, which waits for each tick's tasks before it goes on.
                late.fetch_add(usize::from(!firing.lateness().is_zero()), Ordering::SeqCst);
                ran.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
    }
    for tick in 1..=50 {
        hand.advance(TICK);
        until("the tick's tasks ran", || {
            ran.load(Ordering::SeqCst) == tick * OTHERS as usize / 50
        });
    }
    assert_eq!(late.load(Ordering::SeqCst), 0);
    let stats = timers.stats();
    assert_eq!((stats.running, stats.workers), (1, 2));
    gate.open();
}

#[test]
fn c106_with_all_workers_blocked_ticks_go_on_and_the_queue_shows() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(2)
        .workers(2)
        .max_running(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    for key in 0..2 {
        schedule_at_gate(&timers, key, Duration::ZERO, &gate);
    }
    gate.crowd(2);

    let ledger = Ledger::new(100);
    for number in 0..100 {
        let token = ledger.token(number);
        let key = 100 + number as u32;
        timers.schedule(key, TICK, move |_| token.run()).unwrap();
    }
    timers.schedule(7, HOUR, |_| ()).unwrap();
    hand.advance(TICK);
    until("the ticks go on", || timers.stats().queued == 100);
    // The bound of the pool holds, however long the tasks wait, and `stats` says so.
    until_with(&hand, "saturation shows", || timers.stats().saturated > 0);
    for _ in 0..100 {
        hand.advance(TICK);
    }
    let stats = timers.stats();
    assert_eq!((stats.workers, stats.idle_workers), (2, 0));
    assert_eq!((stats.pending, stats.queued, stats.running), (101, 100, 2));
    assert_eq!(stats.shards.iter().map(|s| s.queued).sum::<u64>(), 100);
    assert_eq!(stats.failed_spawns, 0);
    // What waits is cancelled, moved and seen like anything else.
    assert_eq!(timers.get(&100).unwrap().state, TimerState::Queued);
    assert!(timers.cancel(&100).is_cancelled());
    assert_eq!(ledger.of(0), (0, 1));
    let _ = timers.reschedule(&101, HOUR);
    assert_eq!(timers.stats().queued, 98);
    hand.advance(TICK);

    gate.open();
    until("all that waited ran", || ledger.sums().0 == 98);
    until("all of it is settled", || timers.stats().running == 0);
    let stats = timers.stats();
    assert_eq!((stats.pending, stats.queued), (2, 0));
    let queue_lag = stats.shards.iter().map(|s| s.queue_lag.max).max().unwrap();
    assert!(queue_lag >= TICK * 100, "{queue_lag:?}");
    assert!(stats.lateness().max >= TICK * 100);
    assert!(stats.balances());
    assert_eq!(ledger.of(0), (0, 1), "cancelled is cancelled");
}

#[test]
fn c106_the_pool_grows_for_tasks_without_delay_and_stops_at_its_bound() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(2)
        .workers(1)
        .max_running(4)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    // Every ticker is asleep for good: nothing is filed in any wheel.
    for key in 0..10 {
        schedule_at_gate(&timers, key, Duration::ZERO, &gate);
    }
    until_with(&hand, "four run", || timers.stats().running == 4);
    gate.crowd(4);
    until_with(&hand, "saturation shows", || timers.stats().saturated > 0);
    for _ in 0..50 {
        hand.advance(TICK);
    }
    let stats = timers.stats();
    assert_eq!((stats.workers, stats.running, stats.queued), (4, 4, 6));
    gate.open();
    until("all ran", || timers.stats().ran == 10);
    assert!(timers.stats().workers <= 4);
}

#[test]
fn c106_the_pool_grows_by_the_system_clock_too() {
    let scheduler = Scheduler::<u32>::builder()
        .shards(2)
        .workers(1)
        .max_running(5)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    for key in 0..5 {
        schedule_at_gate(&timers, key, Duration::ZERO, &gate);
    }
    gate.crowd(5);
    gate.open();
}

#[test]
fn c106_the_pool_grows_though_each_task_blocks_only_briefly() {
    const TASKS: u32 = 1_000;
    const MOST: usize = 8;
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .workers(2)
        .max_running(MOST)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (release, released) = channel::<()>();
    let released = Arc::new(Mutex::new(released));
    for key in 0..TASKS {
        let released = Arc::clone(&released);
        let task = move |_: &Firing<'_, u32>| {
            let _ = released.lock().unwrap().recv();
        };
        timers.schedule(key, TICK, task).unwrap();
    }
    hand.advance(TICK);
    // In each tick a task ends and the next one is claimed, while hundreds grow old.
    let mut ended = 0;
    while timers.stats().workers < MOST as u64 {
        assert!(ended < u64::from(TASKS) / 2, "the pool has not grown");
        release.send(()).unwrap();
        ended += 1;
        until("another one is claimed", || {
            let stats = timers.stats();
            stats.ran - stats.running == ended && stats.running >= 2
        });
        tick_seen_by_all_tickers(&hand, &timers);
    }
    drop(release);
    until("all ran", || timers.stats().ran >= u64::from(TASKS));
}

// Elsewhere nobody can say whether a thread waits.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn c106_tasks_that_only_compute_get_one_worker_more_and_no_second_one() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(2)
        .workers(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let done = Arc::new(AtomicBool::new(false));
    for key in 0..40 {
        let done = Arc::clone(&done);
        let compute = move |_: &Firing<'_, u32>| {
            while !done.load(Ordering::SeqCst) {
                // It could go on at once, so this is no waiting.
                thread::yield_now();
            }
        };
        timers.schedule(key, TICK, compute).unwrap();
    }
    until_with(&hand, "three run", || timers.stats().running >= 3);
    for _ in 0..200 {
        tick_seen_by_all_tickers(&hand, &timers);
    }
    assert_eq!(timers.stats().workers, 3);
    done.store(true, Ordering::SeqCst);
    until("all ended", || timers.stats().pending == 0);
}

#[test]
fn c106_growth_reaches_what_lies_in_a_blocked_workers_deque() {
    const TASKS: usize = 200;
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        // One stripe: one batch, of which a worker takes many at once.
        .shards(1)
        .stripes(1)
        .workers(1)
        .max_running(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let first = Arc::new(AtomicBool::new(true));
    let gate = Gate::default();
    for key in 0..TASKS as u32 {
        let (first, gate) = (Arc::clone(&first), gate.clone());
        timers
            .schedule(key, TICK, move |_| {
                if first.swap(false, Ordering::SeqCst) {
                    gate.pass();
                }
            })
            .unwrap();
    }
    hand.advance(TICK);
    gate.crowd(1);
    // Whichever worker is stuck, and whatever it had taken: all others run.
    until_with(&hand, "all but the stuck one ended", || {
        let stats = timers.stats();
        stats.ran == TASKS as u64 && stats.running == 1
    });
    assert_eq!(timers.stats().workers, 2);
    gate.open();
}

#[test]
fn c107_tasks_of_one_slot_run_in_parallel() {
    for workers in [10, 1] {
        let hand = ManualClock::new();
        let scheduler = Scheduler::<u32>::builder()
            .clock(Clock::manual(&hand))
            .workers(workers)
            .max_running(10)
            .build()
            .unwrap();
        let timers = scheduler.handle();
        // None of the ten ends before all ten have started.
        let barrier = Arc::new(Barrier::new(10));
        for key in 0..10 {
            let barrier = Arc::clone(&barrier);
            timers
                .schedule(key, TICK, move |_| {
                    barrier.wait();
                })
                .unwrap();
        }
        hand.advance(TICK);
        until_with(&hand, "ten at once", || {
            let stats = timers.stats();
            stats.ran == 10 && stats.running == 0
        });
    }
}

// === panics ===

/// What `on_panic` was told.
type Told = Arc<Mutex<Vec<(u32, String)>>>;

#[test]
fn c109_a_panic_is_reported_with_its_key_and_nothing_else_ends() {
    let told = Told::default();
    let hand = ManualClock::new();
    let scheduler = {
        let told = Arc::clone(&told);
        Scheduler::<u32>::builder()
            .clock(Clock::manual(&hand))
            .shards(1)
            .workers(1)
            .max_running(1)
            .on_panic(move |panic| {
                let line = (*panic.key, panic.message.to_owned());
                told.lock().unwrap().push(line);
            })
            .build()
            .unwrap()
    };
    let timers = scheduler.handle();
    let (tell, names) = channel();
    let say = move || {
        let tell = tell.clone();
        move || {
            let id = thread::current().id();
            tell.send((name_of_this_thread(), id)).unwrap();
        }
    };
    for key in 0..30 {
        let say = say();
        timers
            .schedule(key, TICK * (1 + key % 3), move |_| {
                say();
                match key % 3 {
                    0 => panic!("plain"),
                    1 => panic!("with the number {key}"),
                    _ => {}
                }
            })
            .unwrap();
    }
    let mut threads = HashSet::new();
    for _ in 0..3 {
        hand.advance(TICK);
        for _ in 0..10 {
            threads.insert(next(&names));
        }
    }
    // After all that: the same worker, and the ticker goes on.
    let last = say();
    timers.schedule(99, TICK, move |_| last()).unwrap();
    hand.advance(TICK);
    threads.insert(next(&names));
    assert_eq!(threads.len(), 1, "{threads:?}");
    until("all is settled", || timers.stats().running == 0);
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.panicked), (31, 20));
    assert_eq!((stats.ticker_panics, stats.workers), (0, 1));
    assert!(stats.balances());
    let mut told = told.lock().unwrap().clone();
    told.sort();
    let expected: Vec<_> = (0..30)
        .filter(|key| key % 3 < 2)
        .map(|key| match key % 3 {
            0 => (key, "plain".to_owned()),
            _ => (key, format!("with the number {key}")),
        })
        .collect();
    assert_eq!(told, expected);
}

#[test]
fn c109_a_panic_ends_the_run_and_what_was_kept_for_after_it_runs() {
    for seed in 0..20 {
        let told = Told::default();
        let scheduler = {
            let told = Arc::clone(&told);
            Scheduler::<u32>::builder()
                .on_panic(move |panic| {
                    assert!(!panic.deadline.since(tourbillon::Time::ZERO).is_zero());
                    let line = (*panic.key, panic.message.to_owned());
                    told.lock().unwrap().push(line);
                })
                .build_stepped(seed)
                .unwrap()
        };
        let timers = scheduler.handle();
        timers
            .schedule(1, TICK, |firing| {
                let kept = firing.handle().schedule(1, TICK, |_| ()).unwrap();
                assert!(kept.after_run);
                panic!("after arming itself");
            })
            .unwrap();
        assert_eq!(scheduler.advance(TICK * 5).len(), 2);
        assert_eq!(
            *told.lock().unwrap(),
            [(1, "after arming itself".to_owned())]
        );
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked, stats.pending), (2, 1, 0));
        assert!(!timers.contains(&1));
    }
}

#[test]
fn c109_who_waits_for_a_run_that_panics_is_woken() {
    let scheduler = Scheduler::<u32>::builder().workers(1).build().unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let at_gate = gate.clone();
    timers
        .schedule(1, Duration::ZERO, move |_| {
            at_gate.pass();
            panic!("while somebody waits");
        })
        .unwrap();
    gate.crowd(1);
    let (tell, told) = channel();
    let waits = timers.clone();
    thread::spawn(move || {
        waits.cancel_and_wait(&1).wait().unwrap();
        tell.send(()).unwrap();
    });
    until("it waits", || {
        matches!(
            timers.schedule(1, HOUR, |_| ()),
            Err(ScheduleError::Closing(_))
        )
    });
    gate.open();
    next(&told);
    assert!(!timers.contains(&1));
}

/// Panics when it is dropped while it is armed.
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0.load(Ordering::SeqCst), "a bomb");
    }
}

#[test]
fn c110_panics_in_drops_and_callbacks_leave_worker_and_ticker_alive() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .workers(1)
        .max_running(1)
        .on_panic(|_| panic!("in the callback"))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (tell, told) = channel();
    let armed = Arc::new(AtomicBool::new(true));
    let bomb = || Bomb(Arc::clone(&armed));
    // The captured value is dropped by the run.
    let captured = bomb();
    timers
        .schedule(1, TICK, move |_| {
            let _ = &captured;
        })
        .unwrap();
    // The payload of a panic is dropped by the worker.
    let payload = bomb();
    timers
        .schedule(2, TICK, move |_| std::panic::panic_any(payload))
        .unwrap();
    timers.schedule(3, TICK, |_| panic!("plainly")).unwrap();
    hand.advance(TICK);
    until("the three ran", || {
        let stats = timers.stats();
        stats.ran == 3 && stats.running == 0
    });
    assert_eq!(timers.stats().panicked, 3);

    // A cancelled and a replaced task are dropped by the caller, who gets the panic. The answer of
    // the scheduler stands all the same.
    for replace in [false, true] {
        let captured = bomb();
        let task = move |_: &tourbillon::Firing<'_, u32>| {
            let _ = &captured;
        };
        timers.schedule(4, HOUR, task).unwrap();
        let call = catch_unwind(AssertUnwindSafe(|| {
            if replace {
                timers.schedule(4, HOUR, |_| ()).unwrap();
            } else {
                timers.cancel(&4);
            }
        }));
        assert!(call.is_err());
        assert_eq!(timers.contains(&4), replace);
        assert!(timers.stats().balances());
    }

    timers
        .schedule(5, TICK, move |_| tell.send(()).unwrap())
        .unwrap();
    hand.advance(TICK);
    next(&told);
    let stats = timers.stats();
    assert_eq!((stats.ticker_panics, stats.workers), (0, 1));
}

/// A key whose `Drop` and `Clone` panic on demand.
#[derive(PartialEq, Eq, Hash)]
struct Brittle {
    number: u32,
    panics_in_drop: bool,
    panics_in_clone: bool,
}

impl Brittle {
    fn sound(number: u32) -> Self {
        Brittle {
            number,
            panics_in_drop: false,
            panics_in_clone: false,
        }
    }
}

impl Clone for Brittle {
    fn clone(&self) -> Self {
        assert!(!self.panics_in_clone, "in the clone of {}", self.number);
        Brittle {
            number: self.number,
            panics_in_drop: self.panics_in_drop,
            panics_in_clone: false,
        }
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert!(!self.panics_in_drop, "in the drop of {}", self.number);
    }
}

#[test]
fn c110_keys_that_panic_in_drop_or_clone_cost_one_run_at_most() {
    for seed in 0..20 {
        let told = Told::default();
        let scheduler = {
            let told = Arc::clone(&told);
            Scheduler::<Brittle>::builder()
                .stripes(1)
                .shards(1)
                .on_panic(move |panic| {
                    let line = (panic.key.number, panic.message.to_owned());
                    told.lock().unwrap().push(line);
                })
                .build_stepped(seed)
                .unwrap()
        };
        let timers = scheduler.handle();
        let ledger = Ledger::new(4);
        for number in 0..4 {
            let key = Brittle {
                panics_in_drop: number == 1,
                panics_in_clone: number == 2,
                ..Brittle::sound(number)
            };
            let token = ledger.token(number as usize);
            timers.schedule(key, TICK, move |_| token.run()).unwrap();
        }
        // The kit's log would clone the key of what ran, too; it is dropped in here.
        let fired = scheduler.advance(TICK);
        for fired in fired {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(fired)));
        }
        assert_eq!(
            (0..4).map(|n| ledger.of(n)).collect::<Vec<_>>(),
            [(1, 1), (1, 1), (0, 1), (1, 1)],
            "seed {seed}"
        );
        assert_eq!(*told.lock().unwrap(), [(2, "in the clone of 2".to_owned())]);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked, stats.pending), (4, 1, 0));
        assert!(stats.balances());
        assert!(timers.is_empty());
        assert!(!timers.contains(&Brittle::sound(0)));
    }
}

// === hand-off ===

#[test]
fn c113_runs_of_one_key_never_overlap() {
    const KEYS: u32 = 8;
    const ROUNDS: usize = 2_000;
    let scheduler = Scheduler::<u32>::builder().workers(8).build().unwrap();
    let timers = scheduler.handle();
    let inside: Arc<[AtomicBool]> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();
    let overlaps = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let key = round as u32 % KEYS;
                    let (inside, overlaps) = (Arc::clone(&inside), Arc::clone(&overlaps));
                    timers
                        .schedule(key, Duration::ZERO, move |_| {
                            let was = inside[key as usize].swap(true, Ordering::SeqCst);
                            thread::yield_now();
                            let is = inside[key as usize].swap(false, Ordering::SeqCst);
                            overlaps.fetch_add(usize::from(was || !is), Ordering::SeqCst);
                        })
                        .unwrap();
                }
            });
        }
    });
    until("all is done", || {
        let stats = timers.stats();
        stats.pending == 0 && stats.running == 0
    });
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
    let stats = timers.stats();
    assert!(stats.ran > 0 && stats.balances());
    assert_eq!(stats.scheduled, 3 * ROUNDS as u64);
}

#[test]
fn c114_every_task_is_handed_over_exactly_once() {
    const TASKS: usize = 20_000;
    let scheduler = Scheduler::<u32>::builder()
        .shards(2)
        .workers(4)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(TASKS);
    thread::scope(|scope| {
        for part in 0..2 {
            let (timers, ledger) = (&timers, &ledger);
            scope.spawn(move || {
                for number in (part..TASKS).step_by(2) {
                    let token = ledger.token(number);
                    // Through the injector and through the wheels.
                    let delay = TICK * (number as u32 / 2 % 8);
                    timers
                        .schedule(number as u32, delay, move |_| token.run())
                        .unwrap();
                }
            });
        }
    });
    until("all ran", || ledger.sums() == (TASKS, TASKS));
    assert!((0..TASKS).all(|number| ledger.of(number) == (1, 1)));
    until("all is settled", || timers.stats().running == 0);
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.pending), (TASKS as u64, 0));
}

#[test]
fn c115_a_task_schedules_on_other_shards() {
    for seed in 0..50 {
        let scheduler = Scheduler::<u32>::builder()
            .shards(4)
            .stripes(16)
            .workers(3)
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        timers
            .schedule(0, TICK, |firing| {
                for key in 1..=10 {
                    let delay = TICK * (key % 3);
                    firing.handle().schedule(key, delay, |_| ()).unwrap();
                }
            })
            .unwrap();
        let fired = scheduler.advance(TICK * 3);
        let mut keys: Vec<_> = fired.iter().map(|fired| fired.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..=10).collect::<Vec<_>>(), "seed {seed}");
        assert!(fired.iter().all(|fired| fired.at >= fired.deadline));
    }
}

#[test]
fn c115_with_real_threads() {
    let scheduler = Scheduler::<u32>::builder().shards(4).workers(2).build();
    let scheduler = scheduler.unwrap();
    let (tell, told) = channel();
    scheduler
        .handle()
        .schedule(0, TICK, move |firing| {
            for key in 1..=10 {
                let tell = tell.clone();
                let task = move |_: &tourbillon::Firing<'_, u32>| tell.send(key).unwrap();
                let delay = TICK * (key % 3);
                firing.handle().schedule(key, delay, task).unwrap();
            }
        })
        .unwrap();
    let keys: HashSet<_> = (0..10).map(|_| next(&told)).collect();
    assert_eq!(keys, (1..=10).collect());
}
