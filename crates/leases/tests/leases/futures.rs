//! Calls as futures: who polls the store, what ends a call, and what is left of one that is
//! dropped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock, Runtime};
use tourbillon_leases::{
    DetachError, Fault, LeaseFuture, Leases, LockError, Loss, MemoryStore, ReleaseError, StoreCall,
    StoreError,
};

use crate::after::{After, AsyncGate};
use crate::worlds::{LEASE, MS, S};

const NS: Duration = Duration::from_nanos(1);

/// Leases with threads, on a clock that only the test moves, and a store whose calls wait at a gate
/// before they are executed.
struct Gated {
    hand: ManualClock,
    leases: Leases,
    store: MemoryStore,
    gate: AsyncGate,
}

fn gated() -> Gated {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_clock(clock.clone());
    let gate = AsyncGate::default();
    let at = gate.clone();
    let builder = Leases::builder(After::new(store.clone(), move || at.pass()));
    Gated {
        leases: builder.clock(clock).lease(LEASE).build().unwrap(),
        hand,
        store,
        gate,
    }
}

/// Awaits a call that gets no answer, until its limit.
fn in_vain<T>(gated: &Gated, limit: Duration, mut call: LeaseFuture<T>) -> T {
    gated.gate.shut();
    let wakes = Wakes::new();
    assert!(poll(&mut call, &wakes).is_pending());
    assert!(gated.gate.waiting() >= 1);
    gated.hand.advance(limit - NS);
    assert!(poll(&mut call, &wakes).is_pending());
    assert_eq!(wakes.count(), 0, "nobody wakes it before");
    gated.hand.advance(NS);
    until("the limit wakes it", || wakes.count() > 0);
    let Poll::Ready(answer) = poll(&mut call, &wakes) else {
        panic!("it waits after its limit");
    };
    // Whatever waits at the gate now is a call of the background.
    gated.gate.open();
    answer
}

fn is_unanswered<T: std::fmt::Debug>(answer: Result<T, LockError>) {
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("no answer within"), "{error}");
}

#[test]
fn an_awaited_call_without_an_answer_ends_at_its_limit_by_the_clock_of_the_leases() {
    let gated = gated();
    let leases = &gated.leases;
    is_unanswered(in_vain(
        &gated,
        LEASE / 3,
        leases.lock("a").at_once().into_future(),
    ));
    let late = in_vain(&gated, S, leases.lock("a").within(S).into_future());
    assert!(
        matches!(late, Err(LockError::Unanswered { .. })),
        "{late:?}"
    );
    is_unanswered(in_vain(&gated, LEASE / 3, leases.holder("a")));
    let mut many = in_vain(&gated, LEASE / 3, leases.lock_all(["a", "b"]).each());
    is_unanswered(many.remove(0));

    let lock = || leases.lock("c").lease(LEASE).not_renewed().wait().unwrap();
    let guard = lock();
    let extend = guard.extend(2 * LEASE);
    is_unanswered(in_vain(&gated, LEASE / 6, extend));
    assert!(guard.is_held());
    // It may last for twice as long now.
    let Err(DetachError::Store(guard, _)) = in_vain(&gated, LEASE / 3, guard.detach()) else {
        panic!("it has no answer");
    };
    let ticket = guard.detach().wait().unwrap();
    is_unanswered(in_vain(&gated, LEASE / 3, leases.resume(&ticket)));
    let guard = leases.resume(&ticket).wait().unwrap();
    let released = in_vain(&gated, LEASE / 3, guard.release());
    assert!(
        matches!(released, Err(ReleaseError::Store(_))),
        "{released:?}"
    );
    let released = in_vain(&gated, LEASE / 3, leases.release_many([lock_again(&gated)]));
    assert!(matches!(released[0], Err(ReleaseError::Store(_))));
}

/// When the release before it has come through.
fn lock_again(gated: &Gated) -> tourbillon_leases::LeaseGuard {
    let mut had = None;
    until("it is free", || {
        gated.hand.advance(MS);
        had = gated.leases.lock("c").at_once().wait().ok();
        had.is_some()
    });
    had.unwrap()
}

