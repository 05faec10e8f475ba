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
    let held = world.leases.try_lock("n007").unwrap();
    let log = log(&world.store, &world.clock, no_fault);
    let mut all = names(250);
    all.push(String::new());
    all.push("n000".to_owned());
    let answers = world.leases.try_lock_many(&all);
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
    held.release().unwrap();
    world.steps.settle();
    assert!(
        names(250)
            .iter()
            .all(|name| world.store.holder(name).is_none())
    );
    assert!(world.leases.try_lock_many([""; 0]).is_empty());
}

#[test]
fn each_destination_has_calls_of_its_own() {
    let world = world_of(2, 4, |builder| builder);
    let log = log(&world.store, &world.clock, no_fault);
    let all: Result<Vec<LeaseGuard>, LockError> =
        world.leases.try_lock_many(names(100)).into_iter().collect();
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
    for answer in world.leases.try_lock_many(["a", "b"]) {
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
    let answers = world.leases.try_lock_many(["c", "d"]);
    assert!(answers[0].is_ok() && answers[1].is_err());
    world.store.inject(|call| match call {
        StoreCall::ClaimMany { .. } => {
            kit::quiet::hush();
            panic!("on purpose")
        }
        _ => Fault::None,
    });
    for answer in world.leases.try_lock_many(["e", "f"]) {
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
    let answers = world.leases.try_lock_many(["a", "b", "c"]);
    let granted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, true]);
}

#[test]
fn a_missing_answer_is_a_failure_and_its_name_is_given_back() {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(StoreDouble::of(store.clone()).answers_only(1)).clock(clock);
    let (leases, steps) = builder.build_stepped(1).unwrap();
    let mut answers = leases.try_lock_many(["a", "b"]);
    let missing = answers.pop().unwrap().unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(answers[0].is_ok() && store.holder("b").is_some());
    steps.settle();
    assert!(store.holder("b").is_none() && store.holder("a").is_some());
}

#[tokio::test]
async fn it_can_be_awaited() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let answers = leases.try_lock_many_async(["a", "", "b", "a"]).await;
    let granted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, true, false]);
    assert!(leases.try_lock_many_async([""]).await[0].is_err());
    leases.close(S);
    let closed = leases.try_lock_many_async(["a"]).await.remove(0);
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

// === what a holder says about itself ===

#[test]
fn the_holder_data_are_shown_while_the_lock_is_held() {
    let world = world_of(5, 1, |builder| builder.holder_data("version 7"));
    let data = |name| world.leases.holder(name).unwrap().unwrap().data;
    let guard = world.leases.try_lock("a").unwrap();
    assert_eq!(data("a"), "version 7");
    let _many = world.leases.try_lock_many(["b", "c"]);
    assert_eq!(data("c"), "version 7");
    assert_eq!(
        world.leases.list("b", &LockPaging::first(1)).unwrap().locks[0]
            .holder
            .data,
        "version 7"
    );
    guard.release().unwrap();
    // Nothing stays for the next holder, and nothing is said without the option.
    let other = Leases::builder(world.store.clone()).clock(world.clock.clone());
    let (other, _steps) = other.build_stepped(6).unwrap();
    let _guard = other.try_lock("a").unwrap();
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
