//! Futures that are granted a lock, and are not polled for a while.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    ElectionRole, Fault, LeaseFuture, LeaseGuard, Leases, LockError, Loss, MemoryStore, Steps,
    StoreCall, StoreError,
};

use crate::after::{After, AsyncGate};
use crate::worlds::{LEASE, Log, MS, S, Seen, log, no_fault};

const HALF: Duration = LEASE.checked_div(2).unwrap();
/// The limit of a call.
const LIMIT: Duration = LEASE.checked_div(3).unwrap();

/// Leases without threads, on a store whose answers wait at a gate.
struct Slow {
    leases: Leases,
    steps: Steps,
    store: MemoryStore,
    clock: Clock,
    gate: AsyncGate,
}

fn slow(seed: u64) -> Slow {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let gate = AsyncGate::default();
    let at = gate.clone();
    let slow = After::answering(store.clone(), move || at.pass());
    let builder = Leases::builder(slow).clock(clock.clone());
    let (leases, steps) = builder.build_stepped(seed).unwrap();
    Slow {
        leases,
        steps,
        store,
        clock,
        gate,
    }
}

/// Polls once, so that the call is sent and executed. Its answer comes after that.
fn begin<F: Future + Unpin>(slow: &Slow, future: &mut F) {
    slow.gate.shut();
    assert!(poll(future, &Wakes::new()).is_pending());
    slow.gate.open();
    slow.steps.settle();
}

/// Polls until the future is ready. The clock stands still.
fn finish<F: Future + Unpin>(slow: &Slow, future: &mut F) -> F::Output {
    for _ in 0..100 {
        if let Poll::Ready(answer) = poll(future, &Wakes::new()) {
            return answer;
        }
        slow.steps.settle();
    }
    panic!("it waits for the clock, or forever");
}

fn releases(log: &Log) -> Vec<String> {
    let calls = log.calls().into_iter();
    calls
        .flat_map(|(_, seen)| match seen {
            Seen::GiveBack(name) => vec![name],
            Seen::GiveBackMany(names) => names,
            _ => Vec::new(),
        })
        .collect()
}

type Lock = LeaseFuture<Result<LeaseGuard, LockError>>;

/// All calls that await one lock.
fn each(slow: &Slow) -> [Lock; 4] {
    let acquire = || slow.leases.lock("a");
    [
        acquire().into_future(),
        acquire().at_once().into_future(),
        acquire().within(S).into_future(),
        acquire().lease(LEASE).not_renewed().into_future(),
    ]
}

#[test]
fn a_grant_that_nobody_takes_is_not_renewed() {
    let slow = slow(1);
    for mut lock in each(&slow) {
        let log = log(&slow.store, &slow.clock, no_fault);
        begin(&slow, &mut lock);
        assert!(slow.store.holder("a").is_some());
        assert_eq!(slow.leases.stats().kept, 0);
        slow.steps.advance(LEASE - MS);
        assert!(slow.store.holder("a").is_some());
        slow.steps.advance(MS);
        assert_eq!(slow.store.holder("a"), None);
        // It holds nothing and costs nothing, however long it is kept.
        slow.steps.advance(100 * LEASE);
        let calls: Vec<_> = log.calls().into_iter().map(|(_, seen)| seen).collect();
        assert_eq!(calls, [Seen::Claim("a".to_owned())]);
        // Its drop gives back what may have been granted.
        drop(lock);
        slow.steps.settle();
        assert_eq!(releases(&log), ["a"]);
        slow.steps.advance(3 * LEASE);
        assert_eq!(slow.leases.stats().armed, 0);
    }
}

#[test]
fn a_poll_within_the_limit_takes_the_grant_and_begins_the_renewals() {
    let slow = slow(2);
    for mut lock in each(&slow) {
        let limit = LIMIT.min(S);
        begin(&slow, &mut lock);
        let token = slow.store.holder("a").unwrap().1;
        slow.steps.advance(limit - MS);
        let guard = finish(&slow, &mut lock).unwrap();
        assert_eq!(guard.token(), token);
        assert!(guard.is_held());
        // Only the timer of the guard is left.
        assert!(slow.leases.stats().armed <= 1);
        slow.steps.advance(HALF);
        assert!(guard.is_held());
        guard.release().wait().unwrap();
        assert_eq!(slow.leases.stats().armed, 0);
    }
}

