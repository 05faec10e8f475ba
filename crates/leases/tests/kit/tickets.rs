//! What must hold for the tickets and the secrets of every store.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Detach, Detached, Holding, LeaseTicket, Leases, LockError, Loss,
    Outcome, Released, Renewal, Resume, Secret,
};

use crate::calls::Calls;

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(10);

fn is_lost<T>(resumed: &Result<T, LockError>) -> bool {
    let loss = Loss::NotHeld;
    matches!(resumed, Err(LockError::Lost { loss: of, .. }) if *of == loss)
}

/// With what everybody can ask the store for, nobody can take, renew or release a lock.
pub(crate) fn nothing_that_is_shown_proves_anything<S: tourbillon_leases::LeaseStore + Clone>(
    store: &S,
) {
    let leases = Leases::builder(store.clone())
        .holder_data("data")
        .build()
        .unwrap();
    let guard = leases.lock("shown").wait().unwrap();
    let shown = Calls::holder_of(store, "shown", LIMIT).unwrap().unwrap();
    let others = Leases::new(store.clone()).unwrap();
    for detached in [false, true] {
        if detached {
            // Also beside a lock that is detached.
            let other = leases.lock("beside").wait().unwrap();
            drop(other.detach().wait().unwrap());
        }
        for text in [
            &shown.owner,
            &shown.token.to_string(),
            &shown.data,
            "",
            "shown",
            "0",
            "1",
            "nil",
            "false",
            "null",
            " (released)",
        ] {
            let secret = Secret::new(text);
            for name in ["shown", "beside"] {
                let resume = Resume::new(name, secret, "thief", Secret::new("thief"));
                assert_eq!(Calls::resume(store, &resume, LIMIT), Ok(None), "{text}");
                // What a repeated call has to have is no less secret.
                let resume = Resume::new(name, Secret::new("guess"), "thief", secret);
                assert_eq!(Calls::resume(store, &resume, LIMIT), Ok(None), "{text}");
                let detach = Detach::new(name, secret, Secret::new("mine"), LEASE);
                assert_eq!(Calls::detach(store, &detach, LIMIT), Ok(Detached::NotHeld));
                let renewals = [Renewal::new(name, secret, LEASE)];
                let renewed = Calls::renew(store, Destination::default(), &renewals, LIMIT);
                assert_eq!(renewed, Ok(vec![Outcome::NotHeld]));
                assert_eq!(
                    Calls::release(store, name, secret, LIMIT),
                    Ok(Released::NotHeld)
                );
                for rest in [Duration::ZERO, LEASE] {
                    let batch = [Holding::new(name, secret).after(rest)];
                    let released =
                        Calls::release_many(store, Destination::default(), &batch, LIMIT);
                    assert_eq!(released, Ok(vec![Ok(Released::NotHeld)]), "{text}");
                }
            }
            // The text of a ticket that has it does not even get to the store.
            let forged = format!("tourbillon-lease-2,{text},shown");
            assert!(forged.parse::<LeaseTicket>().is_err(), "{forged}");
        }
    }
    // As one was forged for tickets of the first format.
    for token in [shown.token, u64::MAX] {
        let forged = format!(
            "tourbillon-lease-1,{token},rs,30000000000,0,0,0,{},shown",
            shown.owner
        );
        let error = forged.parse::<LeaseTicket>().unwrap_err().to_string();
        assert!(error.contains("another version"), "{error}");
    }
    // A ticket of the right form, for a lock that was never detached.
    let forged = format!("tourbillon-lease-2,{},shown", "0".repeat(32));
    assert!(is_lost(&others.resume(&forged.parse().unwrap()).wait()));
    let now = Calls::holder_of(store, "shown", LIMIT).unwrap().unwrap();
    assert_eq!((now.owner, now.token), (shown.owner, shown.token));
    assert!(guard.is_held());
    guard.release().wait().unwrap();
}

/// The name in a ticket is input, too: with the secret of one lock nobody has another one.
pub(crate) fn a_ticket_is_of_use_for_its_own_name_alone<
    S: tourbillon_leases::LeaseStore + Clone,
>(
    store: &S,
) {
    let leases = Leases::new(store.clone()).unwrap();
    let ticket = leases.lock("own").wait().unwrap().detach().wait().unwrap();
    let held = leases.lock("held").wait().unwrap();
    let detached = leases
        .lock("detached")
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap();
    let text = ticket.to_string();
    let (front, _) = text.rsplit_once(',').unwrap();
    let others = [
        "held",
        "detached",
        "free",
        "own%20",
        "%20own",
        "Own",
        "{own}",
        "own}",
        "{own}:lock",
        "own:lock",
        "*",
        "ow?",
        "[o]wn",
        "own%00",
        "own%0A",
        "%F0%9F%94%92",
    ];
    let long = "own".repeat(200);
    for name in others.iter().copied().chain([&*long]) {
        let forged: LeaseTicket = format!("{front},{name}").parse().unwrap();
        let resumed = leases.resume(&forged).wait();
        // A store may also refuse the name itself.
        assert!(
            is_lost(&resumed) || matches!(resumed, Err(LockError::Store { .. })),
            "{name}: {resumed:?}"
        );
    }
    assert!(held.is_held());
    held.release().wait().unwrap();
    leases
        .resume(&detached)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    leases
        .resume(&ticket)
        .wait()
        .unwrap()
        .release()
        .wait()
        .unwrap();
    assert!(is_lost(&leases.resume(&ticket).wait()));
}

