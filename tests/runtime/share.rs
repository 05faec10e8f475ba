//! What shares a runtime, and what the builders say about it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::{next, until};
use tourbillon::{
    BuildError, Clock, Executor, ExpiryMap, Firing, Job, ManualClock, Runtime, Scheduler, Timer,
};

use super::{TICK, scheduler_on, small};

#[cfg(target_os = "linux")]
#[test]
fn schedulers_maps_and_timers_have_no_threads_of_their_own() {
    let runtime = Runtime::builder().name("many").tickers(2).workers(2);
    let runtime = runtime.max_workers(2).build().unwrap();
    let named = || super::threads_named("many-");
    let all = ["many-tick-0", "many-tick-1", "many-work-0", "many-work-1"];
    until("all have their names", || named() == all);
    let (tell, told) = channel();
    let mut built = Vec::new();
    for number in 0..30_u32 {
        let scheduler = scheduler_on(&runtime);
        let timer = Timer::builder().runtime(&runtime).build().unwrap();
        let map = ExpiryMap::<u32, ()>::builder().runtime(&runtime);
        let expired = tell.clone();
        let map = map
            .time_to_live(TICK)
            .build(move |_, _| expired.send(()).unwrap());
        let (map, run, after) = (map.unwrap(), tell.clone(), tell.clone());
        let timers = scheduler.handle();
        timers
            .schedule(number, TICK, move |_| run.send(()).unwrap())
            .unwrap();
        map.insert(number, ()).unwrap();
        let _ = timer.after(TICK, move || after.send(()).unwrap()).unwrap();
        built.push((scheduler, timer, map));
    }
    for _ in 0..90 {
        next(&told);
    }
    assert_eq!(runtime.stats().instances, 90);
    assert_eq!(named(), all);
    drop(built);
    until("nobody is on it", || runtime.stats().instances == 0);
}

#[test]
fn clocks_and_ticks_may_differ() {
    let runtime = small("clocks").build().unwrap();
    let hand = ManualClock::new();
    let (tell, told) = channel();
    let clocks = [
        Clock::system(),
        Clock::fast(),
        Clock::boottime(),
        Clock::manual(&hand),
    ];
    let ticks = [TICK, TICK / 1_000, TICK * 50, TICK * 7];
    let schedulers: Vec<_> = (clocks.into_iter().zip(ticks).zip(0..))
        .map(|((clock, tick), number)| {
            let builder = Scheduler::<u32>::builder().runtime(&runtime);
            let scheduler = builder.clock(clock).tick(tick).build().unwrap();
            let tell = tell.clone();
            let run = move |_: &Firing<'_, u32>| tell.send(number).unwrap();
            scheduler.handle().schedule(1, TICK * 3, run).unwrap();
            scheduler
        })
        .collect();
    let three: HashSet<i32> = (0..3).map(|_| next(&told)).collect();
    assert_eq!(three, HashSet::from([0, 1, 2]));
    hand.advance(TICK * 8);
    assert_eq!(next(&told), 3);
    drop(schedulers);
}

#[test]
fn max_running_holds_for_each_scheduler() {
    let runtime = Runtime::builder().workers(3).build().unwrap();
    let builder = Scheduler::<u32>::builder().runtime(&runtime);
    let one_at_a_time = builder.max_running(1).build().unwrap();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for key in 0..200 {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        let task = move |_: &Firing<'_, u32>| {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
        };
        one_at_a_time
            .handle()
            .schedule(key, TICK * (key % 3), task)
            .unwrap();
    }
    until("all ran", || one_at_a_time.handle().stats().ran == 200);
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[test]
fn a_map_that_sends_waits_for_its_receiver_and_for_nothing_else() {
    let runtime = small("sends").build().unwrap();
    let map = ExpiryMap::<u32, u32>::builder().runtime(&runtime);
    let (map, expired) = map.time_to_live(TICK).build_channel(1).unwrap();
    for key in 0..20 {
        map.insert(key, key).unwrap();
    }
    // The worker of the runtime waits for room, so another one runs this.
    let (tell, told) = channel();
    let scheduler = scheduler_on(&runtime);
    let run = move |_: &Firing<'_, u32>| tell.send(()).unwrap();
    scheduler.handle().schedule(1, TICK * 20, run).unwrap();
    next(&told);
    let keys: HashSet<u32> = (0..20).map(|_| expired.recv().unwrap().key).collect();
    assert_eq!(keys.len(), 20);
}

#[test]
fn a_panic_ends_no_thread() {
    struct PanicsInDrop;
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            panic!("wanted: in a drop");
        }
    }
    kit::quiet::hush();
    let runtime = small("panics").build().unwrap();
    let other = scheduler_on(&runtime);
    let (tell, told) = channel();
    for round in 0..20 {
        let scheduler = scheduler_on(&runtime);
        scheduler
            .handle()
            .schedule(1, TICK, |_| panic!("wanted: in a task"))
            .unwrap();
        let kept = PanicsInDrop;
        let pending = move |_: &Firing<'_, u32>| drop(kept);
        // A value is dropped with its scheduler, on whichever thread.
        let refused = scheduler.handle().schedule(2, TICK * 1_000_000, pending);
        refused.unwrap();
        until("it ran", || scheduler.handle().stats().panicked == 1);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(scheduler)));
        let tell = tell.clone();
        other
            .handle()
            .schedule(round, TICK, move |_| tell.send(()).unwrap())
            .unwrap();
        next(&told);
    }
    assert_eq!((runtime.stats().tickers, runtime.stats().workers), (1, 1));
}

/// Runs each job at once, and notes on which threads.
struct AtOnce(Arc<Mutex<HashSet<String>>>);

