//! Locks that are awaited.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use kit::gate::Gate;
use kit::runtimes::{eventually, on_all};
use kit::wait::until;
use kit::wakes::{Wakes, poll, yields};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Event, Fault, LeaseId, Leases, LockError, Loss, MemoryStore, ReleaseError, Steps, StoreCall,
    StoreError, What,
};

use crate::worlds::{S, Threads, blocking_threads};

const LEASE: Duration = Duration::from_secs(30);

fn manual() -> (ManualClock, Leases, MemoryStore) {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_clock(clock.clone());
    let leases = Leases::builder(store.clone()).clock(clock).build();
    (hand, leases.unwrap(), store)
}

/// The same on a store whose calls may block. Those that are awaited block threads of the store.
fn blocking() -> (ManualClock, Leases, MemoryStore) {
    let Threads {
        hand,
        leases,
        store,
    } = blocking_threads();
    (hand, leases, store)
}

/// Moves the clock until it holds, and for less than this time.
fn within(time: Duration, hand: &ManualClock, what: &str, holds: impl Fn() -> bool) {
    let steps = AtomicUsize::new(0);
    until(what, || {
        hand.advance(time / 1_000);
        assert!(steps.fetch_add(1, SeqCst) < 900, "{what}: not in {time:?}");
        holds()
    });
}

/// Every acquire waits at the first gate before it is executed, and at the second one afterwards.
fn held_up(store: &MemoryStore) -> (Gate, Gate) {
    let gates = (Gate::default(), Gate::default());
    let (before, after) = gates.clone();
    store.inject(move |call| match call {
        StoreCall::Claim(_) => {
            before.pass();
            let after = after.clone();
            Fault::Then(Box::new(move || after.pass()))
        }
        _ => Fault::None,
    });
    gates
}

/// Counts the acquires that arrive.
fn claims(store: &MemoryStore) -> Arc<AtomicUsize> {
    let claims = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&claims);
    store.inject(move |call| {
        if matches!(call, StoreCall::Claim(_)) {
            count.fetch_add(1, SeqCst);
        }
        Fault::None
    });
    claims
}

fn is_free(store: &MemoryStore, name: &str) -> bool {
    store.holder(name).is_none()
}

#[test]
fn a_lock_is_awaited_and_given_back_on_every_runtime() {
    on_all(|| async {
        let (_, leases, store) = manual();
        let guard = leases.lock("a").at_once().await.unwrap();
        assert!(guard.is_held() && guard.token() > 0);
        let refused = leases.lock("a").at_once().await;
        assert!(matches!(refused, Err(LockError::Held { remaining, .. }) if remaining == LEASE));
        guard.release().await.unwrap();
        assert!(is_free(&store, "a"));
        assert_eq!(leases.stats().armed, 0);
        let again = leases.lock("a").await.unwrap();
        drop(again);
        eventually("the drop gives it back", || is_free(&store, "a")).await;
    });
}

#[test]
fn who_waits_is_woken_by_the_release_and_not_by_the_clock() {
    on_all(|| async {
        // It stands still all the time.
        let (_, leases, store) = manual();
        let first = leases.lock("a").await.unwrap();
        let claims = claims(&store);
        let token = first.token();
        let waiting = tokio::spawn({
            let leases = leases.clone();
            async move { leases.lock("a").await.unwrap().token() }
        });
        // It has asked twice. Timers are armed for the guard, for the time to ask anyway, and for
        // the event that tells of the wait.
        eventually("it waits", || {
            claims.load(SeqCst) == 2 && leases.stats().armed == 3
        })
        .await;
        first.release().await.unwrap();
        assert!(waiting.await.unwrap() > token);
    });
}