#[test]
fn a_poll_at_the_limit_does_not_poll_the_store() {
    let hand = ManualClock::new();
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    let store = After::new(MemoryStore::with_clock(Clock::manual(&hand)), move || {
        let polls = Arc::clone(&count);
        std::future::poll_fn(move |_| {
            polls.fetch_add(1, SeqCst);
            Poll::Pending
        })
    });
    let leases = Leases::builder(store)
        .clock(Clock::manual(&hand))
        .lease(LEASE);
    let leases = leases.build().unwrap();
    let mut look = leases.holder("a");
    for _ in 0..3 {
        assert!(poll(&mut look, &Wakes::new()).is_pending());
    }
    hand.advance(LEASE / 3);
    let Poll::Ready(late) = poll(&mut look, &Wakes::new()) else {
        panic!("it waits after its limit");
    };
    is_unanswered(late);
    assert_eq!(polls.load(SeqCst), 3);
}

#[test]
fn a_future_that_moves_to_another_task_wakes_that_one() {
    let gated = gated();
    gated.gate.shut();
    let [first, second] = [Wakes::new(), Wakes::new()];
    let mut look = gated.leases.holder("a");
    assert!(poll(&mut look, &first).is_pending());
    assert!(poll(&mut look, &second).is_pending());
    gated.hand.advance(LEASE / 3);
    until("the limit wakes it", || second.count() == 1);
    assert_eq!(first.count(), 0);

    // A caller that waits for a lock.
    gated.gate.open();
    let held = gated.leases.lock("a").wait().unwrap();
    let mut lock = gated.leases.lock("a").into_future();
    assert!(poll(&mut lock, &first).is_pending());
    assert!(poll(&mut lock, &second).is_pending());
    let before = (first.count(), second.count());
    gated.hand.advance(S);
    until("its next attempt is due", || second.count() > before.1);
    assert_eq!(first.count(), before.0);
    assert!(poll(&mut lock, &first).is_pending());
    held.release().wait().unwrap();
    until("the release wakes it", || first.count() > before.0);
    let Poll::Ready(guard) = poll(&mut lock, &first) else {
        panic!("it waits for a lock that is free");
    };
    assert!(guard.unwrap().is_held());
}

#[test]
fn a_dropped_future_drops_its_call_and_gives_back_what_it_may_hold() {
    let gated = gated();
    gated.gate.shut();
    let wakes = Wakes::new();
    let mut lock = gated.leases.lock("a").into_future();
    assert!(poll(&mut lock, &wakes).is_pending());
    assert_eq!(gated.gate.waiting(), 1);
    drop(lock);
    // Its release waits at the gate.
    until("it is given back", || gated.gate.waiting() == 1);
    gated.gate.open();
    let stats = gated.leases.stats();
    assert_eq!((stats.waiting, stats.abandoned), (0, 1));

    // What it was asked to release is released.
    let guard = gated.leases.lock("b").wait().unwrap();
    gated.gate.shut();
    let mut release = guard.release();
    assert!(poll(&mut release, &wakes).is_pending());
    drop(release);
    gated.gate.open();
    until("it is released", || gated.store.holder("b").is_none());

    // An extension that is dropped does not hold up the release.
    let guard = gated
        .leases
        .lock("c")
        .lease(LEASE)
        .not_renewed()
        .wait()
        .unwrap();
    gated.gate.shut();
    let mut extend = guard.extend(2 * LEASE);
    assert!(poll(&mut extend, &wakes).is_pending());
    drop(extend);
    gated.gate.open();
    assert_eq!(guard.release().wait(), Ok(()));
}

/// The clock stands still.
#[test]
fn a_release_waits_for_an_extension_that_is_under_way() {
    let gated = gated();
    let guard = gated
        .leases
        .lock("c")
        .lease(LEASE)
        .not_renewed()
        .wait()
        .unwrap();
    let wakes = Wakes::new();
    gated.gate.shut();
    let mut extend = guard.extend(2 * LEASE);
    assert!(poll(&mut extend, &wakes).is_pending());
    let mut second = guard.extend(3 * LEASE);
    assert!(poll(&mut second, &wakes).is_pending());
    assert_eq!(gated.gate.waiting(), 1, "one follows the other");
    let waits = Wakes::new();
    let mut release = guard.release();
    assert!(poll(&mut release, &waits).is_pending());
    gated.gate.open();
    // The store has released it, and the extension is still under way.
    assert!(poll(&mut release, &waits).is_pending());
    assert_eq!(gated.store.holder("c"), None);
    let before = waits.count();
    assert!(poll(&mut extend, &wakes).is_ready());
    assert!(waits.count() > before, "its end wakes the release");
    assert_eq!(poll(&mut release, &waits), Poll::Ready(Ok(())));
}

