//! What guards and futures do when user code drops them while it runs under a lock of a map: their
//! work is put off until the lock is free, and is done before the call returns.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::wait::{next, until};
use kit::wakes::{Wakes, poll};
use tourbillon::leases::{LeaseGuard, Leases, LockError, MemoryStore, Outcome, Watchdog, What};
use tourbillon::{
    Cancel, Clock, Executor, ExpiryMap, Handle, Job, Lifecycle, ManualClock, Scheduler, Timer,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Something to be dropped, by whoever gets at it first.
type Slot = Mutex<Option<Box<dyn Send>>>;

/// A key whose `Eq` and `Clone` drop what lies in the slot, both under a lock.
#[derive(Clone, Debug, Default)]
struct Dropping {
    number: u32,
    slot: SharedSlot,
}

#[derive(Default)]
struct SharedSlot(Arc<Slot>);

impl SharedSlot {
    fn empty(&self) {
        let content = self.0.lock().unwrap().take();
        drop(content);
    }
}

impl std::fmt::Debug for SharedSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSlot")
    }
}

impl Clone for SharedSlot {
    fn clone(&self) -> Self {
        self.empty();
        SharedSlot(Arc::clone(&self.0))
    }
}

impl PartialEq for Dropping {
    fn eq(&self, other: &Self) -> bool {
        self.slot.empty();
        other.slot.empty();
        self.number == other.number
    }
}

impl Eq for Dropping {}

