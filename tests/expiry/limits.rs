//! `ExpiryMap`: callers that wait for a computation of another one, within a limit.

use std::cell::Cell;
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::map::{IDLE, Map, S, at, builder, collecting, fill, text};
use kit::wait::next;
use kit::wakes::{Wakes, poll};
use tourbillon::{EntryError, Found, Shutdown};

type Answer = Result<Found<String>, EntryError<u32, String, &'static str>>;

/// A caller that computes the value of key 1 until it is told to end.
fn hanging(map: &Map) -> std::pin::Pin<Box<dyn Future<Output = Answer> + Send>> {
    let map = map.clone();
    let mut leads = Box::pin(async move {
        map.entry(1)
            .or_compute(pending::<Result<String, &'static str>>)
            .await
    });
    assert!(poll(&mut leads, &Wakes::new()).is_pending());
    leads
}

#[test]
fn a_task_waits_no_longer_than_its_limit_and_the_computation_goes_on() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let (compute, computed) = tokio::sync::oneshot::channel();
    let mut leads = Box::pin(
        map.entry(1)
            .or_compute(|| async { computed.await.map_err(|_| ()) }),
    );
    assert!(poll(&mut leads, &Wakes::new()).is_pending());
    let answer = stepped.run_until(map.entry(1).or_compute(|| ready(Err(""))).within(5 * S));
    assert_eq!(answer, Err(EntryError::TimedOut));
    assert_eq!(map.now(), at(5));
    // The other caller knows nothing of that.
    compute.send(text(1)).unwrap();
    let Poll::Ready(Ok(found)) = poll(&mut leads, &Wakes::new()) else {
        panic!("it computes");
    };
    assert!(found.is_inserted());
    let found = stepped.run_until(
        map.entry(1)
            .or_compute(|| ready(Err("")))
            .within(Duration::ZERO),
    );
    assert_eq!(found, Ok(Found::Present(text(1))));
}

#[test]
fn an_answer_that_comes_within_the_limit_is_the_answer() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let leads = hanging(&map);
    let wakes = Wakes::new();
    let own = || ready(Ok::<_, &str>("own".to_owned()));
    let mut waits = Box::pin(map.entry(1).or_compute(own).within(5 * S));
    assert!(poll(&mut waits, &wakes).is_pending());
    stepped.advance(4 * S);
    assert_eq!(wakes.count(), 0);
    // The one that computed gives up. This caller computes, however long it has waited.
    drop(leads);
    assert_eq!(wakes.count(), 1);
    stepped.advance(9 * S);
    let Poll::Ready(Ok(found)) = poll(&mut waits, &wakes) else {
        panic!("it computes");
    };
    assert_eq!(found.into_value(), "own");
}

/// It is the wait that has a limit, so nothing wakes the task that computes.
#[test]
fn the_limit_of_a_wait_does_not_wake_the_computation_that_follows_it() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let leads = hanging(&map);
    let wakes = Wakes::new();
    let own = || std::future::pending::<Result<String, &str>>();
    let mut waits = Box::pin(map.entry(1).or_compute(own).within(5 * S));
    assert!(poll(&mut waits, &wakes).is_pending());
    drop(leads);
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut waits, &wakes).is_pending());
    stepped.advance(9 * S);
    assert_eq!(wakes.count(), 1);
}

#[test]
fn a_limit_of_zero_waits_for_nobody_and_the_longest_one_has_no_end() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    // Nobody computes, so this caller does.
    let computed = map
        .entry(2)
        .or_compute(|| Ok::<_, &str>(text(2)))
        .within(Duration::ZERO)
        .wait();
    assert!(computed.unwrap().is_inserted());
    let leads = hanging(&map);
    let blocked: Answer = map
        .entry(1)
        .or_compute(|| Err(""))
        .within(Duration::ZERO)
        .wait();
    assert_eq!(blocked, Err(EntryError::TimedOut));
    let mut awaits = Box::pin(
        map.entry(1)
            .or_compute(|| ready(Err("")))
            .within(Duration::ZERO),
    );
    assert_eq!(
        poll(&mut awaits, &Wakes::new()),
        Poll::Ready(Err(EntryError::TimedOut))
    );
    assert!(format!("{awaits:?}").contains("ended"));
    let wakes = Wakes::new();
    let mut patient = Box::pin(
        map.entry(1)
            .or_compute(|| ready(Err("mine")))
            .within(Duration::MAX),
    );
    assert!(poll(&mut patient, &wakes).is_pending());
    stepped.advance(1_000_000 * IDLE);
    assert_eq!(wakes.count(), 0);
    drop(leads);
    assert_eq!(
        poll(&mut patient, &wakes),
        Poll::Ready(Err(EntryError::Make("mine")))
    );
}

