//! Who waits for a lock: woken in order, patient for as long as it was asked to be, and gone
//! without a trace.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::{quiet, wait};
use tourbillon::{Clock, ManualClock, Time};
use tourbillon_leases::{
    Acquired, Claim, Fault, LeaseGuard, Leases, LockError, MemoryStore, Released, Secret,
    StoreCall, StoreError, What,
};

use crate::calls::Calls;
use crate::double::{Called, StoreDouble};
use crate::worlds::{
    LEASE, Log, MS, S, Seen, Threads, down, log, march, no_fault, threads, threads_of, world,
};

fn logged(world: &Threads) -> Log {
    log(&world.store, &Clock::manual(&world.hand), no_fault)
}

fn claims(log: &Log) -> usize {
    let calls = log.calls();
    let claims = calls
        .iter()
        .filter(|(_, seen)| matches!(seen, Seen::Claim(_)));
    claims.count()
}

/// Somebody on a thread of its own who waits, and says what came of it.
fn waiter(leases: &Leases) -> Receiver<Result<LeaseGuard, LockError>> {
    let (leases, (send, had)) = (leases.clone(), channel());
    thread::spawn(move || {
        // The test may have seen enough.
        let _ = send.send(leases.lock("a").wait());
    });
    had
}

#[test]
fn who_waits_is_woken_by_the_release_and_asks_no_more_than_twice_before() {
    let world = threads();
    let first = world.leases.lock("a").at_once().wait().unwrap();
    let log = logged(&world);
    let had = waiter(&world.leases);
    // Once, and once more when the store watches.
    until("it waits", || claims(&log) == 2);
    first.release().wait().unwrap();
    // The clock stands still, so it was not the time to ask anyway.
    let guard = wait::next(&had).unwrap();
    assert!(guard.is_held());
    assert_eq!(claims(&log), 3);
}

#[test]
fn those_who_wait_have_it_in_the_order_of_their_coming() {
    for _ in 0..20 {
        let world = threads();
        let mut held = world.leases.lock("a").at_once().wait().unwrap();
        let log = logged(&world);
        let waiting: Vec<_> = (1..=5)
            .map(|n| {
                let had = waiter(&world.leases);
                until("it waits", || claims(&log) == 2 * n);
                had
            })
            .collect();
        for (at, had) in waiting.iter().enumerate() {
            let token = held.token();
            held.release().wait().unwrap();
            held = wait::next(had).unwrap();
            assert!(held.token() > token);
            // One is woken for one release.
            assert_eq!(claims(&log), 10 + at + 1);
        }
    }
}

#[test]
fn who_waits_has_it_when_the_lease_in_the_way_runs_out() {
    for poll in [None, Some(3_600 * S)] {
        let world = threads_of(1, |builder| match poll {
            Some(poll) => builder.poll(poll),
            None => builder,
        });
        let dead = world
            .leases
            .lock("a")
            .lease(10 * S)
            .not_renewed()
            .at_once()
            .wait();
        std::mem::forget(dead.unwrap());
        let log = logged(&world);
        let had = waiter(&world.leases);
        until("it waits", || claims(&log) == 2);
        // Nobody gives it back, so nobody tells.
        world.hand.advance(10 * S - MS);
        thread::yield_now();
        assert!(had.try_recv().is_err());
        march(&world.hand, 2 * S, "it is free", || {
            world.store.holder("a").is_some_and(|(_, token)| token > 1)
        });
        assert!(wait::next(&had).unwrap().is_held());
    }
}

