//! Read-write locks and permits in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use chaos::servers::postgres::{Database, database};
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LeaseGuard, Leases, LockError, LockPaging, Mode,
    Outcome, PostgresStore, ReleaseError, Released, Renewal, Secret, StoreError,
};

use crate::calls::{Calls, wait};
use crate::mode_model::{
    Choices, ModeWorld, Seen, a_wait_that_is_over_reserves_nothing, compare,
    grants_wake_the_next_caller,
};
use crate::shop::{LEASE, LIMIT, MS, psql, store};

const PERMIT: Mode = Mode::Permit { of: 2 };

/// On a busy machine others may lock the row of a name for longer than a release waits. Then it is given back in the
/// background.
#[track_caller]
fn gives_back(guard: LeaseGuard) {
    let released = guard.release().wait();
    let may_pass = |error: &_| matches!(error, ReleaseError::Store(StoreError::Unavailable(_)));
    assert!(released.as_ref().err().is_none_or(may_pass), "{released:?}");
}

fn ask(store: &PostgresStore, owner: &str, mode: Mode) -> Result<Acquired, StoreError> {
    let claim = Claim::new("x", owner, Secret::new(owner), LEASE);
    store.acquire(&claim.in_mode(mode), LIMIT)
}

/// Asks for what has to be free.
#[track_caller]
fn granted(store: &PostgresStore, owner: &str, mode: Mode) -> (u64, u32) {
    match ask(store, owner, mode) {
        Ok(Acquired::Granted { token, place }) => (token, place),
        other => panic!("{owner}: {other:?}"),
    }
}

#[track_caller]
fn held(answer: Result<Acquired, StoreError>) -> Duration {
    match answer {
        Ok(Acquired::Held { remaining }) => remaining,
        other => panic!("{other:?}"),
    }
}

fn renew(store: &PostgresStore, owner: &str, mode: Mode) -> Outcome {
    let renewal = Renewal::new("x", Secret::new(owner), LEASE).in_mode(mode);
    let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
    renewed.expect("the server is there").remove(0)
}

fn release_after(store: &PostgresStore, owner: &str, mode: Mode, rest: Duration) -> Released {
    let held = Holding::new("x", Secret::new(owner)).in_mode(mode);
    let released = store.release_many(Destination::default(), &[held.after(rest)], LIMIT);
    let mut released = released.expect("the server is there");
    released.remove(0).expect("nobody has locked it")
}

fn release(store: &PostgresStore, owner: &str, mode: Mode) -> Released {
    release_after(store, owner, mode, Duration::ZERO)
}

struct InDatabase {
    store: PostgresStore,
    start: Instant,
}

