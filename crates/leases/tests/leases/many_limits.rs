//! Many locks at once: how long they may take together, and who gives them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::wait::until;
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Acquired, Claim, Destination, Fault, Holding, LeaseGuard, LeaseStore, Leases, LockError, Loss,
    MemoryStore, Outcome, ReleaseError, Released, Renewal, StoreCall, StoreError, StoreFuture,
};

use crate::worlds::{
    LEASE, Log, MS, S, Seen, blocking_threads, down, log, no_fault, world, world_of,
};

/// What all names of a call may take.
const ALL: Duration = LEASE.checked_div(3).unwrap();

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("n{at}")).collect()
}

fn guards(answers: Vec<Result<LeaseGuard, LockError>>) -> Vec<LeaseGuard> {
    answers.into_iter().map(Result::unwrap).collect()
}

/// How many names each call asked for, or gave back.
fn sizes(log: &Log, gives_back: bool) -> Vec<usize> {
    let calls = log.calls().into_iter();
    calls
        .filter_map(|(_, seen)| match seen {
            Seen::ClaimMany(names) if !gives_back => Some(names.len()),
            Seen::GiveBackMany(names) if gives_back => Some(names.len()),
            Seen::Claim(_) if !gives_back => Some(1),
            Seen::GiveBack(_) if gives_back => Some(1),
            _ => None,
        })
        .collect()
}

/// Moves the clock by `pause` at each call, and lets `fault` decide what becomes of it.
fn slow(
    hand: &ManualClock,
    pause: Duration,
    fault: fn() -> Fault,
) -> impl Fn(&StoreCall<'_>) -> Fault + use<> {
    let hand = hand.clone();
    move |_| {
        hand.advance(pause);
        fault()
    }
}

#[test]
fn a_store_that_does_not_answer_is_asked_once_for_a_thousand_names() {
    let world = world(1);
    let hand = world.steps.clock();
    let log = log(
        &world.store,
        &world.clock,
        slow(&hand, S, || Fault::Fail(down())),
    );
    let answers = world.leases.lock_all(names(1_000)).each().wait();
    assert_eq!(answers.len(), 1_000);
    for answer in answers {
        assert!(matches!(answer, Err(LockError::Store { error, .. }) if error == down()));
    }
    assert_eq!(sizes(&log, false), [100]);
    let stats = world.leases.stats();
    assert_eq!((stats.asked, stats.acquires_failed), (1_000, 1_000));
    // Only what may have been granted is given back.
    world.store.heal();
    let log = self::log(&world.store, &world.clock, no_fault);
    world.steps.settle();
    assert_eq!(sizes(&log, true), [100]);
}

#[test]
fn a_shorter_limit_of_the_call_holds_for_its_names_too() {
    let world = world(2);
    let hand = world.steps.clock();
    let log = log(
        &world.store,
        &world.clock,
        slow(&hand, ALL / 4, || Fault::None),
    );
    let began = world.leases.now();
    let all = world.leases.lock_all(names(1_000)).within(ALL / 2);
    let answers = all.each().wait();
    assert_eq!(world.leases.now(), began + ALL / 2);
    assert_eq!(sizes(&log, false), [100; 2]);
    let (asked, late) = answers.split_at(200);
    assert!(asked.iter().all(Result::is_ok) && late.iter().all(Result::is_err));
}

#[test]
fn names_whose_turn_does_not_come_in_time_are_not_asked_for() {
    let world = world(2);
    let hand = world.steps.clock();
    let log = log(
        &world.store,
        &world.clock,
        slow(&hand, ALL / 4, || Fault::None),
    );
    let began = world.leases.now();
    let mut answers = world.leases.lock_all(names(1_000)).each().wait();
    assert_eq!(world.leases.now(), began + ALL);
    assert_eq!(sizes(&log, false), [100; 4]);
    let late = answers.split_off(400);
    assert_eq!(guards(answers).len(), 400);
    for answer in late {
        let error = answer.unwrap_err();
        assert!(matches!(error, LockError::Store { .. }));
        assert!(
            error.to_string().contains("took all of its time"),
            "{error}"
        );
    }
    // So it is if a batch is refused, and its names are asked for one by one.
    let refuse = slow(&hand, ALL / 8, || Fault::None);
    let log = self::log(&world.store, &world.clock, move |call| match call {
        StoreCall::ClaimMany { .. } => Fault::Fail(StoreError::Refused("a batch".to_owned())),
        StoreCall::Claim(_) => refuse(call),
        _ => Fault::None,
    });
    let answers = world
        .leases
        .lock_all((0..300).map(|at| format!("m{at}")))
        .each()
        .wait();
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(granted, 8);
    assert_eq!(sizes(&log, false), [vec![100], vec![1; 8]].concat());
}

