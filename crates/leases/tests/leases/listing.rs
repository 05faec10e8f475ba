//! Lists of the locks that are held.

use tourbillon_leases::{Fault, Leases, LockError, LockPage, LockPaging, MemoryStore, StoreCall};

use crate::calls::Calls;
use crate::double::StoreDouble;
use crate::worlds::{LEASE, S, down, no_renewals, world, world_of};

fn all() -> LockPaging {
    LockPaging::first(10)
}

fn names(page: &LockPage) -> Vec<&str> {
    page.locks.iter().map(|held| &*held.name).collect()
}

#[test]
fn the_held_locks_of_a_prefix_are_listed_with_their_holders() {
    let world = world_of(1, 3, |builder| builder);
    let guards: Vec<_> = ["b/2", "a/1", "b/1", "b", "c"]
        .map(|name| world.leases.lock(name).at_once().wait().unwrap())
        .into();
    let listed = |prefix| world.leases.list(prefix, &all()).wait().unwrap();
    assert_eq!(names(&listed("b/")), ["b/1", "b/2"]);
    assert_eq!(names(&listed("")), ["a/1", "b", "b/1", "b/2", "c"]);
    assert_eq!(listed("d"), LockPage::default());
    let held = listed("a").locks.remove(0);
    assert_eq!(
        held.holder,
        world.leases.holder("a/1").wait().unwrap().unwrap()
    );
    assert_eq!(held.holder.owner, guards[1].id().owner());
    // Those that were given back or have run out are gone.
    world.store.inject(no_renewals);
    world.steps.advance(LEASE);
    assert_eq!(names(&listed("")), [""; 0]);
}

#[test]
fn pages_follow_each_other_whatever_happens_between_them() {
    let world = world(3);
    let guards: Vec<_> = (10..20)
        .map(|at| {
            world
                .leases
                .lock(&format!("n{at}"))
                .at_once()
                .wait()
                .unwrap()
        })
        .collect();
    for limit in [1, 3, 5, 9, 10, 11, usize::MAX] {
        let mut paging = LockPaging::first(limit);
        let mut found = Vec::new();
        loop {
            let page = world.leases.list("n", &paging).wait().unwrap();
            assert!(page.locks.len() <= limit);
            found.extend(page.locks.into_iter().map(|held| held.name));
            let Some(next) = page.next else { break };
            assert_eq!(next.limit, limit);
            paging = next;
        }
        let expected: Vec<_> = guards.iter().map(|guard| guard.name().to_owned()).collect();
        assert_eq!(found, expected);
    }
    // The last lock of the page before need not be held any more, nor begin with the prefix.
    let first = world
        .leases
        .list("n", &LockPaging::first(3))
        .wait()
        .unwrap();
    drop(guards);
    world.steps.settle();
    let _later = world.leases.lock("n135").at_once().wait().unwrap();
    let next = world.leases.list("n", &first.next.unwrap()).wait().unwrap();
    assert_eq!(names(&next), ["n135"]);
    let behind = LockPaging::behind("x", 1);
    assert_eq!(
        world.leases.list("n", &behind).wait().unwrap(),
        LockPage::default()
    );
    // Zero would be a page that never ends.
    let one = world
        .leases
        .list("n", &LockPaging::first(0))
        .wait()
        .unwrap();
    assert_eq!(one.locks.len(), 1);
    let mut zero = LockPaging::first(1);
    zero.limit = 0;
    assert_eq!(world.store.list("n", &zero, S).unwrap().locks.len(), 1);
}

#[test]
fn a_store_that_fails_or_can_not_tell_is_an_error() {
    let world = world(2);
    world.store.inject(|call| match call {
        StoreCall::List { prefix } if *prefix == "a" => Fault::Fail(down()),
        _ => Fault::None,
    });
    let error = world.leases.list("a", &all()).wait().unwrap_err();
    assert!(matches!(error, LockError::Store { .. }), "{error}");
    assert_eq!(error.name(), "a");

    let leases = Leases::new(StoreDouble::of(MemoryStore::new())).unwrap();
    let error = leases.list("a", &all()).wait().unwrap_err();
    assert!(error.to_string().contains("can't list"), "{error}");
}

#[tokio::test]
async fn it_can_be_awaited() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    // It may be the first call, which starts the threads.
    assert_eq!(leases.list("", &all()).await.unwrap().locks.len(), 0);
    let _guard = leases.lock("a").await.unwrap();
    assert_eq!(leases.list("", &all()).await.unwrap().locks.len(), 1);
    leases.close(S);
}
