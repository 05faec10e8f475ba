//! What the store promises for names and batches, and what is in the file.

use std::collections::BTreeSet;
use std::time::Duration;

use kit::wait;
use rusqlite::{Connection, TransactionBehavior};
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LockPaging, Outcome, Released, Renewal, Secret,
    SqliteStore, StoreError,
};

use crate::calls::Calls;
use crate::folder::{Folder, LEASE, LIMIT, MS, claim, granted, held, number, release, renew};

// === one name ===

#[test]
fn a_name_is_granted_to_one_renewed_and_given_back() {
    let folder = Folder::new();
    let (one, other) = (folder.store(), folder.store());
    let first = granted(&one, "x", "a:1");
    let remaining = held(&other, &claim("x", "b:1"));
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    // The same owner, after an answer that was lost.
    assert_eq!(granted(&other, "x", "a:1"), first);
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    let foreign = Renewal::new("x", Secret::new("b:1"), LEASE);
    let unknown = Renewal::new("y", Secret::new("a:1"), LEASE);
    assert_eq!(
        renew(&one, &[mine, foreign, unknown]),
        [Outcome::Renewed, Outcome::NotHeld, Outcome::NotHeld]
    );
    assert_eq!(release(&other, "x", "b:1"), Released::NotHeld);
    assert_eq!(release(&one, "x", "a:1"), Released::Released);
    assert_eq!(release(&one, "x", "a:1"), Released::NotHeld);
    assert_eq!(renew(&one, &[mine]), [Outcome::NotHeld]);
    assert!(granted(&other, "x", "b:2") > first);
}

