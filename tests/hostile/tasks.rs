//! Tasks that panic, whose captures panic when they are dropped or call the scheduler from there,
//! and panics whose payloads do: whatever they do, the scheduler works on and its counters balance.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::quiet::{Bomb, WANTED, hush, panics};
use kit::steps::{SEEDS, T, narrow, runs, stepped};
use kit::wait;
use tourbillon::test_util::Stepped;
use tourbillon::{Cancel, Handle, ScheduleError, Scheduler, Shutdown, WaitError};

/// Panics when it is dropped.
struct Mine(Arc<AtomicUsize>);

impl Drop for Mine {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("{WANTED}: in the drop of a task");
    }
}

#[derive(Clone, Default)]
struct Mines(Arc<AtomicUsize>);

impl Mines {
    fn schedule(&self, timers: &Handle<u64>, key: u64, delay: Duration) {
        let mine = Mine(Arc::clone(&self.0));
        // Moved out, so that the run itself lets it go off.
        timers.schedule(key, delay, move |_| drop(mine)).unwrap();
    }

    fn gone_off(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Whatever happened before: it still works.
#[track_caller]
fn works(scheduler: &Stepped<u64>) {
    let timers = scheduler.handle();
    assert!(timers.stats().balances());
    for key in 0..20 {
        timers.schedule(1_000 + key, T, |_| ()).unwrap();
    }
    assert_eq!(runs(scheduler, T).len(), 20);
    let stats = timers.stats();
    assert_eq!((stats.running, stats.ticker_panics), (0, 0));
    assert!(stats.balances());
}

#[test]
fn a_task_that_panics_in_any_way_is_contained() {
    hush();
    for seed in SEEDS {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let builder = Scheduler::<u64>::builder().on_panic(move |panic| {
            let told = (*panic.key, panic.deadline, panic.message.to_owned());
            tell.lock().unwrap().push(told);
        });
        let scheduler = builder.build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        let text = timers.schedule(1, T, |_| panic!("{WANTED}: text"));
        let number = timers.schedule(2, 2 * T, |_| std::panic::panic_any(Bomb));
        // Not the panic's payload but the capture panics, at the end of a run that went well.
        Mines::default().schedule(&timers, 3, 3 * T);
        assert_eq!(runs(&scheduler, 10 * T).len(), 3);
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!((told[0].0, told[0].1), (1, text.unwrap().deadline));
        assert_eq!(told[0].2, format!("{WANTED}: text"));
        assert_eq!((told[1].0, told[1].1), (2, number.unwrap().deadline));
        assert_eq!(told[2].0, 3);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked), (3, 3));
        works(&scheduler);
    }
}

#[test]
fn a_panic_handler_that_panics_is_contained() {
    hush();
    let builder = Scheduler::<u64>::builder().on_panic(|panic| {
        if panic.key.is_multiple_of(2) {
            std::panic::panic_any(Bomb);
        }
        panic!("{WANTED}: in the handler");
    });
    let scheduler = builder.build_stepped(0).unwrap();
    let timers = scheduler.handle();
    for key in 0..10 {
        timers
            .schedule(key, T, |_| panic!("{WANTED}: a task"))
            .unwrap();
    }
    assert_eq!(runs(&scheduler, T).len(), 10);
    assert_eq!(timers.stats().panicked, 10);
    assert!((0..10).all(|key| !timers.contains(&key)));
    works(&scheduler);
}

#[test]
fn a_drop_that_panics_reaches_the_caller_when_the_call_is_done() {
    hush();
    for seed in SEEDS {
        for delay in [Duration::ZERO, 5 * T] {
            let scheduler = stepped(seed);
            let timers = scheduler.handle();
            let mines = Mines::default();

            mines.schedule(&timers, 1, delay);
            assert!(panics(|| timers.cancel(&1)).contains(WANTED));
            assert!(!timers.contains(&1));
            assert_eq!(timers.cancel(&1), Cancel::NotFound);

            mines.schedule(&timers, 1, delay);
            let id = timers.get(&1).unwrap().id;
            panics(|| timers.by_id(id).cancel());
            assert_eq!(timers.by_id(id).cancel(), Cancel::NotFound);

            mines.schedule(&timers, 1, delay);
            panics(|| timers.schedule(1, 7 * T, |_| ()));
            let remaining = timers.get(&1).unwrap().remaining(scheduler.now());
            assert_eq!(remaining, 7 * T, "the new one is armed");

            mines.schedule(&timers, 2, delay);
            let id = timers.get(&2).unwrap().id;
            panics(|| drop(timers.cancel_on_drop(id)));
            assert_eq!(mines.gone_off(), 4);
            let stats = timers.stats();
            assert_eq!((stats.cancelled, stats.replaced, stats.pending), (3, 1, 1));
            assert_eq!(runs(&scheduler, 100 * T), [(7, 1)]);
            works(&scheduler);
        }
    }
}