#[test]
fn a_poll_at_the_limit_of_a_call_does_not_fetch_its_answer() {
    let slow = slow(3);
    let mut once = slow.leases.lock("a").at_once().into_future();
    begin(&slow, &mut once);
    let log = log(&slow.store, &slow.clock, no_fault);
    slow.steps.advance(LIMIT);
    let late = finish(&slow, &mut once).unwrap_err();
    assert!(late.to_string().contains("no answer within"), "{late}");
    slow.steps.settle();
    assert_eq!(releases(&log), ["a"]);
    assert_eq!(slow.store.holder("a"), None);
}

/// The one that asks once fails then, as above.
#[test]
fn a_poll_between_the_limit_and_half_of_the_lease_asks_again_if_it_waits() {
    let slow = slow(3);
    let [endless, _, _, fixed] = each(&slow);
    for mut lock in [endless, fixed] {
        begin(&slow, &mut lock);
        slow.steps.advance(LIMIT + S);
        // After a pause, since a call has failed.
        assert!(poll(&mut lock, &Wakes::new()).is_pending());
        slow.steps.advance(S);
        let guard = finish(&slow, &mut lock).unwrap();
        assert!(guard.is_held() && guard.remaining() > HALF);
        guard.release().wait().unwrap();
        slow.steps.advance(3 * LEASE);
        assert_eq!(slow.store.holder("a"), None);
    }
    let mut locks = slow.leases.lock_all(["a", "b"]).each();
    begin(&slow, &mut locks);
    slow.steps.advance(LIMIT + S);
    for late in finish(&slow, &mut locks) {
        let error = late.unwrap_err().to_string();
        assert!(error.contains("no answer within"), "{error}");
    }
    slow.steps.settle();
    assert!(
        ["a", "b"]
            .iter()
            .all(|name| slow.store.holder(name).is_none())
    );
}

#[test]
fn a_later_poll_asks_again_and_returns_a_lock_that_is_held() {
    for after in [HALF, 2 * LEASE] {
        let slow = slow(3);
        for mut lock in each(&slow) {
            begin(&slow, &mut lock);
            let token = slow.store.holder("a").unwrap().1;
            slow.steps.advance(after);
            let log = log(&slow.store, &slow.clock, no_fault);
            let guard = finish(&slow, &mut lock).unwrap();
            assert!(guard.is_held() && guard.token() > token);
            // No release of the first grant ends the second one.
            slow.steps.advance(HALF);
            assert!(guard.is_held());
            let before = releases(&log).len();
            guard.release().wait().unwrap();
            assert_eq!(releases(&log).len(), before + 1);
            slow.steps.advance(3 * LEASE);
        }
    }
}

#[test]
fn a_later_poll_waits_for_whoever_has_the_lock_now() {
    let slow = slow(4);
    let late = |mut lock: Lock| {
        begin(&slow, &mut lock);
        slow.steps.advance(LEASE);
        let other = slow.leases.lock("a").at_once().wait().unwrap();
        (lock, other)
    };
    let [endless, once, limited, _] = each(&slow);
    let (mut endless, other) = late(endless);
    for _ in 0..10 {
        assert!(poll(&mut endless, &Wakes::new()).is_pending());
        slow.steps.advance(S);
    }
    assert!(other.is_held());
    other.release().wait().unwrap();
    slow.steps.settle();
    let guard = finish(&slow, &mut endless).unwrap();
    assert!(guard.is_held());
    guard.release().wait().unwrap();

    let (mut once, other) = late(once);
    let held = finish(&slow, &mut once);
    assert!(matches!(held, Err(LockError::Held { .. })), "{held:?}");
    assert!(other.is_held());
    other.release().wait().unwrap();

    // Its time is over, so it asks for the last time.
    let (mut limited, other) = late(limited);
    let held = finish(&slow, &mut limited);
    assert!(matches!(held, Err(LockError::TimedOut { .. })), "{held:?}");
    assert!(other.is_held());
}