/// One of its destinations answers only acquires of one name. Its other calls take all of their time.
struct OneIsDead {
    store: MemoryStore,
    hand: ManualClock,
    calls: Arc<AtomicUsize>,
}

impl OneIsDead {
    fn answers(&self, destination: Destination, limit: Duration) -> Result<(), StoreError> {
        if destination != Destination::new(0) {
            return Ok(());
        }
        self.calls.fetch_add(1, SeqCst);
        self.hand.advance(limit);
        Err(down())
    }
}

impl LeaseStore for OneIsDead {
    fn destination(&self, name: &str) -> Destination {
        self.store.destination(name)
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(async move {
            if batch.len() > 1 {
                self.answers(destination, limit)?;
            }
            self.store.acquire(destination, batch, limit).await
        })
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.store.renew(destination, batch, limit)
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(async move {
            self.answers(destination, limit)?;
            self.store.release(destination, batch, limit).await
        })
    }
}

#[test]
fn a_destination_that_does_not_answer_leaves_time_for_the_others() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let calls = Arc::<AtomicUsize>::default();
    let store = OneIsDead {
        store: MemoryStore::with_destinations(clock.clone(), 4),
        hand: hand.clone(),
        calls: Arc::clone(&calls),
    };
    let of_dead = |name: &str, store: &OneIsDead| store.destination(name) == Destination::new(0);
    let all = names(1_000);
    let dead: Vec<bool> = all.iter().map(|name| of_dead(name, &store)).collect();
    let (leases, steps) = Leases::builder(store)
        .clock(clock)
        .build_stepped(1)
        .unwrap();
    let began = leases.now();
    let answers = leases.lock_all(&all).each().wait();
    // It is the first one, and has a fourth of the time.
    assert_eq!(leases.now(), began + ALL / 4);
    assert_eq!(calls.load(SeqCst), 1);
    for (answer, dead) in answers.iter().zip(dead) {
        assert_eq!(answer.is_err(), dead);
    }
    drop(answers);
    steps.settle();
}

#[test]
fn a_release_of_many_asks_each_destination_before_the_shortest_lease_ends() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = OneIsDead {
        store: MemoryStore::with_destinations(clock.clone(), 2),
        hand: hand.clone(),
        calls: Arc::default(),
    };
    let of = |number| {
        let lies = |name: &String| store.destination(name) == Destination::new(number);
        names(100).into_iter().find(lies).unwrap()
    };
    let (dead, healthy) = (of(0), of(1));
    let builder = Leases::builder(store).clock(clock);
    let (leases, _steps) = builder.build_stepped(1).unwrap();
    let lock = |name: &str| leases.lock(name).lease(2 * S).at_once().wait().unwrap();
    let began = leases.now();
    let released = leases.release_many([lock(&dead), lock(&healthy)]).wait();
    // By a third of 30 s the name of the other one would have run out.
    assert!(matches!(released[0], Err(ReleaseError::Store(_))));
    assert_eq!(released[1], Ok(()));
    // Half of a third of 2 s.
    assert!(leases.now() <= began + 2 * S / 6);
}

#[test]
fn a_future_that_is_dropped_makes_no_further_call() {
    let world = blocking_threads();
    let gate = Gate::default();
    let (shut, claims) = (gate.clone(), Arc::<AtomicUsize>::default());
    let seen = Arc::clone(&claims);
    world.store.inject(move |call| {
        if matches!(call, StoreCall::ClaimMany { .. }) {
            seen.fetch_add(1, SeqCst);
            shut.pass();
        }
        Fault::None
    });
    let mut asked = Box::pin(world.leases.lock_all(names(10_000)).each());
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(asked.as_mut().poll(&mut context).is_pending());
    gate.crowd(1);
    drop(asked);
    gate.open();
    // Its release may have come before its grant, and is repeated.
    until("what was granted is given back", || {
        world.hand.advance(MS);
        let stats = world.leases.stats();
        stats.asked == 10_000 && stats.waiting == 0 && stats.released == 100
    });
    assert_eq!(claims.load(SeqCst), 1);
    assert_eq!(world.leases.stats().kept, 0);
}