#[test]
fn a_lease_runs_out_and_what_is_left_of_it_is_not_renewed() {
    let folder = Folder::new();
    let store = folder.store();
    let secret = Secret::new("a:1");
    let short = Claim::new("x", "a:1", secret, 50 * MS);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    wait::until("the lease runs out", || {
        matches!(store.holder_of("x", LIMIT), Ok(None))
    });
    assert_eq!(
        renew(&store, &[Renewal::new("x", secret, LEASE)]),
        [Outcome::NotHeld]
    );
    // The same secret gets it anew.
    let Ok(Acquired::Granted { token: again, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    assert!(again > token);
    wait::until("the lease runs out", || {
        matches!(store.holder_of("x", LIMIT), Ok(None))
    });
    assert_eq!(release(&store, "x", "a:1"), Released::NotHeld);
    assert!(granted(&store, "x", "b:1") > again);
}

#[test]
fn a_repeated_acquire_and_a_late_renewal_shorten_nothing() {
    let folder = Folder::new();
    let store = folder.store();
    let token = granted(&store, "x", "a:1");
    let secret = Secret::new("a:1");
    let left = || store.holder_of("x", LIMIT).unwrap().unwrap().remaining;
    let short = Claim::new("x", "a:1", secret, MS);
    assert_eq!(store.acquire(&short, LIMIT), Ok(Acquired::granted(token)));
    assert!(left() > LEASE / 2);
    let late = Renewal::new("x", secret, MS).never_shortening();
    assert_eq!(renew(&store, &[late]), [Outcome::Renewed]);
    assert!(left() > LEASE / 2);
    // Any other renewal counts from now on.
    let renewal = Renewal::new("x", secret, LEASE / 3);
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    assert!(left() <= LEASE / 3);
}

#[test]
fn a_rest_keeps_the_name_locked_for_nobody() {
    let folder = Folder::new();
    let store = folder.store();
    let secret = Secret::new("a:1");
    granted(&store, "x", "a:1");
    let batch = [Holding::new("x", secret).after(LEASE / 2)];
    let released = store.release_many(Destination::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    let holder = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert_eq!(holder.owner, "a:1 (released)");
    assert!(held(&store, &claim("x", "b:1")) <= LEASE / 2);
    // Nor for the one that has released it.
    assert!(held(&store, &claim("x", "a:1")) <= LEASE / 2);
    let renewal = Renewal::new("x", secret, LEASE);
    assert_eq!(renew(&store, &[renewal]), [Outcome::NotHeld]);
    assert_eq!(release(&store, "x", "a:1"), Released::NotHeld);
    granted(&store, "y", "a:1");
    let batch = [Holding::new("y", secret).after(10 * MS)];
    let released = store.release_many(Destination::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    wait::until("the rest is over", || {
        matches!(
            store.acquire(&claim("y", "b:1"), LIMIT),
            Ok(Acquired::Granted { .. })
        )
    });
}

#[test]
fn leases_and_waits_of_any_length_fit() {
    let folder = Folder::new();
    let store = folder.store();
    let secret = Secret::new("a:1");
    let endless = Claim::new("x", "a:1", secret, Duration::MAX);
    assert!(endless.lease <= Calls::longest_lease(&store));
    assert!(matches!(
        store.acquire(&endless, Duration::MAX),
        Ok(Acquired::Granted { .. })
    ));
    let renewal = Renewal::new("x", secret, Duration::MAX);
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    let year = Duration::from_secs(365 * 24 * 3_600);
    assert!(held(&store, &claim("x", "b:1")) > 1_000 * year);
    held(&store, &claim("x", "b:1").waiting().waited(Duration::MAX));
    let detach = tourbillon_leases::Detach::new("x", secret, Secret::new("t"), Duration::MAX);
    store.detach(&detach, LIMIT).unwrap();
    let resume = tourbillon_leases::Resume::new("x", Secret::new("t"), "a:2", secret);
    assert!(store.resume(&resume, LIMIT).unwrap().is_some());
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    // One without length is over at once.
    let zero = Claim::new("y", "a:1", secret, Duration::ZERO);
    assert!(matches!(
        store.acquire(&zero, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    assert_eq!(store.holder_of("y", LIMIT), Ok(None));
    // A call without time is not made.
    let answer = store.acquire(&claim("z", "a:1"), Duration::ZERO);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    assert_eq!(store.holder_of("z", LIMIT), Ok(None));
}

// === batches and lists ===

#[test]
fn batches_of_any_size_have_an_answer_for_each_in_their_order() {
    let folder = Folder::new();
    let store = folder.store();
    for size in [0, 1, 2, 500] {
        let names: Vec<_> = (0..size).rev().map(|at| format!("{size}/{at}")).collect();
        // Each third one is somebody else's.
        for name in names.iter().step_by(3) {
            granted(&store, name, "other");
        }
        let mine = Secret::new("mine");
        let is_taken = |at: usize| at.is_multiple_of(3);
        let claims: Vec<_> = names
            .iter()
            .map(|name| Claim::new(name, "me", mine, LEASE))
            .collect();
        let call =
            tourbillon_leases::LeaseStore::acquire(&store, Destination::default(), &claims, LIMIT);
        let answers = crate::calls::wait(call).unwrap();
        assert_eq!(answers.len(), size);
        for (at, answer) in answers.iter().enumerate() {
            let is_granted = matches!(answer, Ok(Acquired::Granted { .. }));
            assert_eq!(is_granted, !is_taken(at), "{answer:?}");
        }
        let renewals: Vec<_> = names
            .iter()
            .map(|name| Renewal::new(name, mine, LEASE))
            .collect();
        let outcomes = renew(&store, &renewals);
        assert_eq!(outcomes.len(), size);
        for (at, outcome) in outcomes.into_iter().enumerate() {
            assert_eq!(outcome == Outcome::NotHeld, is_taken(at));
        }
        let held: Vec<_> = names.iter().map(|name| Holding::new(name, mine)).collect();
        let released = store.release_many(Destination::default(), &held, LIMIT);
        let released = released.unwrap();
        assert_eq!(released.len(), size);
        for (at, released) in released.into_iter().enumerate() {
            let expected = match is_taken(at) {
                true => Released::NotHeld,
                false => Released::Released,
            };
            assert_eq!(released, Ok(expected));
        }
    }
    // A free name has no row.
    let rows = "select count(*) from tourbillon_lease";
    assert_eq!(number(&folder.plain(), rows), 1 + 1 + 167);
}

#[test]
fn a_name_that_is_twice_in_a_batch_has_two_answers() {
    let folder = Folder::new();
    let store = folder.store();
    let claims = [claim("x", "1"), claim("x", "2"), claim("x", "1")];
    let call =
        tourbillon_leases::LeaseStore::acquire(&store, Destination::default(), &claims, LIMIT);
    let answers = crate::calls::wait(call).unwrap();
    let granted = |at: usize| matches!(answers[at], Ok(Acquired::Granted { .. }));
    assert_eq!([0, 1, 2].map(granted), [true, false, true], "{answers:?}");
    let renewals = ["1", "2", "1"].map(|secret| Renewal::new("x", Secret::new(secret), LEASE));
    assert_eq!(
        renew(&store, &renewals),
        [Outcome::Renewed, Outcome::NotHeld, Outcome::Renewed]
    );
}

/// All names behind a prefix, by pages of a size.
fn listed(store: &SqliteStore, prefix: &str, size: usize) -> Vec<String> {
    let (mut paging, mut names) = (LockPaging::first(size), Vec::new());
    loop {
        let page = store.list(prefix, &paging, LIMIT).unwrap();
        assert!(page.locks.len() <= size);
        assert!(page.locks.is_sorted_by(|one, other| one.name < other.name));
        names.extend(page.locks.into_iter().map(|lock| lock.name));
        match page.next {
            Some(next) => paging = next,
            None => return names,
        }
    }
}

#[test]
fn names_of_any_characters_are_apart_and_listed_in_pages() {
    for encoding in ["UTF-8", "UTF-16le", "UTF-16be"] {
        let folder = Folder::new();
        // A file of a user's may have another encoding, whose order of names is another one.
        let user = folder.plain();
        user.pragma_update(None, "encoding", encoding).unwrap();
        user.execute_batch("create table shop(id)").unwrap();
        let store = folder.store();
        let (long, last) = ("n".repeat(1_024), "\u{10ffff}".repeat(256));
        let names = [
            "plain",
            "Plain",
            "plain ",
            "plain/1",
            "plain\u{10ffff}",
            "plain\u{ff61}",
            "{a}",
            "%",
            "a'b",
            "a\"b",
            "zero\0byte",
            "zero\0",
            "ü",
            "u\u{308}",
            "\n",
            "null",
            "\u{10ffff}",
            &long,
            &last,
        ];
        for (at, name) in names.into_iter().enumerate() {
            granted(&store, name, &format!("a:{at}"));
        }
        // Neither what has run out, nor what is reserved, is held.
        store
            .acquire(
                &Claim::new("plain/2", "b", Secret::new("b"), Duration::ZERO),
                LIMIT,
            )
            .unwrap();
        granted(&store, "plain/0", "b");
        held(&store, &claim("plain/0", "c").waiting().waited(LEASE));
        assert_eq!(release(&store, "plain/0", "b"), Released::Released);
        for prefix in ["", "plain", "zero", "none", "\u{10ffff}", "u"] {
            let wanted: BTreeSet<&str> = names.into_iter().collect();
            let mut wanted: Vec<&str> = wanted.into_iter().collect();
            wanted.retain(|name| name.starts_with(prefix));
            for size in [1, 2, 100] {
                let mut found = listed(&store, prefix, size);
                found.sort();
                assert_eq!(found, wanted, "{encoding}, {prefix:?}, {size}");
            }
        }
        for (at, name) in names.into_iter().enumerate() {
            assert_eq!(
                release(&store, name, &format!("a:{at}")),
                Released::Released
            );
        }
    }
}

#[test]
fn a_page_ends_early_when_half_of_its_time_is_over_and_goes_on_behind() {
    let folder = Folder::new();
    let store = folder.store();
    let names: Vec<_> = (0..20_000).map(|at| format!("n{at:05}")).collect();
    for part in names.chunks(5_000) {
        let claims: Vec<_> = part.iter().map(|name| claim(name, "a:1")).collect();
        let call =
            tourbillon_leases::LeaseStore::acquire(&store, Destination::default(), &claims, LIMIT);
        crate::calls::wait(call).unwrap();
    }
    let (mut paging, mut found, mut pages) = (LockPaging::first(names.len()), Vec::new(), 0);
    loop {
        // Half of it is less than the rows take.
        let page = store.list("n", &paging, 4 * MS);
        let Ok(page) = page else {
            continue; // The thread had no time.
        };
        pages += 1;
        found.extend(page.locks.into_iter().map(|lock| lock.name));
        match page.next {
            Some(next) => paging = next,
            None => break,
        }
    }
    assert_eq!(found, names);
    assert!(pages > 1);
    // A place that the store has not told is no reason for an error.
    for (after, wanted) in [("a", 2), ("n99999", 0), ("z", 0)] {
        let page = store.list("n0000", &LockPaging::behind(after, 2), LIMIT);
        assert_eq!(page.unwrap().locks.len(), wanted, "{after}");
    }
}

#[test]
fn tickets_hold_what_every_store_has_to() {
    let folder = Folder::new();
    let store = folder.store();
    crate::tickets::nothing_that_is_shown_proves_anything(&store);
    crate::tickets::a_ticket_is_of_use_for_its_own_name_alone(&store);
    crate::tickets::a_ticket_is_used_by_one_of_many(&store);
    crate::tickets::detach_and_resume_do_what_a_backend_promises(&store);
}

// === what is in the file ===

#[test]
fn what_is_in_the_table_is_what_the_documentation_says() {
    let folder = Folder::new();
    let (store, db) = (folder.store(), folder.plain());
    let claim = Claim::new("report", "7c1e:3", Secret::new("s3"), LEASE).with_data("10.0.0.7");
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, LIMIT) else {
        panic!("it is free");
    };
    let row = || {
        let shown = "select concat_ws('|', name, owner, secret, token, holds, data, waiter,
            since is null, ticket, detached, terms) from tourbillon_lease";
        let row = db.query_row(shown, (), |row| row.get::<_, String>(0));
        row.unwrap()
    };
    assert_eq!(row(), format!("report|7c1e:3|s3|{token}|1|10.0.0.7|1"));
    let mut renewal = Renewal::new("report", Secret::new("s3"), LEASE);
    renewal.holds = 2;
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    assert_eq!(row(), format!("report|7c1e:3|s3|{token}|2|10.0.0.7|1"));
    let holder = store.holder_of("report", LIMIT).unwrap().unwrap();
    assert_eq!(
        (&*holder.owner, holder.token, &*holder.data),
        ("7c1e:3", token, "10.0.0.7")
    );
    // As the documentation shows it, by hand.
    db.execute("delete from tourbillon_lease where name = 'report'", ())
        .unwrap();
    assert_eq!(renew(&store, &[renewal]), [Outcome::NotHeld]);
    assert!(granted(&store, "report", "b:1") > token);
}

#[test]
fn rows_that_have_run_out_go_and_tokens_grow_all_the_same() {
    let folder = Folder::new();
    let (store, db) = (folder.store(), folder.plain());
    let rows = || number(&db, "select count(*) from tourbillon_lease");
    let mut last = 0;
    let mut most = 0;
    for at in 0..3_000 {
        // Nobody asks for any of these names again.
        let name = format!("n{at}");
        let claim = Claim::new(&name, "a", Secret::new("a"), Duration::ZERO);
        let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, LIMIT) else {
            panic!("it is free");
        };
        assert!(token > last);
        last = token;
        most = most.max(rows());
    }
    assert!(most <= 1_025, "{most}");
    granted(&store, "held", "a");
    for at in 0..1_024 {
        let name = format!("m{at}");
        let claim = Claim::new(&name, "a", Secret::new("a"), Duration::ZERO);
        store.acquire(&claim, LIMIT).unwrap();
    }
    assert!(store.holder_of("held", LIMIT).unwrap().is_some());
}

#[test]
fn after_a_reboot_all_leases_are_over_and_tokens_are_greater() {
    let folder = Folder::new();
    let store = folder.store();
    let endless = Claim::new("x", "a:1", Secret::new("a:1"), Duration::MAX);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&endless, LIMIT) else {
        panic!("it is free");
    };
    drop(store);
    // As if the file were that of an earlier boot, whose last commits are lost.
    let db = folder.plain();
    let earlier = "update tourbillon_lease_state set boot = 'earlier'";
    db.execute(earlier, ()).unwrap();
    // Not by a tool that looks: its boot may be another one than that of the programs.
    let looked = SqliteStore::open_existing(folder.file());
    let Err(StoreError::Refused(why)) = looked else {
        panic!("{looked:?}");
    };
    assert!(why.contains("a boot of its own"), "{why}");
    let untouched = "select count(*) from tourbillon_lease, tourbillon_lease_state
        where boot = 'earlier' and ends = 9223372036854775807";
    assert_eq!(number(&db, untouched), 1);
    let store = folder.store();
    assert_eq!(store.holder_of("x", LIMIT), Ok(None));
    let renewal = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[renewal]), [Outcome::NotHeld]);
    assert!(granted(&store, "x", "b:1") > token + (1 << 32));
    // A second process of the same boot ends nothing.
    let other = folder.store();
    held(&other, &claim("x", "c:1"));
    // A file that is new begins with the time, so that it is beyond those of an older file.
    let micros = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
    assert!(u128::from(token) > micros - 60_000_000);
}

#[test]
fn another_boot_under_a_store_is_another_machine() {
    let folder = Folder::new();
    let store = folder.store();
    granted(&store, "x", "a:1");
    // As a process of another machine does, that opens the file on a network.
    let other = "update tourbillon_lease_state set boot = 'other'";
    folder.plain().execute(other, ()).unwrap();
    let refused = |answer: Result<(), StoreError>| {
        let Err(StoreError::Refused(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("another machine"), "{why}");
        assert!(why.contains("app.db"), "{why}");
    };
    refused(store.acquire(&claim("x", "a:1"), LIMIT).map(drop));
    refused(store.holder_of("x", LIMIT).map(drop));
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    refused(
        store
            .renew(Destination::default(), &renewal, LIMIT)
            .map(drop),
    );
}

/// The statement of the documentation, with its values.
fn is_fenced(db: &Connection, name: &str, token: u64) -> bool {
    let sql =
        "select 1 from tourbillon_lease where name = ?1 and token = ?2 and secret is not null";
    let mut statement = db.prepare(sql).unwrap();
    let token = i64::try_from(token).unwrap();
    !statement.exists((name, token)).unwrap()
}

#[test]
fn a_transaction_of_a_user_is_fenced_by_a_condition() {
    let folder = Folder::new();
    let (store, mut db) = (folder.store(), folder.plain());
    db.execute_batch("create table report(id, state); insert into report values (42, 'new')")
        .unwrap();
    let short = Claim::new("report", "a:1", Secret::new("a:1"), 300 * MS);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    let transaction = db
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    assert!(!is_fenced(&transaction, "report", token));
    assert!(is_fenced(&transaction, "report", token + 1));
    assert!(is_fenced(&transaction, "other", token));
    // The lease runs out, and nobody gets the name before the transaction has ended.
    wait::until("it runs out", || {
        matches!(store.holder_of("report", LIMIT), Ok(None))
    });
    let answer = store.acquire(&claim("report", "b:1"), 50 * MS);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    transaction
        .execute("update report set state = 'sent'", ())
        .unwrap();
    transaction.commit().unwrap();
    granted(&store, "report", "b:1");
    assert!(is_fenced(&db, "report", token));
    // After a release, also where the name stays locked for a rest.
    let later = granted(&store, "report", "b:1");
    assert!(!is_fenced(&db, "report", later));
    let batch = [Holding::new("report", Secret::new("b:1")).after(LEASE)];
    let released = store.release_many(Destination::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    assert!(is_fenced(&db, "report", later));
}
