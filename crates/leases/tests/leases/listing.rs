//! Lists of the locks that are held.

use tourbillon_leases::{Fault, Leases, LockError, MemoryStore, StoreCall};

use crate::double::StoreDouble;
use crate::worlds::{LEASE, S, down, no_renewals, world, world_of};

#[test]
fn the_held_locks_of_a_prefix_are_listed_with_their_holders() {
    let world = world_of(1, 3, |builder| builder);
    let guards: Vec<_> = ["b/2", "a/1", "b/1", "b", "c"]
        .map(|name| world.leases.try_lock(name).unwrap())
        .into();
    let names = |prefix, most| -> Vec<String> {
        let held = world.leases.list(prefix, most).unwrap();
        held.into_iter().map(|held| held.name).collect()
    };
    assert_eq!(names("b/", 10), ["b/1", "b/2"]);
    assert_eq!(names("", 10), ["a/1", "b", "b/1", "b/2", "c"]);
    assert_eq!(names("d", 10), [""; 0]);
    assert_eq!(names("b", 2).len(), 2);
    assert_eq!(names("b", 0), [""; 0]);
    let held = world.leases.list("a", 10).unwrap().remove(0);
    assert_eq!(held.holder, world.leases.holder("a/1").unwrap().unwrap());
    assert_eq!(held.holder.owner, guards[1].id().owner());
    // Those that were given back or have run out are gone.
    world.store.inject(no_renewals);
    world.steps.advance(LEASE);
    assert_eq!(names("", 10), [""; 0]);
}

#[test]
fn a_store_that_fails_or_can_not_tell_is_an_error() {
    let world = world(2);
    world.store.inject(|call| match call {
        StoreCall::List { prefix } if *prefix == "a" => Fault::Fail(down()),
        _ => Fault::None,
    });
    let error = world.leases.list("a", 10).unwrap_err();
    assert!(matches!(error, LockError::Store { .. }), "{error}");
    assert_eq!(error.name(), "a");

    let leases = Leases::new(StoreDouble::of(MemoryStore::new())).unwrap();
    let error = leases.list("a", 10).unwrap_err();
    assert!(error.to_string().contains("can't list"), "{error}");
}

#[tokio::test]
async fn it_can_be_awaited() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    // It may be the first call, which starts the threads.
    assert_eq!(leases.list_async("", 10).await.unwrap().len(), 0);
    let _guard = leases.lock_async("a").await.unwrap();
    assert_eq!(leases.list_async("", 10).await.unwrap().len(), 1);
    leases.close(S);
}
