//! Copies that are made while calls to a Redis server are under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tourbillon_leases::{LeaseStore, RedisStore, StoreError};

use crate::calls::wait;
use crate::child::in_copy;

/// Longer than a copy may take for a step: what waits for its end hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Forks while futures of this thread wait for the connections of the store. Returns what was wrong.
pub(crate) fn amid_calls(forks: usize, store: &RedisStore) -> Option<String> {
    (0..forks).find_map(|number| {
        let begin = || loop {
            let mut call = store.holder_of("nobody", LIMIT);
            let mut context = Context::from_waker(Waker::noop());
            if call.as_mut().poll(&mut context).is_pending() {
                return call;
            }
        };
        let mut inherited = Some((begin(), begin()));
        let wrong = in_copy(|report| {
            let (mut polled, dropped) = inherited.take().expect("it is there");
            drop(dropped);
            let mut context = Context::from_waker(Waker::noop());
            let answer = polled.as_mut().poll(&mut context);
            let fails = matches!(answer, Poll::Ready(Err(StoreError::Forked)));
            report.check("a call under way", fails, &answer);
            drop(polled);
            let answer = wait(store.holder_of("nobody", LIMIT));
            let fails = matches!(answer, Err(StoreError::Forked));
            report.check("a new call", fails, &answer);
            let checked = store.check(LIMIT);
            report.check("check", checked == Err(StoreError::Forked), &checked);
            let watched = store.watch("nobody", Waker::noop());
            report.check("watch", watched.is_none(), &store);
        });
        // In the original both are answered.
        let (one, other) = inherited.expect("only the copy takes it");
        let answers = [wait(one), wait(other)];
        let answered = answers.iter().all(|answer| matches!(answer, Ok(None)));
        let here = (!answered).then(|| format!("the original: {answers:?}"));
        let wrong = wrong.or(here)?;
        Some(format!("copy {number}, amid calls to a server: {wrong}"))
    })
}

/// Forks while another thread makes one call after the other, and drives the connections itself.
/// Returns what was wrong.
pub(crate) fn amid_driving(forks: usize, store: &RedisStore) -> Option<String> {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut answered = true;
            while answered && !ends.load(Ordering::SeqCst) {
                answered = store.check(LIMIT) == Ok(());
            }
            answered
        });
        let wrong = (0..forks).find_map(|number| {
            let mut inherited = Some(store.clone());
            let wrong = in_copy(|report| {
                let store = inherited.take().expect("it is there");
                let checked = store.check(LIMIT);
                report.check("check", checked == Err(StoreError::Forked), &checked);
                let answer = wait(store.holder_of("nobody", LIMIT));
                let fails = matches!(answer, Err(StoreError::Forked));
                report.check("a call", fails, &answer);
            });
            // The other thread is alone again, and drives.
            thread::sleep(Duration::from_millis(5));
            Some(format!("copy {number}, while a thread drives: {}", wrong?))
        });
        ends.store(true, Ordering::SeqCst);
        let went_on = calls.join().unwrap_or(false);
        wrong.or_else(|| (!went_on).then(|| "the original: a call was not answered".to_owned()))
    })
}