impl Executor for AtOnce {
    fn execute(&self, job: Job) -> Result<(), Job> {
        let name = thread::current().name().unwrap().to_owned();
        self.0.lock().unwrap().insert(name);
        job.run();
        Ok(())
    }
}

#[test]
fn an_executor_of_the_user_gets_its_jobs_from_the_workers() {
    let runtime = small("handed").build().unwrap();
    let names = Arc::default();
    let scheduler = Scheduler::<u32>::builder()
        .runtime(&runtime)
        .executor(AtOnce(Arc::clone(&names)))
        .build()
        .unwrap();
    assert_eq!(runtime.stats().instances, 1);
    let (tell, told) = channel();
    for key in 0..20 {
        let tell = tell.clone();
        let run = move |_: &Firing<'_, u32>| tell.send(()).unwrap();
        scheduler
            .handle()
            .schedule(key, TICK * (key % 3), run)
            .unwrap();
    }
    for _ in 0..20 {
        next(&told);
    }
    let names: Vec<_> = names.lock().unwrap().iter().cloned().collect();
    assert_eq!(names, ["handed-work-0"]);
}

#[test]
fn the_options_of_threads_belong_to_the_runtime() {
    let runtime = small("options").build().unwrap();
    let on = || Scheduler::<u32>::builder().runtime(&runtime);
    assert!(matches!(
        on().workers(2).build(),
        Err(BuildError::WorkersOfRuntime)
    ));
    assert!(matches!(
        on().inline().build(),
        Err(BuildError::NotOnRuntime)
    ));
    assert!(matches!(
        on().max_running(0).build(),
        Err(BuildError::MaxRunning { .. })
    ));
    assert!(matches!(on().shards(0).build(), Err(BuildError::Shards(0))));
    // A shard need not have a thread of its own.
    let scheduler = on().shards(3).build().unwrap();
    assert_eq!(scheduler.handle().stats().shards.len(), 3);
    let default = on().build().unwrap();
    assert_eq!(default.handle().stats().shards.len(), 1);
    // The last word counts.
    let own = on().own_threads().workers(2).build().unwrap();
    assert_eq!(own.handle().stats().workers, 2);
    drop((scheduler, default, own));
    until("those that were refused are gone", || {
        runtime.stats().instances == 0
    });
}

#[test]
fn the_bounds_of_a_runtime_are_checked() {
    let refused = |change: fn(tourbillon::RuntimeBuilder) -> tourbillon::RuntimeBuilder| {
        change(Runtime::builder()).build().unwrap_err().to_string()
    };
    assert!(refused(|b| b.tickers(0)).contains("0 tickers"));
    assert!(refused(|b| b.tickers(1_025)).contains("1025 tickers"));
    assert!(refused(|b| b.workers(0)).contains("0 workers"));
    assert!(refused(|b| b.workers(1_025)).contains("1025 workers"));
    assert!(refused(|b| b.workers(4).max_workers(3)).contains("max_workers of 3 with 4"));
    assert!(refused(|b| b.max_workers(1_025)).contains("max_workers of 1025"));
    assert!(refused(|b| b.name("a\0b")).contains("zero byte"));
    // No system has so much memory.
    assert!(refused(|b| b.stack_size(usize::MAX >> 2)).contains("could not be started"));
    let odd = Runtime::builder()
        .name("")
        .stack_size(0)
        .workers(1)
        .build()
        .unwrap();
    assert_eq!(odd.stats().workers, 1);
}

#[test]
fn two_storms_of_builds_and_drops_leave_nobody_behind() {
    let runtime = Runtime::builder().tickers(2).workers(2).build().unwrap();
    let gate = Gate::default();
    let builders: Vec<_> = (0..2)
        .map(|_| {
            let (runtime, gate) = (runtime.clone(), gate.clone());
            thread::spawn(move || {
                gate.pass();
                for round in 0..300_u32 {
                    let builder = Scheduler::<u32>::builder().runtime(&runtime).stripes(16);
                    let scheduler = builder.build().unwrap();
                    let timers = scheduler.handle();
                    timers.schedule(round, Duration::ZERO, |_| ()).unwrap();
                    timers
                        .schedule(round + 1, TICK * (round % 3), |_| ())
                        .unwrap();
                    if round % 2 == 0 {
                        until("it ran", || timers.stats().ran > 0);
                    }
                }
            })
        })
        .collect();
    gate.open();
    for builder in builders {
        builder.join().unwrap();
    }
    until("nobody is on it", || runtime.stats().instances == 0);
}

/// Promise 6 for idle schedulers, and 10: `alone.rs` has tasks of all kinds.
#[cfg(target_os = "linux")]
#[test]
fn promises_6_and_10_a_thousand_idle_maps_share_the_threads_of_one() {
    let idle = || {
        let map = ExpiryMap::<u32, ()>::builder().stripes(16);
        map.time_to_live(Duration::from_secs(3_600))
            .build(|_, _| ())
            .unwrap()
    };
    let first = idle();
    let cores = num_cpus::get();
    let threads = || super::threads_named("tb-");
    // Other tests of this process may make the runtime grow, but not by a thread for each map.
    until(
        "the threads of the process's runtime have their names",
        || (0..cores).all(|core| threads().contains(&format!("tb-tick-{core}"))),
    );
    let maps: Vec<_> = (0..1_000).map(|_| idle()).collect();
    let tickers = threads()
        .iter()
        .filter(|name| name.starts_with("tb-tick"))
        .count();
    assert!(tickers <= 2 * cores, "{tickers} tickers");
    assert!(threads().len() < 100, "{:?}", threads());
    for map in &maps {
        map.insert(1, ()).unwrap();
    }
    drop((first, maps));
}