/// Several drops that panic, in one call: told as one panic, and none is left out.
#[test]
fn drops_that_panic_in_a_batch_do_not_end_the_process() {
    hush();
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let mines = Mines::default();
            let keys: Vec<u64> = (0..100).collect();
            let lay = || {
                for key in &keys {
                    mines.schedule(&timers, *key, T * (*key % 3) as u32);
                }
            };
            lay();
            panics(|| timers.cancel_all());
            assert_eq!((mines.gone_off(), timers.len()), (100, 0));
            lay();
            // The call ends with the stripe in which the panic was.
            while !timers.is_empty() {
                let left = timers.len();
                panics(|| timers.cancel_many(&keys));
                assert!(timers.len() < left);
            }
            assert_eq!(mines.gone_off(), 200);
            lay();
            let ids: Vec<_> = timers.pending().map(|(_, info)| info.id).collect();
            let by_ids = timers.by_ids(ids);
            while !timers.is_empty() {
                let left = timers.len();
                panics(|| by_ids.cancel());
                assert!(timers.len() < left);
            }
            assert_eq!(mines.gone_off(), 300);
            lay();
            assert_eq!(runs(&scheduler, 2 * T).len(), 100);
            assert_eq!((mines.gone_off(), timers.stats().panicked), (400, 100));
            works(&scheduler);
            lay();
            assert!(panics(|| drop(scheduler)).contains(WANTED));
            assert_eq!(mines.gone_off(), 500);
            let stats = timers.stats();
            assert_eq!((stats.cancelled, stats.pending), (400, 0));
            assert!(stats.balances());
        }
    }
}

/// The scheduler is dropped by a thread that panics already: one more panic would end the process.
#[test]
fn drops_that_panic_during_a_panic_are_contained() {
    hush();
    let scheduler = stepped(0);
    let timers = scheduler.handle();
    let mines = Mines::default();
    for key in 0..10 {
        mines.schedule(&timers, key, T);
    }
    let said = panics(|| {
        let _dropped_on_the_way = scheduler;
        panic!("{WANTED}: the first");
    });
    assert!(said.contains("the first"));
    assert_eq!(mines.gone_off(), 10);
    assert!(timers.stats().balances());
}

#[test]
fn a_wait_that_panics_does_not_leave_the_key_shut() {
    hush();
    for seed in SEEDS {
        let scheduler = narrow(seed);
        let timers = scheduler.handle();
        let mines = Mines::default();
        let in_task = mines.clone();
        timers
            .schedule(1, T, move |firing| {
                let timers = firing.handle();
                in_task.schedule(timers, 1, T);
                panics(|| timers.cancel_and_wait(&1).within(T).wait());
                in_task.schedule(timers, 1, T);
                panics(|| timers.cancel_and_wait(&1).wait());
                assert_eq!(
                    timers.cancel_and_wait(&1).wait(),
                    Err(WaitError::WouldDeadlock)
                );
                timers.schedule(1, 2 * T, |_| ()).unwrap();
            })
            .unwrap();
        assert_eq!(runs(&scheduler, 10 * T), [(1, 1), (3, 1)]);
        assert_eq!(mines.gone_off(), 2);
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.cancelled), (0, 2));
        works(&scheduler);
    }
}