/// A ticket is of use once, also if many use it at one time.
pub(crate) fn a_ticket_is_used_by_one_of_many<S: tourbillon_leases::LeaseStore + Clone>(store: &S) {
    const MANY: usize = 4;
    let leases: Vec<_> = (0..MANY)
        .map(|_| Leases::new(store.clone()).unwrap())
        .collect();
    let mut used = Vec::new();
    for round in 0..5 {
        let guard = leases[0].lock("contested").wait().unwrap();
        let token = guard.token();
        let ticket = guard.detach().wait().unwrap();
        let text = ticket.to_string();
        let start = Barrier::new(2 * MANY);
        let resumed: Vec<_> = thread::scope(|scope| {
            // Half of them share one ticket, and the others have read its text.
            let threads: Vec<_> = (0..2 * MANY)
                .map(|at| {
                    let (leases, ticket) = (&leases[at / 2], &ticket);
                    let (text, start) = (&text, &start);
                    scope.spawn(move || {
                        let own = text.parse().unwrap();
                        start.wait();
                        leases
                            .resume(if at % 2 == 0 { ticket } else { &own })
                            .wait()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        used.push(text);
        let (held, lost): (Vec<_>, Vec<_>) = resumed.into_iter().partition(Result::is_ok);
        assert_eq!(held.len(), 1, "round {round}");
        assert!(lost.iter().all(is_lost));
        let guard = held.into_iter().next().unwrap().unwrap();
        let holder = Calls::holder_of(store, "contested", LIMIT)
            .unwrap()
            .unwrap();
        assert_eq!(holder.owner, guard.id().owner());
        assert_eq!((guard.token(), holder.token), (token, token));
        // No ticket from before is of use any more, also while the lock is detached again.
        let ticket = guard.detach().wait().unwrap();
        for old in &used {
            assert!(is_lost(&leases[1].resume(&old.parse().unwrap()).wait()));
        }
        leases[1]
            .resume(&ticket)
            .wait()
            .unwrap()
            .release()
            .wait()
            .unwrap();
        assert!(is_lost(&leases[1].resume(&ticket).wait()));
    }
}

/// The calls themselves, with what each of them must not do.
pub(crate) fn detach_and_resume_do_what_a_backend_promises<S: tourbillon_leases::LeaseStore>(
    store: &S,
) {
    let [old, new, other] = ["old", "new", "other"].map(Secret::new);
    let [first, second] = ["first", "second"].map(Secret::new);
    let claim = Claim::new("a", "1", old, LEASE);
    let resume = |ticket, secret| {
        let resume = Resume::new("a", ticket, "2", secret);
        let resumed = Calls::resume(store, &resume, LIMIT).unwrap();
        resumed.map(|resumed| (resumed.token, resumed.terms))
    };
    let detach = |secret, ticket, terms| {
        let detach = Detach::new("a", secret, ticket, 2 * LEASE).with_terms(terms);
        Calls::detach(store, &detach, LIMIT).unwrap()
    };
    let renew = |secret| {
        let batch = [Renewal::new("a", secret, LEASE)];
        let outcomes = Calls::renew(store, Destination::default(), &batch, LIMIT);
        outcomes.unwrap().remove(0)
    };
    let remaining = || {
        Calls::holder_of(store, "a", LIMIT)
            .unwrap()
            .unwrap()
            .remaining
    };
    // Nobody holds it.
    assert_eq!(detach(old, first, ""), Detached::NotHeld);
    assert_eq!(resume(first, new), None);
    Calls::acquire(store, &claim, LIMIT).unwrap();
    // It is not detached. Its holder's secret is no ticket.
    assert_eq!(resume(first, new), None);
    assert_eq!(resume(old, new), None);
    assert_eq!(resume(first, old), None);
    assert_eq!(detach(other, first, ""), Detached::NotHeld);
    // The last detach counts. Until somebody resumes it, the secret of the holder is good.
    assert_eq!(detach(old, first, "one"), Detached::Detached);
    assert_eq!(detach(old, second, "two,ü\n"), Detached::Detached);
    assert_eq!(renew(old), Outcome::Renewed);
    assert!(remaining() <= LEASE);
    assert_eq!(resume(first, new), None);
    let token = Calls::holder_of(store, "a", LIMIT).unwrap().unwrap().token;
    let resumed = Some((token, "two,ü\n".to_owned()));
    assert_eq!(resume(second, new), resumed);
    let holder = Calls::holder_of(store, "a", LIMIT).unwrap().unwrap();
    assert_eq!((&*holder.owner, holder.token), ("2", token));
    assert!(holder.remaining > LEASE && holder.remaining <= 2 * LEASE);
    // Again by the same secret, and by nobody else.
    assert_eq!(resume(second, new), resumed);
    assert_eq!(resume(second, other), None);
    // The holder before has nothing left.
    assert_eq!(renew(old), Outcome::NotHeld);
    assert_eq!(detach(old, first, ""), Detached::NotHeld);
    assert_eq!(
        Calls::release(store, "a", old, LIMIT),
        Ok(Released::NotHeld)
    );
    assert!(!matches!(
        Calls::acquire(store, &claim, LIMIT),
        Ok(Acquired::Granted { .. })
    ));
    // A ticket ends with the release, whatever comes after it.
    assert_eq!(detach(new, first, ""), Detached::Detached);
    assert_eq!(
        Calls::release(store, "a", new, LIMIT),
        Ok(Released::Released)
    );
    assert_eq!(resume(first, other), None);
    Calls::acquire(store, &claim, LIMIT).unwrap();
    assert_eq!(resume(first, other), None);
    assert_eq!(
        Calls::release(store, "a", old, LIMIT),
        Ok(Released::Released)
    );
}
