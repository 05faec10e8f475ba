//! An `ExpiryMap` whose handler gets batches: on its own workers, on tickers, and on an executor of
//! the user's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use kit::map::{IDLE, Map, builder, fill, text};
use kit::quiet::{WANTED, hush};
use kit::wait;
use kit::wait::until;
use tourbillon::{
    BuildError, Clock, Executor, Expired, ExpiryMapBuilder, Job, Lifecycle, ManualClock, Reason,
    Removed, Shutdown, Touch,
};

type Batches = Arc<Mutex<Vec<Vec<Expired<u32, String>>>>>;

/// A thread of somebody else's.
struct Elsewhere(Sender<Job>);

impl Elsewhere {
    fn start() -> Self {
        let (jobs, from) = channel::<Job>();
        thread::spawn(move || from.into_iter().for_each(Job::run));
        Elsewhere(jobs)
    }
}

impl Executor for Elsewhere {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.send(job).map_err(|unsent| unsent.0)
    }
}

/// Runs jobs on the ticker's thread, but for those that it refuses or loses.
struct Forgetful(AtomicUsize);

impl Executor for Forgetful {
    fn execute(&self, job: Job) -> Result<(), Job> {
        match self.0.fetch_add(1, Ordering::SeqCst) % 3 {
            0 => drop(job),
            1 => return Err(job),
            _ => job.run(),
        }
        Ok(())
    }
}

/// Keeps jobs until a test does something with them.
#[derive(Default)]
struct Shelf(Mutex<Vec<Job>>);

impl Shelf {
    fn tasks(&self) -> usize {
        self.0.lock().unwrap().iter().map(Job::len).sum()
    }

    fn take(&self) -> Vec<Job> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Executor for Shelf {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.lock().unwrap().push(job);
        Ok(())
    }
}

/// Wherever handlers may run; all on a manual clock.
fn places() -> [(&'static str, ExpiryMapBuilder<u32, String>, ManualClock); 4] {
    let all: [(_, fn(_) -> _); 4] = [
        ("workers", |builder| builder),
        ("inline", |builder: ExpiryMapBuilder<_, _>| builder.inline()),
        ("elsewhere", |builder| builder.executor(Elsewhere::start())),
        ("forgetful", |builder| {
            builder.executor(Forgetful(AtomicUsize::new(0)))
        }),
    ];
    all.map(|(name, place)| {
        let clock = ManualClock::new();
        let builder = builder().shards(2).clock(Clock::manual(&clock));
        (name, place(builder), clock)
    })
}

/// Lets the time pass until `holds`: what an executor refuses comes again with a later tick.
fn pass_until(clock: &ManualClock, what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || {
        clock.advance(std::time::Duration::from_millis(1));
        holds()
    });
}

fn sorted_keys(batches: &Batches) -> Vec<u32> {
    let batches = batches.lock().unwrap();
    let mut keys: Vec<_> = batches.iter().flatten().map(|one| one.key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn batches_hold_every_expired_entry_once_and_no_more_than_asked_for() {
    for max in [1, 5, 1_000] {
        let clock = ManualClock::new();
        let batches = Arc::new(Mutex::new(Vec::new()));
        let collect = Arc::clone(&batches);
        let map = builder()
            .clock(Clock::manual(&clock))
            .build_batched(max, move |map, batch| {
                // They are out of the map, and their keys are free.
                assert!(batch.iter().all(|expired| map.get(&expired.key).is_none()));
                collect.lock().unwrap().push(batch);
            })
            .unwrap();
        fill(&map, 0..1_000);
        clock.advance(IDLE);
        until("all are delivered", || map.stats().expired == 1_000);
        let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
        assert!(report.handed_back.is_empty());
        let batches = batches.lock().unwrap();
        assert!(batches.iter().all(|batch| (1..=max).contains(&batch.len())));
        assert!(batches.iter().any(|batch| batch.len() >= max.min(2)));
        let mut keys: Vec<_> = batches
            .iter()
            .flatten()
            .map(|expired| expired.key)
            .collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        let stats = map.stats();
        assert!(stats.balances());
        assert_eq!((stats.panicked, stats.running), (0, 0));
    }
}

#[test]
fn a_batch_of_nothing_is_refused() {
    let error = builder().build_batched(0, |_, _| ()).unwrap_err();
    assert!(matches!(error, BuildError::Batch));
}

#[test]
fn a_batch_that_panics_counts_for_each_entry_and_is_told_once() {
    hush();
    let clock = ManualClock::new();
    let (told, sizes) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (tell, collect) = (Arc::clone(&told), Arc::clone(&sizes));
    let map = builder()
        .clock(Clock::manual(&clock))
        .on_panic(move |panic| {
            assert!(panic.message.contains(WANTED));
            tell.fetch_add(1, Ordering::Relaxed);
        })
        .build_batched(8, move |_, batch| {
            collect.lock().unwrap().push(batch.len());
            panic!("{WANTED}");
        })
        .unwrap();
    fill(&map, 0..100);
    clock.advance(IDLE);
    until("all are settled", || {
        let stats = map.stats();
        stats.expired == 100 && stats.running == 0
    });
    assert_eq!(map.stats().panicked, 100);
    let sizes = sizes.lock().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), sizes.len());
    assert_eq!(sizes.iter().sum::<usize>(), 100);
}

