//! Held, listed, detached and released with a rest.

use std::time::Duration;

use chaos::servers::postgres::database;
use kit::wait;
use tourbillon_leases::{Leases, LockError, LockPaging, PostgresStore, Released, StoreError};

use crate::calls::Calls;
use crate::shop::{LEASE, LIMIT, granted, psql, release, store};
use crate::tickets;

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tickets_hold_what_every_store_has_to() {
    let database = database();
    let builder = PostgresStore::builder(&database.url()).longest_lease(10 * LEASE);
    let store = builder.build().unwrap();
    tickets::nothing_that_is_shown_proves_anything(&store);
    tickets::a_ticket_is_of_use_for_its_own_name_alone(&store);
    tickets::a_ticket_is_used_by_one_of_many(&store);
    tickets::detach_and_resume_do_what_a_backend_promises(&store);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_holder_is_shown_as_long_as_the_lease_lasts() {
    let database = database();
    let leases = Leases::builder(store(&database)).holder_data("10.0.0.7");
    let leases = leases.build().unwrap();
    assert_eq!(leases.holder("x").wait().unwrap(), None);
    let guard = leases.lock("x").wait().unwrap();
    let again = guard.again().unwrap();
    let holder = leases.holder("x").wait().unwrap().unwrap();
    assert_eq!(
        (&*holder.owner, holder.token, &*holder.data),
        (guard.id().owner(), guard.token(), "10.0.0.7")
    );
    assert!(holder.remaining <= LEASE && holder.remaining > LEASE / 2);
    drop(again);
    guard.release().wait().unwrap();
    assert_eq!(leases.holder("x").wait().unwrap(), None);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_released_name_stays_locked_for_its_rest() {
    let database = database();
    let leases = Leases::new(store(&database)).unwrap();
    let guard = leases.lock("x").at_least(LEASE / 2).wait().unwrap();
    let owner = guard.id().owner().to_owned();
    guard.release().wait().unwrap();
    let holder = leases.holder("x").wait().unwrap().unwrap();
    assert_eq!(holder.owner, format!("{owner} (released)"));
    assert!(holder.remaining <= LEASE / 2);
    let answer = leases.lock("x").at_once().wait();
    assert!(matches!(answer, Err(LockError::Held { .. })), "{answer:?}");
    // A dropped guard, in the background; who waits gets it when the rest is over.
    let least = Duration::from_millis(200);
    drop(leases.lock("y").at_least(least).wait().unwrap());
    leases.lock("y").wait().unwrap().release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn pages_have_all_names_that_are_held_in_their_order() {
    let database = database();
    let store = store(&database);
    let mut names: Vec<_> = (0..25).map(|at| format!("orders/{at}")).collect();
    names.push("orders/ü".to_owned());
    names.sort();
    for name in &names {
        granted(&store, name, "a:1");
    }
    for other in ["orders", "orders0", "Orders/1", "a", "z"] {
        granted(&store, other, "a:2");
    }
    let free = names.remove(7);
    assert_eq!(release(&store, &free, "a:1"), Released::Released);
    for size in [1, 4, 25, 100] {
        let mut found = Vec::new();
        let mut paging = LockPaging::first(size);
        loop {
            let page = store.list("orders/", &paging, LIMIT).unwrap();
            assert!(page.locks.len() <= size);
            found.extend(page.locks.into_iter().map(|held| held.name));
            match page.next {
                Some(next) => paging = next,
                None => break,
            }
        }
        assert_eq!(found, names, "pages of {size}");
    }
    let all = store.list("", &LockPaging::first(100), LIMIT).unwrap();
    assert_eq!(all.locks.len(), 30);
    assert_eq!(all.locks[0].holder.owner, "a:2");
    // A place before all names of the prefix, as one of another list.
    let page = store.list("z", &LockPaging::behind("a", 9), LIMIT).unwrap();
    assert_eq!(page.locks.len(), 1);
    let refused = store.list("a\0", &LockPaging::first(9), LIMIT);
    assert!(matches!(refused, Err(StoreError::Refused(_))));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_list_goes_on_behind_many_free_names() {
    let database = database();
    let store = store(&database);
    granted(&store, "z", "a:1");
    psql(
        &database,
        "insert into tourbillon_leases.lease (name, token, ends, length) \
         select 'free/' || n, n, now(), interval '1 s' from generate_series(1, 12000) n",
    );
    granted(&store, "free/5", "a:1");
    let page = store.list("", &LockPaging::first(9), LIMIT).unwrap();
    let names: Vec<_> = page.locks.iter().map(|held| &*held.name).collect();
    assert_eq!((names, page.next), (vec!["free/5", "z"], None));
    // Without the time for all of them it says where it goes on.
    let short = Duration::from_millis(20);
    let mut paging = LockPaging::first(9);
    let mut found = 0;
    wait::until("all pages are seen", || {
        // It may take longer on a busy machine.
        let Ok(page) = store.list("", &paging, short) else {
            return false;
        };
        found += page.locks.len();
        match page.next {
            Some(next) => {
                paging = next;
                false
            }
            None => true,
        }
    });
    assert_eq!(found, 2);
}

/// More than there are connections, each wanted twice.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn many_locks_are_awaited_at_one_time_by_few_connections() {
    let database = database();
    let leases = Leases::new(store(&database)).unwrap();
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
    let connections = "select count(*) from pg_stat_activity \
                       where datname = current_database() and pid <> pg_backend_pid()";
    let connections: usize = psql(&database, connections).parse().unwrap();
    // Four for callers, one for the background, one that listens.
    assert!((1..=6).contains(&connections), "{connections}");
    drop(leases);
    wait::until("all are closed", || {
        let asked = "select count(*) from pg_stat_activity \
                     where datname = current_database() and pid <> pg_backend_pid()";
        psql(&database, asked) == "0"
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_lock_is_renewed_in_the_background() {
    let database = database();
    let leases = Leases::builder(store(&database)).lease(Duration::from_secs(3));
    let leases = leases.build().unwrap();
    let guard = leases.lock("x").wait().unwrap();
    wait::until("it is renewed", || leases.stats().renewed >= 2);
    assert!(guard.is_held());
    let other = Leases::new(store(&database)).unwrap();
    assert!(matches!(
        other.lock("x").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    guard.release().wait().unwrap();
    let guard = other.lock("x").at_once().wait().unwrap();
    assert!(guard.is_held());
}
