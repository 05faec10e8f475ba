//! `ExpiryMap`: calls of which one computes a value, and the others wait for it.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, keys, text};
use kit::quiet::{WANTED, hush, panics};
#[cfg(feature = "tokio")]
use kit::runtimes::on_all;
use kit::wait::next;
use kit::wakes::{Wakes, poll};
use kit::ways::in_every_way;
use tourbillon::{EntryError, ExpiryMap, Found, InsertRefusal, Removed, Shutdown};

type Answer = Result<Found<String>, EntryError<u32, String, &'static str>>;
type Call = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A result that a computation waits for.
type Cell = Arc<Mutex<Option<Result<String, &'static str>>>>;

fn computation(cell: &Cell) -> impl Future<Output = Result<String, &'static str>> + Send + use<> {
    let cell = Arc::clone(cell);
    std::future::poll_fn(move |_| match cell.lock().unwrap().take() {
        Some(result) => Poll::Ready(result),
        None => Poll::Pending,
    })
}

/// A call that computes, if it comes to that, until the cell has a result.
fn call(map: &Map, key: u32, cell: &Cell) -> Call {
    let (map, computation) = (map.clone(), computation(cell));
    Box::pin(async move { map.entry(key).or_compute(|| computation).await })
}

/// A caller that computes the value of key 1, and one that waits for it.
struct Pair {
    leads: Call,
    cell: Cell,
    waits: Call,
    own_cell: Cell,
    wakes: Arc<Wakes>,
}

impl Pair {
    fn new(map: &Map) -> Pair {
        let (cell, own_cell) = (Cell::default(), Cell::default());
        let (mut leads, mut waits) = (call(map, 1, &cell), call(map, 1, &own_cell));
        let wakes = Wakes::new();
        assert!(poll(&mut leads, &Wakes::new()).is_pending());
        // The second waker is the one that counts.
        assert!(poll(&mut waits, &Wakes::new()).is_pending());
        assert!(poll(&mut waits, &wakes).is_pending());
        Pair {
            leads,
            cell,
            waits,
            own_cell,
            wakes,
        }
    }

    fn lead(&mut self, result: Result<&str, &'static str>) -> Poll<Answer> {
        *self.cell.lock().unwrap() = Some(result.map(str::to_owned));
        assert_eq!(self.wakes.count(), 0);
        poll(&mut self.leads, &Wakes::new())
    }

    /// Lets the other caller go on after it was woken.
    fn wait(&mut self) -> Poll<Answer> {
        assert_eq!(self.wakes.count(), 1, "it was not woken");
        poll(&mut self.waits, &self.wakes)
    }

    /// The other caller computes now.
    fn goes_next(mut self, map: &Map) {
        assert!(self.wait().is_pending());
        *self.own_cell.lock().unwrap() = Some(Ok("next".to_owned()));
        assert_eq!(poll(&mut self.waits, &self.wakes), inserted("next"));
        assert_eq!(map.get(&1).as_deref(), Some("next"));
    }
}

fn inserted(value: &str) -> Poll<Answer> {
    Poll::Ready(Ok(Found::Inserted {
        value: value.to_owned(),
        deadline: at(60),
        replaced: None,
    }))
}

fn present(value: &str) -> Poll<Answer> {
    Poll::Ready(Ok(Found::Present(value.to_owned())))
}