impl ModeWorld for InDatabase {
    fn store(&self) -> &dyn tourbillon_leases::LeaseStore {
        &self.store
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pass(&self, time: Duration) {
        thread::sleep(time);
    }

    fn slack(&self) -> Duration {
        15 * MS
    }
}

fn in_database(database: &Database) -> InDatabase {
    let builder = PostgresStore::builder(&database.url()).longest_lease(8 * LEASE);
    InDatabase {
        store: builder.build().unwrap(),
        // Long enough ago for all that has waited.
        start: Instant::now().checked_sub(100 * LEASE).unwrap(),
    }
}

/// Whether holders are left in the table.
fn rows(database: &Database) -> usize {
    let asked = "select count(*) from tourbillon_leases.lease_share";
    psql(database, asked).parse().expect("a number")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn random_calls_are_answered_as_by_a_list_of_holders() {
    let database = database();
    let seen = compare(
        &in_database(&database),
        4_711,
        Choices {
            steps: (12_000, 60),
            leases: &[LEASE, 2 * LEASE],
            waits: 6,
            passes: (&[35 * MS], 20),
        },
    );
    println!("{seen:?}");
    assert!(seen.steps >= 10_000, "{seen:?}");
    let Seen {
        granted,
        held,
        joined,
        places_again,
        behind_others,
        ..
    } = seen;
    for number in [granted, held, joined, places_again, behind_others] {
        assert!(number >= 40, "{seen:?}");
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn random_calls_with_leases_that_run_out_are_answered_as_by_a_list_of_holders() {
    let database = database();
    let seen = compare(
        &in_database(&database),
        1_789,
        Choices {
            steps: (2_000, 40),
            leases: &[150 * MS, 400 * MS, LEASE],
            waits: 15,
            passes: (&[30 * MS, 200 * MS, 500 * MS], 60),
        },
    );
    println!("{seen:?}");
    assert!(seen.run_out >= 20 && seen.joined >= 100, "{seen:?}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn all_waiting_readers_of_all_processes_get_in_by_the_announcement() {
    let database = database();
    // They do not ask again of themselves.
    let [one, other] = [(); 2].map(|()| {
        let builder = Leases::builder(store(&database)).poll(LEASE);
        builder.build().unwrap()
    });
    let writer = one.lock("x").wait().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let read = |at: usize| {
        let leases = [&one, &other][at % 2].clone();
        let count = Arc::clone(&count);
        thread::spawn(move || {
            let guard = leases.lock("x").shared().wait().unwrap();
            count.fetch_add(1, SeqCst);
            // Each one waits for all others: they have the lock together.
            until("all are in", || count.load(SeqCst) == 8);
            gives_back(guard);
        })
    };
    let readers: Vec<_> = (0..8).map(read).collect();
    until("they wait, and both listen", || {
        let noted = "select count(*) from tourbillon_leases.lease where since is not null";
        let listeners = "select count(*) from pg_stat_activity where datname = current_database() \
                         and pid <> pg_backend_pid() and query like '%pg_notify%'";
        let waiting = |leases: &Leases| leases.stats().waiting == 4;
        waiting(&one)
            && waiting(&other)
            && psql(&database, noted) == "1"
            && psql(&database, listeners) == "2"
    });
    let start = Instant::now();
    writer.release().wait().unwrap();
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(start.elapsed() < LEASE / 3, "{:?}", start.elapsed());
    assert_eq!(rows(&database), 0);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn readers_that_come_all_the_time_do_not_keep_a_writer_out() {
    let database = database();
    let ends = Arc::new(AtomicBool::new(false));
    let writing = Arc::new(AtomicBool::new(false));
    let read = |at: u32| {
        let leases = Leases::new(store(&database)).unwrap();
        let (ends, writing) = (Arc::clone(&ends), Arc::clone(&writing));
        thread::spawn(move || {
            let mut last = 0;
            while !ends.load(SeqCst) {
                let guard = leases.lock("x").shared().wait().unwrap();
                assert!(!writing.load(SeqCst), "a reader beside the writer");
                assert!(guard.token() >= last);
                last = guard.token();
                thread::sleep((20 + 10 * at) * MS);
                gives_back(guard);
            }
        })
    };
    let readers: Vec<_> = (0..3).map(read).collect();
    let leases = Leases::new(store(&database)).unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let guard = leases.lock("x").within(LEASE).wait().unwrap();
        writing.store(true, SeqCst);
        assert!(guard.token() > last);
        last = guard.token();
        thread::sleep(5 * MS);
        writing.store(false, SeqCst);
        gives_back(guard);
        thread::sleep(30 * MS);
    }
    ends.store(true, SeqCst);
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn no_two_of_several_processes_have_one_place() {
    let database = database();
    let places: Arc<[AtomicBool; 3]> = Arc::default();
    let grants = Arc::new(AtomicUsize::new(0));
    let work = |_| {
        let leases = Leases::new(store(&database)).unwrap();
        let (places, grants) = (Arc::clone(&places), Arc::clone(&grants));
        thread::spawn(move || {
            for _ in 0..40 {
                let guard = leases.lock("x").permit_of(3).wait().unwrap();
                let place = &places[guard.place() as usize];
                assert!(!place.swap(true, SeqCst), "a place was given twice");
                grants.fetch_add(1, SeqCst);
                thread::sleep(MS);
                place.store(false, SeqCst);
                gives_back(guard);
            }
        })
    };
    let workers: Vec<_> = (0..6).map(work).collect();
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(grants.load(SeqCst), 240);
    until("all is given back", || rows(&database) == 0);
}

/// A name that is free, or that others take at the same moment, is refused to nobody.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn who_does_not_wait_gets_a_free_place_beside_others_who_ask_at_the_same_time() {
    let database = database();
    let stores: Vec<_> = (0..4).map(|_| store(&database)).collect();
    for round in 0..25 {
        for mode in [Mode::Shared, Mode::Permit { of: 4 }] {
            let barrier = std::sync::Barrier::new(4);
            let ask = |at: usize| {
                barrier.wait();
                let owner = format!("{round} {mode} {at}");
                granted(&stores[at], &owner, mode);
                owner
            };
            let ask = &ask;
            let owners: Vec<_> = thread::scope(|scope| {
                let calls: Vec<_> = (0..4).map(|at| scope.spawn(move || ask(at))).collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect()
            });
            for owner in owners {
                assert_eq!(release(&stores[0], &owner, mode), Released::Released);
            }
        }
    }
}

/// A grant to somebody else locks the row until its commit is on disk.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn who_does_not_wait_is_answered_after_a_grant_that_is_under_way() {
    let database = database();
    let store = store(&database);
    for mode in [Mode::Shared, PERMIT] {
        // The first holder of a name that was used before, and one that joins it.
        granted(&store, "before", Mode::Exclusive);
        release(&store, "before", Mode::Exclusive);
        for (owner, lock) in [("a", "update"), ("b", "no key update")] {
            let mut client = database.client();
            let mut transaction = client.transaction().unwrap();
            let lock = format!("select from tourbillon_leases.lease for {lock}");
            transaction.execute(&lock, &[]).unwrap();
            thread::scope(|scope| {
                let call = scope.spawn(|| granted(&store, owner, mode));
                until("it waits", || waits_for_a_row(&database));
                transaction.commit().unwrap();
                call.join().unwrap();
            });
        }
        for owner in ["a", "b"] {
            assert_eq!(release(&store, owner, mode), Released::Released);
        }
        assert_eq!(rows(&database), 0, "{mode}");
    }
}

/// Whether a call waits for a row.
fn waits_for_a_row(database: &Database) -> bool {
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and wait_event_type = 'Lock' and query like '%acquire_1%'";
    psql(database, waits) == "1"
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_lease_that_runs_out_while_a_permit_is_granted_makes_no_place_beyond_the_last() {
    let database = database();
    let store = store(&database);
    granted(&store, "a", PERMIT);
    granted(&store, "dead", PERMIT);
    let run_out = |owner: &str| {
        let ends = "update tourbillon_leases.lease_share set ends = now() where owner";
        psql(&database, &format!("{ends} = '{owner}'"));
    };
    run_out("dead");
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    let lock = "select from tourbillon_leases.lease for no key update";
    transaction.execute(lock, &[]).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| granted(&store, "b", PERMIT).1);
        until("it waits", || waits_for_a_row(&database));
        run_out("a");
        transaction.commit().unwrap();
        assert_eq!(call.join().unwrap(), 0);
    });
    assert_eq!(granted(&store, "c", PERMIT).1, 1);
}

/// On a busy name there is always a grant under way.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_writer_that_waits_is_noted_behind_a_grant_that_is_under_way() {
    let database = database();
    let [one, other] = [(); 2].map(|()| store(&database));
    granted(&one, "a", Mode::Shared);
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    let lock = "select from tourbillon_leases.lease for no key update";
    transaction.execute(lock, &[]).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| held(one.acquire(&waiter("w", Mode::Exclusive, MS), LIMIT)));
        until("it waits", || {
            waits_for_a_row(&database) || call.is_finished()
        });
        transaction.commit().unwrap();
        call.join().unwrap();
    });
    held(ask(&other, "b", Mode::Shared));
    assert_eq!(release(&one, "a", Mode::Shared), Released::Released);
    let taken = one.acquire(&waiter("w", Mode::Exclusive, LEASE), LIMIT);
    assert!(matches!(taken, Ok(Acquired::Granted { .. })), "{taken:?}");
}

