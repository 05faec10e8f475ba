//! What the store promises for one name, for batches, and for what is in the database.

use std::time::Duration;

use chaos::servers::postgres::database;
use kit::wait;
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, Outcome, Released, Renewal, Secret, StoreError,
};

use crate::calls::Calls;
use crate::shop::{LEASE, LIMIT, MS, acquire, granted, held, psql, release, renew, store};

// === one name ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_name_is_granted_to_one_renewed_and_given_back() {
    let database = database();
    let (one, other) = (store(&database), store(&database));
    let first = granted(&one, "x", "a:1");
    let remaining = held(&other, &Claim::new("x", "b:1", Secret::new("b:1"), LEASE));
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    // The same owner, after an answer that was lost.
    let again = granted(&one, "x", "a:1");
    assert_eq!(again, first);
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
    assert!(granted(&other, "x", "b:2") > again);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_lease_runs_out_and_what_is_left_of_it_is_not_renewed() {
    let database = database();
    let store = store(&database);
    let short = Claim::new("x", "a:1", Secret::new("a:1"), 50 * MS);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    wait::until("the lease runs out", || {
        matches!(store.holder_of("x", LIMIT), Ok(None))
    });
    let late = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[late]), [Outcome::NotHeld]);
    assert_eq!(release(&store, "x", "a:1"), Released::NotHeld);
    assert!(granted(&store, "x", "b:1") > token);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_repeated_acquire_and_a_late_renewal_shorten_nothing() {
    let database = database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    let secret = Secret::new("a:1");
    let left = || store.holder_of("x", LIMIT).unwrap().unwrap().remaining;
    let short = Claim::new("x", "a:1", secret, MS);
    assert!(matches!(
        store.acquire(&short, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
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
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_cannot_be_asked_for_is_refused_beside_what_can() {
    let database = database();
    let store = store(&database);
    assert_eq!(store.longest_lease(), LEASE);
    let long = "n".repeat(1_025);
    let refused = [
        ("", LEASE),
        (&*long, LEASE),
        ("zero\0byte", LEASE),
        ("x", Duration::ZERO),
        ("x", LEASE + Duration::from_nanos(1)),
        ("x", Duration::MAX),
    ];
    let secret = Secret::new("a:1");
    for (name, lease) in refused {
        let answer = store.acquire(&Claim::new(name, "a:1", secret, lease), LIMIT);
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
        let batch = [
            Renewal::new("y", secret, LEASE),
            Renewal::new(name, secret, lease),
        ];
        let outcomes = renew(&store, &batch);
        assert!(
            matches!(
                outcomes[..],
                [Outcome::NotHeld, Outcome::Failed(StoreError::Refused(_))]
            ),
            "{outcomes:?}"
        );
    }
    let data = Claim::new("x", "a:1", secret, LEASE).with_data("zero\0byte");
    let answer = store.acquire(&data, LIMIT);
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    let answer = store.acquire(&Claim::new("x", "a:1", secret, LEASE), Duration::ZERO);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    // A microsecond is the shortest, and less is rounded up to it.
    let claim = Claim::new("x", "a:1", secret, Duration::from_nanos(1));
    assert!(matches!(
        store.acquire(&claim, Duration::MAX),
        Ok(Acquired::Granted { .. })
    ));
    // No wait is too long.
    granted(&store, "z", "a:1");
    let claim = Claim::new("z", "b:1", Secret::new("b:1"), LEASE);
    held(&store, &claim.waiting().waited(Duration::MAX));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn names_of_any_characters_are_apart() {
    let database = database();
    let store = store(&database);
    let (long, last) = ("n".repeat(1_024), "\u{10ffff}".repeat(256));
    let names = [
        "plain",
        "Plain",
        "plain ",
        "{a}",
        "%",
        "a'b",
        "a\"b",
        "a\\b",
        "ü",
        "u\u{308}",
        "\n",
        "a,b",
        "null",
        "\u{10ffff}",
        &long,
        &last,
    ];
    for (at, name) in names.into_iter().enumerate() {
        granted(&store, name, &format!("a:{at}"));
    }
    let page = store.list("", &tourbillon_leases::LockPaging::first(100), LIMIT);
    assert_eq!(page.unwrap().locks.len(), names.len());
    for (at, name) in names.into_iter().enumerate() {
        let owner = format!("a:{at}");
        assert_eq!(
            renew(&store, &[Renewal::new(name, Secret::new(&owner), LEASE)]),
            [Outcome::Renewed]
        );
        assert_eq!(release(&store, name, &owner), Released::Released);
    }
}

// === batches ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn batches_of_any_size_have_an_answer_for_each_in_their_order() {
    let database = database();
    let store = store(&database);
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
        for (at, outcome) in renew(&store, &renewals).into_iter().enumerate() {
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
    assert_eq!(
        psql(
            &database,
            "select count(*) from tourbillon_leases.lease where owner is not null"
        ),
        (1 + 1 + 167).to_string()
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_name_that_is_twice_in_a_batch_has_two_answers() {
    let database = database();
    let store = store(&database);
    let [one, other] = ["one", "other"].map(Secret::new);
    let claims = [
        Claim::new("x", "1", one, LEASE),
        Claim::new("x", "2", other, LEASE),
        Claim::new("x", "1", one, LEASE),
    ];
    let call =
        tourbillon_leases::LeaseStore::acquire(&store, Destination::default(), &claims, LIMIT);
    let answers = crate::calls::wait(call).unwrap();
    let granted = |at: usize| matches!(answers[at], Ok(Acquired::Granted { .. }));
    assert_eq!([0, 1, 2].map(granted), [true, false, true], "{answers:?}");
    let renewals = [one, other, one].map(|secret| Renewal::new("x", secret, LEASE));
    assert_eq!(
        renew(&store, &renewals),
        [Outcome::Renewed, Outcome::NotHeld, Outcome::Renewed]
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn batches_in_opposite_orders_do_not_end_each_other() {
    let database = database();
    let store = store(&database);
    let names: Vec<_> = (0..40).map(|at| format!("n{at}")).collect();
    for name in &names {
        granted(&store, name, "a:1");
    }
    let secret = Secret::new("a:1");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, names) = (store.clone(), &names);
            scope.spawn(move || {
                // Renewals go by one connection: releases that fit nothing go by others.
                let ordered: Vec<_> = match thread % 2 {
                    0 => names.iter().collect(),
                    _ => names.iter().rev().collect(),
                };
                for _ in 0..50 {
                    if thread < 2 {
                        let batch: Vec<_> = ordered
                            .iter()
                            .map(|name| Renewal::new(name, secret, LEASE))
                            .collect();
                        assert_eq!(renew(&store, &batch), vec![Outcome::Renewed; 40]);
                    } else {
                        for name in &ordered {
                            assert_eq!(release(&store, name, "b:1"), Released::NotHeld);
                        }
                    }
                }
            });
        }
    });
}

// === what is in the database ===

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn what_is_in_the_table_is_what_the_documentation_says() {
    let database = database();
    let store = store(&database);
    let claim = Claim::new("orders/42", "7c1e:3", Secret::new("s3"), LEASE).with_data("10.0.0.7");
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, LIMIT) else {
        panic!("it is free");
    };
    let row = |columns: &str| {
        let asked =
            format!("select {columns} from tourbillon_leases.lease where name = 'orders/42'");
        psql(&database, &asked)
    };
    let shown =
        "owner, secret, token, length, holds, data, waiter, announce, ticket, detached, terms";
    assert_eq!(
        row(shown),
        format!("7c1e:3|s3|{token}|00:00:30|1|10.0.0.7||f|||")
    );
    let mut renewal = Renewal::new("orders/42", Secret::new("s3"), LEASE / 2);
    renewal.holds = 2;
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    assert_eq!(row("length, holds, ends > now()"), "00:00:15|2|t");
    let batch = [Holding::new("orders/42", Secret::new("s3")).after(LEASE / 3)];
    let released = store.release_many(Destination::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    assert_eq!(
        row("owner, secret, length, ends > now()"),
        "7c1e:3 (released)||00:00:10|t"
    );
    assert_eq!(renew(&store, &[renewal]), [Outcome::NotHeld]);
    // As the documentation shows it, by hand.
    granted(&store, "x", "a:1");
    let take = "update tourbillon_leases.lease set secret = null, ends = now() where name = 'x'";
    psql(&database, take);
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::NotHeld]);
    granted(&store, "x", "b:1");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn renewals_do_not_make_the_table_grow() {
    let database = database();
    let store = store(&database);
    let names: Vec<_> = (0..100).map(|at| format!("n{at}")).collect();
    for name in &names {
        granted(&store, name, "a:1");
    }
    let batch: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, Secret::new("a:1"), LEASE))
        .collect();
    // No vacuum helps.
    psql(
        &database,
        "alter table tourbillon_leases.lease set (autovacuum_enabled = off)",
    );
    let sizes = || {
        psql(
            &database,
            "select pg_relation_size('tourbillon_leases.lease'), \
             pg_relation_size('tourbillon_leases.lease_pkey')",
        )
    };
    // While the server looks at new tables by itself, it keeps old rows. Without pruning each hundred
    // would leave ten thousand rows, and as many entries in the index.
    wait::until("a hundred renewals leave nothing behind", || {
        let before = sizes();
        for _ in 0..100 {
            assert_eq!(renew(&store, &batch), vec![Outcome::Renewed; 100]);
        }
        sizes() == before
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_clock_that_is_set_back_keeps_nobody_waiting_for_longer_than_a_lease() {
    let database = database();
    let store = store(&database);
    granted(&store, "x", "a:1");
    // The server keeps the end as a moment: a clock that is set back by an hour leaves it an hour
    // further away.
    let set_back = "update tourbillon_leases.lease set ends = ends + interval '1 hour'";
    psql(&database, set_back);
    let other = Claim::new("x", "b:1", Secret::new("b:1"), LEASE);
    let holder = store.holder_of("x", LIMIT).unwrap().unwrap();
    assert!(holder.remaining <= LEASE);
    let remaining = held(&store, &other);
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    let left = "select extract(epoch from ends - now()) <= 30 from tourbillon_leases.lease";
    assert_eq!(psql(&database, left), "t");
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::Renewed]);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn tokens_grow_whatever_the_clock_does_and_rows_go_when_their_time_is_over() {
    let database = database();
    let store = store(&database);
    let first = granted(&store, "x", "a:1");
    // As after a clock that is set back by some time.
    let ahead = "update tourbillon_leases.lease set token = token + 3600000000 returning token";
    let ahead: u64 = psql(&database, ahead).parse().unwrap();
    assert!(ahead > first);
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    assert_eq!(granted(&store, "x", "a:2"), ahead + 1);
    granted(&store, "y", "a:1");
    let sweep = |after: &str| {
        let day = "25::bigint * 3600000000";
        psql(
            &database,
            &format!("select tourbillon_leases.sweep_1({day}, {after})"),
        )
    };
    assert_eq!(sweep("null"), "y");
    let age =
        "update tourbillon_leases.lease set ends = ends - interval '26 hours' where name = 'x'";
    psql(&database, age);
    // Once an hour, unless somebody goes on.
    assert_eq!(sweep("null"), "");
    assert_eq!(sweep("'x'"), "y");
    let names = "select string_agg(name, ',' order by name) from tourbillon_leases.lease";
    assert_eq!(psql(&database, names), "x,y");
    assert_eq!(sweep("''"), "y");
    assert_eq!(sweep("'y'"), "");
    assert_eq!(psql(&database, names), "y");
    // A step looks at so many rows, whatever is in them.
    let many = "insert into tourbillon_leases.lease (name, token, ends, length) \
                select 'n' || to_char(n, 'FM0000'), n, now(), interval '1 s' from generate_series(1, 2500) n";
    psql(&database, many);
    assert_eq!(sweep("''"), "n2000");
    assert_eq!(sweep("'n2000'"), "y");
    assert!(granted(&store, "x", "a:3") > first);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn schemas_are_apart_and_words_of_sql_are_good_names() {
    let database = database();
    let usual = store(&database);
    let url = database.url();
    let builder = || tourbillon_leases::PostgresStore::builder(&url);
    let named = builder().schema("order").build().unwrap();
    granted(&usual, "x", "a:1");
    granted(&named, "x", "a:2");
    assert_eq!(release(&named, "x", "a:2"), Released::Released);
    assert!(matches!(
        acquire(&usual, "x", "a:2"),
        Ok(Acquired::Held { .. })
    ));
    // Announcements, too.
    granted(&named, "x", "a:2");
    let waiting = Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waiting();
    held(&named, &waiting);
    assert_eq!(release(&named, "x", "a:2"), Released::Released);
    let guard = "select \"order\".guard('x', 1)";
    let refused = database.psql(guard).expect_err("nobody holds it");
    assert!(refused.contains("TB002"), "{refused}");
}
