//! Warnings of the crate `tracing`.
//!
//! A test crate of its own, because a process has one subscriber.

use std::time::Duration;

use kit::traces::{self, Told};
use kit::{quiet, wait};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{KeepAlive, Leases, MemoryStore, Outcome, StoreError};
use tracing::Level;

/// The warnings that contain this text.
fn warnings(text: &str) -> Vec<Told> {
    let told = traces::listen().all_events().into_iter();
    told.filter(|told| told.target == "tourbillon_leases")
        .filter(|told| told.fields["message"].contains(text))
        .collect()
}

#[test]
fn late_failed_and_lost_leases_are_warnings_with_the_name_of_the_lock() {
    traces::listen();
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let store = MemoryStore::with_clock(clock.clone());
    let leases = Leases::builder(store).clock(clock);
    let (leases, steps) = leases.build_stepped(1).unwrap();
    let guard = leases.lock("of a warning").at_once().wait().unwrap();
    steps.advance(Duration::from_secs(60));
    assert!(guard.is_held());
    let of_lock = || traces::listen().events("name", "of a warning");
    assert!(
        of_lock().is_empty(),
        "a renewal is no warning: {:?}",
        of_lock()
    );
    // The process stands still.
    steps.jump_to(steps.now() + Duration::from_secs(31));
    steps.advance(Duration::from_secs(1));
    assert!(!guard.is_held());
    let told = of_lock();
    let lost = told
        .iter()
        .find(|told| told.fields["message"].contains("lost"));
    let lost = lost.expect("it is lost");
    assert_eq!(
        (lost.level, lost.target),
        (Level::WARN, "tourbillon_leases")
    );
    assert_eq!(lost.fields["token"], guard.token().to_string());
}

#[test]
fn a_key_is_not_shown_and_renewals_on_threads_go_on_with_a_callback() {
    traces::listen();
    let (sender, events) = std::sync::mpsc::channel();
    let sessions = KeepAlive::<String>::builder()
        .on_event(move |event| drop(sender.send(event.key.clone())))
        .build(async |batch| {
            assert!(batch.len() > 0);
            Err(StoreError::Unavailable("an outage of this test".to_owned()))
        })
        .unwrap();
    let key = "a secret session".to_owned();
    let _session = sessions
        .keep(key.clone(), Duration::from_millis(60))
        .unwrap();
    assert_eq!(wait::next(&events), key);
    let text = "an outage of this test";
    wait::until("it is told", || !warnings(text).is_empty());
    for told in warnings(text) {
        assert!(!format!("{told:?}").contains("secret"), "{told:?}");
    }
}

#[test]
fn without_a_callback_warnings_come_all_the_same() {
    traces::listen();
    let sessions = KeepAlive::<u8>::builder()
        .build(async |batch| Ok(vec![Outcome::NotHeld; batch.len()]))
        .unwrap();
    let session = sessions.keep(7, Duration::from_millis(60)).unwrap();
    wait::until("it is told", || !warnings("no longer held").is_empty());
    assert!(!session.is_kept());
}

#[test]
fn the_end_of_the_leases_is_no_warning() {
    traces::listen();
    quiet::hush();
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let guard = leases.lock("closed").wait().unwrap();
    leases.close(Duration::from_secs(60));
    drop(guard);
    assert!(traces::listen().events("name", "closed").is_empty());
}