impl Hash for Dropping {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

type Map = ExpiryMap<Dropping, SharedSlot>;

/// A map with one entry, under number 0.
fn map() -> Map {
    let map = Map::builder().time_to_live(HOUR).build(|_, _| ()).unwrap();
    let key = Dropping::default();
    map.insert(key, SharedSlot::default()).unwrap();
    map
}

fn key_with(content: Box<dyn Send>) -> Dropping {
    Dropping {
        number: 0,
        slot: SharedSlot(Arc::new(Mutex::new(Some(content)))),
    }
}

/// The ways in which a map calls user code under a lock, each of which drops `content`.
const WAYS: usize = 8;

fn drop_under_a_lock(way: usize, content: Box<dyn Send>) {
    let map = map();
    let key = Dropping::default();
    match way {
        0 => assert!(map.update(&key, move |_| drop(content)).is_some()),
        1 => assert!(map.with(&key, move |_| drop(content)).is_some()),
        2 => {
            let mut content = Some(content);
            assert_eq!(map.retain(|_, _| content.take().is_none()), 1);
        }
        3 => {
            let value = SharedSlot(Arc::new(Mutex::new(Some(content))));
            map.insert(key.clone(), value).unwrap();
            assert!(map.get(&key).is_some());
        }
        4 => assert!(map.contains(&key_with(content))),
        5 => assert_eq!(map.touch_many(&[key_with(content)]).len(), 1),
        6 => {
            let key = Dropping {
                number: 1,
                ..key_with(content)
            };
            map.insert(key, SharedSlot::default()).unwrap();
            assert_eq!(map.iter().count(), 2);
        }
        _ => {
            // Under the lock of a group, and under that of a stripe inside of it.
            let map = ExpiryMap::<Dropping, u32>::builder()
                .groups::<Dropping>()
                .build(|_, _| ())
                .unwrap();
            let (group, key) = (Dropping::default(), Dropping::default());
            map.insert_in(&group, key, 1).unwrap();
            // Its drop needs the group's lock again.
            let again = {
                let map = map.clone();
                AtDrop(Box::new(move || {
                    assert_eq!(map.group_len(&Dropping::default()), 1);
                }))
            };
            map.insert_in(&group, key_with(Box::new((content, put_off(again)))), 2)
                .unwrap();
        }
    }
}

/// Runs something at its drop.
struct AtDrop(Box<dyn Fn() + Send>);

impl Drop for AtDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A guard whose timer has a task with this drop, which runs when the guard cancels the timer.
fn put_off(drop: AtDrop) -> Box<dyn Send> {
    let scheduler = Scheduler::<u32>::builder().build().unwrap();
    let timers = scheduler.handle();
    let timer = timers.schedule(7, HOUR, move |_| {
        let _ = &drop;
    });
    Box::new((timers.cancel_on_drop(timer.unwrap().id), scheduler))
}

/// Drops `content` in every way, and has a look each time.
fn in_every_way(mut content: impl FnMut() -> Box<dyn Send>, mut done: impl FnMut(usize)) {
    for way in 0..WAYS {
        drop_under_a_lock(way, content());
        done(way);
    }
}

fn scheduler() -> (Scheduler<u32>, Handle<u32>, ManualClock) {
    let hand = ManualClock::new();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    (scheduler, timers, hand)
}

#[test]
fn a_cancel_guard_cancels_before_the_call_returns() {
    let (_scheduler, timers, _hand) = scheduler();
    let calls = Arc::new(AtomicUsize::new(0));
    in_every_way(
        || {
            // The task is dropped without a lock: its drop may call the scheduler.
            let (own, calls) = (timers.clone(), Arc::clone(&calls));
            let at_drop = AtDrop(Box::new(move || {
                assert!(!own.contains(&7));
                calls.fetch_add(1, Ordering::SeqCst);
            }));
            let timer = timers.schedule(7, HOUR, move |_| {
                let _ = &at_drop;
            });
            Box::new(timers.cancel_on_drop(timer.unwrap().id))
        },
        |way| {
            assert!(timers.is_empty(), "way {way}");
            assert_eq!(calls.load(Ordering::SeqCst), way + 1);
        },
    );
    assert_eq!(timers.stats().cancelled, WAYS as u64);
}

#[test]
fn a_guard_that_is_told_to_cancel_under_a_lock_cancels_all_the_same() {
    let (_scheduler, timers, _hand) = scheduler();
    let timer = timers.schedule(7, HOUR, |_| ()).unwrap();
    let guard = timers.cancel_on_drop(timer.id);
    let map = map();
    let call = || map.update(&Dropping::default(), move |_| guard.cancel());
    let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    let message = panic.downcast_ref::<&str>().expect("a text");
    assert!(message.contains("run under a lock"), "{message}");
    assert!(timers.is_empty(), "the drop of the guard has cancelled it");
}

#[test]
fn a_sleep_takes_its_timer_back_and_wakes_nobody() {
    let hand = ManualClock::new();
    let timer = Timer::builder().clock(Clock::manual(&hand));
    let timer = timer.build().unwrap();
    let wakes = Wakes::new();
    in_every_way(
        || {
            let mut sleep = timer.sleep(HOUR);
            assert!(poll(&mut sleep, &wakes).is_pending());
            assert_eq!(timer.stats().pending, 1);
            Box::new(sleep)
        },
        |way| assert_eq!(timer.stats().pending, 0, "way {way}"),
    );
    assert_eq!(timer.stats().cancelled, WAYS as u64);
    assert_eq!(wakes.count(), 0);
}

#[test]
fn a_future_that_waits_for_a_run_gives_up() {
    let (_scheduler, timers, _hand) = scheduler();
    let (release, released) = channel::<()>();
    let (began, begin) = channel();
    timers
        .schedule(7, Duration::ZERO, move |_| {
            began.send(()).unwrap();
            released.recv().unwrap_err();
        })
        .unwrap();
    next(&begin);
    let wakes = Wakes::new();
    in_every_way(
        || {
            let mut waiting = timers.cancel_and_wait_async(&7);
            assert!(poll(&mut waiting, &wakes).is_pending());
            assert!(timers.schedule(7, HOUR, |_| ()).is_err(), "it waits");
            Box::new(waiting)
        },
        |way| {
            assert!(timers.schedule(7, HOUR, |_| ()).is_ok(), "way {way}");
        },
    );
    drop(release);
}

#[test]
fn a_job_gives_its_tasks_back() {
    struct Queue(Mutex<Sender<Job>>);
    impl Executor for Queue {
        fn execute(&self, job: Job) -> Result<(), Job> {
            (self.0.lock().unwrap().send(job)).map_err(|error| error.0)
        }
    }
    let hand = ManualClock::new();
    let (jobs, queue) = channel();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let builder = builder.executor(Queue(Mutex::new(jobs)));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    timers.schedule(7, Duration::ZERO, |_| ()).unwrap();
    in_every_way(
        || Box::new(next(&queue)),
        |way| {
            assert_eq!(timers.stats().queued, 0, "way {way}");
            // It comes again with the next tick.
            hand.advance(Duration::from_millis(1));
        },
    );
    next(&queue).run();
    assert_eq!(timers.stats().ran, 1);
}

#[cfg(feature = "tokio")]
#[test]
fn an_async_task_that_its_runtime_drops_is_settled() {
    let (_scheduler, timers, _hand) = scheduler();
    in_every_way(
        || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.build().unwrap();
            let (began, begin) = channel();
            let tasks = timers.on_tokio(runtime.handle().clone());
            tasks
                .schedule(7, Duration::ZERO, async move |firing| {
                    began.send(()).unwrap();
                    firing.cancelled().await;
                })
                .unwrap();
            runtime.block_on(async {
                while begin.try_recv().is_err() {
                    tokio::task::yield_now().await;
                }
            });
            assert_eq!(timers.stats().running, 1);
            Box::new(runtime)
        },
        |way| assert_eq!(timers.stats().running, 0, "way {way}"),
    );
    assert_eq!(timers.stats().ran, WAYS as u64);
}