#[test]
fn of_many_threads_one_computes_and_all_get_its_value() {
    const THREADS: usize = 6;
    let map = builder().build(|_, _| ()).unwrap();
    for key in 0..200 {
        let computed = AtomicUsize::new(0);
        let start = Barrier::new(THREADS);
        let answers: Vec<Answer> = thread::scope(|scope| {
            let spawn = |_| {
                scope.spawn(|| {
                    start.wait();
                    map.entry(key)
                        .or_compute(|| {
                            computed.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            Ok(text(key))
                        })
                        .wait()
                })
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(computed.into_inner(), 1, "key {key}");
        let insertions = answers.iter().filter(|answer| {
            matches!(answer, Ok(Found::Inserted { value, replaced: None, .. }) if *value == text(key))
        });
        assert_eq!(insertions.count(), 1);
        let found = |answer: &&Answer| **answer == Ok(Found::Present(text(key)));
        assert_eq!(answers.iter().filter(found).count(), THREADS - 1);
    }
    assert_eq!(map.stats().inserted, 200);
}

#[cfg(feature = "tokio")]
#[test]
fn of_many_tasks_one_computes_and_all_get_its_value() {
    on_all(|| async {
        let map = builder().build(|_, _| ()).unwrap();
        let computed = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let (map, computed) = (map.clone(), Arc::clone(&computed));
                tokio::spawn(async move {
                    let compute = async {
                        computed.fetch_add(1, Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        Ok::<_, ()>(text(number % 4))
                    };
                    map.entry(number % 4).or_compute(|| compute).await
                })
            })
            .collect();
        for (number, task) in (0..).zip(tasks) {
            let answer = task.await.unwrap().unwrap();
            assert_eq!(answer.into_value(), text(number % 4));
        }
        assert_eq!(computed.load(Ordering::Relaxed), 4);
    });
}

/// Calls of both kinds fail and give up at random; those that are left compute.
#[test]
fn callers_that_fail_or_panic_or_are_dropped_let_the_next_one_try() {
    hush();
    const THREADS: u32 = 4;
    let map = builder().build(|_, _| ()).unwrap();
    for key in 0..100 {
        let computed = AtomicUsize::new(0);
        let start = Barrier::new(THREADS as usize);
        let call = |thread: u32| {
            start.wait();
            match thread {
                0 => drop(
                    map.entry(key)
                        .or_compute(|| Err::<String, _>("fails"))
                        .wait(),
                ),
                1 => {
                    let call = || {
                        map.entry(key)
                            .or_compute(|| -> Result<_, ()> { panic!("{WANTED}") })
                            .wait()
                    };
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
                }
                2 => {
                    let compute = pending::<Result<String, ()>>();
                    let mut call = Box::pin(map.entry(key).or_compute(|| compute));
                    let _ = poll(&mut call, &Wakes::new());
                    thread::yield_now();
                }
                _ => {
                    let found = map
                        .entry(key)
                        .or_compute(|| {
                            computed.fetch_add(1, Ordering::Relaxed);
                            Ok::<_, ()>(text(key))
                        })
                        .wait();
                    assert_eq!(found.unwrap().into_value(), text(key));
                }
            }
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || call(thread));
            }
        });
        assert_eq!(computed.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_waiting_caller_gets_the_value_of_the_caller_that_computes() {
    let (stepped, gone) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    assert!(map.is_empty());
    assert_eq!(pair.lead(Ok("a")), inserted("a"));
    assert_eq!(pair.wait(), present("a"));
    stepped.advance(IDLE);
    assert_eq!(keys(&gone), [1]);
    assert_eq!(map.stats().inserted, 1);
}

#[test]
fn a_blocked_thread_gets_the_value_of_a_task() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    let (done, ended) = channel();
    let waits = map.clone();
    thread::spawn(move || {
        // The task computes until the value is in the map, so this never does.
        let answer: Answer = waits
            .entry(1)
            .or_compute(|| unreachable!("another caller computes"))
            .wait();
        done.send(answer).unwrap();
    });
    assert!(ended.recv_timeout(Duration::from_millis(20)).is_err());
    assert_eq!(pair.lead(Ok("a")), inserted("a"));
    assert_eq!(next(&ended), Ok(Found::Present("a".to_owned())));
    assert_eq!(pair.wait(), present("a"));
}

#[test]
fn after_an_error_the_next_caller_computes() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    let error = EntryError::Make("no such user");
    assert_eq!(pair.lead(Err("no such user")), Poll::Ready(Err(error)));
    pair.goes_next(&map);
}