/// The clock stands still.
#[test]
fn locks_of_many_that_are_released_are_not_released_again() {
    let gated = gated();
    let lock = |name| gated.leases.lock(name).lease(LEASE).not_renewed().wait();
    let (a, b) = (lock("a").unwrap(), lock("b").unwrap());
    let releases = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&releases);
    gated.store.inject(move |call| {
        if let StoreCall::GiveBack { .. } | StoreCall::GiveBackMany { .. } = call {
            count.fetch_add(1, SeqCst);
        }
        Fault::None
    });
    let wakes = Wakes::new();
    gated.gate.shut();
    let mut extend = a.extend(2 * LEASE);
    assert!(poll(&mut extend, &wakes).is_pending());
    gated.gate.open();
    let mut release = gated.leases.release_many([a, b]);
    assert!(poll(&mut release, &wakes).is_pending());
    assert_eq!(releases.load(SeqCst), 1);
    // It waits for the extension.
    drop(release);
    gated.leases.close(S);
    assert_eq!(releases.load(SeqCst), 1);
}

#[test]
fn a_release_that_nobody_polls_any_more_leaves_the_lock_free_after_its_lease() {
    let gated = gated();
    let lock = |name| gated.leases.lock(name).wait().unwrap();
    let (a, b) = (lock("a"), lock("b"));
    gated.gate.shut();
    let wakes = Wakes::new();
    let (mut one, mut many) = (a.release(), gated.leases.release_many([b]));
    assert!(poll(&mut one, &wakes).is_pending());
    assert!(poll(&mut many, &wakes).is_pending());
    let free = |name| gated.store.holder(name).is_none();
    assert!(!free("a") && !free("b"));
    gated.hand.advance(LEASE);
    assert!(free("a") && free("b"));
    gated.gate.open();
}

/// The renewals of eight destinations block whatever workers there are.
#[test]
fn renewals_that_hang_do_not_keep_the_limit_of_an_awaited_call() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let memory = MemoryStore::with_destinations(clock.clone(), 8);
    let (at, hangs) = (AsyncGate::default(), Gate::default());
    let (own, renewals) = (at.clone(), hangs.clone());
    memory.inject(move |call| {
        if let StoreCall::Renew { .. } = call {
            renewals.pass();
        }
        Fault::None
    });
    let store = After::answering(memory, move || own.pass());
    let builder = Leases::builder(store).clock(clock).lease(LEASE);
    let leases = builder.build().unwrap();
    let lock = |at: usize| leases.lock(&format!("n{at}")).wait().unwrap();
    let _guards: Vec<_> = (0..40).map(lock).collect();
    until("renewals hang", || {
        hand.advance(10 * MS);
        hangs.waiting() >= 2
    });
    at.shut();
    let wakes = Wakes::new();
    let mut look = leases.holder("a");
    assert!(poll(&mut look, &wakes).is_pending());
    until("the limit wakes it", || {
        hand.advance(S);
        wakes.count() > 0
    });
    assert!(matches!(poll(&mut look, &wakes), Poll::Ready(Err(_))));
    hangs.open();
    at.open();
}

#[test]
fn a_call_that_nothing_could_end_fails_at_once() {
    let runtime = Runtime::builder().tickers(1).workers(1).build().unwrap();
    runtime.shut_down(60 * S).unwrap();
    let store = After::new(MemoryStore::new(), std::future::pending);
    let leases = Leases::builder(store).runtime(&runtime).build().unwrap();
    // The first timer would start the threads.
    let Poll::Ready(Err(error)) = poll(&mut leases.holder("a"), &Wakes::new()) else {
        panic!("it waits");
    };
    assert!(error.to_string().contains("no threads"), "{error}");
}

