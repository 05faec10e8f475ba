//! Services that lead again and again: what ends them, and what does not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::gate::Gate;
use kit::quiet::{WANTED, hush};
use kit::wait;
use kit::wait::until;
use tourbillon::{Clock, Time};
use tourbillon_leases::{
    Change, Election, ElectionRole, Fault, FindingKind, Impact, Leadership, Leases, LockError,
    Loss, StoreCall, StoreError, TermEnd,
};

use crate::worlds::{LEASE, MS, S, Threads, march, threads, world};

type Ended = Result<(), LockError>;

fn refusal() -> StoreError {
    StoreError::Refused("WRONGPASS".to_owned())
}

/// The store refuses all claims. Returns when they came.
fn refuse(threads: &Threads) -> Arc<Mutex<Vec<Time>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, clock) = (Arc::clone(&asked), Clock::manual(&threads.hand));
    threads.store.inject(move |call| match call {
        StoreCall::Claim(_) => {
            log.lock().unwrap().push(clock.now());
            Fault::Fail(refusal())
        }
        _ => Fault::None,
    });
    asked
}

/// Awaits on this thread, without a runtime that could help.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Serves on a thread of its own, by closures or futures. The work goes on while it leads.
fn serves(election: &Election, awaits: bool) -> JoinHandle<Ended> {
    let election = election.clone();
    thread::spawn(move || match awaits {
        true => block_on(election.serve_async(async |_| std::future::pending().await)),
        false => election.serve(|leadership| {
            while leadership.is_leader() {
                thread::yield_now();
            }
        }),
    })
}

/// An election that sends its changes.
fn heard(election: Election) -> (Election, mpsc::Receiver<Change>) {
    let (tell, told) = mpsc::channel();
    let election = election.on_change(move |change| {
        let _ = tell.send(change.clone());
    });
    (election, told)
}