#[test]
fn after_a_caller_was_dropped_the_next_one_computes() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    pair.leads = Box::pin(pending());
    pair.goes_next(&map);
}

#[test]
fn after_a_panic_the_next_caller_computes() {
    hush();
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut waits = None;
    let cell = Cell::default();
    let wakes = Wakes::new();
    let said = panics(|| {
        map.entry(1)
            .or_compute(|| -> Result<_, ()> {
                let mut call = call(&map, 1, &cell);
                assert!(poll(&mut call, &wakes).is_pending());
                waits = Some(call);
                panic!("{WANTED}")
            })
            .wait()
    });
    assert!(said.contains(WANTED));
    assert_eq!(wakes.count(), 1);
    *cell.lock().unwrap() = Some(Ok("next".to_owned()));
    assert_eq!(poll(&mut waits.unwrap(), &wakes), inserted("next"));
}

#[test]
fn a_caller_that_gives_up_waiting_changes_nothing() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    let held = Arc::strong_count(&pair.wakes);
    pair.waits = Box::pin(pending());
    assert!(Arc::strong_count(&pair.wakes) < held, "its waker is gone");
    assert_eq!(pair.lead(Ok("a")), inserted("a"));
    assert_eq!(pair.wakes.count(), 0);
}

// === what happens to the key meanwhile ===

#[test]
fn an_entry_that_was_inserted_meanwhile_is_the_answer_of_all() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    map.insert(1, "b".to_owned()).unwrap();
    // A caller that comes now waits for nobody.
    let found: Answer = map
        .entry(1)
        .or_compute(|| -> Result<_, &str> { unreachable!("there is an entry") })
        .wait();
    assert_eq!(found, Ok(Found::Present("b".to_owned())));
    assert_eq!(pair.lead(Ok("a")), present("b"));
    assert_eq!(pair.wait(), present("b"));
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.replaced), (1, 0));
}

#[test]
fn a_removal_meanwhile_finds_nothing_and_stops_nothing() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let mut pair = Pair::new(&map);
    assert_eq!((map.remove(&1), map.clear()), (Removed::NotFound, 0));
    map.insert(1, "b".to_owned()).unwrap();
    assert_eq!(map.remove(&1).value().as_deref(), Some("b"));
    assert_eq!(pair.lead(Ok("a")), inserted("a"));
    // The waiting caller gets the value although its entry has gone.
    assert_eq!(map.remove(&1).value().as_deref(), Some("a"));
    assert_eq!(pair.wait(), present("a"));
    assert!(map.is_empty());
}

#[test]
fn a_refused_insertion_is_the_answer_of_all() {
    let (stepped, _) = collecting(builder().max_pending(1), 1);
    let map = stepped.map();
    fill(&map, [2]);
    let mut pair = Pair::new(&map);
    let lead = pair.lead(Ok("a"));
    for answer in [lead, pair.wait()] {
        let Poll::Ready(Err(EntryError::Insert(error))) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(error.refusal, InsertRefusal::Full);
        assert_eq!((error.key, error.value.as_str()), (1, "a"));
    }
}

#[test]
fn an_entry_whose_lifetime_is_over_is_computed_anew() {
    let (stepped, gone) = collecting(builder().time_to_live(S), 1);
    let map = stepped.map();
    fill(&map, [1]);
    stepped.clock().advance(S);
    let found: Answer = map.entry(1).or_compute(|| Ok("new".to_owned())).wait();
    let (value, replaced) = ("new".to_owned(), Some(text(1)));
    let deadline = at(2);
    assert_eq!(
        found,
        Ok(Found::Inserted {
            value,
            deadline,
            replaced
        })
    );
    stepped.settle();
    assert!(keys(&gone).is_empty());
}

// === computations that wait for themselves ===