#[test]
fn a_try_that_waits_gives_up_in_time_and_leaves_nothing() {
    let world = threads();
    let held = world.leases.lock("a").at_once().wait().unwrap();
    let log = logged(&world);
    let (leases, (send, had)) = (world.leases.clone(), channel());
    let trying = thread::spawn(move || {
        let began = leases.now();
        let answer = leases.lock("a").within(5 * S).wait();
        send.send((leases.now().since(began), answer.map(drop)))
            .unwrap();
    });
    until("it waits", || claims(&log) == 2);
    world.hand.advance(5 * S - MS);
    thread::yield_now();
    assert!(had.try_recv().is_err());
    world.hand.advance(MS);
    let (took, answer) = wait::next(&had);
    assert!(
        matches!(answer, Err(LockError::TimedOut { .. })),
        "{answer:?}"
    );
    assert_eq!(took, 5 * S);
    trying.join().unwrap();
    // Neither a lease nor anybody who would be woken instead of the next one, nor a timer, when the
    // flush that may have followed has ended.
    until("only the renewal is armed", || {
        world.leases.stats().armed == 1
    });
    let before = claims(&log);
    let next = waiter(&world.leases);
    until("the next one waits", || claims(&log) == before + 2);
    held.release().wait().unwrap();
    // The one that gave up had waited for a turn, and nobody takes that: the clock has to go on.
    let mut answer = None;
    march(&world.hand, S, "the next one has it", || {
        answer = next.try_recv().ok();
        answer.is_some()
    });
    assert!(answer.is_some_and(|answer| answer.is_ok()));
}

#[test]
fn without_patience_there_is_one_call_all_the_same() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let guard = world
        .leases
        .lock("a")
        .within(Duration::ZERO)
        .wait()
        .unwrap();
    let refused = world.leases.lock("a").within(Duration::ZERO).wait();
    assert!(matches!(refused, Err(LockError::TimedOut { .. })));
    let refused = world.leases.lock("a").at_once().wait();
    assert!(matches!(refused, Err(LockError::Held { remaining, .. }) if remaining == LEASE));
    assert_eq!(log.len(), 3);
    drop(guard);
}

#[test]
fn the_longest_patience_is_endless() {
    let world = threads();
    let held = world.leases.lock("a").at_once().wait().unwrap();
    let log = logged(&world);
    let (leases, (send, had)) = (world.leases.clone(), channel());
    thread::spawn(move || {
        let _ = send.send(leases.lock("a").within(Duration::MAX).wait());
    });
    until("it waits", || claims(&log) == 2);
    held.release().wait().unwrap();
    assert!(wait::next(&had).is_ok());
}

#[test]
fn who_waits_waits_out_a_store_that_fails() {
    quiet::hush();
    let world = threads();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let log = log(
        &world.store,
        &Clock::manual(&world.hand),
        move |call| match call {
            StoreCall::Claim(_) => match count.fetch_add(1, SeqCst) {
                0 | 3 => Fault::Fail(down()),
                1 => Fault::LoseAnswer(down()),
                2 => panic!("wanted"),
                4 => Fault::Fail(StoreError::Restarted { wait: 3_600 * S }),
                _ => Fault::None,
            },
            _ => Fault::None,
        },
    );
    let had = waiter(&world.leases);
    // Perhaps six times already, when this is looked at.
    march(&world.hand, S, "it asks again and again", || {
        claims(&log) >= 5
    });
    // It was granted by the second call, and nobody knows; the same owner is granted it again.
    assert!(world.store.holder("a").is_some());
    let at = log.calls()[4].0;
    march(&world.hand, S, "it has it", || claims(&log) == 6);
    let guard = wait::next(&had).unwrap();
    // It was told how long that takes, and does not rely on it: clocks may be set.
    assert!(log.calls().last().unwrap().0.since(at) <= 10 * S);
    assert_eq!(world.store.holder("a").unwrap().1, guard.token());
    // Nor is it given back behind the holder's back.
    assert!(
        !log.calls()
            .iter()
            .any(|(_, seen)| matches!(seen, Seen::GiveBack(_)))
    );
    guard.release().wait().unwrap();
}

