//! What a handler sees.

use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use kit::wait;
use serde::{Deserialize, Serialize};
use tourbillon_durable::{Due, Ending, Memory, WallClock};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, soon};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct PayBy {
    order: u64,
    lines: Vec<String>,
}

#[test]
fn a_handler_gets_the_payload_and_all_that_is_known() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("pay-by", move |due: &Due<PayBy>| {
            let token = due.token();
            assert_eq!((token.queue(), token.key()), (due.queue(), due.key()));
            assert_eq!(
                token.to_string(),
                format!("pay-by/order:7/{:016x}", token.generation())
            );
            assert!(format!("{due:?}").contains("order:7"));
            assert!(due.is_held());
            assert_eq!((due.attempt(), due.fails(), due.crashes()), (1, 0, 0));
            assert_eq!(due.due(), due.planned());
            let seen = (due.queue().to_owned(), due.key().to_owned());
            sender
                .send((seen, due.payload().clone(), due.due(), due.lateness()))
                .unwrap();
        })
        .start()
        .unwrap();
    let payload = PayBy {
        order: 7,
        lines: vec!["a \"quoted\" ü".into()],
    };
    let start = SystemTime::now();
    let scheduled = timers
        .schedule("pay-by", "order:7", ms(30), &payload)
        .wait()
        .unwrap();
    let (seen, got, due, lateness) = wait::next(&receiver);
    assert_eq!(seen, ("pay-by".to_owned(), "order:7".to_owned()));
    assert_eq!(got, payload);
    assert_eq!(due, scheduled.due);
    // By the store's clock, which is this machine's.
    assert!(start.elapsed().unwrap() >= ms(30));
    assert!(lateness < SECOND * 30, "{lateness:?}");
    settled(&timers, "pay-by", "order:7");
    let stats = timers.stats();
    assert_eq!((stats.runs, stats.succeeded, stats.running), (1, 1, 0));
}

#[test]
fn a_timer_does_not_run_before_the_stores_clock_says_so() {
    let clock = WallClock::manual(UNIX_EPOCH);
    let (sender, receiver) = mpsc::channel();
    let seen = clock.clone();
    let store = Memory::with_clock(clock.clone());
    let timers = node(&store)
        .handle("q", move |_: &Due<()>| sender.send(seen.now()).unwrap())
        .start()
        .unwrap();
    timers
        .schedule("q", "later", SECOND * 10, &())
        .wait()
        .unwrap();
    timers.schedule("q", "now", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&receiver), UNIX_EPOCH);
    clock.advance(SECOND * 10);
    assert_eq!(wait::next(&receiver), UNIX_EPOCH + SECOND * 10);
}

#[test]
fn a_retry_has_the_same_token_and_another_attempt() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |due: &Due<()>| {
            let seen = (due.token(), due.attempt(), due.fails(), due.planned());
            sender.send(seen).unwrap();
            match due.attempt() {
                3 => Ok(()),
                _ => Err("not yet"),
            }
        })
        .retry(soon(20))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    let seen: Vec<_> = (0..3).map(|_| wait::next(&receiver)).collect();
    for (n, (token, attempt, fails, planned)) in (0..).zip(&seen) {
        assert_eq!((token, planned), (&seen[0].0, &seen[0].3));
        assert_eq!((*attempt, *fails), (n + 1, n));
    }
    settled(&timers, "q", "k");
    let stats = timers.stats();
    assert_eq!((stats.failed, stats.retried, stats.succeeded), (2, 2, 1));
}

#[test]
fn a_timer_of_the_same_key_has_another_token() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |due: &Due<bool>| {
            sender.send((due.token(), due.attempt())).unwrap();
            match due.payload() {
                true => Ending::Again(ms(1)),
                false => Ending::Done,
            }
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &true).wait().unwrap();
    let (first, second) = (wait::next(&receiver), wait::next(&receiver));
    assert_ne!(first.0, second.0);
    assert_eq!((first.1, second.1), (1, 1));
    timers.schedule("q", "k", NOW, &false).wait().unwrap();
    settled(&timers, "q", "k");
    let last = receiver.try_iter().last().unwrap();
    assert_ne!(last.0, second.0);
}

#[test]
fn a_cancelled_timer_does_not_run() {
    let clock = WallClock::manual(UNIX_EPOCH);
    let (sender, receiver) = mpsc::channel();
    let store = Memory::with_clock(clock.clone());
    let timers = node(&store)
        .handle("q", move |due: &Due<()>| {
            sender.send(due.key().to_owned()).unwrap();
        })
        .start()
        .unwrap();
    for key in ["cancelled", "moved", "kept"] {
        timers.schedule("q", key, SECOND, &()).wait().unwrap();
    }
    assert!(
        timers
            .cancel("q", "cancelled")
            .wait()
            .unwrap()
            .is_cancelled()
    );
    assert!(
        timers
            .reschedule("q", "moved", HOUR)
            .wait()
            .unwrap()
            .is_moved()
    );
    clock.advance(SECOND);
    assert_eq!(wait::next(&receiver), "kept");
    // One that is due later has run, so the others would have, too.
    timers.schedule("q", "last", SECOND, &()).wait().unwrap();
    clock.advance(SECOND);
    assert_eq!(wait::next(&receiver), "last");
    assert_eq!(receiver.try_iter().count(), 0);
    assert!(timers.get("q", "moved").wait().unwrap().is_some());
}

#[test]
fn many_timers_all_run_once() {
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle("q", move |due: &Due<u32>| {
            sender.send(*due.payload()).unwrap();
        })
        .running(1_000)
        .start()
        .unwrap();
    let many = (0..3_000_u32).map(|n| (n.to_string(), ms(u64::from(n % 200)), n));
    timers.schedule_many("q", many).wait().unwrap();
    let mut seen: Vec<u32> = (0..3_000).map(|_| wait::next(&receiver)).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..3_000));
    wait::until("all are settled", || {
        timers
            .counts()
            .wait()
            .unwrap()
            .iter()
            .all(|c| c.running == 0)
    });
    assert_eq!(receiver.try_iter().count(), 0);
    assert_eq!(timers.stats().runs, 3_000);
}