#[test]
fn wherever_handlers_run_batches_hold_every_entry_once() {
    for max in [1, 5, 1_000] {
        for (name, builder, clock) in places() {
            let batches = Batches::default();
            let collect = Arc::clone(&batches);
            let map = builder
                .build_batched(max, move |map, batch| {
                    assert!(batch.iter().all(|one| map.get(&one.key).is_none()));
                    collect.lock().unwrap().push(batch);
                })
                .unwrap();
            fill(&map, 0..1_000);
            clock.advance(IDLE);
            pass_until(&clock, name, || {
                let stats = map.stats();
                stats.expired == 1_000 && stats.running == 0
            });
            assert!(sorted_keys(&batches).into_iter().eq(0..1_000), "{name}");
            let sizes: Vec<_> = batches.lock().unwrap().iter().map(Vec::len).collect();
            assert!(sizes.iter().all(|size| (1..=max).contains(size)), "{name}");
            assert!(sizes.iter().any(|size| *size >= max.min(2)), "{name}");
            for one in batches.lock().unwrap().iter().flatten() {
                assert_eq!((&one.value, one.reason), (&text(one.key), Reason::Idle));
            }
            let stats = map.stats();
            assert!(stats.balances() && stats.panicked == 0, "{name}");
            assert!(map.is_empty());
        }
    }
}

/// A job is no claim: until it runs its entries are in the map.
#[test]
fn what_waits_with_an_executor_can_be_touched_removed_and_replaced() {
    let clock = ManualClock::new();
    let shelf = Arc::new(Shelf::default());
    let batches = Batches::default();
    let collect = Arc::clone(&batches);
    let map = builder()
        .clock(Clock::manual(&clock))
        .executor(Arc::clone(&shelf))
        .build_batched(1_000, move |_, batch| {
            collect.lock().unwrap().push(batch);
        })
        .unwrap();
    fill(&map, 0..40);
    clock.advance(IDLE);
    until("all are handed over", || shelf.tasks() == 40);
    for key in 0..10 {
        assert!(matches!(map.touch(&key), Touch::Touched { .. }));
        assert!(matches!(map.remove(&(10 + key)), Removed::Removed { .. }));
        let replaced = map.insert(20 + key, text(key)).unwrap().replaced;
        assert_eq!(replaced, Some(text(20 + key)));
    }
    shelf.take().into_iter().for_each(Job::run);
    assert!(sorted_keys(&batches).into_iter().eq(30..40));
    assert_eq!((map.len(), map.stats().running), (20, 0));
    // The others in their own time, each once.
    clock.advance(IDLE);
    until("the others are handed over", || shelf.tasks() >= 20);
    shelf.take().into_iter().for_each(Job::run);
    assert!(sorted_keys(&batches).into_iter().eq((0..10).chain(20..40)));
    let stats = map.stats();
    assert_eq!((stats.removed, stats.replaced, stats.expired), (10, 10, 30));
    assert!(stats.balances());
}

/// A handler that has been called has returned when the map's shutdown has.
#[test]
fn wherever_handlers_run_a_shutdown_waits_for_their_batches() {
    for (name, builder, clock) in places() {
        let batches = Batches::default();
        let collect = Arc::clone(&batches);
        let map = builder
            .build_batched(16, move |_, batch| {
                // Time for others to be wrong.
                thread::yield_now();
                collect.lock().unwrap().push(batch);
            })
            .unwrap();
        fill(&map, 0..500);
        let left = thread::scope(|scope| {
            let ending = scope.spawn(|| map.shutdown(Shutdown::RunNow).wait().unwrap());
            pass_until(&clock, name, || map.state() == Lifecycle::Closed);
            ending.join().unwrap()
        });
        let seen = sorted_keys(&batches);
        assert_eq!(
            (left.handed_back.len(), left.still_running),
            (0, 0),
            "{name}"
        );
        assert!(seen.into_iter().eq(0..500), "{name}");
        for one in batches.lock().unwrap().iter().flatten() {
            assert_eq!(one.reason, Reason::Shutdown, "{name}");
        }
        assert!(map.stats().balances());
    }
}