#[test]
fn what_the_store_said_last_is_told_at_the_end() {
    let world = threads();
    let log = log(&world.store, &Clock::manual(&world.hand), |_| {
        Fault::Fail(down())
    });
    let (leases, (send, had)) = (world.leases.clone(), channel());
    thread::spawn(move || {
        send.send(leases.lock("a").within(2 * S).wait().map(drop))
            .unwrap();
    });
    march(&world.hand, 3 * S, "it has asked several times", || {
        claims(&log) >= 5
    });
    let mut answer = None;
    march(&world.hand, 3 * S, "it gives up", || {
        answer = had.try_recv().ok();
        answer.is_some()
    });
    let last = match answer {
        Some(Err(LockError::Unanswered { name, error, .. })) if name == "a" => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(last, down());
}

#[test]
fn a_store_that_refuses_for_good_is_not_waited_out() {
    let world = world(1);
    let refused = StoreError::Refused("no permission".to_owned());
    let own = refused.clone();
    let log = log(&world.store, &world.clock, move |_| {
        Fault::Fail(own.clone())
    });
    for answer in [
        world.leases.lock("a").wait(),
        world.leases.lock("a").at_once().wait(),
        world.leases.lock("a").within(10 * S).wait(),
    ] {
        assert!(matches!(answer, Err(LockError::Store { error, .. }) if error == refused));
    }
    assert_eq!(log.len(), 3);
}

#[test]
fn who_waits_when_it_is_all_over_is_told() {
    let world = threads();
    let held = world.leases.lock("a").at_once().wait().unwrap();
    let log = logged(&world);
    let had = waiter(&world.leases);
    until("it waits", || claims(&log) == 2);
    world.leases.close(S);
    // The name was given back, so it is woken, and finds that nothing is kept any more.
    assert!(matches!(wait::next(&had), Err(LockError::Closed { .. })));
    until("nothing is left", || world.store.holder("a").is_none());
    drop(held);
}

#[test]
fn threads_that_fight_for_a_lock_have_it_one_at_a_time() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let (inside, tokens) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for number in 0..4 {
            let (leases, inside, tokens) = (&leases, &inside, &tokens);
            scope.spawn(move || {
                for round in 0..50 {
                    let guard = leases.lock("a").wait().unwrap();
                    assert!(!inside.swap(true, SeqCst));
                    tokens.lock().unwrap().push(guard.token());
                    inside.store(false, SeqCst);
                    if (round + number) % 2 == 0 {
                        guard.release().wait().unwrap();
                    }
                }
            });
        }
    });
    let tokens = tokens.into_inner().unwrap();
    assert_eq!(tokens.len(), 200);
    assert!(tokens.is_sorted_by(|one, next| one < next));
}