#[test]
fn a_computation_that_asks_for_its_own_value_gets_an_error() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let inner = |key| {
        map.entry(key)
            .or_compute(|| Ok::<_, &str>("inner".to_owned()))
            .wait()
    };
    let own = |answer: Answer| match answer {
        Err(EntryError::Recursive(None)) => Ok("own".to_owned()),
        other => panic!("{other:?}"),
    };
    // A thread by itself, also by way of another key.
    let found = map
        .entry(1)
        .or_compute(|| {
            assert_eq!(inner(9).unwrap().into_value(), "inner");
            let by_way = map.entry(2).or_compute(|| own(inner(1))).wait();
            assert_eq!(by_way.unwrap().into_value(), "own");
            own(inner(1))
        })
        .wait();
    assert_eq!(found.unwrap().into_value(), "own");
    // A task by a future, and by a call that blocks.
    let mut call = Box::pin(map.entry(3).or_compute(|| async {
        let awaited = map.entry(3).or_compute(|| ready(Ok("x".to_owned())));
        own(awaited.await)?;
        own(inner(3))
    }));
    assert_eq!(poll(&mut call, &Wakes::new()), inserted("own"));
    let error: EntryError<u32, String, std::io::Error> = EntryError::Recursive(None);
    assert!(error.to_string().contains("wait for itself"));
    assert!(std::error::Error::source(&error).is_none());
    assert_eq!(format!("{error:?}"), "Recursive(None)");
}

/// However often the error was wrapped on its way.
#[test]
fn the_error_of_a_recursive_computation_names_the_recursion_at_the_outermost_level() {
    type Wrapped = Box<dyn std::error::Error + Send + Sync>;
    let stepped = builder().build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    let compute = |key: u32, next: u32| {
        let found = map
            .entry(key)
            .or_compute(|| {
                let inner = map
                    .entry(next)
                    .or_compute(|| {
                        let innermost = map
                            .entry(1)
                            .or_compute(|| Ok::<_, std::io::Error>(String::new()))
                            .wait();
                        let told =
                            innermost.map_or_else(|error| error.to_string(), Found::into_value);
                        Err::<String, Wrapped>(format!("no such user: {told}").into())
                    })
                    .wait();
                Err::<String, Wrapped>(inner.unwrap_err().to_string().into())
            })
            .wait();
        found.unwrap_err()
    };
    let EntryError::Recursive(Some(error)) = compute(1, 2) else {
        panic!("the computation of key 1 asked for key 1")
    };
    assert!(error.to_string().contains("could not be made"));
    let outermost: EntryError<u32, String, std::io::Error> =
        EntryError::Recursive(Some(std::io::Error::other("wrapped")));
    assert!(outermost.to_string().contains("wait for itself"));
    assert!(std::error::Error::source(&outermost).is_some());
    // Key 3 asks for key 1 by way of key 4, which is no recursion.
    assert!(matches!(compute(3, 4), EntryError::Make(_)));
    // The next computation of the same key is another one.
    let failed: Answer = map.entry(1).or_compute(|| Err("offline")).wait();
    assert!(matches!(failed, Ok(_) | Err(EntryError::Make("offline"))));

    let mut call = Box::pin(map.entry(9).or_compute(|| async {
        let inner = map
            .entry(9)
            .or_compute(|| ready(Ok::<_, std::io::Error>(String::new())));
        inner.await.map(Found::into_value).map_err(|_| "wrapped")
    }));
    let answer = poll(&mut call, &Wakes::new());
    assert_eq!(
        answer,
        Poll::Ready(Err(EntryError::Recursive(Some("wrapped"))))
    );
}

// === shutdowns ===