#[test]
fn the_patience_is_that_of_the_clock() {
    let (hand, leases, store) = manual();
    let _held = leases.lock("a").wait().unwrap();
    let claims = claims(&store);
    let wakes = Wakes::new();
    let mut waiting = Box::pin(leases.lock("a").within(LEASE / 100).into_future());
    until("it sleeps", || {
        assert!(poll(&mut waiting, &wakes).is_pending());
        // The guard's, and the time to ask again.
        claims.load(SeqCst) == 2 && leases.stats().armed == 2
    });
    hand.advance(LEASE / 100);
    let mut answer = None;
    until("it gives up", || {
        if let Poll::Ready(ended) = poll(&mut waiting, &wakes) {
            answer = Some(ended);
        }
        answer.is_some()
    });
    assert!(matches!(answer, Some(Err(LockError::TimedOut { .. }))));
    // Asked once more at the end.
    assert_eq!(claims.load(SeqCst), 3);
}

#[test]
fn patience_ends_also_while_the_store_hangs() {
    let (hand, leases, store) = blocking();
    let gate = Gate::default();
    let at = gate.clone();
    store.inject(move |call| {
        if matches!(call, StoreCall::Claim(_)) {
            at.pass();
        }
        Fault::None
    });
    let wakes = Wakes::new();
    // More of them than threads for one destination.
    let mut hang: Vec<_> = (0..70)
        .map(|at| leases.lock(&format!("a{at}")).into_future())
        .collect();
    for hangs in &mut hang {
        assert!(poll(hangs, &wakes).is_pending());
    }
    gate.crowd(64);
    let mut waiting = leases.lock("b").within(LEASE / 100).into_future();
    assert!(poll(&mut waiting, &wakes).is_pending());
    let mut each = leases.lock_all(["b", ""]).within(LEASE / 100).each();
    assert!(poll(&mut each, &wakes).is_pending());
    let before = wakes.count();
    hand.advance(LEASE / 100);
    until("both are woken", || wakes.count() > before + 1);
    assert!(matches!(
        poll(&mut waiting, &wakes),
        Poll::Ready(Err(LockError::Unanswered { .. }))
    ));
    let Poll::Ready(answers) = poll(&mut each, &wakes) else {
        panic!("its limit is over");
    };
    assert!(matches!(answers[0], Err(LockError::Store { .. })));
    // Neither was asked for the other name, nor will be.
    assert_eq!(gate.waiting(), 64);
    drop((waiting, each, hang));
    gate.open();
    until("they go on", || gate.waiting() == 0);
    within(LEASE, &hand, "all is given back", || {
        (0..70).all(|at| is_free(&store, &format!("a{at}")))
    });
    assert!(is_free(&store, "b"));
}

#[test]
fn c154_r05_a_future_dropped_while_its_request_is_under_way_leaves_the_lock_free() {
    for executed in [false, true] {
        let (hand, leases, store) = blocking();
        let (before, after) = held_up(&store);
        let wakes = Wakes::new();
        let mut acquiring = Box::pin(leases.lock("a").into_future());
        assert!(poll(&mut acquiring, &wakes).is_pending());
        if executed {
            before.open();
            after.crowd(1);
            assert!(!is_free(&store, "a"));
        } else {
            before.crowd(1);
        }
        drop(acquiring);
        if executed {
            // The clock stands still: no lease runs out.
            until("it is given back", || is_free(&store, "a"));
        }
        before.open();
        after.crowd(1);
        after.open();
        within(S, &hand, "it is given back", || is_free(&store, "a"));
        assert_eq!(leases.stats().kept, 0);
        store.heal();
        let again = leases.lock("a").at_once().wait().unwrap();
        again.release().wait().unwrap();
    }
}

#[test]
fn c154_r05_a_future_dropped_before_its_answer_is_lost_leaves_the_lock_free() {
    let (hand, leases, store) = blocking();
    let gate = Gate::default();
    let at_gate = gate.clone();
    let given_back = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&given_back);
    store.inject(move |call| match call {
        StoreCall::Claim(_) => {
            at_gate.pass();
            Fault::LoseAnswer(StoreError::Unavailable("cut".into()))
        }
        _ => {
            count.fetch_add(1, SeqCst);
            Fault::None
        }
    });
    let wakes = Wakes::new();
    let mut acquiring = Box::pin(leases.lock("a").into_future());
    assert!(poll(&mut acquiring, &wakes).is_pending());
    gate.crowd(1);
    drop(acquiring);
    until("it is released in vain", || given_back.load(SeqCst) == 1);
    assert!(is_free(&store, "a"));
    gate.open();
    // It is granted now, and no task is woken.
    until("it is granted", || !is_free(&store, "a"));
    within(S, &hand, "it is given back", || is_free(&store, "a"));
}