#[test]
fn owners_close_before_the_call_returns() {
    let handles = RefCell::new(Vec::new());
    in_every_way(
        || {
            let (scheduler, timers, _hand) = scheduler();
            timers.schedule(7, HOUR, |_| ()).unwrap();
            handles.borrow_mut().push(timers);
            Box::new(scheduler)
        },
        |way| {
            let timers = &handles.borrow()[way];
            assert_eq!(timers.state(), Lifecycle::Closed, "way {way}");
            assert_eq!(timers.stats().cancelled, 1);
        },
    );
}

// === while the thread panics ===

#[test]
fn a_lease_guard_gives_its_lock_back() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    in_every_way(
        || Box::new(leases.try_lock("a").expect("the one before is given back")),
        |_| until("it is given back", || leases.try_lock("a").is_ok()),
    );
}

/// Its first poll asks the store, so it waits by timers of the leases.
#[test]
fn a_future_of_a_lock_gives_up() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let wakes = Wakes::new();
    let held = leases.try_lock("a").unwrap();
    in_every_way(
        || {
            let leases = leases.clone();
            let mut lock = Box::pin(async move { leases.lock_async("a").await.map(drop) });
            assert!(poll(&mut lock, &wakes).is_pending());
            Box::new(Mutex::new(lock))
        },
        |_| until("nobody waits", || leases.stats().waiting == 0),
    );
    assert!(held.is_held());
    held.release().unwrap();
    assert!(leases.try_lock("a").is_ok());
}

/// The look that finds a loss runs under a lock, and the event comes all the same.
#[test]
fn a_loss_that_is_found_under_a_lock_is_told() {
    let (leases, steps) = Leases::builder(MemoryStore::new())
        .build_stepped(1)
        .unwrap();
    let events = leases.events(64);
    let map = ExpiryMap::<u32, LeaseGuard>::builder()
        .time_to_live(HOUR)
        .build(|_, _| ())
        .unwrap();
    let guard = leases.acquire("a").fixed_lease(HOUR).try_lock().unwrap();
    assert!(map.insert(1, guard).is_ok());
    // The clock alone: no timer of the leases has looked.
    steps.clock().advance(HOUR);
    assert_eq!(map.with(&1, |guard| guard.is_held()), Some(false));
    steps.advance(Duration::from_millis(1));
    let lost = |event: tourbillon::leases::Event<_>| matches!(event.what, What::Lost(_));
    assert!(events.try_iter().any(lost));
}

/// It panics, since it would have to wait there, and the guard's drop gives the lock back.
#[test]
fn a_release_under_a_lock_loses_nothing() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let map = map();
    let guard = leases.try_lock("a").unwrap();
    let release = || map.update(&Dropping::default(), |_| guard.release());
    assert!(catch_unwind(AssertUnwindSafe(release)).is_err());
    until("it is given back", || leases.try_lock("a").is_ok());
}

