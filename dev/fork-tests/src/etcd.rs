//! Leases on an etcd server, and copies that are made while calls to it are under way.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon_etcd::EtcdStore;
use tourbillon_leases::{LeaseStore, StoreError};

use crate::calls::wait;
use crate::child::in_copy;
use crate::leases;

/// Longer than a copy may take for a step: what waits for its end hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns what was wrong.
pub(crate) fn run(forks: usize, url: &str) -> Option<String> {
    let open = || EtcdStore::open(url).expect("the argument is a URL");
    leases::run(forks, &open(), || Ok(open())).or_else(|| amid_calls(forks, &open()))
}

/// Forks while futures of this thread wait for the connection of the store, and the store listens.
fn amid_calls(forks: usize, store: &EtcdStore) -> Option<String> {
    let place = store.watch("nobody", Waker::noop());
    let mut inherited_place = place;
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
            drop(inherited_place.take());
            report.check("the drop of a place", true, &store);
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