#[test]
fn a_grant_that_its_options_have_ended_is_never_handed_out() {
    let slow = slow(5);
    let acquire = || slow.leases.lock("a");
    let mut lock = acquire().max_hold(S).into_future();
    begin(&slow, &mut lock);
    slow.steps.advance(S);
    let lost = finish(&slow, &mut lock).unwrap_err();
    let loss = Loss::HeldTooLong;
    assert!(
        matches!(lost, LockError::Lost { loss: of, .. } if of == loss),
        "{lost}"
    );
    slow.steps.settle();
    assert_eq!(slow.store.holder("a"), None);
    // Nor by a thread that waits.
    let hand = slow.steps.clock();
    slow.store.inject(move |call| {
        if let StoreCall::Claim(_) = call {
            hand.advance(S);
        }
        Fault::None
    });
    let lost = acquire().max_hold(S).wait().unwrap_err();
    assert!(
        matches!(lost, LockError::Lost { loss: of, .. } if of == loss),
        "{lost}"
    );
    slow.store.heal();
    slow.steps.settle();
    // The period of the feeding begins with the renewals, in the poll.
    let mut lock = acquire().fed_every(S).into_future();
    begin(&slow, &mut lock);
    slow.steps.advance(2 * S);
    let guard = finish(&slow, &mut lock).unwrap();
    assert!(guard.feed());
    guard.release().wait().unwrap();
    // Closed leases grant nothing.
    let mut lock = acquire().into_future();
    begin(&slow, &mut lock);
    slow.leases.close(S);
    let closed = finish(&slow, &mut lock);
    assert!(
        matches!(closed, Err(LockError::Closed { .. })),
        "{closed:?}"
    );
    slow.steps.settle();
    assert_eq!(slow.store.holder("a"), None);
}

#[test]
fn many_locks_that_nobody_takes_are_given_back_together_and_asked_for_again() {
    let slow = slow(6);
    let mut locks = slow.leases.lock_all(["a", "", "b"]).each();
    begin(&slow, &mut locks);
    assert_eq!(
        slow.leases.stats().kept,
        0,
        "no renewal begins before the poll"
    );
    slow.steps.advance(LEASE);
    // A later poll asks again, and finds what is free now.
    let other = slow.leases.lock("b").at_once().wait().unwrap();
    let log = log(&slow.store, &slow.clock, no_fault);
    let answers = finish(&slow, &mut locks);
    let held: Vec<bool> = answers
        .iter()
        .map(|answer| answer.as_ref().is_ok_and(LeaseGuard::is_held))
        .collect();
    assert_eq!(held, [true, false, false]);
    assert!(matches!(answers[2], Err(LockError::Held { .. })));
    slow.steps.advance(3 * LEASE);
    assert!(releases(&log).starts_with(&["a".to_owned(), "b".to_owned()]));
    assert!(answers[0].as_ref().is_ok_and(LeaseGuard::is_held) && other.is_held());
    let stats = slow.leases.stats();
    assert_eq!((stats.waiting, stats.abandoned), (0, 2));
}

/// The first destination has answered, and the second one has not.
#[test]
fn many_locks_of_which_some_are_granted_hold_nothing_after_a_lease() {
    let clock = Clock::manual(&ManualClock::new());
    let memory = MemoryStore::with_destinations(clock.clone(), 2);
    let gate = AsyncGate::default();
    let (at, passes) = (gate.clone(), AtomicUsize::new(0));
    let store = After::new(memory.clone(), move || {
        // The first call is answered.
        let first = passes.fetch_add(1, SeqCst) == 0;
        let gate = at.clone();
        async move {
            if !first {
                gate.pass().await;
            }
        }
    });
    let (leases, steps) = Leases::builder(store)
        .clock(clock)
        .build_stepped(7)
        .unwrap();
    gate.shut();
    let names: Vec<String> = (0..10).map(|at| format!("n{at}")).collect();
    let mut locks = leases.lock_all(&names).each();
    assert!(poll(&mut locks, &Wakes::new()).is_pending());
    assert!(names.iter().any(|name| memory.holder(name).is_some()));
    assert_eq!(leases.stats().kept, 0);
    steps.advance(LEASE);
    assert!(names.iter().all(|name| memory.holder(name).is_none()));
    gate.open();
    drop(locks);
    steps.advance(3 * LEASE);
    assert_eq!(leases.stats().armed, 0);
}