#[test]
fn a_shutdown_releases_the_callers_that_wait_for_a_computation_that_hangs() {
    for mode in [
        Shutdown::HandBack,
        Shutdown::RunNow,
        Shutdown::Drain { limit: S },
    ] {
        let (stepped, _) = collecting(builder(), 1);
        let map = stepped.map();
        let (begun, computes) = channel();
        let (go_on, may_go_on) = channel();
        thread::scope(|scope| {
            let hangs = scope.spawn(|| -> Answer {
                map.entry(1)
                    .or_compute(move || {
                        begun.send(()).unwrap();
                        may_go_on.recv().unwrap();
                        Ok("late".to_owned())
                    })
                    .wait()
            });
            next(&computes);
            let blocked: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| -> Answer { map.entry(1).or_compute(|| Err("computed")).wait() })
                })
                .collect();
            let wakes = Wakes::new();
            let mut awaits = call(&map, 1, &Cell::default());
            assert!(poll(&mut awaits, &wakes).is_pending());
            stepped.shutdown(mode);
            assert_eq!(wakes.count(), 1);
            assert_eq!(
                poll(&mut awaits, &wakes),
                Poll::Ready(Err(EntryError::Closed))
            );
            for blocked in blocked {
                assert_eq!(blocked.join().unwrap(), Err(EntryError::Closed));
            }
            // Nobody begins to wait, and nobody who need not wait is refused without a value.
            let late: Answer = map.entry(1).or_compute(|| Err("computed")).wait();
            assert_eq!(late, Err(EntryError::Closed));
            let Err(EntryError::Insert(refused)) = map
                .entry(2)
                .or_compute(|| Ok::<_, &str>("value".to_owned()))
                .wait()
            else {
                panic!("the map is closed")
            };
            assert_eq!(
                (&*refused.value, refused.refusal),
                ("value", InsertRefusal::Closed)
            );
            go_on.send(()).unwrap();
            let Err(EntryError::Insert(refused)) = hangs.join().unwrap() else {
                panic!("the map is closed")
            };
            assert_eq!(
                (&*refused.value, refused.refusal),
                ("late", InsertRefusal::Closed)
            );
        });
    }
}

#[test]
fn a_map_whose_values_nobody_computed_before_the_shutdown_lets_nobody_wait() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    stepped.shutdown(Shutdown::HandBack);
    let mut leads = call(&map, 1, &Cell::default());
    assert!(poll(&mut leads, &Wakes::new()).is_pending());
    let answer = poll(&mut call(&map, 1, &Cell::default()), &Wakes::new());
    assert_eq!(answer, Poll::Ready(Err(EntryError::Closed)));
}

/// The shutdown of a map with threads, which waits for no computation.
#[test]
fn a_thread_that_waits_is_released_while_the_shutdown_waits_for_a_handler() {
    let (entered, handles) = channel();
    let (go_on, may_go_on) = channel();
    let may_go_on = Mutex::new(may_go_on);
    let map = Map::builder()
        .time_to_idle(Duration::ZERO)
        .build(move |_, _| {
            entered.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    map.insert(7, text(7)).unwrap();
    next(&handles);
    let mut hangs = call(&map, 1, &Cell::default());
    assert!(poll(&mut hangs, &Wakes::new()).is_pending());
    let closing = thread::scope(|scope| {
        let blocked =
            scope.spawn(|| -> Answer { map.entry(1).or_compute(|| Err("computed")).wait() });
        let closing = map.shutdown(Shutdown::Drain { limit: 100 * IDLE });
        assert_eq!(blocked.join().unwrap(), Err(EntryError::Closed));
        closing
    });
    go_on.send(()).unwrap();
    assert_eq!(closing.wait().unwrap().still_running, 0);
}

/// The thread that computes drives other tasks meanwhile. They may wait for the value.
#[test]
fn a_task_that_a_computation_drives_may_wait_for_it() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let cell = Cell::default();
    let wakes = Wakes::new();
    let mut waits = call(&map, 1, &cell);
    let found: Answer = map
        .entry(1)
        .or_compute(|| {
            assert!(poll(&mut waits, &wakes).is_pending());
            Ok("a".to_owned())
        })
        .wait();
    assert!(found.is_ok());
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut waits, &wakes), present("a"));
}

// === user code that panics, or drops calls under a lock ===

