//! Many locks at once.

use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    BuildError, Fault, LeaseGuard, Leases, LockError, LockPaging, MemoryStore, StoreCall,
    StoreError,
};

use crate::double::StoreDouble;
use crate::worlds::{LEASE, S, Seen, down, log, no_fault, world, world_of};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("n{at:03}")).collect()
}

#[test]
fn free_names_are_granted_by_one_call_of_each_destination_and_batch() {
    let world = world_of(1, 1, |builder| builder.batch(100));
    let held = world.leases.lock("n007").at_once().wait().unwrap();
    let log = log(&world.store, &world.clock, no_fault);
    let mut all = names(250);
    all.push(String::new());
    all.push("n000".to_owned());
    let answers = world.leases.lock_all(&all).each().wait();
    assert_eq!(answers.len(), 252);
    for (name, answer) in all.iter().zip(&answers).take(250) {
        match answer {
            Ok(guard) => assert_eq!(guard.name(), name),
            Err(LockError::Held { name: own, .. }) => {
                assert_eq!((own, name), (name, &"n007".to_owned()));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(matches!(answers[250], Err(LockError::EmptyName)));
    assert!(matches!(answers[251], Err(LockError::Held { .. })));
    assert!(answers[7].is_err());
    let calls: Vec<usize> = log
        .calls()
        .into_iter()
        .map(|(_, seen)| match seen {
            Seen::ClaimMany(names) => names.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(calls, [100, 100, 51]);
    let stats = world.leases.stats();
    assert_eq!((stats.asked, stats.granted, stats.refused), (252, 250, 2));
    // They are kept like all others.
    world.steps.advance(3 * LEASE);
    assert_eq!(world.leases.stats().kept, 250);
    drop(answers);
    held.release().wait().unwrap();
    world.steps.settle();
    assert!(
        names(250)
            .iter()
            .all(|name| world.store.holder(name).is_none())
    );
    assert!(world.leases.lock_all([""; 0]).each().wait().is_empty());
}

#[test]
fn each_destination_has_calls_of_its_own() {
    let world = world_of(2, 4, |builder| builder);
    let log = log(&world.store, &world.clock, no_fault);
    let all: Result<Vec<LeaseGuard>, LockError> = world
        .leases
        .lock_all(names(100))
        .each()
        .wait()
        .into_iter()
        .collect();
    assert_eq!(all.unwrap().len(), 100);
    assert_eq!(log.len(), 4);
}

#[test]
fn what_may_have_been_granted_without_an_answer_is_given_back() {
    let world = world(3);
    let lose = |call: &StoreCall<'_>| match call {
        StoreCall::ClaimMany { .. } => Fault::LoseAnswer(down()),
        _ => Fault::None,
    };
    world.store.inject(lose);
    for answer in world.leases.lock_all(["a", "b"]).each().wait() {
        assert!(matches!(answer, Err(LockError::Store { .. })));
    }
    assert!(world.store.holder("a").is_some());
    world.steps.settle();
    assert!(world.store.holder("a").is_none() && world.store.holder("b").is_none());

    // One of several, and a store that panics.
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => Fault::Some(vec![1], down()),
        _ => Fault::None,
    });
    let answers = world.leases.lock_all(["c", "d"]).each().wait();
    assert!(answers[0].is_ok() && answers[1].is_err());
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => {
            kit::quiet::hush();
            panic!("on purpose")
        }
        _ => Fault::None,
    });
    for answer in world.leases.lock_all(["e", "f"]).each().wait() {
        assert!(answer.unwrap_err().to_string().contains("on purpose"));
    }
}

#[test]
fn a_batch_that_is_refused_is_asked_for_one_by_one() {
    let world = world(4);
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => Fault::Fail(StoreError::Refused("a batch".to_owned())),
        StoreCall::Claim(claim) if claim.name == "b" => {
            Fault::Fail(StoreError::Refused("b".to_owned()))
        }
        _ => Fault::None,
    });
    let answers = world.leases.lock_all(["a", "b", "c"]).each().wait();
    let granted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, true]);
}

#[test]
fn a_missing_answer_is_a_failure_and_its_name_is_given_back() {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(StoreDouble::of(store.clone()).answers_only(1)).clock(clock);
    let (leases, steps) = builder.build_stepped(1).unwrap();
    let mut answers = leases.lock_all(["a", "b"]).each().wait();
    let missing = answers.pop().unwrap().unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(answers[0].is_ok() && store.holder("b").is_some());
    steps.settle();
    assert!(store.holder("b").is_none() && store.holder("a").is_some());
}

#[tokio::test]
async fn it_can_be_awaited() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let answers = leases.lock_all(["a", "", "b", "a"]).each().await;
    let granted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, true, false]);
    assert!(leases.lock_all([""]).each().await[0].is_err());
    leases.close(S);
    let closed = leases.lock_all(["a"]).each().await.remove(0);
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

// === what a holder says about itself ===

#[test]
fn the_holder_data_are_shown_while_the_lock_is_held() {
    let world = world_of(5, 1, |builder| builder.holder_data("version 7"));
    let data = |name| world.leases.holder(name).wait().unwrap().unwrap().data;
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    assert_eq!(data("a"), "version 7");
    let _many = world.leases.lock_all(["b", "c"]).each().wait();
    assert_eq!(data("c"), "version 7");
    assert_eq!(
        world
            .leases
            .list("b", &LockPaging::first(1))
            .wait()
            .unwrap()
            .locks[0]
            .holder
            .data,
        "version 7"
    );
    guard.release().wait().unwrap();
    // Nothing stays for the next holder, and nothing is said without the option.
    let other = Leases::builder(world.store.clone()).clock(world.clock.clone());
    let (other, _steps) = other.build_stepped(6).unwrap();
    let _guard = other.lock("a").at_once().wait().unwrap();
    assert_eq!(data("a"), "");
    let builder = || Leases::builder(MemoryStore::new());
    assert!(builder().holder_data("x".repeat(1_024)).build().is_ok());
    let error = builder()
        .holder_data("x".repeat(1_025))
        .build()
        .unwrap_err();
    assert!(matches!(error, BuildError::HolderData { .. }));
    assert_eq!(
        error.to_string(),
        "holder data of 1025 bytes: choose at most 1024"
    );
}
