//! Which runtime it is, and what is said if it can't be that one.

use std::task::Poll;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{BuildError, Clock, ManualClock, Runtime};
use tourbillon_leases::{
    KeepAlive, KeepAliveBuilder, KeepError, Leases, LockError, MemoryStore, Outcome,
};

use super::{LEASE, LONG, leases_on, small};

fn keep_alive(
    options: impl FnOnce(KeepAliveBuilder<u32>) -> KeepAliveBuilder<u32>,
) -> KeepAlive<u32> {
    let built = options(KeepAlive::builder());
    let built = built.build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]));
    built.unwrap()
}

#[test]
fn leases_are_schedulers_of_the_runtime_from_the_first_attempt_to_the_last_drop() {
    let runtime = small("counts").build().unwrap();
    let instances = || runtime.stats().instances;
    let store = MemoryStore::new();
    let leases = leases_on(&runtime, &store).build().unwrap();
    assert_eq!(instances(), 0);
    let guard = leases.lock("a").at_once().wait().unwrap();
    assert_eq!(instances(), 1);
    let told = leases_on(&runtime, &store)
        .on_event(|_| ())
        .build()
        .unwrap();
    assert!(matches!(
        told.lock("a").at_once().wait(),
        Err(LockError::Held { .. })
    ));
    assert_eq!(instances(), 3);
    let sessions = keep_alive(|builder| builder.runtime(&runtime));
    let kept = sessions.keep(7, LONG).unwrap();
    assert_eq!(instances(), 4);
    drop((told, sessions));
    until("the guards are left", || instances() == 2);
    drop((leases, guard, kept));
    until("nobody is on it", || instances() == 0);
    // Nothing holds the runtime up.
    runtime.shut_down(LONG).unwrap();
}

#[test]
fn an_election_runs_where_its_leases_do() {
    let runtime = small("elects").build().unwrap();
    let leases = leases_on(&runtime, &MemoryStore::new()).build().unwrap();
    let election = leases.election("shard-7");
    let _leadership = election.lead().wait().unwrap();
    assert_eq!(runtime.stats().instances, 1);
}

#[test]
fn the_last_word_about_threads_counts() {
    let runtime = small("last").build().unwrap();
    let instances = || runtime.stats().instances;
    let build = || Leases::builder(MemoryStore::new());
    let own = build().runtime(&runtime).own_threads().build().unwrap();
    own.lock("a").wait().unwrap().release().wait().unwrap();
    let session = keep_alive(|builder| builder.runtime(&runtime).own_threads());
    drop(session.keep(1, LONG).unwrap());
    assert_eq!(instances(), 0);
    let shared = build().own_threads().runtime(&runtime).build().unwrap();
    shared.lock("a").wait().unwrap().release().wait().unwrap();
    assert_eq!(instances(), 1);
    let session = keep_alive(|builder| builder.own_threads().runtime(&runtime));
    drop(session.keep(1, LONG).unwrap());
    assert_eq!(instances(), 2);
}

#[test]
fn on_a_runtime_that_was_shut_down_nothing_is_acquired_and_the_error_says_what_to_do() {
    let runtime = small("ended").build().unwrap();
    let store = MemoryStore::new();
    let leases = leases_on(&runtime, &store).build().unwrap();
    runtime.shut_down(LONG).unwrap();
    let refused = [
        leases.lock("a").at_once().wait().map(drop),
        leases.lock("a").wait().map(drop),
        leases.lock("a").within(LONG).wait().map(drop),
        leases.lock_all(["a"]).each().wait().remove(0).map(drop),
        polled_each(&leases, "a"),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        let is_ended = matches!(
            &error,
            LockError::Runtime {
                error: BuildError::RuntimeEnded,
                ..
            }
        );
        assert!(is_ended, "{error:?}");
        assert!(error.to_string().contains("build another one"), "{error}");
    }
    assert!(store.holder("a").is_none());
    let kept = keep_alive(|builder| builder.runtime(&runtime)).keep(7, LONG);
    let error = kept.map(drop).unwrap_err();
    let is_ended = matches!(error, KeepError::Runtime(BuildError::RuntimeEnded));
    assert!(is_ended, "{error:?}");
    assert!(error.to_string().contains("build another one"), "{error}");
}

/// The answer of an awaited call, which is ready at the first poll. A name that is refused keeps its
/// own error.
fn polled_each(leases: &Leases, name: &str) -> Result<(), LockError> {
    let mut each = leases.lock_all([name, "", &"n".repeat(2_000)]).each();
    let Poll::Ready(mut answers) = poll(&mut each, &Wakes::new()) else {
        panic!("no call is made");
    };
    assert!(matches!(
        answers.pop(),
        Some(Err(LockError::LongName { .. }))
    ));
    assert!(matches!(answers.pop(), Some(Err(LockError::EmptyName))));
    answers.remove(0).map(drop)
}

/// They run on that of the process.
#[cfg(target_os = "linux")]
#[test]
fn a_hundred_leases_share_the_threads_of_the_process() {
    use super::threads_named;

    let all: Vec<_> = (0..100)
        .map(|number| {
            let leases = Leases::builder(MemoryStore::new());
            let leases = leases.on_event(|_| ()).build().unwrap();
            let guard = leases.lock(&number.to_string()).wait().unwrap();
            (leases, guard)
        })
        .collect();
    let threads = threads_named("tb-");
    let tickers = threads.iter().filter(|name| name.starts_with("tb-tick"));
    assert!(tickers.count() >= 1, "{threads:?}");
    // The runtime may have grown for other tests, but not by a thread for each of them.
    assert!(threads.len() < 100, "{threads:?}");
    assert!(all.iter().all(|(_, guard)| guard.is_held()));
}

#[test]
fn a_manual_clock_moves_leases_on_a_runtime() {
    let runtime = Runtime::builder().tickers(1).workers(2).build().unwrap();
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_clock(clock.clone());
    let leases = leases_on(&runtime, &store).clock(clock).build().unwrap();
    let guard = leases.lock("a").wait().unwrap();
    assert_eq!(runtime.stats().instances, 1);
    for renewals in 1..10 {
        hand.advance(LEASE / 2);
        until("it is renewed", || {
            hand.advance(Duration::from_micros(10));
            guard.renewals() >= renewals
        });
    }
    assert!(guard.is_held());
}