#[test]
fn a_store_that_can_not_tell_is_asked_every_now_and_then() {
    // A tenth of a second, or what was asked for, and a fifth of that more or less.
    for (poll, mean) in [(None, 100 * MS), (Some(2 * S), 2 * S)] {
        let hand = ManualClock::new();
        let clock = Clock::manual(&hand);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let store = StoreDouble::of(MemoryStore::with_clock(clock.clone()));
        let (times, now) = (Arc::clone(&asked), clock.clone());
        let store = store.notes(move |called, _| {
            if called == Called::Acquire {
                times.lock().unwrap().push(now.now());
            }
        });
        let builder = Leases::builder(store).clock(clock);
        let builder = match poll {
            Some(poll) => builder.poll(poll),
            None => builder,
        };
        let leases = builder.build().unwrap();
        let guard = leases.lock("a").at_once().wait().unwrap();
        let had = waiter(&leases);
        march(&hand, 20 * S, "it asks", || {
            asked.lock().unwrap().len() >= 8
        });
        guard.release().wait().unwrap();
        let mut answer = None;
        march(&hand, 3 * S, "it has it", || {
            answer = had.try_recv().ok();
            answer.is_some()
        });
        assert!(answer.is_some_and(|answer| answer.is_ok()));
        // The first is ours, and the waiter asks twice at once.
        let asked = asked.lock().unwrap();
        let gaps = asked[2..].windows(2).map(|pair| pair[1].since(pair[0]));
        // A clock that is moved by hand may wake somebody once for nothing.
        let gaps: Vec<_> = gaps.filter(|gap| *gap > Duration::ZERO).collect();
        assert!(
            gaps.iter().filter(|gap| **gap >= mean * 4 / 5).count() >= 3,
            "{gaps:?}"
        );
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_store_that_forgets_wakes_those_who_wait() {
    let store = MemoryStore::with_clock(Clock::manual(&ManualClock::new()));
    let claim = Claim::new("a", "one", Secret::new("one"), LEASE).waiting();
    assert!(claim.waits);
    assert_eq!(store.acquire(&claim, S), Ok(Acquired::granted(1)));
    let bell = Arc::new(Bell::default());
    let watch = store.watch("a", &Waker::from(Arc::clone(&bell)));
    store.forget();
    assert_eq!(bell.0.load(SeqCst), 1);
    assert_eq!(
        store.release("a", Secret::new("one"), S),
        Ok(Released::NotHeld)
    );
    drop(watch);
    assert_eq!(Arc::strong_count(&bell), 1);
}

#[test]
fn a_call_takes_no_longer_than_the_patience_that_is_left() {
    let clock = Clock::manual(&ManualClock::new());
    let limits = Arc::<Mutex<Vec<Duration>>>::default();
    let noted = Arc::clone(&limits);
    let store = StoreDouble::of(MemoryStore::with_clock(clock.clone()))
        .notes(move |_, limit| noted.lock().unwrap().push(limit));
    let builder = Leases::builder(store).clock(clock);
    let (leases, _steps) = builder.build_stepped(1).unwrap();
    let take = || std::mem::take(&mut *limits.lock().unwrap());
    leases
        .lock("a")
        .at_once()
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    // A third of the lease, and a sixth of it for the way back.
    assert_eq!(take(), [LEASE / 3, LEASE / 6]);
    let guard = leases.lock("a").lease(3 * S).at_once().wait().unwrap();
    guard.release().wait().unwrap();
    assert_eq!(take(), [S, S / 2]);
    let _guard = leases.lock("a").within(5 * S).wait().unwrap();
    let _ = leases.lock("a").within(Duration::ZERO).wait();
    assert_eq!(take(), [5 * S, 10 * MS]);
}

#[test]
fn a_request_that_hangs_holds_up_nobody_else() {
    let world = threads();
    let gate = Gate::default();
    let at_gate = gate.clone();
    world.store.inject(move |call| {
        if let StoreCall::Claim(claim) = call
            && claim.name == "a"
        {
            at_gate.pass();
        }
        Fault::None
    });
    let had = waiter(&world.leases);
    gate.crowd(1);
    let other = world.leases.lock("b").wait().unwrap();
    world.hand.advance(12 * S);
    march(&world.hand, S, "it is renewed", || other.renewals() == 1);
    other.release().wait().unwrap();
    gate.open();
    // Granted now, and counted from when it was asked for: there is less left.
    let guard = wait::next(&had).unwrap();
    assert!(guard.remaining() < 18 * S);
}

#[test]
fn a_call_that_hangs_holds_up_no_event_of_the_wait() {
    let world = threads();
    let gate = Gate::default();
    let own = gate.clone();
    let log = log(&world.store, &Clock::manual(&world.hand), move |call| {
        if matches!(call, StoreCall::Claim(_)) {
            own.pass();
        }
        Fault::None
    });
    let events = world.leases.events(100);
    let had = waiter(&world.leases);
    gate.crowd(1);
    let mut told = None;
    march(&world.hand, S, "it is told", || {
        told = events.try_recv().ok();
        told.is_some()
    });
    let event = told.unwrap();
    assert_eq!(event.key.name(), "a");
    match event.what {
        What::Waiting { since, error, .. } => {
            assert!(event.at.since(since) >= S);
            let why = error.unwrap().to_string();
            assert!(
                why.contains("no answer for") && why.contains("under way"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.leases.stats().waiting, 1);
    gate.open();
    let guard = wait::next(&had).unwrap();
    assert_eq!(claims(&log), 1);
    assert_eq!(*guard.id(), event.key);
    let stats = world.leases.stats();
    assert_eq!((stats.asked, stats.granted, stats.waiting), (1, 1, 0));
}

#[test]
fn a_lock_that_is_held_and_a_store_that_fails_are_two_ends_of_the_patience() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    // One call each, since the clock stands still and there is no patience.
    let try_it = || world.leases.lock("a").within(Duration::ZERO).wait();
    match try_it() {
        Err(error @ LockError::TimedOut { .. }) => assert_eq!(error.name(), "a"),
        other => panic!("{other:?}"),
    }
    for failure in [down(), StoreError::Restarted { wait: 7 * S }] {
        let own = failure.clone();
        world.store.inject(move |_| Fault::Fail(own.clone()));
        match try_it() {
            Err(LockError::Unanswered { name, error, .. }) => {
                assert_eq!((name.as_str(), error), ("a", failure));
            }
            other => panic!("{other:?}"),
        }
    }
    world.store.heal();
    assert!(matches!(try_it(), Err(LockError::TimedOut { .. })));
    guard.release().wait().unwrap();
    assert!(try_it().is_ok());
}

#[test]
fn a_last_call_without_time_does_not_hide_what_was_known_before() {
    // The clock stands at the end of the patience when the last call is made.
    for (fails_from, held) in [(3, true), (2, false)] {
        let world = threads();
        let _guard = world
            .leases
            .lock("a")
            .lease(LEASE)
            .not_renewed()
            .at_once()
            .wait();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let log = log(&world.store, &Clock::manual(&world.hand), move |call| {
            let claim = matches!(call, StoreCall::Claim(_));
            match count.fetch_add(usize::from(claim), SeqCst) + 1 {
                call if !claim || call < fails_from => Fault::None,
                2 => Fault::Fail(down()),
                _ => Fault::Fail(StoreError::Unavailable("too late".to_owned())),
            }
        });
        let (leases, (send, had)) = (world.leases.clone(), channel());
        thread::spawn(move || send.send(leases.lock("a").within(S / 2).wait()));
        until("it waits", || claims(&log) >= 2);
        world.hand.advance(S / 2);
        let answer = wait::next(&had);
        match answer {
            Err(LockError::TimedOut { .. }) => assert!(held),
            Err(LockError::Unanswered { error, .. }) => {
                assert!(!held);
                assert_eq!(error, down());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_acquire_is_counted_by_its_end() {
    let world = world(1);
    let ends = || {
        let stats = world.leases.stats();
        assert_eq!((stats.waiting, stats.abandoned), (0, 0));
        assert_eq!(
            stats.asked,
            stats.granted + stats.refused + stats.acquires_failed
        );
        (stats.granted, stats.refused, stats.acquires_failed)
    };
    assert_eq!(ends(), (0, 0, 0));
    let guard = world.leases.lock("a").wait().unwrap();
    assert_eq!(ends(), (1, 0, 0));
    assert!(world.leases.lock("a").at_once().wait().is_err());
    assert!(
        world
            .leases
            .lock("a")
            .within(Duration::ZERO)
            .wait()
            .is_err()
    );
    assert_eq!(ends(), (1, 2, 0));
    world.store.inject(|_| Fault::Fail(down()));
    assert!(world.leases.lock("b").at_once().wait().is_err());
    assert!(
        world
            .leases
            .lock("b")
            .within(Duration::ZERO)
            .wait()
            .is_err()
    );
    assert_eq!(ends(), (1, 2, 2));
    world.store.heal();
    // What is wrong in itself is not asked for.
    assert!(world.leases.lock("").at_once().wait().is_err());
    assert!(world.leases.lock("b").lease(MS).at_once().wait().is_err());
    // Nor is one more guard of a holding.
    drop(guard.again().unwrap());
    assert_eq!(ends(), (1, 2, 2));
    guard.release().wait().unwrap();
    world.leases.close(S);
    assert!(matches!(
        world.leases.lock("a").wait(),
        Err(LockError::Closed { .. })
    ));
}

/// Who asks without having waited.
fn new_one(store: &MemoryStore, owner: &str) -> Acquired {
    store
        .acquire(&Claim::new("a", owner, Secret::new(owner), LEASE), S)
        .unwrap()
}

/// Who has waited for so long.
fn one_that_waited(store: &MemoryStore, owner: &str, waited: Duration) -> Acquired {
    let claim = Claim::new("a", owner, Secret::new(owner), LEASE)
        .waiting()
        .waited(waited);
    assert_eq!(claim.is_due(), waited >= Claim::TURN);
    store.acquire(&claim, S).unwrap()
}

#[test]
fn a_released_name_is_reserved_for_those_who_have_waited_for_a_turn() {
    let is_granted = |answer: Acquired| matches!(answer, Acquired::Granted { .. });
    let is_held = |remaining| Acquired::Held { remaining };
    // How long it waits, and for how long the name is its.
    for (waited, reserved) in [(20, 5), (40, 10), (100, 25), (3_600_000, 25)] {
        let hand = ManualClock::starting_at(Time::from_nanos(1 << 60));
        let store = MemoryStore::with_clock(Clock::manual(&hand));
        let due = |owner| one_that_waited(&store, owner, waited * MS);
        for taken in [true, false] {
            assert!(is_granted(new_one(&store, "holder")));
            assert_eq!(due("due"), is_held(LEASE));
            // Somebody who has waited for less changes nothing.
            assert_eq!(one_that_waited(&store, "b", 19 * MS), is_held(LEASE));
            assert_eq!(
                store.release("a", Secret::new("holder"), S),
                Ok(Released::Released)
            );
            assert_eq!(store.holder("a"), None);
            let left = reserved * MS;
            assert_eq!(new_one(&store, "holder-again"), is_held(left));
            assert_eq!(one_that_waited(&store, "b", 19 * MS), is_held(left));
            hand.advance(left - MS);
            assert_eq!(new_one(&store, "new"), is_held(MS));
            if taken {
                assert!(is_granted(due("due")));
                assert_eq!(
                    store.release("a", Secret::new("due"), S),
                    Ok(Released::Released)
                );
            } else {
                // It is gone, and costs nobody more than that.
                hand.advance(MS);
            }
            assert!(is_granted(new_one(&store, "new")));
            assert_eq!(
                store.release("a", Secret::new("new"), S),
                Ok(Released::Released)
            );
            assert!(is_granted(new_one(&store, "new-again")));
            assert_eq!(
                store.release("a", Secret::new("new-again"), S),
                Ok(Released::Released)
            );
        }
        assert!(format!("{store:?}").contains("names: 0"));
    }
}

#[test]
fn the_wait_counts_from_the_first_claim_that_waits_to_the_release() {
    for (waited, reserved) in [(19, 0), (20, 5), (80, 20)] {
        let hand = ManualClock::new();
        let store = MemoryStore::with_clock(Clock::manual(&hand));
        new_one(&store, "holder");
        one_that_waited(&store, "waits", Duration::ZERO);
        // Somebody who comes later changes nothing.
        hand.advance(10 * MS);
        one_that_waited(&store, "later", 2 * MS);
        hand.advance((waited - 10) * MS);
        let released = store.release("a", Secret::new("holder"), S);
        assert_eq!(released, Ok(Released::Released));
        let expected = match reserved {
            0 => Acquired::granted(2),
            _ => Acquired::Held {
                remaining: reserved * MS,
            },
        };
        assert_eq!(new_one(&store, "holder-again"), expected, "{waited}");
    }
}

#[test]
fn what_is_lost_is_reserved_for_nobody() {
    let hand = ManualClock::new();
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    new_one(&store, "holder");
    one_that_waited(&store, "due", S);
    hand.advance(LEASE);
    assert_eq!(
        store.release("a", Secret::new("holder"), S),
        Ok(Released::NotHeld)
    );
    assert!(matches!(new_one(&store, "b"), Acquired::Granted { .. }));
}

#[test]
fn who_has_waited_for_a_turn_is_ahead_of_the_one_who_released() {
    for _ in 0..20 {
        let world = threads();
        // Another manager on the same store, as another process would be.
        let other = Leases::builder(world.store.clone()).clock(Clock::manual(&world.hand));
        let other = other.build().unwrap();
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let log = logged(&world);
        let had = waiter(&other);
        until("it waits", || claims(&log) == 2);
        // It does not ask again meanwhile: its second claim has told since when it waits.
        world.hand.advance(Claim::TURN);
        let token = guard.token();
        guard.release().wait().unwrap();
        match world.leases.lock("a").at_once().wait() {
            Err(LockError::Held { name, .. }) => assert_eq!(name, "a"),
            answer => panic!("{answer:?}"),
        }
        let guard = wait::next(&had).unwrap();
        assert_eq!(guard.token(), token + 1);
    }
}