#[test]
fn a_thread_waits_no_longer_than_its_limit() {
    let map = builder().build(|_, _| ()).unwrap();
    let leads = hanging(&map);
    let limit = Duration::from_millis(20);
    let begin = std::time::Instant::now();
    let answer: Answer = map.entry(1).or_compute(|| Err("")).within(limit).wait();
    assert_eq!(answer, Err(EntryError::TimedOut));
    assert!(begin.elapsed() >= limit);
    // By the ticker of a map with threads.
    let (tell, told) = channel();
    let waits = map.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let answer: Answer = runtime.block_on(async {
            waits
                .entry(1)
                .or_compute(|| ready(Err("")))
                .within(limit)
                .await
        });
        tell.send(answer).unwrap();
    });
    assert_eq!(next(&told), Err(EntryError::TimedOut));
    drop(leads);
}

#[test]
fn a_call_with_a_limit_learns_of_a_shutdown_and_of_itself() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let asks = |key| -> Answer { map.entry(key).or_compute(|| Err("")).within(S).wait() };
    let inside = Cell::new(None);
    let outer: Answer = map
        .entry(2)
        .or_compute(|| {
            inside.set(Some(asks(2)));
            Ok(text(2))
        })
        .wait();
    assert!(outer.is_ok());
    assert_eq!(inside.take(), Some(Err(EntryError::Recursive(None))));
    let leads = hanging(&map);
    let wakes = Wakes::new();
    let mut waits = Box::pin(map.entry(1).or_compute(|| ready(Err(""))).within(5 * S));
    assert!(poll(&mut waits, &wakes).is_pending());
    drop(stepped.shutdown(Shutdown::HandBack));
    assert_eq!(
        poll(&mut waits, &wakes),
        Poll::Ready(Err(EntryError::Closed))
    );
    // Awaited after the shutdown.
    assert_eq!(asks(1), Err(EntryError::Closed));
    drop(leads);
}

#[test]
fn a_wait_with_a_limit_that_is_dropped_leaves_nothing_behind() {
    let (stepped, _) = collecting(builder(), 1);
    let map = stepped.map();
    let leads = hanging(&map);
    let wakes = Wakes::new();
    let held = Arc::strong_count(&wakes);
    let mut waits = Box::pin(
        map.entry(1)
            .or_compute(|| ready(Err::<String, _>("")))
            .within(5 * S),
    );
    assert!(poll(&mut waits, &Wakes::new()).is_pending());
    // The task has moved: the second waker is the one that counts.
    assert!(poll(&mut waits, &wakes).is_pending());
    assert!(Arc::strong_count(&wakes) > held);
    drop(waits);
    assert_eq!(Arc::strong_count(&wakes), held, "its waker is gone");
    stepped.advance(IDLE);
    assert_eq!(wakes.count(), 0);
    let mut waits = Box::pin(
        map.entry(1)
            .or_compute(|| ready(Err::<String, _>("")))
            .within(5 * S),
    );
    assert!(poll(&mut waits, &Wakes::new()).is_pending());
    assert!(poll(&mut waits, &wakes).is_pending());
    stepped.advance(5 * S);
    assert_eq!(wakes.count(), 1);
    assert_eq!(
        poll(&mut waits, &wakes),
        Poll::Ready(Err(EntryError::TimedOut))
    );
    drop(leads);
}

/// In a map that a test drives, no time passes while its handler waits.
#[test]
fn a_handler_of_a_driven_map_does_not_wait_in_vain() {
    let (tell, told) = channel();
    let stepped = builder()
        .build_stepped(1, move |map, _| {
            let answer: Answer = map.entry(1).or_compute(|| Err("")).within(S).wait();
            tell.send(answer).unwrap();
        })
        .unwrap();
    let map = stepped.map();
    let leads = hanging(&map);
    fill(&map, [7]);
    stepped.advance(IDLE);
    assert_eq!(told.try_recv().unwrap(), Err(EntryError::TimedOut));
    drop(leads);
}