#[test]
fn c154_a_future_dropped_when_its_answer_has_come_leaves_the_lock_free() {
    let (_, leases, store) = blocking();
    let (before, after) = held_up(&store);
    let wakes = Wakes::new();
    let mut acquiring = Box::pin(leases.lock("a").at_once().into_future());
    assert!(poll(&mut acquiring, &wakes).is_pending());
    before.open();
    after.open();
    until("it is told", || wakes.count() == 1);
    assert!(!is_free(&store, "a"));
    drop(acquiring);
    until("it is given back", || is_free(&store, "a"));
}

#[test]
fn a_future_that_has_not_been_polled_asks_for_nothing() {
    let (_, leases, store) = manual();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    store.inject(move |_| {
        count.fetch_add(1, SeqCst);
        Fault::None
    });
    drop(leases.lock("a").into_future());
    assert_eq!((asked.load(SeqCst), leases.stats().armed), (0, 0));
}

#[test]
fn who_gives_up_waiting_lets_the_next_one_have_it() {
    let (_, leases, store) = manual();
    let held = leases.lock("a").wait().unwrap();
    let claims = claims(&store);
    let wait = || {
        let wakes = Wakes::new();
        let mut waiting = Box::pin(leases.lock("a").into_future());
        let pending = poll(&mut waiting, &wakes);
        assert!(pending.is_pending());
        (waiting, wakes)
    };
    let (mut first, first_wakes) = wait();
    let poll_until_it_sleeps = |waiting: &mut std::pin::Pin<Box<_>>, wakes: &_, waiters: usize| {
        until("it sleeps", || {
            assert!(poll(waiting, wakes).is_pending());
            // It has asked twice, and has a timer for the time to ask anyway, and one for the
            // event.
            claims.load(SeqCst) == 2 * waiters && leases.stats().armed == 1 + 2 * waiters
        });
    };
    poll_until_it_sleeps(&mut first, &first_wakes, 1);
    let (mut second, second_wakes) = wait();
    poll_until_it_sleeps(&mut second, &second_wakes, 2);
    // The first one is woken, and is dropped before it has looked.
    held.release().wait().unwrap();
    drop(first);
    until("the second one has it", || {
        poll(&mut second, &second_wakes).is_ready()
    });
}

#[test]
fn a_release_goes_on_when_its_future_is_dropped() {
    let (_, leases, store) = blocking();
    let gate = Gate::default();
    let at = gate.clone();
    let guard = leases.lock("a").wait().unwrap();
    store.inject(move |call| {
        if matches!(call, StoreCall::GiveBack { .. }) {
            at.pass();
        }
        Fault::None
    });
    let wakes = Wakes::new();
    let mut releasing = Box::pin(guard.release());
    assert!(poll(&mut releasing, &wakes).is_pending());
    gate.crowd(1);
    drop(releasing);
    assert_eq!(leases.stats().kept, 0);
    gate.open();
    until("it is free", || is_free(&store, "a"));
}

