//! Read-write locks and permits in a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use kit::wait::until;
use rusqlite::{Connection, TransactionBehavior};
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, Leases, LockPaging, Mode, Outcome, Released, Renewal,
    Secret, SqliteStore, StoreError,
};

use crate::calls::Calls;
use crate::folder::{Folder, LEASE, LIMIT, MS, claim, held, number};
use crate::mode_model::{
    Choices, Habits, ModeWorld, Seen, a_wait_that_is_over_reserves_nothing, compare,
    grants_wake_the_next_caller,
};

const PERMIT: Mode = Mode::Permit { of: 2 };

fn ask(store: &SqliteStore, owner: &str, mode: Mode) -> Result<Acquired, StoreError> {
    store.acquire(&claim("x", owner).in_mode(mode), LIMIT)
}

/// Asks for what has to be free.
#[track_caller]
fn granted(store: &SqliteStore, owner: &str, mode: Mode) -> (u64, u32) {
    match ask(store, owner, mode) {
        Ok(Acquired::Granted { token, place }) => (token, place),
        other => panic!("{owner}: {other:?}"),
    }
}

#[track_caller]
fn refused(store: &SqliteStore, owner: &str, mode: Mode) -> Duration {
    held(store, &claim("x", owner).in_mode(mode))
}

fn renew(store: &SqliteStore, owner: &str, mode: Mode) -> Outcome {
    let renewal = Renewal::new("x", Secret::new(owner), LEASE).in_mode(mode);
    let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
    renewed.expect("the file is there").remove(0)
}

fn release_after(store: &SqliteStore, owner: &str, mode: Mode, rest: Duration) -> Released {
    let held = Holding::new("x", Secret::new(owner)).in_mode(mode);
    let released = store.release_many(Destination::default(), &[held.after(rest)], LIMIT);
    let mut released = released.expect("the file is there");
    released.remove(0).expect("it is released")
}

fn release(store: &SqliteStore, owner: &str, mode: Mode) -> Released {
    release_after(store, owner, mode, Duration::ZERO)
}

struct InFile {
    store: SqliteStore,
    start: Instant,
}

impl ModeWorld for InFile {
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
        10 * MS
    }

    fn habits(&self) -> Habits {
        Habits {
            reservation: (25 * MS, 75 * MS),
            same_ask: 100 * MS,
            interval: |waited| (waited / 8).clamp(10 * MS, 50 * MS),
        }
    }
}

fn in_file(folder: &Folder) -> InFile {
    InFile {
        store: folder.store(),
        // Long enough ago for all that has waited.
        start: Instant::now().checked_sub(100 * LEASE).unwrap(),
    }
}