/// The first destination has answered seconds before the second one was asked, which was polled
/// late.
#[test]
fn many_locks_are_asked_for_again_half_of_a_lease_after_the_first_call() {
    let clock = Clock::manual(&ManualClock::new());
    let memory = MemoryStore::with_destinations(clock.clone(), 2);
    // Later calls pass.
    let gates = [AsyncGate::default(), AsyncGate::default()];
    let (of, calls) = (gates.clone(), AtomicUsize::new(0));
    let store = After::answering(memory.clone(), move || {
        let gate = of.get(calls.fetch_add(1, SeqCst)).cloned();
        async move {
            if let Some(gate) = gate {
                gate.pass().await;
            }
        }
    });
    let builder = Leases::builder(store).clock(clock);
    let (leases, steps) = builder.build_stepped(7).unwrap();
    let names: Vec<String> = (0..10).map(|at| format!("n{at}")).collect();
    let tokens = || {
        let holder = |name: &String| memory.holder(name).map(|(_, token)| token);
        names.iter().map(holder).collect::<Vec<_>>()
    };
    gates.iter().for_each(AsyncGate::shut);
    let mut locks = leases.lock_all(&names).each();
    let wakes = Wakes::new();
    assert!(poll(&mut locks, &wakes).is_pending());
    steps.advance(4 * S);
    gates[0].open();
    assert!(poll(&mut locks, &wakes).is_pending());
    let first = tokens();
    assert!(first.iter().all(Option::is_some), "both were asked");
    steps.advance(HALF - 4 * S);
    let mut answers = Vec::new();
    for _ in 0..100 {
        if let Poll::Ready(ready) = poll(&mut locks, &wakes) {
            answers = ready;
            break;
        }
        steps.settle();
    }
    assert_eq!(answers.len(), names.len());
    for (answer, first) in answers.iter().zip(first) {
        let guard = answer.as_ref().unwrap();
        assert!(guard.is_held() && Some(guard.token()) > first);
    }
}

#[test]
fn a_resumed_lock_that_nobody_takes_is_free_after_a_lease() {
    let slow = slow(7);
    let ticket = || {
        let guard = slow.leases.lock("a").at_once().wait().unwrap();
        guard.detach().wait().unwrap()
    };
    let one = ticket();
    let mut resume = slow.leases.resume(&one);
    begin(&slow, &mut resume);
    slow.steps.advance(LEASE);
    assert_eq!(slow.store.holder("a"), None);
    let late = finish(&slow, &mut resume).unwrap_err();
    assert!(
        matches!(
            &late,
            LockError::Store {
                error: StoreError::Unavailable(_),
                ..
            }
        ),
        "{late}"
    );
    // In time it may be repeated.
    let one = ticket();
    let mut resume = slow.leases.resume(&one);
    begin(&slow, &mut resume);
    slow.steps.advance(LIMIT);
    assert!(finish(&slow, &mut resume).is_err());
    let guard = slow.leases.resume(&one).wait().unwrap();
    assert!(guard.is_held());
    guard.release().wait().unwrap();
    // One that is dropped is given back.
    let one = ticket();
    let mut resume = slow.leases.resume(&one);
    begin(&slow, &mut resume);
    drop(resume);
    slow.steps.settle();
    assert_eq!(slow.store.holder("a"), None);
}

#[test]
fn a_candidate_that_nobody_polls_leaves_the_lead_to_others() {
    let slow = slow(8);
    let sleeper = slow.leases.election("a");
    let mut campaign = Box::pin(sleeper.lead());
    begin(&slow, &mut campaign);
    slow.steps.advance(LEASE);
    // An election is the lock of its name.
    let other = slow.leases.lock("a").at_once().wait().unwrap();
    assert!(poll(&mut campaign, &Wakes::new()).is_pending());
    let token = other.token();
    other.release().wait().unwrap();
    slow.steps.settle();
    let term = finish(&slow, &mut campaign).unwrap();
    assert!(term.is_leader() && term.token() > token);
}

#[test]
fn a_service_whose_options_end_its_grant_tries_again() {
    let slow = slow(8);
    let election = slow.leases.election("a").max_hold(S);
    let mut service = Box::pin(election.serve_async(async |_| std::future::pending().await));
    begin(&slow, &mut service);
    assert!(slow.store.holder("a").is_some(), "it was granted");
    // Its term was over before it began.
    slow.steps.advance(2 * S);
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    slow.steps.settle();
    assert_eq!(slow.store.holder("a"), None);
    assert_eq!(election.status().role, ElectionRole::Waiting);
    // The first pause is of 60 ms at most.
    slow.steps.advance(S / 10);
    assert!(poll(&mut service, &Wakes::new()).is_pending());
    assert!(matches!(
        election.status().role,
        ElectionRole::Leading { .. }
    ));
}