#[test]
fn an_awaited_release_tells_what_a_blocking_one_does() {
    on_all(|| async {
        let (hand, leases, store) = manual();
        let lost = leases.lock("a").await.unwrap();
        hand.advance(2 * LEASE);
        assert_eq!(lost.release().await, Err(ReleaseError::Lost(Loss::Expired)));
        let guard = leases.lock("a").await.unwrap();
        let inner = guard.again().unwrap();
        assert_eq!(guard.release().await, Ok(()));
        store.forget();
        assert_eq!(inner.release().await, Err(ReleaseError::NotHeld));
        let guard = leases.lock("a").await.unwrap();
        let down = StoreError::Unavailable("down".into());
        let fault = down.clone();
        store.inject(move |_| Fault::Fail(fault.clone()));
        assert_eq!(guard.release().await, Err(ReleaseError::Store(down)));
        store.heal();
        eventually("it is tried again", || {
            hand.advance(Duration::from_millis(100));
            is_free(&store, "a")
        })
        .await;
    });
}

#[test]
fn the_loss_is_a_future() {
    on_all(|| async {
        let (hand, leases, store) = manual();
        let guard = leases.lock("a").await.unwrap();
        let lost = guard.lost();
        let task = tokio::spawn(lost.clone());
        store.inject(|_| Fault::Fail(StoreError::Unavailable("down".into())));
        hand.advance(LEASE);
        assert_eq!(task.await.unwrap(), Some(Loss::Expired));
        assert_eq!(lost.await, Some(Loss::Expired));
        store.heal();
        let guard = leases.lock("a").await.unwrap();
        let task = tokio::spawn(guard.lost());
        guard.release().await.unwrap();
        assert_eq!(task.await.unwrap(), None);
    });
}

#[test]
fn a_loss_that_nobody_awaits_any_more_keeps_no_waker() {
    let (_, leases, _) = manual();
    let guard = leases.lock("a").wait().unwrap();
    let wakes = Wakes::new();
    let mut lost = Box::pin(guard.lost());
    assert!(poll(&mut lost, &wakes).is_pending());
    assert!(poll(&mut lost, &wakes).is_pending());
    assert!(Arc::strong_count(&wakes) > 1);
    drop(lost);
    assert_eq!(Arc::strong_count(&wakes), 1);
}

#[test]
fn closed_leases_answer_at_once() {
    on_all(|| async {
        let (_, leases, _) = manual();
        let guard = leases.lock("a").await.unwrap();
        assert_eq!(leases.close(LEASE), 1);
        assert!(!guard.is_held());
        let refused = leases.lock("b").await;
        assert!(matches!(refused, Err(LockError::Closed { .. })));
        assert_eq!(guard.release().await, Err(ReleaseError::Lost(Loss::Closed)));
    });
}

/// Leases without threads, their store, and a channel of their events.
fn stepped(seed: u64) -> (Leases, Steps, MemoryStore, Events) {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(store.clone()).clock(clock);
    let (leases, steps) = builder.build_stepped(seed).unwrap();
    let events = leases.events(1_000);
    (
        leases,
        steps,
        store,
        Box::new(move || events.try_iter().collect()),
    )
}

/// What has been told since the last look.
type Events = Box<dyn Fn() -> Vec<Event<LeaseId>>>;

/// Lets the time pass for somebody who waits.
fn pass<F: Future + Unpin>(steps: &Steps, waiting: &mut F, by: Duration) {
    let wakes = Wakes::new();
    let end = steps.now() + by;
    loop {
        steps.settle();
        assert!(poll(waiting, &wakes).is_pending());
        steps.settle();
        if steps.now() >= end {
            return;
        }
        steps.advance(Duration::from_millis(1));
    }
}