#[test]
fn random_calls_are_answered_as_by_a_list_of_holders() {
    let folder = Folder::new();
    let seen = compare(
        &in_file(&folder),
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
fn random_calls_with_leases_that_run_out_are_answered_as_by_a_list_of_holders() {
    let folder = Folder::new();
    let seen = compare(
        &in_file(&folder),
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
fn all_waiting_readers_of_all_stores_get_in_together() {
    let folder = Folder::new();
    let [one, other] = [(); 2].map(|()| Leases::new(folder.store()).unwrap());
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
            guard.release().wait().unwrap();
        })
    };
    let readers: Vec<_> = (0..8).map(read).collect();
    until("they wait", || {
        one.stats().waiting == 4 && other.stats().waiting == 4
    });
    writer.release().wait().unwrap();
    for reader in readers {
        reader.join().unwrap();
    }
    let rows = "select (select count(*) from tourbillon_lease)
        + (select count(*) from tourbillon_lease_share)";
    assert_eq!(number(&folder.plain(), rows), 0);
}

#[test]
fn a_writer_waits_for_those_who_read_already_and_for_no_others() {
    let folder = Folder::new();
    let (one, other) = (folder.store(), folder.store());
    granted(&one, "a", Mode::Shared);
    granted(&other, "b", Mode::Shared);
    let writer = claim("x", "w").waiting();
    // By the first attempt, and by those that mostly only read.
    for waited in [Duration::ZERO, 200 * MS] {
        assert!(held(&other, &writer.waited(waited)) <= 50 * MS);
        assert!(refused(&one, "c", Mode::Shared) <= Claim::RECENT);
    }
    thread::sleep(200 * MS);
    held(&other, &writer.waited(400 * MS));
    // The later attempt counts.
    assert!(refused(&one, "c", Mode::Shared) > Claim::RECENT - 200 * MS);
    // A store that has not asked changes nothing when its callers leave.
    one.leave("x", "c", LIMIT).unwrap();
    refused(&one, "c", Mode::Shared);
    other.leave("x", "w", LIMIT).unwrap();
    granted(&one, "c", Mode::Shared);
    for owner in ["a", "b", "c"] {
        assert_eq!(release(&one, owner, Mode::Shared), Released::Released);
    }
    granted(&other, "w", Mode::Exclusive);
}

#[test]
fn a_caller_that_gives_up_leaves_the_claims_of_other_stores() {
    let folder = Folder::new();
    let [one, other] = [(); 2].map(|()| folder.store());
    granted(&one, "a", Mode::Shared);
    held(&one, &claim("x", "v").waiting());
    held(&other, &claim("x", "w").waiting());
    one.leave("x", "v", LIMIT).unwrap();
    refused(&one, "b", Mode::Shared);
}

#[test]
fn a_place_is_reserved_for_the_store_whose_caller_has_waited_longest() {
    let folder = Folder::new();
    let [one, other] = [(); 2].map(|()| folder.store());
    granted(&one, "a", PERMIT);
    let waiting = claim("x", "c").in_mode(PERMIT).waiting().waited(LEASE);
    // On a busy machine a reservation may be over before anybody asks.
    until("a reservation is seen and used", || {
        granted(&one, "b", PERMIT);
        held(&other, &waiting);
        assert_eq!(release(&one, "b", PERMIT), Released::Released);
        let is_refused = match ask(&one, "d", PERMIT) {
            Ok(Acquired::Held { remaining }) => remaining <= 75 * MS,
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

/// As on a platform whose processes share the wall clock alone.
#[test]
fn notes_from_before_the_clock_was_set_back_do_not_count() {
    let folder = Folder::new();
    let store = folder.store();
    let later = |column: &str| {
        let change = format!("update tourbillon_lease set {column} = ends + 3600000000");
        let changed = folder.plain().execute(&change, ());
        assert_eq!(changed, Ok(1));
    };
    granted(&store, "a", Mode::Shared);
    let writer = claim("x", "w").waiting();
    held(&store, &writer);
    refused(&store, "b", Mode::Shared);
    later("asked");
    granted(&store, "b", Mode::Shared);
    // Who asks again is noted again.
    held(&store, &writer);
    refused(&store, "c", Mode::Shared);
    for owner in ["a", "b"] {
        assert_eq!(release(&store, owner, Mode::Shared), Released::Released);
    }
    granted(&store, "a", PERMIT);
    later("turn = 'another', reserved");
    granted(&store, "b", PERMIT);
}

#[test]
fn a_store_that_gives_up_leaves_its_place_at_once() {
    let folder = Folder::new();
    let [one, other] = [(); 2].map(|()| folder.store());
    granted(&one, "a", PERMIT);
    granted(&one, "b", PERMIT);
    let waiting = claim("x", "c").in_mode(PERMIT).waiting().waited(LEASE);
    held(&other, &waiting);
    assert_eq!(release(&one, "b", PERMIT), Released::Released);
    other.leave("x", "c", LIMIT).unwrap();
    assert_eq!(granted(&one, "d", PERMIT).1, 1);
}

#[test]
fn the_place_of_a_holder_that_died_is_free_when_its_lease_has_run_out() {
    let folder = Folder::new();
    let (store, other) = (folder.store(), folder.store());
    let long = granted(&store, "long", PERMIT);
    let short = Claim::new("x", "dead", Secret::new("dead"), 300 * MS).in_mode(PERMIT);
    let Ok(Acquired::Granted { token, place: 1 }) = store.acquire(&short, LIMIT) else {
        panic!("there is a place");
    };
    // For who asks, the first of them ends.
    assert!(refused(&other, "next", PERMIT) <= 300 * MS);
    assert!(refused(&other, "all", Mode::Exclusive) > LEASE / 2);
    until("it runs out", || {
        store.holder_of("x", LIMIT).unwrap().unwrap().holders == 1
    });
    let next = granted(&other, "next", PERMIT);
    assert!(next.0 > token && next.1 == 1 && token > long.0);
    assert_eq!(renew(&store, "dead", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "dead", PERMIT), Released::NotHeld);
    // All others die, too. Then the name is free for any mode, with a greater token.
    let db = folder.plain();
    let dies = "update tourbillon_lease_share set ends = 1; update tourbillon_lease set ends = 1
        where mode <> 0";
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        for dies in [dies, dies.split(';').next().unwrap()] {
            let (token, _) = granted(&store, "next", PERMIT);
            db.execute_batch(dies).unwrap();
            assert_eq!(store.holder_of("x", LIMIT), Ok(None));
            assert_eq!(
                store.list("", &LockPaging::first(9), LIMIT).unwrap().locks,
                []
            );
            let after = granted(&store, "after", mode);
            assert!(after.0 > token && after.1 == 0);
            let rows = number(&db, "select count(*) from tourbillon_lease_share");
            assert_eq!(rows, i64::from(mode != Mode::Exclusive));
            assert_eq!(release(&store, "after", mode), Released::Released);
        }
    }
}

/// The statement of the documentation, with its values.
fn is_held(db: &Connection, token: u64) -> bool {
    let sql =
        "select 1 from tourbillon_lease_share where name = 'x' and token = ?1 and not released";
    let mut statement = db.prepare(sql).unwrap();
    statement.exists([i64::try_from(token).unwrap()]).unwrap()
}

#[test]
fn a_transaction_of_a_user_is_fenced_by_a_condition() {
    let folder = Folder::new();
    let (store, mut db) = (folder.store(), folder.plain());
    for mode in [Mode::Shared, PERMIT] {
        let (token, _) = granted(&store, "a", mode);
        let (second, _) = granted(&store, "b", mode);
        let transaction = db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        assert!(is_held(&transaction, token) && is_held(&transaction, second));
        assert!(!is_held(&transaction, second + 1));
        // Nobody gets the name, or a place, before the transaction has ended.
        let answer = store.acquire(&claim("x", "c").in_mode(mode), 50 * MS);
        assert!(matches!(answer, Err(StoreError::Unavailable(_))));
        transaction.commit().unwrap();
        assert_eq!(release_after(&store, "a", mode, LEASE), Released::Released);
        assert_eq!(is_held(&db, token), mode == Mode::Shared);
        assert_eq!(release(&store, "b", mode), Released::Released);
        assert!(!is_held(&db, second));
        // Of leases that have run out, once somebody else has the name.
        db.execute_batch("update tourbillon_lease_share set ends = 1")
            .unwrap();
        let (third, _) = granted(&store, "c", mode);
        db.execute_batch("update tourbillon_lease_share set ends = 1")
            .unwrap();
        assert!(is_held(&db, third));
        granted(&store, "d", Mode::Exclusive);
        assert!(!is_held(&db, third));
        assert_eq!(release(&store, "d", Mode::Exclusive), Released::Released);
    }
}

#[test]
fn the_rest_of_a_place_keeps_it_taken_for_nobody() {
    let folder = Folder::new();
    let store = folder.store();
    for owner in ["a", "b"] {
        granted(&store, owner, PERMIT);
        assert_eq!(
            release_after(&store, owner, PERMIT, LEASE / 2),
            Released::Released
        );
        assert_eq!(renew(&store, owner, PERMIT), Outcome::NotHeld);
        assert_eq!(release(&store, owner, PERMIT), Released::NotHeld);
        // Nor by its own secret.
        if owner == "a" {
            refused(&store, "a", PERMIT);
        }
    }
    assert!(refused(&store, "c", PERMIT) <= LEASE / 2);
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert!(shown.owner.ends_with(" (released)"));
    assert_eq!((shown.mode, shown.holders), (PERMIT, 2));
}

#[test]
fn a_name_is_held_for_as_long_as_the_last_renewal_of_a_holder_says() {
    let folder = Folder::new();
    let store = folder.store();
    let short = Claim::new("x", "a", Secret::new("a"), 200 * MS).in_mode(Mode::Shared);
    store.acquire(&short, LIMIT).unwrap();
    assert_eq!(renew(&store, "a", Mode::Shared), Outcome::Renewed);
    thread::sleep(300 * MS);
    assert!(refused(&store, "w", Mode::Exclusive) > LEASE / 2);
    // One that has more time than those who are left.
    granted(&store, "b", Mode::Shared);
    let renewal = Renewal::new("x", Secret::new("b"), 200 * MS).in_mode(Mode::Shared);
    let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    assert_eq!(release(&store, "a", Mode::Shared), Released::Released);
    until("the last lease has run out", || {
        matches!(
            ask(&store, "w", Mode::Exclusive),
            Ok(Acquired::Granted { .. })
        )
    });
    assert_eq!(
        number(
            &folder.plain(),
            "select count(*) from tourbillon_lease_share"
        ),
        0
    );
}

#[test]
fn what_is_in_the_table_of_holders_is_what_the_documentation_says() {
    let folder = Folder::new();
    let (store, db) = (folder.store(), folder.plain());
    granted(&store, "first", PERMIT);
    let claim = Claim::new("x", "7c1e:3", Secret::new("s3"), LEASE).with_data("10.0.0.7");
    let Ok(Acquired::Granted { token, place: 1 }) = store.acquire(&claim.in_mode(PERMIT), LIMIT)
    else {
        panic!("there is a place");
    };
    let row = || {
        let shown =
            "select concat_ws('|', name, owner, secret, place, token, holds, data, released)
            from tourbillon_lease_share where secret = 's3'";
        db.query_row(shown, (), |row| row.get::<_, String>(0))
            .unwrap()
    };
    assert_eq!(row(), format!("x|7c1e:3|s3|1|{token}|1|10.0.0.7|0"));
    let mut renewal = Renewal::new("x", Secret::new("s3"), LEASE).in_mode(PERMIT);
    renewal.holds = 2;
    let renewed = store.renew(Destination::default(), &[renewal], LIMIT);
    assert_eq!(renewed, Ok(vec![Outcome::Renewed]));
    assert_eq!(row(), format!("x|7c1e:3|s3|1|{token}|2|10.0.0.7|0"));
    let name = "select mode = 2 and owner is null and secret is null and ends >=
        (select max(ends) from tourbillon_lease_share) from tourbillon_lease";
    assert_eq!(number(&db, name), 1);
    // As the documentation shows it, by hand.
    let take = "delete from tourbillon_lease where name = 'x';
        delete from tourbillon_lease_share where name = 'x'";
    db.execute_batch(take).unwrap();
    assert_eq!(renew(&store, "first", PERMIT), Outcome::NotHeld);
    assert_eq!(release(&store, "first", PERMIT), Released::NotHeld);
    assert!(granted(&store, "next", Mode::Exclusive).0 > token);
}

#[test]
fn numbers_that_are_out_of_range_are_refused() {
    let folder = Folder::new();
    let store = folder.store();
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
    // Leases of any length fit.
    let endless = Claim::new("y", "a", Secret::new("a"), Duration::MAX).in_mode(PERMIT);
    assert!(matches!(
        store.acquire(&endless, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
}

#[test]
fn one_number_out_of_range_does_not_refuse_a_batch() {
    let folder = Folder::new();
    let store = folder.store();
    let claims = [PERMIT, Mode::Permit { of: 0 }].map(|mode| claim("x", "a").in_mode(mode));
    let answers = store.acquire_many(Destination::default(), &claims, LIMIT);
    let answers = answers.expect("the others are granted");
    assert!(matches!(answers[0], Ok(Acquired::Granted { .. })));
    assert!(matches!(answers[1], Err(StoreError::Refused(_))));
}

#[test]
fn a_thousand_readers_are_listed_as_one_name() {
    let folder = Folder::new();
    let store = folder.store();
    let owners: Vec<_> = (0..1_000).map(|at| at.to_string()).collect();
    let claims: Vec<_> = owners
        .iter()
        .map(|owner| claim("x", owner).in_mode(Mode::Shared))
        .collect();
    let to = Destination::default();
    for answer in store.acquire_many(to, &claims, LIMIT).unwrap() {
        assert!(matches!(answer, Ok(Acquired::Granted { .. })));
    }
    let renewals: Vec<_> = owners
        .iter()
        .map(|owner| Renewal::new("x", Secret::new(owner), LEASE).in_mode(Mode::Shared))
        .collect();
    let outcomes = store.renew(to, &renewals, LIMIT).unwrap();
    assert_eq!(outcomes, vec![Outcome::Renewed; 1_000]);
    let shown = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!((shown.mode, shown.holders), (Mode::Shared, 1_000));
    let listed = store.list("", &LockPaging::first(9), LIMIT).unwrap();
    assert_eq!(listed.locks.len(), 1);
    let holder = &listed.locks[0].holder;
    assert_eq!((holder.mode, holder.holders), (Mode::Shared, 1_000));
    let releases: Vec<_> = owners
        .iter()
        .map(|owner| Holding::new("x", Secret::new(owner)).in_mode(Mode::Shared))
        .collect();
    let released = store.release_many(to, &releases, LIMIT).unwrap();
    assert_eq!(released, vec![Ok(Released::Released); 1_000]);
    assert_eq!(store.holder_of("x", LIMIT), Ok(None));
}

#[test]
fn rows_of_holders_that_died_go_and_a_reboot_ends_all() {
    let folder = Folder::new();
    let (store, db) = (folder.store(), folder.plain());
    let rows = || number(&db, "select count(*) from tourbillon_lease_share");
    for at in 0..1_100 {
        // Nobody asks for any of these names again.
        let name = format!("n{at}");
        let claim = Claim::new(&name, "a", Secret::new("a"), Duration::ZERO);
        store.acquire(&claim.in_mode(PERMIT), LIMIT).unwrap();
    }
    assert!(rows() <= 1_024, "{}", rows());
    granted(&store, "a", Mode::Shared);
    drop(store);
    let earlier = "update tourbillon_lease_state set boot = 'earlier'";
    db.execute(earlier, ()).unwrap();
    let store = folder.store();
    assert_eq!(rows(), 0);
    assert_eq!(renew(&store, "a", Mode::Shared), Outcome::NotHeld);
    granted(&store, "b", PERMIT);
}

#[test]
fn a_grant_that_is_repeated_wakes_the_next_caller_again() {
    let folder = Folder::new();
    grants_wake_the_next_caller(&folder.store(), false);
}

#[test]
fn a_caller_that_has_a_place_reserves_none_for_its_store() {
    let folder = Folder::new();
    a_wait_that_is_over_reserves_nothing(&folder.store());
}