/// When it is dropped it arms a timer, and looks at all others.
struct Echo {
    timers: Handle<u64>,
    key: u64,
    refused: Arc<AtomicUsize>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let timers = &self.timers;
        let _ = timers.stats();
        let _ = timers.pending().count();
        timers.cancel_many(&[self.key, self.key + 100_000]);
        let _ = timers.reschedule(&(self.key + 100_000), T);
        match timers.schedule(self.key, 3 * T, |_| ()) {
            Ok(armed) => assert!(timers.by_id(armed.id).get().is_some()),
            Err(refused) => {
                assert!(matches!(refused, ScheduleError::Closed(_)));
                self.refused.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn a_drop_may_call_the_scheduler_wherever_it_happens() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let refused = Arc::new(AtomicUsize::new(0));
            let echo = |key| Echo {
                timers: timers.clone(),
                key,
                refused: Arc::clone(&refused),
            };
            let arm = |key, delay| {
                let echo = echo(key + 500);
                timers.schedule(key, delay, move |_| drop(echo)).unwrap();
            };
            let echoes = |count| {
                assert_eq!(timers.len(), count);
                assert_eq!(timers.cancel_all(), count);
            };
            for delay in [Duration::ZERO, 5 * T] {
                // Cancelled, by key and by id; replaced.
                arm(1, delay);
                timers.cancel(&1);
                arm(2, delay);
                let id = timers.get(&2).unwrap().id;
                timers.by_id(id).cancel();
                arm(3, delay);
                timers.schedule(3, delay, |_| ()).unwrap();
                echoes(4);
            }
            // In batches.
            for key in 0..10 {
                arm(10 * key, T);
            }
            timers.cancel_many(&[0, 10, 20, 30, 30]);
            echoes(6 + 4);
            assert_eq!(
                timers.cancel_all(),
                6,
                "those that the echoes of the rest armed"
            );
            // At the end of a run, as what is kept, and as a task that is refused.
            arm(1, T);
            arm(2, T);
            timers
                .schedule(3, T, {
                    let (one, two) = (echo(700), echo(800));
                    move |firing| {
                        let timers = firing.handle();
                        timers.schedule(3, T, move |_| drop(one)).unwrap();
                        let refused = timers.schedule_if_absent(3, T, move |_| drop(two));
                        drop(refused.unwrap_err());
                        timers.cancel(&3);
                    }
                })
                .unwrap();
            runs(&scheduler, T);
            assert_eq!(timers.stats().panicked, 0);
            echoes(4);
            // With the scheduler, or handed back from it.
            arm(1, T);
            arm(2, 100 * T);
            let before = refused.load(Ordering::SeqCst);
            if seed.is_multiple_of(2) {
                drop(scheduler);
            } else {
                let report = scheduler.shutdown(Shutdown::HandBack);
                assert_eq!(report.handed_back.len(), 2);
                drop(report);
            }
            assert_eq!(refused.load(Ordering::SeqCst), before + 2);
            let stats = timers.stats();
            assert_eq!((stats.pending, stats.panicked), (0, 0));
            assert!(stats.balances());
        }
    }
}

/// All of it at once on real threads: workers and tickers live on, and everything is accounted for.
#[test]
fn workers_outlive_hostile_tasks() {
    hush();
    const KEYS: u64 = 2_000;
    let builder = Scheduler::<u64>::builder().workers(2);
    let scheduler = builder.on_panic(|_| std::panic::panic_any(Bomb)).build();
    let scheduler = scheduler.unwrap();
    let timers = scheduler.handle();
    let mines = Mines::default();
    let (send, ends) = mpsc::channel();
    for key in 0..KEYS {
        let delay = Duration::from_micros(key % 5 * 700);
        let sender = send.clone();
        let mines = mines.clone();
        timers
            .schedule(key, delay, move |firing| {
                let timers = firing.handle();
                let _ = sender.send(key);
                match key % 4 {
                    0 => panic!("{WANTED}: text"),
                    1 => std::panic::panic_any(Bomb),
                    2 => mines.schedule(timers, key, Duration::ZERO),
                    _ => {
                        mines.schedule(timers, key, Duration::MAX);
                        panics(|| timers.cancel(firing.key()));
                    }
                }
            })
            .unwrap();
    }
    drop(send);
    assert_eq!(wait::all(&ends).len(), KEYS as usize);
    wait::until("the last run", || {
        let stats = timers.stats();
        stats.pending == 0 && stats.running == 0
    });
    let quarter = KEYS / 4;
    assert_eq!(mines.gone_off() as u64, 2 * quarter);
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.cancelled), (KEYS + quarter, quarter));
    assert_eq!((stats.panicked, stats.ticker_panics), (3 * quarter, 0));
    assert!(stats.balances());
    let (send, ran) = mpsc::channel();
    for key in 0..20 {
        let send = send.clone();
        let task = move |_: &tourbillon::Firing<'_, u64>| send.send(()).unwrap();
        timers.schedule(key, Duration::ZERO, task).unwrap();
    }
    drop(send);
    assert_eq!(wait::all(&ran).len(), 20);
}
