//! Locks of `Leases`: held, listed, renewed, detached, and released with a rest.

use std::time::Duration;

use kit::wait;
use tourbillon_leases::{Leases, LockError, LockPaging};

use crate::calls::Calls;
use crate::common::{LEASE, LIMIT, S, granted, place};
use crate::tickets;

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn tickets_hold_what_every_store_has_to() {
    let store = place().store();
    tickets::nothing_that_is_shown_proves_anything(&store);
    tickets::a_ticket_is_of_use_for_its_own_name_alone(&store);
    tickets::a_ticket_is_used_by_one_of_many(&store);
    tickets::detach_and_resume_do_what_a_backend_promises(&store);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn the_holder_is_shown_as_long_as_the_lease_lasts() {
    let leases = Leases::builder(place().store()).holder_data("10.0.0.7");
    let leases = leases.build().unwrap();
    assert_eq!(leases.holder("x").wait().unwrap(), None);
    let guard = leases.lock("x").lease(LEASE).wait().unwrap();
    let holder = leases.holder("x").wait().unwrap().unwrap();
    assert_eq!(
        (&*holder.owner, holder.token, &*holder.data),
        (guard.id().owner(), guard.token(), "10.0.0.7")
    );
    assert!(holder.remaining <= LEASE && holder.remaining > LEASE / 2);
    guard.release().wait().unwrap();
    assert_eq!(leases.holder("x").wait().unwrap(), None);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_released_name_stays_locked_for_its_rest() {
    let leases = Leases::new(place().store()).unwrap();
    let guard = leases.lock("x").at_least(10 * S).wait().unwrap();
    let owner = guard.id().owner().to_owned();
    guard.release().wait().unwrap();
    let holder = leases.holder("x").wait().unwrap().unwrap();
    assert_eq!(holder.owner, format!("{owner} (released)"));
    assert!(holder.remaining <= 10 * S);
    let answer = leases.lock("x").at_once().wait();
    assert!(matches!(answer, Err(LockError::Held { .. })), "{answer:?}");
    // A dropped guard is released in the background. A waiting caller gets the name when the rest is over.
    drop(
        leases
            .lock("y")
            .at_least(Duration::from_millis(200))
            .wait()
            .unwrap(),
    );
    leases.lock("y").wait().unwrap().release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn pages_have_all_names_that_are_held_in_their_order() {
    let store = place().store();
    let mut names: Vec<_> = (0..25).map(|at| format!("orders/{at}")).collect();
    names.push("orders/ü".to_owned());
    names.sort();
    for name in &names {
        granted(&store, name, "a:1");
    }
    for other in ["orders", "orders0", "Orders/1", "a", "z"] {
        granted(&store, other, "a:2");
    }
    for size in [0, 1, 4, 25, 26, 100] {
        let mut found = Vec::new();
        let mut paging = LockPaging::first(size);
        loop {
            let page = store.list("orders/", &paging, LIMIT).unwrap();
            assert!(page.locks.len() <= size.max(1));
            found.extend(page.locks.into_iter().map(|held| held.name));
            match page.next {
                Some(next) => paging = next,
                None => break,
            }
        }
        assert_eq!(found, names, "pages of {size}");
    }
    let all = store.list("", &LockPaging::first(100), LIMIT).unwrap();
    assert_eq!(all.locks.len(), 31);
    assert_eq!(all.locks[0].holder.owner, "a:2");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_list_has_as_much_as_half_of_its_time_allows_and_says_where_it_goes_on() {
    let store = place().store();
    for at in 0..300 {
        granted(&store, &format!("n{at:03}"), "a:1");
    }
    let (mut found, mut paging) = (0, LockPaging::first(1_000));
    let mut limit = Duration::from_millis(5);
    let mut pages = 0;
    wait::until("all pages are seen", || {
        // It may take longer on a busy machine.
        let Ok(page) = store.list("", &paging, limit) else {
            limit *= 2;
            return false;
        };
        pages += 1;
        found += page.locks.len();
        page.next.is_none_or(|next| {
            paging = next;
            false
        })
    });
    assert_eq!(found, 300, "{pages} pages");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn many_locks_are_awaited_at_one_time() {
    let leases = Leases::new(place().store()).unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        let begin = |at: usize| {
            let leases = leases.clone();
            tokio::spawn(async move {
                let guard = leases.lock(&format!("n{}", at / 2)).await.unwrap();
                guard.release().await.unwrap();
            })
        };
        let tasks: Vec<_> = (0..200).map(begin).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(leases.stats().granted, 200);
    assert_eq!(
        leases.list("", &LockPaging::first(9)).wait().unwrap().locks,
        []
    );
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_lock_is_renewed_in_the_background_and_can_be_extended() {
    let place = place();
    let leases = Leases::builder(place.store()).lease(3 * S).build().unwrap();
    let guard = leases.lock("x").wait().unwrap();
    wait::until("it is renewed", || leases.stats().renewed >= 2);
    assert!(guard.is_held());
    let other = Leases::new(place.store()).unwrap();
    let extended = leases.lock("y").not_renewed().wait().unwrap();
    extended.extend(20 * S).wait().unwrap();
    let holder = other.holder("y").wait().unwrap().unwrap();
    assert!(holder.remaining > 10 * S, "{holder:?}");
    assert!(matches!(
        other.lock("x").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    guard.release().wait().unwrap();
    let guard = other.lock("x").at_once().wait().unwrap();
    assert!(guard.is_held());
}