/// While commits hang, nobody gets in, and who goes does not wait.
#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn places_are_given_back_behind_a_grant_whose_commit_hangs() {
    let database = database();
    let [store, other] = [(); 2].map(|()| store(&database));
    let wakes = Wakes::new();
    let waker = Waker::from(Arc::clone(&wakes));
    let watch = other.watch("x", &waker).expect("it can announce");
    until("it listens", || wakes.count() > 0);
    for mode in [Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        granted(&store, "b", mode);
        let mut client = database.client();
        let mut transaction = client.transaction().unwrap();
        let lock = "select from tourbillon_leases.lease for no key update";
        transaction.execute(lock, &[]).unwrap();
        let count = wakes.count();
        watch.looks();
        assert_eq!(release(&store, "a", mode), Released::Released, "{mode}");
        until("it is announced", || wakes.count() > count);
        assert_eq!(release(&store, "a", mode), Released::NotHeld);
        assert_eq!(renew(&store, "a", mode), Outcome::NotHeld);
        assert_eq!(release_after(&store, "b", mode, LEASE), Released::Released);
        // There is room, but the row stays locked.
        assert!(held(ask(&store, "c", mode)) <= 100 * MS, "{mode}");
        transaction.rollback().unwrap();
        assert_eq!(granted(&store, "c", mode).1, 0);
        assert_eq!(release(&store, "c", mode), Released::Released);
        // The same for the last one.
        let run_out = "update tourbillon_leases.lease_share set ends = now()";
        psql(&database, run_out);
        granted(&store, "d", mode);
        let mut transaction = client.transaction().unwrap();
        transaction.execute(lock, &[]).unwrap();
        assert_eq!(release(&store, "d", mode), Released::Released, "{mode}");
        transaction.rollback().unwrap();
        granted(&store, "e", Mode::Exclusive);
        assert_eq!(release(&store, "e", Mode::Exclusive), Released::Released);
        assert_eq!(rows(&database), 0);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_in_the_table_of_holders_is_what_the_documentation_says() {
    let database = database();
    let store = store(&database);
    let claim = Claim::new("x", "7c1e:3", Secret::new("s3"), LEASE).with_data("10.0.0.7");
    granted(&store, "first", PERMIT);
    let Ok(Acquired::Granted { token, place: 1 }) = store.acquire(&claim.in_mode(PERMIT), LIMIT)
    else {
        panic!("there is a place");
    };
    let row = |columns: &str| {
        let asked =
            format!("select {columns} from tourbillon_leases.lease_share where owner like '7c1e%'");
        psql(&database, &asked)
    };
    let shown = "owner, secret, place, token, length, holds, data, released";
    assert_eq!(
        row(shown),
        format!("7c1e:3|s3|1|{token}|00:00:30|1|10.0.0.7|f")
    );
    let mut renewal = Renewal::new("x", Secret::new("s3"), LEASE / 2).in_mode(PERMIT);
    renewal.holds = 2;
    let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    assert_eq!(row("length, holds, ends > now()"), "00:00:15|2|t");
    let name = "select mode, owner is null, secret is null from tourbillon_leases.lease";
    assert_eq!(psql(&database, name), "2|t|t");
    assert_eq!(
        release_after(&store, "s3", PERMIT, LEASE / 3),
        Released::Released
    );
    assert_eq!(
        row("owner, length, released"),
        "7c1e:3 (released)|00:00:10|t"
    );
    // As the documentation shows it, by hand.
    let held =
        "select name, owner from tourbillon_leases.lease_share where ends > now() order by owner";
    assert_eq!(psql(&database, held), "x|7c1e:3 (released)\nx|first");
    let take = "update tourbillon_leases.lease_share set ends = now() where name = 'x'";
    psql(&database, take);
    assert_eq!(renew(&store, "first", PERMIT), Outcome::NotHeld);
    granted(&store, "next", Mode::Exclusive);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_place_of_a_holder_that_died_is_free_when_its_lease_has_run_out() {
    let database = database();
    let (store, other) = (store(&database), store(&database));
    let short = Claim::new("x", "dead", Secret::new("dead"), 300 * MS).in_mode(PERMIT);
    let long = granted(&store, "long", PERMIT);
    let Ok(Acquired::Granted { token, place: 1 }) = store.acquire(&short, LIMIT) else {
        panic!("there is a place");
    };
    // For who asks, the first of them ends.
    assert!(held(ask(&other, "next", PERMIT)) <= 300 * MS);
    assert!(held(ask(&other, "all", Mode::Exclusive)) > LEASE / 2);
    until("it runs out", || {
        store.holder_of("x", LIMIT).unwrap().unwrap().holders == 1
    });
    let next = granted(&other, "next", PERMIT);
    assert!(next.0 > token && next.1 == 1 && token > long.0);
    assert_eq!(renew(&store, "dead", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "dead", PERMIT), Released::NotHeld);
    assert_eq!(rows(&database), 2);
    assert_eq!(renew(&other, "next", PERMIT), Outcome::Renewed);
    // All others die, too. Then the name is free for any mode, with a greater token.
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let last = psql(&database, "select max(token) from tourbillon_leases.lease");
        psql(
            &database,
            "update tourbillon_leases.lease_share set ends = now()",
        );
        assert_eq!(store.holder_of("x", LIMIT), Ok(None));
        let owner = format!("after {mode}");
        let (token, place) = granted(&store, &owner, mode);
        assert!(token > last.parse().unwrap() && place == 0);
        assert_eq!(rows(&database), usize::from(mode != Mode::Exclusive));
        assert_eq!(release(&store, &owner, mode), Released::Released);
        granted(&store, "next one", PERMIT);
    }
}

fn guard(token: u64) -> String {
    format!("select tourbillon_leases.guard('x', {token})")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn holders_alone_pass_the_guard() {
    let database = database();
    let store = store(&database);
    for mode in [Mode::Shared, PERMIT] {
        let (first, _) = granted(&store, "a", mode);
        let (second, _) = granted(&store, "b", mode);
        assert_eq!(first == second, mode == Mode::Shared);
        for token in [first, second] {
            assert_eq!(database.psql(&guard(token)).as_deref(), Ok(""));
        }
        let refused = |token: u64| {
            let refused = database.psql(&guard(token)).expect_err("it is not held");
            assert!(refused.contains("TB002"), "{refused}");
        };
        refused(first - 1);
        refused(second + 1);
        // One that is released, also for a rest.
        assert_eq!(release_after(&store, "a", mode, LEASE), Released::Released);
        if mode == PERMIT {
            refused(first);
        }
        assert_eq!(database.psql(&guard(second)).as_deref(), Ok(""));
        assert_eq!(release(&store, "b", mode), Released::Released);
        refused(second);
        psql(
            &database,
            "update tourbillon_leases.lease_share set ends = now()",
        );
        let (alone, _) = granted(&store, "c", Mode::Exclusive);
        refused(second);
        assert_eq!(database.psql(&guard(alone)).as_deref(), Ok(""));
        assert_eq!(release(&store, "c", Mode::Exclusive), Released::Released);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_guarded_transaction_keeps_its_own_place_and_no_other() {
    let database = database();
    let store = store(&database);
    let three = Mode::Permit { of: 3 };
    let (_, first) = granted(&store, "a", three);
    let (token, place) = granted(&store, "b", three);
    assert_eq!((first, place), (0, 1));
    let mut client = database.client();
    for end in ["release", "run out"] {
        let mut transaction = client.transaction().unwrap();
        transaction
            .batch_execute(&guard(if end == "release" {
                token
            } else {
                granted(&store, "b", three).0
            }))
            .unwrap();
        // Others come and go, and the holder itself, too.
        assert_eq!(granted(&store, "c", three).1, 2);
        assert_eq!(renew(&store, "b", three), Outcome::Renewed);
        assert_eq!(release(&store, "c", three), Released::Released);
        match end {
            "release" => {
                assert_eq!(release(&store, "b", three), Released::Released);
                assert_eq!(release(&store, "b", three), Released::NotHeld);
            }
            _ => {
                psql(
                    &database,
                    "update tourbillon_leases.lease_share set ends = now() where secret = 'b'",
                );
            }
        }
        assert_eq!(renew(&store, "b", three), Outcome::NotHeld);
        assert_eq!(store.holder_of("x", LIMIT).unwrap().unwrap().holders, 1);
        // Nobody gets its place, also if there is no other.
        assert_eq!(granted(&store, "c", three).1, 2);
        assert!(held(ask(&store, "d", three)) <= 20 * MS);
        assert_eq!(release(&store, "c", three), Released::Released);
        // Nor does anybody get the name, also after the last holder. But the other places are there.
        assert_eq!(release(&store, "a", three), Released::Released);
        let (next, place) = granted(&store, "c", three);
        assert!(next > token && place == 0, "{end}");
        assert_eq!(granted(&store, "d", three).1, 2);
        assert!(held(ask(&store, "e", three)) <= 20 * MS);
        for owner in ["c", "d"] {
            assert_eq!(release(&store, owner, three), Released::Released);
        }
        // Somebody who waits for the name comes first.
        let waiting = waiter("w", Mode::Exclusive, MS);
        granted(&store, "c", three);
        held(store.acquire(&waiting, LIMIT));
        psql(
            &database,
            "update tourbillon_leases.lease_share set ends = now() where secret = 'c'",
        );
        assert!(held(ask(&store, "d", three)) <= 20 * MS);
        store.leave("x", "w", LIMIT).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
            assert!(held(ask(&store, "e", mode)) <= 20 * MS, "{end} {mode}");
        }
        transaction.commit().unwrap();
        assert_eq!(granted(&store, "e", Mode::Exclusive).1, 0);
        assert_eq!(release(&store, "e", Mode::Exclusive), Released::Released);
        assert_eq!(rows(&database), 0);
        assert_eq!(granted(&store, "a", three).1, 0);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_guarded_transaction_of_a_reader_lets_other_readers_in() {
    let database = database();
    let store = store(&database);
    let (token, _) = granted(&store, "a", Mode::Shared);
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    transaction.batch_execute(&guard(token)).unwrap();
    assert_eq!(granted(&store, "b", Mode::Shared).0, token);
    assert_eq!(renew(&store, "a", Mode::Shared), Outcome::Renewed);
    for owner in ["a", "b"] {
        assert_eq!(release(&store, owner, Mode::Shared), Released::Released);
    }
    assert!(held(ask(&store, "w", Mode::Exclusive)) <= 20 * MS);
    transaction.rollback().unwrap();
    assert!(granted(&store, "w", Mode::Exclusive).0 > token);
    assert_eq!(rows(&database), 0);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tables_that_may_lack_locks_grant_no_mode() {
    let database = database();
    let before = store(&database);
    granted(&before, "a", Mode::Shared);
    // As after a failover: see the tests of servers that are promoted.
    psql(
        &database,
        "update tourbillon_leases.meta set timeline = 'another'",
    );
    let after = store(&database);
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let answer = ask(&after, "b", mode);
        let waits = matches!(answer, Err(StoreError::Restarted { .. }));
        // What is held is no news.
        let is_held = matches!(answer, Ok(Acquired::Held { .. }));
        assert!(waits || mode != Mode::Shared && is_held, "{answer:?}");
    }
    // Those who hold it go on.
    assert_eq!(renew(&after, "a", Mode::Shared), Outcome::Renewed);
    let repeated = ask(&after, "a", Mode::Shared);
    assert!(matches!(repeated, Err(StoreError::Restarted { .. })));
    assert_eq!(release(&after, "a", Mode::Shared), Released::Released);
    let answer = ask(&after, "b", PERMIT);
    assert!(matches!(answer, Err(StoreError::Restarted { .. })));
    assert_eq!(rows(&database), 0);
    psql(&database, "update tourbillon_leases.meta set opens = null");
    granted(&after, "b", PERMIT);
    // A store with another longest lease is refused.
    let short = PostgresStore::builder(&database.url()).longest_lease(LEASE / 2);
    let claim = Claim::new("x", "c", Secret::new("c"), MS).in_mode(PERMIT);
    let refused = short.build().unwrap().acquire(&claim, LIMIT);
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_clock_that_is_set_back_keeps_nobody_waiting_for_longer_than_a_lease() {
    let database = database();
    let store = store(&database);
    for mode in [Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        granted(&store, "b", mode);
        // As if the clock had been an hour ahead then, when a writer asked.
        for change in [
            "update tourbillon_leases.lease_share set ends = ends + interval '1 hour'",
            "update tourbillon_leases.lease set asked = now() + interval '1 hour', asker = 'w'",
        ] {
            psql(&database, change);
        }
        let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
        assert!(shown.remaining <= LEASE);
        let left = held(ask(&store, "c", Mode::Exclusive));
        assert!(left <= LEASE, "{mode}: {left:?}");
        if mode == Mode::Shared {
            granted(&store, "c", mode);
            assert_eq!(release(&store, "c", mode), Released::Released);
        }
        let beyond =
            "select count(*) from tourbillon_leases.lease_share where ends > now() + length";
        assert_eq!(psql(&database, beyond), "0");
        for owner in ["a", "b"] {
            assert_eq!(renew(&store, owner, mode), Outcome::Renewed);
            assert_eq!(release(&store, owner, mode), Released::Released);
        }
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_lease_that_is_extended_after_the_clock_was_set_back_lasts_so_long() {
    let database = database();
    let store = in_database(&database).store;
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        granted(&store, "a", mode);
        for table in ["lease", "lease_share"] {
            let later = "set ends = ends + interval '1 hour' where ends > now()";
            psql(
                &database,
                &format!("update tourbillon_leases.{table} {later}"),
            );
        }
        let longer = Renewal::new("x", Secret::new("a"), 2 * LEASE).in_mode(mode);
        let renewed = store.renew(Destination::default(), &[longer.never_shortening()], LIMIT);
        assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
        // The refusal cuts what is left.
        let left = held(ask(&store, "w", Mode::Permit { of: 9 }));
        assert!(left > LEASE && left <= 2 * LEASE, "{mode}: {left:?}");
        assert_eq!(release(&store, "a", mode), Released::Released);
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn numbers_that_are_out_of_range_are_refused() {
    let database = database();
    let store = store(&database);
    for of in [0, Mode::MOST_PERMITS + 1, u32::MAX] {
        match ask(&store, "a", Mode::Permit { of }) {
            Err(StoreError::Refused(why)) => assert!(why.contains("from 1 to 10000"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let most = Mode::Permit {
        of: Mode::MOST_PERMITS,
    };
    for at in 0..300 {
        assert_eq!(granted(&store, &at.to_string(), most).1, at);
    }
    for owner in ["200", "30"] {
        assert_eq!(release(&store, owner, most), Released::Released);
    }
    assert_eq!(granted(&store, "new", most).1, 30);
    assert_eq!(granted(&store, "newer", most).1, 200);
    assert_eq!(granted(&store, "newest", most).1, 300);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_thousand_readers_are_renewed_in_their_own_rows() {
    let database = database();
    let store = store(&database);
    let owners: Vec<_> = (0..1_000).map(|at| at.to_string()).collect();
    for owner in &owners {
        granted(&store, owner, Mode::Shared);
    }
    let renewals: Vec<_> = owners
        .iter()
        .map(|owner| Renewal::new("x", Secret::new(owner), LEASE).in_mode(Mode::Shared))
        .collect();
    // The version of the row of the name, which all have in common.
    let version = "select xmin from tourbillon_leases.lease";
    let before = psql(&database, version);
    let outcomes = store.renew(Destination::default(), &renewals, LIMIT);
    assert_eq!(outcomes.unwrap(), vec![Outcome::Renewed; 1_000]);
    assert_eq!(psql(&database, version), before);
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((shown.mode, shown.holders), (Mode::Shared, 1_000));
    let listed = store.list("", &LockPaging::first(9), LIMIT).unwrap();
    assert_eq!(listed.locks[0].holder.holders, 1_000);
    // Two batches at one time, which name them in opposite orders, do not block each other.
    let mut backwards = renewals.clone();
    backwards.reverse();
    thread::scope(|scope| {
        for batch in [&renewals, &backwards] {
            scope.spawn(|| {
                for _ in 0..5 {
                    let outcomes = store.renew(Destination::default(), batch, LIMIT);
                    assert_eq!(outcomes.unwrap(), vec![Outcome::Renewed; 1_000]);
                }
            });
        }
        scope.spawn(|| {
            for round in 0..20 {
                granted(&store, &format!("late {round}"), Mode::Shared);
            }
        });
    });
    let releases: Vec<_> = owners
        .iter()
        .rev()
        .map(|owner| Holding::new("x", Secret::new(owner)).in_mode(Mode::Shared))
        .collect();
    let released = store.release_many(Destination::default(), &releases, LIMIT);
    assert_eq!(released.unwrap(), vec![Ok(Released::Released); 1_000]);
    assert_eq!(rows(&database), 20);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn batches_may_have_names_of_all_modes() {
    let database = database();
    let store = store(&database);
    let modes = [Mode::Shared, Mode::Exclusive, PERMIT];
    let items = [("c", 0), ("a", 1), ("b", 2), ("d", 1)];
    let secret = Secret::new("s");
    let claims =
        items.map(|(name, mode)| Claim::new(name, "o", secret, LEASE).in_mode(modes[mode]));
    let to = Destination::default();
    for answer in store.acquire_many(to, &claims, LIMIT).unwrap() {
        assert!(matches!(answer, Ok(Acquired::Granted { place: 0, .. })));
    }
    let mut renewals: Vec<_> = items
        .iter()
        .map(|(name, mode)| Renewal::new(name, secret, LEASE).in_mode(modes[*mode]))
        .collect();
    // Two that are not held: in another mode, and not at all.
    renewals.push(Renewal::new("c", secret, LEASE));
    renewals.push(Renewal::new("a", secret, LEASE).in_mode(PERMIT));
    let (yes, no) = (Outcome::Renewed, Outcome::NotHeld);
    let expected = vec![yes.clone(), yes.clone(), yes.clone(), yes, no.clone(), no];
    assert_eq!(store.renew(to, &renewals, LIMIT).unwrap(), expected);
    // Somebody has locked rows by hand. The others of the batch go on.
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    let lock = "select from tourbillon_leases.lease_share where name = 'b' for update";
    transaction.execute(lock, &[]).unwrap();
    let outcomes = store.renew(to, &renewals, LIMIT).unwrap();
    assert!(matches!(outcomes[2], Outcome::Failed(_)), "{outcomes:?}");
    for at in [0, 1, 3, 4, 5] {
        assert_eq!(outcomes[at], expected[at]);
    }
    let releases: Vec<_> = items
        .iter()
        .map(|(name, mode)| Holding::new(name, secret).in_mode(modes[*mode]))
        .collect();
    let released = store.release_many(to, &releases, LIMIT).unwrap();
    assert!(matches!(released[2], Err(StoreError::Unavailable(_))));
    for at in [0, 1, 3] {
        assert_eq!(released[at], Ok(Released::Released));
    }
    transaction.rollback().unwrap();
    let released = store.release_many(to, &releases, LIMIT).unwrap();
    let not = Ok(Released::NotHeld);
    assert_eq!(
        released,
        [not.clone(), not.clone(), Ok(Released::Released), not]
    );
    let held = store.list("", &LockPaging::first(9), LIMIT).unwrap();
    assert_eq!(held.locks, []);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_waits_is_forgotten_when_its_store_leaves() {
    let database = database();
    let [one, other] = [(); 2].map(|()| store(&database));
    let writer = |store: &PostgresStore| {
        let claim = Claim::new("x", "w", Secret::new("w"), LEASE).waiting();
        let left = held(store.acquire(&claim.waited(40 * MS), LIMIT));
        // It has to ask again in time.
        assert!(left <= Claim::RECENT * 2 / 3, "{left:?}");
    };
    granted(&one, "a", Mode::Shared);
    writer(&one);
    assert!(held(ask(&other, "b", Mode::Shared)) <= Claim::RECENT);
    // Another store has not asked.
    other.leave("x", "w", LIMIT).unwrap();
    held(ask(&other, "b", Mode::Shared));
    one.leave("x", "w", LIMIT).unwrap();
    granted(&other, "b", Mode::Shared);
    // Two stores wait, and one of them gives up.
    writer(&one);
    writer(&other);
    other.leave("x", "w", LIMIT).unwrap();
    held(ask(&other, "c", Mode::Shared));
    // One that has died counts for 1.5 s.
    writer(&one);
    let start = Instant::now();
    until("it counts no more", || {
        matches!(ask(&other, "c", Mode::Shared), Ok(Acquired::Granted { .. }))
    });
    assert!(start.elapsed() > Claim::RECENT / 2);
}

/// A caller that has waited for so long.
fn waiter(owner: &str, mode: Mode, waited: Duration) -> Claim<'_> {
    let claim = Claim::new("x", owner, Secret::new(owner), LEASE).in_mode(mode);
    claim.waiting().waited(waited)
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn each_permit_that_is_released_is_announced_while_several_callers_wait() {
    const ANY: Mode = Mode::Permit { of: 3 };
    let database = database();
    let [one, other] = [(); 2].map(|()| store(&database));
    for owner in ["a", "b", "c"] {
        granted(&one, owner, ANY);
    }
    let wakes = Wakes::new();
    let waker = Waker::from(Arc::clone(&wakes));
    let watch = other.watch("x", &waker).expect("it can announce");
    until("it listens", || wakes.count() > 0);
    // Other callers of this store have waited for less, and so have written nothing.
    for owner in ["d", "e", "f"] {
        held(other.acquire(&waiter(owner, ANY, 40 * MS), LIMIT));
    }
    for (at, (before, next)) in [("a", "d"), ("b", "e"), ("c", "f")].into_iter().enumerate() {
        let count = wakes.count();
        watch.looks();
        release(&one, before, ANY);
        until("it is announced", || wakes.count() > count);
        let taken = other.acquire(&waiter(next, ANY, 40 * MS), LIMIT);
        let place = u32::try_from(at).unwrap();
        assert!(matches!(taken, Ok(Acquired::Granted { place: its, .. }) if its == place));
    }
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_place_is_reserved_for_the_store_whose_caller_has_waited_longest() {
    let database = database();
    let [one, other] = [(); 2].map(|()| store(&database));
    granted(&one, "a", PERMIT);
    let waiting = Claim::new("x", "c", Secret::new("c"), LEASE)
        .in_mode(PERMIT)
        .waiting()
        .waited(LEASE);
    // On a busy machine a reservation may be over before anybody asks.
    until("a reservation is seen and used", || {
        granted(&one, "b", PERMIT);
        held(other.acquire(&waiting, LIMIT));
        assert_eq!(release(&one, "b", PERMIT), Released::Released);
        let is_refused = match ask(&one, "d", PERMIT) {
            Ok(Acquired::Held { remaining }) => remaining <= 25 * MS,
            Ok(Acquired::Granted { .. }) => {
                assert_eq!(release(&one, "d", PERMIT), Released::Released);
                false
            }
            other => panic!("{other:?}"),
        };
        let taken = other.acquire(&waiting, LIMIT);
        assert!(
            matches!(taken, Ok(Acquired::Granted { place: 1, .. })),
            "{taken:?}"
        );
        assert_eq!(release(&other, "c", PERMIT), Released::Released);
        is_refused
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn rows_of_holders_that_died_are_swept_and_those_of_others_keep_their_names() {
    let database = database();
    let store = store(&database);
    granted(&store, "a", Mode::Shared);
    let dead = Claim::new("dead", "b", Secret::new("b"), LEASE).in_mode(PERMIT);
    store.acquire(&dead, LIMIT).unwrap();
    for age in [
        "update tourbillon_leases.lease set ends = ends - interval '26 hours'",
        "update tourbillon_leases.lease_share set ends = ends - interval '26 hours' where name = 'dead'",
    ] {
        psql(&database, age);
    }
    let day = 25_i64 * 3_600 * 1_000_000;
    psql(
        &database,
        &format!("select tourbillon_leases.sweep_1({day}, null)"),
    );
    let names = |table: &str| {
        let asked = format!("select string_agg(name, ',') from tourbillon_leases.{table}");
        psql(&database, &asked)
    };
    assert_eq!((&*names("lease"), &*names("lease_share")), ("x", "x"));
    assert_eq!(renew(&store, "a", Mode::Shared), Outcome::Renewed);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_without_rights_on_the_table_of_holders_is_told() {
    let database = database();
    let owner = store(&database);
    granted(&owner, "a", Mode::Shared);
    let role = format!("alone_{}", database.name());
    psql(
        &database,
        &format!(
            "create role {role} login; \
             grant usage on schema tourbillon_leases to {role}; \
             grant select, insert, update, delete on all tables in schema tourbillon_leases to {role}"
        ),
    );
    let store = PostgresStore::open(&database.url_of(&role)).unwrap();
    store.check(LIMIT).unwrap();
    granted(&store, "b", Mode::Shared);
    assert_eq!(release(&store, "b", Mode::Shared), Released::Released);
    for right in ["insert", "update", "delete"] {
        psql(
            &database,
            &format!("revoke {right} on tourbillon_leases.lease_share from {role}"),
        );
        let refused = store.check(LIMIT);
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{right}");
    }
    match ask(&store, "b", Mode::Shared) {
        Err(StoreError::Refused(why)) => assert!(why.contains("permission denied"), "{why}"),
        other => panic!("{other:?}"),
    }
    // Nothing is held then, and what is held stays so.
    let shown = owner.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((&*shown.owner, shown.holders), ("a", 1));
    let leases = Leases::new(store).unwrap();
    let guard = leases.lock("alone").wait().unwrap();
    let answer = leases.lock("alone").shared().at_once().wait();
    assert!(matches!(answer, Err(LockError::Held { .. })), "{answer:?}");
    guard.release().wait().unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_grant_that_is_repeated_wakes_the_next_caller_again() {
    let database = database();
    grants_wake_the_next_caller(&store(&database), true);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_caller_that_has_a_place_reserves_none_for_its_store() {
    let database = database();
    a_wait_that_is_over_reserves_nothing(&store(&database));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn who_comes_while_another_caller_leaves_asks_again() {
    let database = database();
    let store = store(&database);
    let wakes = [(); 2].map(|()| Wakes::new());
    let [ear, waker] = wakes.each_ref().map(|wakes| Waker::from(Arc::clone(wakes)));
    let _ear = store.watch("y", &ear);
    until("it listens", || wakes[0].count() > 0);
    // The answer may be there at once.
    let begins = |_| {
        let mut leaves = tourbillon_leases::LeaseStore::leave(&store, "x", "w", LIMIT);
        let is_pending = poll(&mut leaves, &Wakes::new()).is_pending();
        is_pending.then_some(leaves)
    };
    let leaves = (0..1_000).find_map(begins).expect("a call is under way");
    // What it notes now is taken back.
    let _place = store.watch("x", &waker);
    wait(leaves).unwrap();
    assert_eq!(wakes[1].count(), 1);
}