#[test]
fn many_are_released_in_batches_and_each_has_its_answer() {
    let world = world_of(3, 1, |builder| builder.batch(10));
    let other = world_of(4, 1, |builder| builder);
    let mut all = guards(world.leases.lock_all(names(25)).each().wait());
    // One that is not the last guard, one that is lost, one of other leases.
    let again = all[3].again().unwrap();
    let fixed = world
        .leases
        .lock("fixed")
        .lease(S)
        .not_renewed()
        .at_once()
        .wait();
    all.push(fixed.unwrap());
    all.push(other.leases.lock("foreign").at_once().wait().unwrap());
    world.steps.advance(2 * S);
    let log = log(&world.store, &world.clock, no_fault);
    let released = world.leases.release_many(all).wait();
    assert_eq!(released.len(), 27);
    for (at, released) in released.into_iter().enumerate() {
        match at {
            25 => assert_eq!(released, Err(ReleaseError::Lost(Loss::Expired))),
            _ => assert_eq!(released, Ok(()), "{at}"),
        }
    }
    assert_eq!(sizes(&log, true), [10, 10, 4]);
    assert_eq!(world.leases.stats().released, 24);
    assert!(again.is_held() && world.store.holder("n3").is_some());
    assert_eq!(other.store.holder("foreign"), None);
    assert_eq!(world.leases.release_many([again]).wait(), [Ok(())]);
    assert!(world.leases.release_many([]).wait().is_empty());
    world.steps.settle();
    assert!(
        names(25)
            .iter()
            .all(|name| world.store.holder(name).is_none())
    );
}

#[test]
fn what_many_can_not_release_in_time_is_released_in_the_background() {
    let world = world(5);
    let hand = world.steps.clock();
    // A server that does not answer, one that is slow, and one that has lost a name.
    for (fault, pause, calls) in [
        ((|| Fault::Fail(down())) as fn() -> Fault, S, 1),
        (|| Fault::LoseAnswer(down()), S, 1),
        (|| Fault::None, ALL / 2, 2),
    ] {
        let all = guards(world.leases.lock_all(names(300)).each().wait());
        let log = log(&world.store, &world.clock, slow(&hand, pause, fault));
        let released = world.leases.release_many(all).wait();
        assert_eq!(sizes(&log, true).len(), calls);
        let failed = released.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(failed, 300 - (calls - 1) * 200);
        world.store.heal();
        assert_eq!(world.leases.stats().kept, 0);
        world.steps.advance(LEASE);
        assert!(
            names(300)
                .iter()
                .all(|name| world.store.holder(name).is_none())
        );
    }
    let all = guards(world.leases.lock_all(["a", "b"]).each().wait());
    world.store.forget();
    let released = world.leases.release_many(all).wait();
    assert_eq!(
        released,
        [Err(ReleaseError::NotHeld), Err(ReleaseError::NotHeld)]
    );
}

#[tokio::test]
async fn many_can_be_released_by_a_future_also_if_it_is_dropped() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let lock = || async { guards(leases.lock_all(names(200)).each().await) };
    assert_eq!(leases.release_many(lock().await).await, vec![Ok(()); 200]);
    assert!(leases.release_many([]).await.is_empty());
    let mut release = Box::pin(leases.release_many(lock().await));
    let polled =
        std::future::poll_fn(|context| std::task::Poll::Ready(release.as_mut().poll(context)));
    let _ = polled.await;
    assert_eq!(
        leases.stats().kept,
        0,
        "the renewals end with the first poll"
    );
    drop(release);
    until("they are released", || {
        names(200).iter().all(|name| store.holder(name).is_none())
    });
    let late = lock().await;
    leases.close(S);
    let closed = leases.release_many(late).await;
    assert_eq!(closed[0], Err(ReleaseError::Lost(Loss::Closed)));
}

#[test]
fn drops_that_follow_each_other_share_their_wait() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone()).unwrap();
    let gate = Gate::default();
    let hangs = |gate: &Gate| {
        let gate = gate.clone();
        store.inject(move |call| {
            if matches!(
                call,
                StoreCall::GiveBack { .. } | StoreCall::GiveBackMany { .. }
            ) {
                gate.pass();
            }
            Fault::None
        });
    };
    let all = guards(leases.lock_all(names(500)).each().wait());
    hangs(&gate);
    let began = Instant::now();
    drop(all);
    // One after the other they would wait for 50 s.
    assert!(began.elapsed() < 25 * S, "{:?}", began.elapsed());
    // A lock that is acquired after that has its own tenth of a second, so that a thread which
    // locks again finds what it has dropped.
    for _ in 0..2 {
        let guard = leases.lock("other").at_once().wait().unwrap();
        let began = Instant::now();
        drop(guard);
        assert!(began.elapsed() >= 100 * MS);
        store.forget();
    }
    gate.open();
    until("they are given back", || {
        leases.stats().releases_queued == 0
    });
}
