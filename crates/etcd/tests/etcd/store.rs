//! What the store promises for one name, for batches, and for what is in the cluster.

use std::time::Duration;

use chaos::servers::etcd::Server;
use kit::wait;
use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{
    Acquired, Claim, Destination, Holding, LockPaging, Outcome, Released, Renewal, Secret,
    StoreError,
};

use crate::calls::{self, Calls};
use crate::common::{
    LEASE, LIMIT, MS, S, acquire, base64, claim, granted, held, place, refused, release, renew,
    server,
};

fn acquire_many(store: &EtcdStore, claims: &[Claim<'_>]) -> Vec<Result<Acquired, StoreError>> {
    let call = tourbillon_leases::LeaseStore::acquire(store, Destination::default(), claims, LIMIT);
    calls::wait(call).expect("the server is there")
}

fn remaining(store: &EtcdStore, name: &str) -> Duration {
    store.holder_of(name, LIMIT).unwrap().unwrap().remaining
}

// === one name ===

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_name_is_granted_to_one_renewed_and_given_back() {
    let place = place();
    let (one, other) = (place.store(), place.store());
    assert_eq!(one.check(LIMIT), Ok(()));
    let first = granted(&one, "x", "a:1");
    let remaining = held(&other, &claim("x", "b:1"));
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
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_lease_runs_out_and_what_is_left_of_it_is_not_renewed() {
    let store = place().store();
    let short = Claim::new("x", "a:1", Secret::new("a:1"), S);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    wait::until("the lease runs out", || {
        matches!(store.holder_of("x", LIMIT), Ok(None))
    });
    let late = Renewal::new("x", Secret::new("a:1"), LEASE);
    wait::until("it is deleted", || {
        renew(&store, &[late]) == [Outcome::NotHeld]
    });
    assert_eq!(release(&store, "x", "a:1"), Released::NotHeld);
    assert!(granted(&store, "x", "b:1") > token);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_name_that_is_not_renewed_ends_while_others_of_the_store_go_on() {
    let store = place().store();
    let secret = Secret::new("a:1");
    let claims = ["x", "y", "z"].map(|name| Claim::new(name, "a:1", secret, S));
    assert!(acquire_many(&store, &claims).iter().all(Result::is_ok));
    let batch = ["x", "z"].map(|name| Renewal::new(name, secret, S));
    wait::until("the name that is not renewed is free", || {
        assert_eq!(renew(&store, &batch), [Outcome::Renewed, Outcome::Renewed]);
        store.holder_of("y", LIMIT) == Ok(None)
    });
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    assert_eq!(renew(&store, &batch[1..]), [Outcome::Renewed]);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_repeated_acquire_and_a_late_renewal_shorten_nothing() {
    let store = place().store();
    let token = granted(&store, "x", "a:1");
    let secret = Secret::new("a:1");
    let short = Claim::new("x", "a:1", secret, MS);
    assert_eq!(store.acquire(&short, LIMIT), Ok(Acquired::granted(token)));
    assert!(remaining(&store, "x") > LEASE / 2);
    let late = Renewal::new("x", secret, MS).never_shortening();
    assert_eq!(renew(&store, &[late]), [Outcome::Renewed]);
    assert!(remaining(&store, "x") > LEASE / 2);
    // Any other renewal counts from now on.
    let renewal = Renewal::new("x", secret, LEASE / 3);
    assert_eq!(renew(&store, &[renewal]), [Outcome::Renewed]);
    assert!(remaining(&store, "x") <= LEASE / 3);
    // A longer one lengthens, also if it must not shorten, and the token stays.
    let longer = Renewal::new("x", secret, 2 * LEASE).never_shortening();
    assert_eq!(renew(&store, &[longer]), [Outcome::Renewed]);
    assert!(remaining(&store, "x") > LEASE);
    // At first the long lease has more time left than this one is long. Later it has less.
    let shorter = Renewal::new("x", secret, 2 * LEASE - S).never_shortening();
    wait::until("the shorter one is more", || {
        assert_eq!(renew(&store, &[shorter]), [Outcome::Renewed]);
        remaining(&store, "x") <= 2 * LEASE - S
    });
    assert!(remaining(&store, "x") > LEASE);
    assert_eq!(granted(&store, "x", "a:1"), token);
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn what_cannot_be_asked_for_is_refused_beside_what_can() {
    let store = place().store();
    let long = "n".repeat(1_025);
    let longest = store.longest_lease();
    let refused_claims = [
        ("", LEASE),
        (&*long, LEASE),
        ("x", Duration::ZERO),
        ("x", longest + S),
        ("x", Duration::MAX),
    ];
    let secret = Secret::new("a:1");
    for (name, lease) in refused_claims {
        let answer = store.acquire(&Claim::new(name, "a:1", secret, lease), LIMIT);
        refused(&answer, &[]);
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
    refused(&store.holder_of("", LIMIT), &["empty"]);
    refused(&store.release(&long, secret, LIMIT), &["1025"]);
    let answer = store.acquire(&claim("x", "a:1"), Duration::ZERO);
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    // The longest one, and a limit of any length. Less than a second is rounded up to one.
    for (name, lease) in [("longest", longest), ("shortest", Duration::from_nanos(1))] {
        let claim = Claim::new(name, "a:1", secret, lease);
        let answer = store.acquire(&claim, Duration::MAX);
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    }
    // No wait is too long.
    granted(&store, "z", "a:1");
    held(&store, &claim("z", "b:1").waiting().waited(Duration::MAX));
    assert_eq!(store.leave("z", "b:1", LIMIT), Ok(()));
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn names_of_any_characters_are_apart() {
    let store = place().store();
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
        "\0",
        "a\0",
        "a/b",
        "/",
        "//",
        "a,b",
        "null",
        "\u{10ffff}",
        &long,
        &last,
    ];
    for (at, name) in names.into_iter().enumerate() {
        let owner = format!("a:{at} \"\\\0ü");
        let claim = Claim::new(name, &owner, Secret::new(&owner), LEASE).with_data(name);
        assert!(matches!(
            store.acquire(&claim, LIMIT),
            Ok(Acquired::Granted { .. })
        ));
        let holder = store.holder_of(name, LIMIT).unwrap().unwrap();
        assert_eq!((&*holder.owner, &*holder.data), (&*owner, name));
    }
    let page = store.list("", &LockPaging::first(100), LIMIT).unwrap();
    let mut sorted = names;
    sorted.sort_unstable();
    let listed: Vec<_> = page.locks.iter().map(|held| &*held.name).collect();
    assert_eq!(listed, sorted);
    for (at, name) in names.into_iter().enumerate() {
        let owner = format!("a:{at} \"\\\0ü");
        assert_eq!(
            renew(&store, &[Renewal::new(name, Secret::new(&owner), LEASE)]),
            [Outcome::Renewed]
        );
        assert_eq!(release(&store, name, &owner), Released::Released);
    }
}

// === batches ===

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn batches_of_any_size_have_an_answer_for_each_in_their_order() {
    let store = place().store();
    for size in [0, 1, 2, 127, 128, 1_000] {
        let names: Vec<_> = (0..size).rev().map(|at| format!("{size}/{at}")).collect();
        // Each third one is somebody else's.
        let others = names.iter().step_by(3);
        let others: Vec<_> = others.map(|name| claim(name, "other")).collect();
        let taken = acquire_many(&store, &others);
        assert!(
            taken
                .iter()
                .all(|one| matches!(one, Ok(Acquired::Granted { .. })))
        );
        let mine = Secret::new("mine");
        let is_taken = |at: usize| at.is_multiple_of(3);
        let claims: Vec<_> = names
            .iter()
            .map(|name| Claim::new(name, "me", mine, LEASE))
            .collect();
        let answers = acquire_many(&store, &claims);
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
            assert_eq!(outcome == Outcome::NotHeld, is_taken(at), "{outcome:?}");
            assert!(!matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        }
        let held: Vec<_> = names.iter().map(|name| Holding::new(name, mine)).collect();
        let released = store.release_many(Destination::default(), &held, LIMIT);
        for (at, released) in released.unwrap().into_iter().enumerate() {
            let expected = match is_taken(at) {
                true => Released::NotHeld,
                false => Released::Released,
            };
            assert_eq!(released, Ok(expected));
        }
    }
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_name_that_is_twice_in_a_batch_has_two_answers() {
    let store = place().store();
    let [one, other] = ["one", "other"].map(Secret::new);
    let claims = [
        Claim::new("x", "1", one, LEASE),
        Claim::new("x", "2", other, LEASE),
        Claim::new("x", "1", one, LEASE),
    ];
    let answers = acquire_many(&store, &claims);
    let granted = |at: usize| matches!(answers[at], Ok(Acquired::Granted { .. }));
    assert_eq!([0, 1, 2].map(granted), [true, false, true], "{answers:?}");
    let renewals = [one, other, one].map(|secret| Renewal::new("x", secret, LEASE));
    assert_eq!(
        renew(&store, &renewals),
        [Outcome::Renewed, Outcome::NotHeld, Outcome::Renewed]
    );
    let holdings = [other, one, one].map(|secret| Holding::new("x", secret));
    let released = store.release_many(Destination::default(), &holdings, LIMIT);
    let [not_held, released_] = [Ok(Released::NotHeld), Ok(Released::Released)];
    assert_eq!(released, Ok(vec![not_held.clone(), released_, not_held]));
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn batches_that_compete_share_the_names_and_leave_no_lease_behind() {
    let server = Server::start();
    let open = || EtcdStore::open(&server.url()).unwrap();
    let names: Vec<_> = (0..60).map(|at| format!("n{at}")).collect();
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (store, names) = (open(), &names);
                scope.spawn(move || {
                    let owner = format!("{thread}");
                    let mut claims: Vec<_> = names.iter().map(|name| claim(name, &owner)).collect();
                    if thread % 2 == 1 {
                        claims.reverse();
                    }
                    let answers = acquire_many(&store, &claims);
                    let held = |one: &&Result<Acquired, StoreError>| {
                        matches!(one, Ok(Acquired::Granted { .. }))
                    };
                    answers.iter().filter(held).count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(all.iter().sum::<usize>(), 60, "{all:?}");
    let store = open();
    let page = store.list("", &LockPaging::first(100), LIMIT).unwrap();
    assert_eq!(page.locks.len(), 60);
    let leases = || {
        let answer = server.post("/v3/lease/leases", "{}");
        assert!(answer.contains(r#""header""#), "{answer}");
        answer.matches(r#""ID""#).count()
    };
    assert_eq!(leases(), 60);
    for name in &names {
        let owner = (0..4).map(|thread| thread.to_string());
        let owner = owner.into_iter().find(|owner| {
            // Who has it is granted it again, and the others are not.
            let answer = acquire(&store, name, owner);
            matches!(answer, Ok(Acquired::Granted { .. }))
        });
        let owner = owner.expect("somebody has it");
        let longer = Renewal::new(name, Secret::new(&owner), 2 * LEASE);
        assert_eq!(renew(&store, &[longer]), [Outcome::Renewed]);
        let rest = Holding::new(name, Secret::new(&owner)).after(LEASE);
        if *name == names[0] {
            let released = store.release_many(Destination::default(), &[rest], LIMIT);
            assert_eq!(released, Ok(vec![Ok(Released::Released)]));
            assert_eq!(leases(), 60);
        } else {
            assert_eq!(release(&store, name, &owner), Released::Released);
        }
    }
    assert_eq!(leases(), 1);
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_batch_that_is_too_large_for_the_server_is_asked_in_parts() {
    let store = place().store();
    let data = "d".repeat(100_000);
    // The server refuses more than 1.5 MB, and its connections refuse more than 2 MB before they read it.
    for size in [20, 30] {
        let names: Vec<_> = (0..size).map(|at| format!("{size}/{at}")).collect();
        let claims: Vec<_> = names
            .iter()
            .map(|name| claim(name, "a:1").with_data(&data))
            .collect();
        for answer in acquire_many(&store, &claims) {
            assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        }
    }
    // One that is too large alone is refused beside the others.
    for (size, words) in [
        (1_600_000, "request is too large"),
        (2_200_000, "larger than max"),
    ] {
        let data = "d".repeat(size);
        let large = claim("large", "a:1").with_data(&data);
        let free = format!("free {size}");
        let answers = acquire_many(&store, &[large, claim(&free, "a:1")]);
        refused(&answers[0], &[words]);
        assert!(
            matches!(answers[1], Ok(Acquired::Granted { .. })),
            "{answers:?}"
        );
        refused(&store.acquire(&large, LIMIT), &[words]);
    }
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn a_server_with_small_transactions_has_an_answer_for_each() {
    let server = Server::with(&["--max-txn-ops", "20"]);
    let store = EtcdStore::open(&server.url()).unwrap();
    let names: Vec<_> = (0..300).map(|at| format!("n{at}")).collect();
    let claims: Vec<_> = names.iter().map(|name| claim(name, "a:1")).collect();
    for answer in acquire_many(&store, &claims) {
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    }
    let secret = Secret::new("a:1");
    let renewals: Vec<_> = names
        .iter()
        .map(|name| Renewal::new(name, secret, LEASE))
        .collect();
    assert!(
        renew(&store, &renewals)
            .iter()
            .all(|one| *one == Outcome::Renewed)
    );
    let held: Vec<_> = names
        .iter()
        .map(|name| Holding::new(name, secret))
        .collect();
    let released = store.release_many(Destination::default(), &held, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released); 300]));
}

// === what is in the cluster ===

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn what_is_in_the_keys_is_what_the_documentation_says() {
    let place = place();
    let store = place.store();
    let claim = Claim::new("orders/42", "7c1e:3", Secret::new("s3"), LEASE).with_data("10.0.0.7");
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&claim, LIMIT) else {
        panic!("it is free");
    };
    let key = place.key("orders/42");
    let value = || {
        let answer = server().post("/v3/kv/range", &format!(r#"{{"key":"{key}"}}"#));
        assert!(
            answer.contains(&format!(r#""create_revision":"{token}""#)),
            "{answer}"
        );
        answer
    };
    let shown = |value: &str| format!(r#""value":"{}""#, base64(value.as_bytes()));
    // The SHA-256 of the secret.
    let hash = "41242b9fae56fad4e6e77dfe33cb18d1c3fc583f988cf25ef9f2d9be0d440bbb";
    let answer = value();
    let expected =
        format!(r#"{{"owner":"7c1e:3","data":"10.0.0.7","lease":30,"secret":"{hash}"}}"#);
    assert!(answer.contains(&shown(&expected)), "{expected}: {answer}");
    let batch = [Holding::new("orders/42", Secret::new("s3")).after(LEASE / 3)];
    let released = store.release_many(Destination::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    let expected = r#"{"owner":"7c1e:3 (released)","data":"10.0.0.7","lease":10}"#;
    assert!(value().contains(&shown(expected)));
    let late = Renewal::new("orders/42", Secret::new("s3"), LEASE);
    assert_eq!(renew(&store, &[late]), [Outcome::NotHeld]);
    // As the documentation shows it, by hand.
    granted(&store, "x", "a:1");
    let key = place.key("x");
    server().post("/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
    let mine = Renewal::new("x", Secret::new("a:1"), LEASE);
    assert_eq!(renew(&store, &[mine]), [Outcome::NotHeld]);
    granted(&store, "x", "b:1");
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn keys_of_other_programs_are_locked_and_not_listed() {
    let place = place();
    let store = place.store();
    let put = |name: &[u8], value: &[u8]| {
        let key = base64(&[place.0.as_bytes(), name].concat());
        let put = format!(r#"{{"key":"{key}","value":"{}"}}"#, base64(value));
        server().post("/v3/kv/put", &put);
    };
    put(b"x", b"theirs");
    put(b"", b"{}");
    for at in 0..300_u16 {
        put(&[&b"b\xff"[..], &at.to_be_bytes()].concat(), b"{}");
    }
    assert_eq!(held(&store, &claim("x", "a:1")), 100 * MS);
    assert_eq!(store.holder_of("x", LIMIT), Ok(None));
    assert_eq!(release(&store, "x", "a:1"), Released::NotHeld);
    granted(&store, "a", "a:1");
    granted(&store, "z", "a:1");
    for size in [1, 2, 100] {
        let (mut found, mut paging) = (Vec::new(), LockPaging::first(size));
        loop {
            let page = store.list("", &paging, LIMIT).unwrap();
            found.extend(page.locks.into_iter().map(|held| held.name));
            let Some(next) = page.next else { break };
            paging = next;
        }
        assert_eq!(found, ["a", "z"]);
    }
    refused(
        &store.list("", &LockPaging::behind("a", 9), LIMIT),
        &["place"],
    );
}

#[test]
#[cfg_attr(not(has_etcd), ignore = "needs: apt-get install etcd-server")]
fn prefixes_are_apart() {
    let (one, other) = (place(), place());
    granted(&one.store(), "x", "a:1");
    granted(&other.store(), "x", "b:1");
    assert_eq!(release(&other.store(), "x", "b:1"), Released::Released);
    assert!(matches!(
        acquire(&one.store(), "x", "b:1"),
        Ok(Acquired::Held { .. })
    ));
    let page = other
        .store()
        .list("", &LockPaging::first(9), LIMIT)
        .unwrap();
    assert!(page.locks.is_empty());
}