#[test]
fn calls_that_are_dropped_under_a_lock_end() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let wakes = Wakes::new();
    let mut waiting = None;
    in_every_way(
        || {
            let cell = Cell::default();
            let mut leads = call(&map, 1, &cell);
            assert!(poll(&mut leads, &wakes).is_pending());
            let mut gives_up = call(&map, 1, &cell);
            assert!(poll(&mut gives_up, &wakes).is_pending());
            let mut waits = call(&map, 1, &cell);
            assert!(poll(&mut waits, &wakes).is_pending());
            waiting = Some(waits);
            Box::new((gives_up, leads))
        },
        |way| assert_eq!(wakes.count(), way + 1, "way {way}"),
    );
}

/// A value whose clone panics when it is asked for the third clone.
#[derive(Debug)]
struct Fragile(Arc<AtomicUsize>);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) != 2, "{WANTED}");
        Fragile(Arc::clone(&self.0))
    }
}

/// The first clone is that of the computing caller, the next ones are for the waiting callers.
#[test]
fn a_clone_that_panics_keeps_nobody_waiting() {
    hush();
    let map = ExpiryMap::<u32, Fragile>::builder()
        .build(|_, _| ())
        .unwrap();
    let wakes = Wakes::new();
    let mut waiting = Vec::new();
    let call = || {
        let map = map.clone();
        Box::pin(async move {
            let compute = pending::<Result<Fragile, ()>>();
            map.entry(1).or_compute(|| compute).await
        })
    };
    let said = panics(|| {
        map.entry(1)
            .or_compute(|| {
                for _ in 0..3 {
                    let mut call = call();
                    assert!(poll(&mut call, &wakes).is_pending());
                    waiting.push(call);
                }
                Ok::<_, ()>(Fragile(Arc::default()))
            })
            .wait()
    });
    assert!(said.contains(WANTED));
    // One has got its value. The others have not, and find it in the map.
    assert_eq!(wakes.count(), 3);
    for mut call in waiting {
        let found = poll(&mut call, &wakes);
        assert!(matches!(found, Poll::Ready(Ok(Found::Present(_)))));
    }
}

#[test]
fn a_computed_value_goes_to_the_group_of_the_caller_that_computes() {
    let stepped = ExpiryMap::<u32, String>::builder()
        .time_to_idle(Duration::from_secs(60))
        .groups::<String>()
        .max_per_group(1)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let found = map
        .entry(1)
        .group("a")
        .or_compute(|| Ok::<_, ()>("one".to_owned()))
        .wait();
    assert!(matches!(found, Ok(Found::Inserted { .. })));
    // The entry that is there, whatever group is named.
    let found = map
        .entry(1)
        .group("b")
        .or_compute(|| -> Result<_, ()> { unreachable!("there is an entry") })
        .wait();
    assert!(matches!(found, Ok(Found::Present(value)) if value == "one"));
    assert_eq!(map.group_of(&1).as_deref(), Some("a"));
    // A full group refuses, and those who wait learn it, too.
    let full = |found: Result<Found<String>, EntryError<u32, String, ()>>| {
        let Err(EntryError::Insert(error)) = found else {
            panic!("{found:?}");
        };
        assert_eq!((error.refusal, error.key), (InsertRefusal::GroupFull, 2));
        assert_eq!(error.value, "two");
    };
    full(
        map.entry(2)
            .group("a")
            .or_compute(|| Ok("two".to_owned()))
            .wait(),
    );
    stepped.run_until(async {
        let compute = std::future::ready(Ok("two".to_owned()));
        full(map.entry(2).group("a").or_compute(|| compute).await);
        let compute = std::future::ready(Ok::<_, ()>("two".to_owned()));
        let found = map.entry(2).group("b").or_compute(|| compute).await;
        assert!(matches!(found, Ok(Found::Inserted { .. })));
    });
    assert_eq!(map.group_of(&2).as_deref(), Some("b"));
    // Fails: nothing is inserted.
    let found = map
        .entry(3)
        .group("c")
        .or_compute(|| Err::<String, _>("no"))
        .wait();
    assert!(matches!(found, Err(EntryError::Make("no"))));
    assert_eq!(map.group_len("c"), 0);
}