#[track_caller]
fn elected(told: &mpsc::Receiver<Change>) -> u64 {
    match wait::next(told) {
        Change::Elected { token, .. } => token,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn ended(told: &mpsc::Receiver<Change>) -> TermEnd {
    match wait::next(told) {
        Change::Ended { end, .. } => end,
        other => panic!("{other}"),
    }
}

/// Lets the time pass until the candidate is elected.
#[track_caller]
fn elected_later(threads: &Threads, told: &mpsc::Receiver<Change>) -> u64 {
    let mut token = None;
    until("it is elected", || {
        threads.hand.advance(50 * MS);
        match told.try_recv() {
            Ok(Change::Elected { token: of, .. }) => token = Some(of),
            Ok(other) => panic!("{other}"),
            Err(_) => {}
        }
        token.is_some()
    });
    token.expect("it was elected")
}

#[test]
fn a_refusal_is_told_and_followed_by_a_pause_and_the_candidacy_goes_on() {
    for awaits in [false, true] {
        let threads = threads();
        let asked = refuse(&threads);
        let (election, told) = heard(threads.leases.election("e"));
        let began = threads.leases.now();
        let service = serves(&election, awaits);
        let failed = wait::next(&told);
        assert!(
            matches!(&failed, Change::Failed { error, .. } if *error == refusal()),
            "{failed}"
        );
        // A password in rotation, for a bit longer than a pause.
        until("it has asked for two seconds", || {
            threads.hand.advance(5 * MS);
            thread::yield_now();
            threads.leases.now() >= began + 2 * S
        });
        let status = election.status();
        assert_eq!(
            (status.role, status.since),
            (ElectionRole::Waiting, Some(began))
        );
        assert_eq!(
            (status.error, status.failing_since),
            (Some(refusal()), Some(began))
        );
        let health = election.health();
        let own = health.findings().last().expect("it is told");
        assert_eq!(
            (own.kind, own.impact),
            (FindingKind::StoreFails, Impact::Warning)
        );
        assert!(
            own.detail.starts_with("campaigns of \"e\" fail: "),
            "{health}"
        );
        let asked = asked.lock().unwrap().len();
        assert!((2..=8).contains(&asked), "{asked} attempts");
        threads.store.heal();
        let token = elected_later(&threads, &told);
        let status = election.status();
        assert!(matches!(status.role, ElectionRole::Leading { token: of, .. } if of == token));
        assert!(status.since > Some(began) && status.error.is_none());
        assert!(election.health().is_ready());
        election.stop();
        assert!(matches!(service.join().unwrap(), Ok(())));
        assert_eq!(ended(&told), TermEnd::Resigned);
        assert!(told.try_recv().is_err(), "the refusal was told once");
        assert_eq!(election.status().role, ElectionRole::Idle);
    }
}

#[test]
fn an_error_that_changes_is_told_again() {
    let threads = threads();
    refuse(&threads);
    let (election, told) = heard(threads.leases.election("e"));
    let service = serves(&election, false);
    wait::next(&told);
    let other = || StoreError::Refused("NOPERM".to_owned());
    threads.store.inject(move |call| match call {
        StoreCall::Claim(_) => Fault::Fail(other()),
        _ => Fault::None,
    });
    let mut again = None;
    until("it is told", || {
        threads.hand.advance(50 * MS);
        again = told.try_recv().ok();
        again.is_some()
    });
    assert_eq!(
        again.unwrap().to_string(),
        format!("not elected, and tries again: {}", other())
    );
    election.stop();
    assert!(service.join().unwrap().is_ok());
}

#[test]
fn what_can_never_succeed_is_returned_at_once() {
    let world = world(1);
    let of = |name: &str| world.leases.election(name);
    let long = "x".repeat(Leases::LONGEST_NAME + 1);
    type Is = fn(&LockError) -> bool;
    let wrong: [(Election, Is); 5] = [
        (of(""), |error| matches!(error, LockError::EmptyName)),
        (of(&long), |error| {
            matches!(error, LockError::LongName { .. })
        }),
        (of("e").lease(MS), |error| {
            matches!(error, LockError::TooShort { .. })
        }),
        (of("e").fed_every(Duration::ZERO), |error| {
            matches!(error, LockError::ZeroFeed { .. })
        }),
        (of("e").max_hold(Duration::ZERO), |error| {
            matches!(error, LockError::ZeroHold { .. })
        }),
    ];
    for (election, is) in wrong {
        let error = election
            .serve(|_| panic!("it was not elected"))
            .unwrap_err();
        assert!(is(&error), "{error:?}");
        let served = block_on(election.serve_async(async |_| panic!("it was not elected")));
        let error = served.unwrap_err();
        assert!(is(&error), "{error:?}");
        assert_eq!(election.status().role, ElectionRole::Idle);
    }
}

/// What a candidate is doing when its service ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum While {
    NotBegun,
    Waits,
    Pauses,
    Leads,
    /// It has resigned, and lets others lead.
    StepsBack,
}

const ALL: [While; 5] = [
    While::NotBegun,
    While::Waits,
    While::Pauses,
    While::Leads,
    While::StepsBack,
];

/// Ends a service by `end`, in each state and both forms.
fn ended_by(end: impl Fn(&Threads, &Election), is: fn(&Ended) -> bool) {
    for state in ALL {
        for awaits in [false, true] {
            let threads = threads();
            let (election, told) = heard(threads.leases.election("e"));
            let unrelated = threads.leases.lock("unrelated").at_once().wait().unwrap();
            let held =
                (state == While::Waits).then(|| threads.leases.lock("e").at_once().wait().unwrap());
            if state == While::Pauses {
                refuse(&threads);
            }
            if state == While::NotBegun {
                end(&threads, &election);
            }
            let service = serves(&election, awaits);
            match state {
                While::NotBegun => {}
                While::Waits => until("it waits", || threads.leases.stats().waiting == 1),
                While::Pauses => drop(wait::next(&told)),
                While::Leads => drop(elected(&told)),
                While::StepsBack => {
                    elected(&told);
                    election.resign();
                    assert_eq!(ended(&told), TermEnd::Resigned);
                }
            }
            if state != While::NotBegun {
                end(&threads, &election);
            }
            // The clock stands still.
            let served = service.join().unwrap();
            assert!(is(&served), "{state:?}, {awaits}: {served:?}");
            drop((held, unrelated));
        }
    }
}

#[test]
fn a_stop_ends_a_service_whatever_it_does() {
    ended_by(|_, election| election.stop(), Result::is_ok);
}

#[test]
fn a_close_ends_a_service_whatever_it_does() {
    ended_by(
        |threads, _| {
            threads.leases.close(S);
        },
        |served| matches!(served, Err(LockError::Closed { .. })),
    );
}

#[test]
fn a_service_that_is_stopped_when_its_leases_are_closed_was_stopped() {
    ended_by(
        |threads, election| {
            election.stop();
            threads.leases.close(S);
        },
        Result::is_ok,
    );
}

#[test]
fn work_stops_its_service_from_within() {
    let world = world(1);
    let election = world.leases.election("e");
    let mut terms = 0;
    let served = election.serve(|_| {
        terms += 1;
        election.stop();
    });
    assert!(served.is_ok());
    assert_eq!((terms, world.store.holder("e")), (1, None));
}

#[test]
fn work_that_returns_at_once_leads_again_after_two_seconds_without_another_leader() {
    for awaits in [false, true] {
        let threads = threads();
        let began = threads.leases.now();
        let (tell, told) = mpsc::channel();
        let election = threads.leases.election("e");
        let (served, now) = (election.clone(), threads.leases.clone());
        let service = thread::spawn(move || match awaits {
            true => block_on(served.serve_async(async |_| tell.send(now.now()).unwrap())),
            false => served.serve(|_| tell.send(now.now()).unwrap()),
        });
        assert_eq!(wait::next(&told), began);
        for term in 1..4 {
            let mut at = None;
            until("it leads again", || {
                threads.hand.advance(20 * MS);
                at = told.try_recv().ok();
                at.is_some()
            });
            assert!(at >= Some(began + term * 2 * S), "{at:?}");
        }
        election.stop();
        assert!(service.join().unwrap().is_ok());
    }
}

#[test]
fn work_that_returns_lets_the_others_lead_first() {
    let threads = threads();
    let other = Leases::builder(threads.store.clone()).clock(Clock::manual(&threads.hand));
    let other = other.build().unwrap();
    let gate = Gate::default();
    let (work, election) = (gate.clone(), threads.leases.election("e"));
    let served = election.clone();
    let service = thread::spawn(move || served.serve(|_| work.pass()));
    gate.crowd(1);
    let (second, told) = heard(other.election("e"));
    let waits = serves(&second, false);
    until("the other one waits", || other.stats().waiting == 1);
    gate.open();
    // The clock stands still, so no time can decide.
    elected(&told);
    election.stop();
    assert!(service.join().unwrap().is_ok());
    second.stop();
    assert!(waits.join().unwrap().is_ok());
}

#[test]
fn a_service_resigns_and_goes_on() {
    for awaits in [false, true] {
        let threads = threads();
        let (election, told) = heard(threads.leases.election("e"));
        let service = serves(&election, awaits);
        let first = elected(&told);
        assert!(election.resign());
        assert_eq!(ended(&told), TermEnd::Resigned);
        assert!(elected_later(&threads, &told) > first);
        election.stop();
        assert!(service.join().unwrap().is_ok());
    }
}

#[test]
fn a_service_goes_on_after_a_term_that_was_too_long_or_a_lease_that_ran_out() {
    for (awaits, loss) in [
        (false, Loss::HeldTooLong),
        (true, Loss::HeldTooLong),
        (false, Loss::Expired),
        (true, Loss::Expired),
    ] {
        let threads = threads();
        let election = threads.leases.election("e");
        let election = match loss {
            Loss::HeldTooLong => election.max_hold(10 * S),
            _ => {
                threads.store.inject(crate::worlds::no_renewals);
                election
            }
        };
        let (election, told) = heard(election);
        let service = serves(&election, awaits);
        let first = elected(&told);
        let mut end = None;
        march(&threads.hand, LEASE, "the term ends", || {
            end = told.try_recv().ok();
            end.is_some()
        });
        match end {
            Some(Change::Ended { end, .. }) => assert_eq!(end, TermEnd::Lost(loss)),
            other => panic!("{other:?}"),
        }
        let ended = threads.leases.now();
        assert!(elected_later(&threads, &told) > first);
        // One that has led for too long lets the others lead first.
        let after = threads.leases.now().since(ended);
        assert!(loss != Loss::HeldTooLong || after >= S, "{after:?}");
        election.stop();
        assert!(service.join().unwrap().is_ok());
    }
}

#[test]
fn work_that_hangs_is_replaced_and_its_service_goes_on_when_it_returns() {
    let threads = threads();
    let (hung, told) = heard(threads.leases.election("e").fed_every(5 * S));
    let gate = Gate::default();
    let (work, served) = (gate.clone(), hung.clone());
    let service = thread::spawn(move || {
        served.serve(|leadership| {
            work.pass();
            while leadership.feed() && leadership.is_leader() {
                thread::yield_now();
            }
        })
    });
    let first = elected(&told);
    gate.crowd(1);
    let (second, others) = heard(threads.leases.election("e"));
    let waits = serves(&second, false);
    until("it waits", || threads.leases.stats().waiting == 1);
    let token = elected_later(&threads, &others);
    assert!(token > first);
    assert_eq!(hung.status().role, ElectionRole::Idle);
    assert!(told.try_recv().is_err(), "its work still runs");
    gate.open();
    assert_eq!(ended(&told), TermEnd::Lost(Loss::NotFed));
    until("it waits again", || {
        hung.status().role == ElectionRole::Waiting
    });
    second.stop();
    assert!(waits.join().unwrap().is_ok());
    assert!(elected_later(&threads, &told) > token);
    hung.stop();
    assert!(service.join().unwrap().is_ok());
}

#[test]
fn clones_that_serve_at_one_time_lead_one_after_the_other() {
    let threads = threads();
    let (election, leading) = (threads.leases.election("e"), Arc::new(AtomicUsize::new(0)));
    let (tell, told) = mpsc::channel();
    let services: Vec<_> = (0..3)
        .map(|number| {
            let (election, leading) = (election.clone(), Arc::clone(&leading));
            let tell = tell.clone();
            thread::spawn(move || {
                election.serve(|leadership| {
                    assert_eq!(leading.fetch_add(1, SeqCst), 0, "two lead");
                    tell.send(number).unwrap();
                    while leadership.is_leader() {
                        thread::yield_now();
                    }
                    leading.fetch_sub(1, SeqCst);
                })
            })
        })
        .collect();
    let mut last = wait::next(&told);
    for _ in 0..5 {
        until("the others wait", || threads.leases.stats().waiting == 2);
        election.resign();
        let next = wait::next(&told);
        assert_ne!(next, last, "it comes last");
        last = next;
        // It asks for the lock again when it sees the next leader.
        until("the others wait", || {
            threads.hand.advance(20 * MS);
            threads.leases.stats().waiting == 2
        });
    }
    election.stop();
    for service in services {
        assert!(service.join().unwrap().is_ok());
    }
}

#[test]
fn a_panic_of_the_work_ends_the_term_and_goes_on() {
    hush();
    for awaits in [false, true] {
        let world = world(1);
        let election = world.leases.election("e");
        let served = catch_unwind(AssertUnwindSafe(|| match awaits {
            true => block_on(async {
                // One that is polled by the test drives no workers, so the lock is taken before.
                let leadership = election.lead().wait().unwrap();
                let served = election.serve_async(async |_: &Leadership| panic!("{WANTED}"));
                drop(leadership);
                let mut served = std::pin::pin!(served);
                std::future::poll_fn(|context| {
                    world.steps.settle();
                    let polled = served.as_mut().poll(context);
                    context.waker().wake_by_ref();
                    polled
                })
                .await
            }),
            false => election.serve(|_| panic!("{WANTED}")),
        }));
        assert!(served.is_err());
        world.steps.settle();
        assert_eq!(world.store.holder("e"), None);
        assert_eq!(election.status().role, ElectionRole::Idle);
        assert!(!election.resign());
    }
}

#[test]
fn a_panic_of_the_callback_ends_the_service() {
    hush();
    for panics_at in ["elected", "not elected", "ended"] {
        let threads = threads();
        if panics_at == "not elected" {
            refuse(&threads);
        }
        let election = threads.leases.election("e").on_change(move |change| {
            let text = change.to_string();
            let ends = panics_at == "ended" && text.contains(" has ended ");
            assert!(!ends && !text.starts_with(panics_at), "{WANTED}");
        });
        let service = thread::spawn({
            let election = election.clone();
            move || election.serve(|_| ())
        });
        assert!(service.join().is_err(), "{panics_at}");
        until("it is given back", || threads.store.holder("e").is_none());
        assert_eq!(election.status().role, ElectionRole::Idle);
        assert!(!election.resign());
    }
}

#[test]
fn a_store_that_is_away_while_a_candidate_waits_is_an_error_of_its_status() {
    let threads = threads();
    let election = threads.leases.election("e");
    threads.store.inject(crate::worlds::all_down);
    let service = serves(&election, false);
    until("it is told", || election.status().error.is_some());
    let status = election.status();
    assert_eq!(status.error, Some(crate::worlds::down()));
    assert_eq!(status.role, ElectionRole::Waiting);
    // Nobody campaigns any more, so nothing fails.
    election.stop();
    assert!(service.join().unwrap().is_ok());
    assert_eq!(
        (election.status().error, election.status().since),
        (None, None)
    );
}

#[test]
fn a_callback_finds_that_its_candidate_leads_and_that_nothing_fails() {
    let threads = threads();
    refuse(&threads);
    let election = threads.leases.election("e");
    let (tell, told) = mpsc::channel();
    let own = election.clone();
    let election =
        election.on_change(move |change| tell.send((change.clone(), own.status())).unwrap());
    let service = serves(&election, false);
    let (failed, status) = wait::next(&told);
    assert!(matches!(failed, Change::Failed { .. }), "{failed}");
    assert_eq!(
        (status.role, status.error),
        (ElectionRole::Waiting, Some(refusal()))
    );
    threads.store.heal();
    let mut elected = None;
    until("it is elected", || {
        threads.hand.advance(50 * MS);
        elected = told.try_recv().ok();
        elected.is_some()
    });
    let (elected, status) = elected.expect("it was elected");
    assert!(matches!(elected, Change::Elected { .. }), "{elected}");
    assert!(matches!(status.role, ElectionRole::Leading { .. }));
    assert_eq!((status.error, status.failing_since), (None, None));
    election.stop();
    assert!(service.join().unwrap().is_ok());
    let (ended, status) = wait::next(&told);
    assert!(matches!(ended, Change::Ended { .. }), "{ended}");
    assert_eq!(status.role, ElectionRole::Idle);
}