#[test]
fn a_wait_is_told_after_a_second_and_then_after_pauses_that_double() {
    let second = Duration::from_secs(1);
    for seed in 0..5 {
        let (leases, steps, _store, events) = stepped(seed);
        let guard = leases
            .lock("a")
            .lease(LEASE)
            .not_renewed()
            .at_once()
            .wait()
            .unwrap();
        steps.advance(second);
        let began = steps.now();
        let mut waiting = Box::pin(leases.lock("a").into_future());
        pass(&steps, &mut waiting, second - Duration::from_millis(1));
        assert_eq!(events(), []);
        pass(&steps, &mut waiting, 20 * second);
        let told = events();
        let seconds: Vec<u64> = told
            .iter()
            .map(|event| event.at.since(began).as_secs())
            .collect();
        assert_eq!(seconds, [1, 3, 7, 15]);
        for event in &told {
            assert_eq!(event.key.name(), "a");
            assert_eq!(event.key.token(), 0);
            assert_ne!(event.key, *guard.id());
            match &event.what {
                What::Waiting { since, error, .. } => assert_eq!((*since, error), (began, &None)),
                other => panic!("{other:?}"),
            }
            let text = event.what.to_string();
            assert_eq!(text, "waiting: somebody else holds it");
        }
        // It was that owner that asked, and the wait ends with the answer.
        guard.release().wait().unwrap();
        let wakes = Wakes::new();
        let mut had = None;
        while had.is_none() {
            steps.settle();
            match poll(&mut waiting, &wakes) {
                Poll::Ready(answer) => had = Some(answer.unwrap()),
                Poll::Pending => {}
            }
        }
        assert_eq!(*had.unwrap().id(), told[0].key);
        assert_eq!(leases.stats().waiting, 0);
        steps.advance(100 * second);
        assert_eq!(events(), []);
        assert_eq!(leases.stats().armed, 0);
    }
}

#[test]
fn a_wait_for_a_store_that_fails_is_told_with_its_error() {
    let second = Duration::from_secs(1);
    let (leases, steps, store, events) = stepped(1);
    let down = StoreError::Unavailable("down".to_owned());
    let error = down.clone();
    store.inject(move |_| Fault::Fail(error.clone()));
    let mut waiting = Box::pin(leases.lock("a").into_future());
    let mut short = Box::pin(leases.lock("b").within(second / 2).into_future());
    assert!(poll(&mut short, &Wakes::new()).is_pending());
    pass(&steps, &mut waiting, second + second / 10);
    let told = events();
    // The other one was not to wait for so long.
    let names: Vec<_> = told.iter().map(|event| event.key.name()).collect();
    assert_eq!(names, ["a"]);
    assert!(
        matches!(&told[0].what, What::Waiting { error: Some(error), .. } if *error == down),
        "{told:?}"
    );
    assert!(told[0].what.to_string().contains("unavailable: down"));
    // It is held by somebody then, and that is told.
    store.heal();
    let other = Leases::builder(store.clone()).clock(Clock::manual(&steps.clock()));
    let (other, _others) = other.build_stepped(2).unwrap();
    let _guard = other
        .lock("a")
        .lease(LEASE)
        .not_renewed()
        .at_once()
        .wait()
        .unwrap();
    pass(&steps, &mut waiting, 2 * second);
    let told = events();
    assert_eq!(told.len(), 1);
    assert!(matches!(told[0].what, What::Waiting { error: None, .. }));
    // Who gives up waits no more.
    let stats = leases.stats();
    assert_eq!((stats.asked, stats.waiting, stats.abandoned), (2, 2, 0));
    drop((waiting, short));
    steps.advance(100 * second);
    assert_eq!(events(), []);
    let stats = leases.stats();
    assert_eq!((stats.asked, stats.waiting, stats.abandoned), (2, 0, 2));
    assert_eq!(stats.armed, 0);
}

#[test]
fn answers_that_are_known_at_once_give_the_runtime_its_turns() {
    let (hand, leases, _store) = manual();
    let guard = leases.lock("a").wait().unwrap();
    let mut lost = guard.lost();
    hand.advance(LEASE);
    until("the lease runs out", || lost.is_lost());
    yields("a new future of a loss", async || {
        assert_eq!(guard.lost().await, Some(Loss::Expired));
    });
    yields("the same future of a loss", async || {
        assert_eq!((&mut lost).await, Some(Loss::Expired));
    });
    drop(guard);
    leases.close(LEASE);
    yields("closed", async || {
        let refused = leases.lock("a").await;
        assert!(matches!(refused, Err(LockError::Closed { .. })));
    });
    yields("closed, no wait", async || leases.lock("a").at_once().await);
}