#[test]
fn wherever_handlers_run_a_batch_may_shut_the_map_down() {
    for (name, builder, clock) in places() {
        let closings = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&closings);
        let map = builder
            .build_batched(8, move |map, _| {
                // From inside it can't be waited for; of several batches one is the first.
                match map.shutdown(Shutdown::HandBack).wait() {
                    Ok(report) => assert!(report.already_closed),
                    Err(inside) => keep.lock().unwrap().push(inside.into_closing()),
                }
            })
            .unwrap();
        fill(&map, 0..100);
        map.entry(100)
            .expiry(tourbillon::Expiry::NEVER)
            .insert(text(100))
            .unwrap();
        clock.advance(IDLE);
        pass_until(&clock, name, || map.state() == Lifecycle::Closed);
        let mut closings = std::mem::take(&mut *closings.lock().unwrap());
        assert_eq!(closings.len(), 1, "{name}");
        let report = closings.remove(0).wait().unwrap();
        assert!(report.handed_back.iter().any(|back| back.key == 100));
        let stats = map.stats();
        assert_eq!(
            stats.expired + report.handed_back.len() as u64,
            101,
            "{name}"
        );
        assert!(stats.balances() && stats.panicked == 0);
    }
}

#[test]
fn wherever_handlers_run_a_batch_that_panics_costs_no_other() {
    hush();
    for (name, builder, clock) in places() {
        let told = Arc::new(AtomicUsize::new(0));
        let tell = Arc::clone(&told);
        let batches = Batches::default();
        let collect = Arc::clone(&batches);
        let map = builder
            .on_panic(move |_| {
                tell.fetch_add(1, Ordering::SeqCst);
            })
            .build_batched(1, move |_, batch| {
                assert!(batch[0].key % 2 == 0, "{WANTED}");
                collect.lock().unwrap().push(batch);
            })
            .unwrap();
        fill(&map, 0..100);
        clock.advance(IDLE);
        pass_until(&clock, name, || {
            let stats = map.stats();
            stats.expired == 100 && stats.running == 0
        });
        assert!(
            sorted_keys(&batches)
                .into_iter()
                .eq((0..50).map(|key| 2 * key))
        );
        assert_eq!(map.stats().panicked, 50, "{name}");
        assert_eq!(told.load(Ordering::SeqCst), 50, "{name}");
        // Nor is any place in which it may run lost.
        fill(&map, 200..210);
        clock.advance(IDLE);
        pass_until(&clock, name, || map.is_empty() && map.stats().running == 0);
    }
}

/// A batch that blocks holds up the workers' next one, and neither ticks nor answers.
#[test]
fn while_a_batch_blocks_what_waits_can_be_saved() {
    let clock = ManualClock::new();
    let (enter, entered) = channel();
    let (leave, left) = channel::<()>();
    let (enter, left) = (Mutex::new(enter), Mutex::new(left));
    let map: Map = builder()
        .clock(Clock::manual(&clock))
        .workers(1)
        .max_running(1)
        .build_batched(2, move |_, batch| {
            let keys: Vec<_> = batch.iter().map(|one| one.key).collect();
            enter.lock().unwrap().send(keys).unwrap();
            let _ = left.lock().unwrap().recv();
        })
        .unwrap();
    fill(&map, 0..10);
    clock.advance(IDLE);
    let mut taken = wait::next(&entered);
    // No more than one batch is ever taken.
    assert_eq!(map.len(), 10 - taken.len());
    for key in 0..10 {
        let touched = matches!(map.touch(&key), Touch::Touched { .. });
        assert_eq!(touched, !taken.contains(&key), "{key}");
    }
    drop(leave);
    until("the batch has ended", || map.stats().running == 0);
    assert_eq!(map.stats().expired, taken.len() as u64);
    clock.advance(IDLE);
    until("all are gone", || {
        map.is_empty() && map.stats().running == 0
    });
    taken.extend(entered.try_iter().flatten());
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..10));
}