/// Nothing is granted that could not be kept.
#[test]
fn an_acquire_under_a_lock_asks_for_nothing() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let map = map();
    let acquire = || map.update(&Dropping::default(), |_| leases.try_lock("a").is_ok());
    assert!(catch_unwind(AssertUnwindSafe(acquire)).is_err());
    assert!(store.holder("a").is_none());
    assert_eq!(leases.stats().releases_queued, 0);
    assert!(leases.try_lock("a").is_ok());
}

/// A second panic would end the process, so it fails instead.
#[test]
fn an_acquire_under_a_lock_of_a_panicking_thread_fails() {
    struct Acquires<'a>(&'a Leases, &'a Mutex<Option<LockError>>);

    impl Drop for Acquires<'_> {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = self.0.try_lock("a").err();
        }
    }

    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let answer = Mutex::new(None);
    let panics = || {
        map().update(&Dropping::default(), |_| {
            let _acquires = Acquires(&leases, &answer);
            panic!("on purpose");
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let error = answer.into_inner().unwrap().expect("it fails");
    assert!(error.to_string().contains("nothing was asked"), "{error}");
    assert!(store.holder("a").is_none());
    assert!(leases.try_lock("a").is_ok());
}

#[test]
fn what_a_watchdog_keeps_is_kept_no_more() {
    let watchdog = Watchdog::<u32>::builder()
        .build(|batch| Ok(vec![Outcome::Renewed; batch.entries().len()]))
        .unwrap();
    in_every_way(
        || Box::new(watchdog.keep(1, HOUR).unwrap()),
        |_| assert_eq!(watchdog.stats().kept, 0),
    );
}

#[test]
fn the_last_leases_wait_for_their_releases_when_the_lock_is_free() {
    let store = MemoryStore::new();
    in_every_way(
        || {
            let leases = Leases::new(store.clone()).unwrap();
            let guard = leases.try_lock("a").expect("the one before is given back");
            Box::new((guard, leases))
        },
        |_| until("it is given back", || store.holder("a").is_none()),
    );
}

#[test]
fn a_panic_under_the_lock_loses_nothing() {
    let (_scheduler, timers, _hand) = scheduler();
    let timer = Timer::new().unwrap();
    let map = map();
    let wakes = Wakes::new();
    for number in 0..3 {
        let armed = timers.schedule(number, HOUR, |_| ()).unwrap();
        let guard = timers.cancel_on_drop(armed.id);
        let mut sleep = timer.sleep(HOUR);
        assert!(poll(&mut sleep, &wakes).is_pending());
        let call = || {
            map.update(&Dropping::default(), move |_| {
                let _dropped_by_the_panic = (guard, sleep);
                panic!("on purpose");
            })
        };
        let panicked = catch_unwind(AssertUnwindSafe(call));
        let message = panicked.unwrap_err();
        assert_eq!(message.downcast_ref(), Some(&"on purpose"));
        assert!(timers.is_empty());
        assert_eq!(timer.stats().pending, 0);
    }
    assert_eq!(timers.stats().cancelled, 3);
    assert_eq!(timer.stats().cancelled, 3);
}

#[test]
fn a_lock_that_is_taken_while_the_thread_panics_loses_nothing() {
    let (_scheduler, timers, _hand) = scheduler();
    let cleared = Arc::new(AtomicUsize::new(0));
    for way in 0..WAYS {
        let armed = timers.schedule(7, HOUR, |_| ()).unwrap();
        let guard = Mutex::new(Some(timers.cancel_on_drop(armed.id)));
        let (timers, cleared) = (timers.clone(), Arc::clone(&cleared));
        let in_unwinding = AtDrop(Box::new(move || {
            let guard = guard.lock().unwrap().take();
            drop_under_a_lock(way, Box::new(guard));
            assert!(matches!(timers.cancel(&7), Cancel::NotFound), "way {way}");
            cleared.fetch_add(1, Ordering::SeqCst);
        }));
        let call = move || {
            let _in_unwinding = in_unwinding;
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    assert_eq!(cleared.load(Ordering::SeqCst), WAYS);
    until("they are gone", || timers.stats().cancelled == WAYS as u64);
}