/// A store that panics in the poll of this number, counted from 1.
fn panics_in_poll(number: usize) -> impl Future<Output = ()> + Send {
    let mut polls = 0;
    std::future::poll_fn(move |context| {
        polls += 1;
        assert!(polls < number, "on purpose");
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

#[test]
fn a_panic_in_a_poll_of_the_store_is_a_failure_of_the_call() {
    kit::quiet::hush();
    for number in [1, 2, 3] {
        let hand = ManualClock::new();
        let clock = Clock::manual(&hand);
        let memory = MemoryStore::with_clock(clock.clone());
        let store = After::new(memory, move || panics_in_poll(number));
        let leases = Leases::builder(store).clock(clock).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for awaited in [false, true] {
            let lock = leases.lock("a").at_once().into_future();
            let look = leases.holder("a");
            let (locked, looked) = match awaited {
                true => (runtime.block_on(lock), runtime.block_on(look)),
                false => (lock.wait(), look.wait()),
            };
            for error in [locked.unwrap_err(), looked.unwrap_err()] {
                assert!(error.to_string().contains("on purpose"), "{error}");
            }
        }
        let stats = leases.stats();
        assert_eq!((stats.waiting, stats.acquires_failed), (0, 2));
    }
}

#[test]
fn a_close_during_a_call_ends_the_wait_with_its_answer() {
    let gated = gated();
    gated.gate.shut();
    let wakes = Wakes::new();
    let mut lock = gated.leases.lock("a").into_future();
    assert!(poll(&mut lock, &wakes).is_pending());
    // It does not block: nothing is queued or held.
    gated.leases.close(Duration::ZERO);
    gated.gate.open();
    let Poll::Ready(closed) = poll(&mut lock, &wakes) else {
        panic!("its answer is there");
    };
    assert!(
        matches!(closed, Err(LockError::Closed { .. })),
        "{closed:?}"
    );
    drop(lock);
    until("what was granted is given back", || {
        gated.store.holder("a").is_none()
    });
    // A call that tells is answered all the same.
    let mut look = gated.leases.holder("a");
    assert!(matches!(poll(&mut look, &wakes), Poll::Ready(Ok(None))));

    // A guard whose leases are closed while it is released.
    let gated = self::gated();
    let guard = gated.leases.lock("a").wait().unwrap();
    gated.leases.close(Duration::ZERO);
    assert_eq!(
        guard.release().wait(),
        Err(ReleaseError::Lost(Loss::Closed))
    );
}

/// A store that is kept in leases of others, and asks them on the thread that polls it.
#[test]
fn a_store_may_wait_for_other_leases_in_a_poll() {
    let inner = Leases::new(MemoryStore::new()).unwrap();
    let own = inner.clone();
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let memory = MemoryStore::with_clock(clock.clone());
    let store = After::new(memory, move || {
        let own = own.clone();
        async move {
            let guard = own.lock("turn").wait().unwrap();
            // Also as a future of theirs, whose timers are other ones.
            own.holder("turn").await.unwrap();
            guard.release().await.unwrap();
        }
    });
    let leases = Leases::builder(store).clock(clock).build().unwrap();
    let guard = leases.lock("a").wait().unwrap();
    guard.release().wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let guard = runtime.block_on(leases.lock("a").into_future()).unwrap();
    runtime.block_on(guard.release()).unwrap();
    assert_eq!(inner.stats().granted, 4);
}

/// The other leases go by another clock, which goes on.
#[test]
fn a_store_may_await_other_leases_while_a_thread_waits() {
    let inner = Leases::builder(MemoryStore::new())
        .poll(MS)
        .build()
        .unwrap();
    let held = inner.lock("turn").wait().unwrap();
    let own = inner.clone();
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let memory = MemoryStore::with_clock(clock.clone());
    let store = After::new(memory, move || {
        let own = own.clone();
        async move {
            let _turn = own.lock("turn").await.unwrap();
        }
    });
    let leases = Leases::builder(store).clock(clock).build().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| leases.lock("a").wait().map(drop));
        until("it waits", || inner.stats().waiting == 1);
        held.release().wait().unwrap();
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn a_runtime_inside_of_a_store_that_is_waited_for_is_woken_at_its_limits() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    // Its calls never answer.
    let memory = MemoryStore::with_clock(clock.clone());
    let inner = Leases::builder(After::new(memory, std::future::pending));
    let inner = inner.clock(clock.clone()).lease(LEASE).build().unwrap();
    let memory = MemoryStore::with_clock(clock.clone());
    let asked = Arc::new(AtomicUsize::new(0));
    let (own, count) = (inner.clone(), Arc::clone(&asked));
    let outer = After::new(memory, move || {
        let (own, count) = (own.clone(), Arc::clone(&count));
        async move {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            let look = own.holder("a");
            count.fetch_add(1, SeqCst);
            assert!(runtime.block_on(look).is_err());
        }
    });
    let outer = Leases::builder(outer)
        .clock(clock)
        .lease(30 * LEASE)
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| outer.holder("a").wait());
        until("it asks", || asked.load(SeqCst) == 1);
        until("it goes on", || {
            hand.advance(S);
            waits.is_finished()
        });
        let answer: Result<_, LockError> = waits.join().unwrap();
        let error: Option<StoreError> = answer.err().and_then(|error| match error {
            LockError::Store { error, .. } => Some(error),
            _ => None,
        });
        assert_eq!(error, None);
    });
}
