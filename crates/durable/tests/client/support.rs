//! What operators do with many timers and dead letters.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use tourbillon_durable::{
    CallError, DeadFilter, Due, Durable, DurableBuilder, DurableEvent, Invalid, Memory, MemoryCall,
    MemoryFault, Paging, RescheduleAnswer, RetryPolicy, StoreError, StoredState, TimerFilter,
    WallClock,
};

const DAY: Duration = Duration::from_secs(86_400);
const NOW: Duration = Duration::ZERO;

/// A store whose clock a test moves.
fn store() -> (Memory, WallClock) {
    let clock = WallClock::manual(std::time::SystemTime::UNIX_EPOCH + 10_000 * DAY);
    (Memory::with_clock(clock.clone()), clock)
}

fn node(store: &Memory) -> DurableBuilder {
    Durable::builder(store.clone())
        .name("shop-1")
        .poll_interval(Duration::from_millis(20))
}

/// Makes dead letters of these keys.
fn bury(store: &Memory, keys: &[String]) {
    let (sender, dead) = mpsc::channel();
    let timers = node(store)
        .keep_dead_for(Duration::MAX)
        .on_event(move |event| {
            if let DurableEvent::Dead { .. } = event {
                let _ = sender.send(());
            }
        })
        .handle("q", |_: &Due<()>| Err::<(), _>("broken"))
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    for part in keys.chunks(500) {
        let all = part.iter().map(|key| (key.as_str(), NOW, ()));
        timers.schedule_many("q", all).wait().unwrap();
        for _ in part {
            wait::next(&dead);
        }
    }
    timers.stop(DAY).wait().unwrap();
}

#[test]
fn dead_letters_of_many_pages_are_revived_and_discarded() {
    let (store, _clock) = store();
    let keys: Vec<String> = (0..2_100).map(|n| format!("k{n}")).collect();
    bury(&store, &keys);
    let timers = Durable::builder(store).start().unwrap();
    // Three of them have timers again.
    for key in ["k1", "k20", "k2000"] {
        timers.schedule("q", key, DAY, &()).wait().unwrap();
    }
    let report = timers
        .revive_dead(DeadFilter::all().prefix("k20"))
        .wait()
        .unwrap();
    // k20, k200 to k209, k2000 to k2099.
    assert_eq!((report.revived, report.exist), (109, 2));
    let letters = timers.dead("q", 0, 10_000).wait().unwrap();
    assert_eq!(letters.len(), 2_100 - 109);
    let again = letters.iter().filter(|letter| letter.has_timer);
    let again: Vec<&str> = again.map(|letter| &*letter.key).collect();
    assert_eq!(again, ["k1", "k20", "k2000"]);
    let first = letters[0].id;
    assert!(timers.discard(first).wait().unwrap());
    assert!(!timers.discard(first).wait().unwrap());
    let old = DeadFilter::queue("q").older_than(DAY);
    assert_eq!(timers.discard_dead(old).wait(), Ok(0));
    assert_eq!(timers.discard_dead("other").wait(), Ok(0));
    assert_eq!(timers.discard_dead("q").wait(), Ok(2_100 - 110));
    assert_eq!(timers.dead("q", 0, 10).wait(), Ok(vec![]));
    assert_eq!(timers.counts().wait().unwrap()[0].overdue, 109);
}

#[test]
fn what_was_done_before_an_error_stays_done() {
    let (store, _clock) = store();
    let keys: Vec<String> = (0..1_500).map(|n| format!("k{n}")).collect();
    bury(&store, &keys);
    let timers = Durable::builder(store.clone()).start().unwrap();
    let discards = AtomicU32::new(0);
    store.inject(move |call| match call {
        MemoryCall::Discard(_) => {
            // Relaxed: one thread reads.
            match discards.fetch_add(1, Ordering::Relaxed) {
                1 => MemoryFault::Fail(StoreError::Unavailable("no".into())),
                _ => MemoryFault::None,
            }
        }
        _ => MemoryFault::None,
    });
    let refused = timers.discard_dead("q").wait();
    assert!(
        matches!(refused, Err(CallError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(timers.counts().wait().unwrap()[0].dead, 500);
    store.heal();
    assert_eq!(timers.discard_dead("q").wait(), Ok(500));
}

#[test]
fn nodes_delete_dead_letters_that_were_kept_long_enough() {
    let (store, clock) = store();
    let keys: Vec<String> = (0..250).map(|n| format!("k{n}")).collect();
    bury(&store, &keys);
    clock.advance(29 * DAY);
    bury(&store, &["young".to_owned()]);
    clock.advance(DAY);
    let client = Durable::builder(store.clone()).start().unwrap();
    let keeps = |builder: DurableBuilder| {
        let builder = builder.handle("other", |_: &Due<()>| ());
        builder.start().unwrap()
    };
    // One that keeps all, and one that keeps none any longer.
    let forever = keeps(node(&store).keep_dead_for(Duration::MAX));
    let usual = keeps(node(&store));
    wait::until("the old ones are gone", || {
        client.counts().wait().unwrap()[0].dead == 1
    });
    assert_eq!(client.dead("q", 0, 10).wait().unwrap()[0].key, "young");
    drop((forever, usual));
    let none = keeps(node(&store).keep_dead_for(Duration::ZERO));
    wait::until("none is kept", || client.counts().wait() == Ok(vec![]));
    drop(none);
}

#[test]
fn a_store_that_refuses_to_delete_old_letters_holds_up_nothing() {
    let (store, clock) = store();
    bury(&store, &["k".to_owned()]);
    clock.advance(31 * DAY);
    let (asked, tried) = mpsc::channel();
    store.inject(move |call| match call {
        MemoryCall::DiscardOld => {
            let _ = asked.send(());
            MemoryFault::Fail(StoreError::Refused("a trigger".into()))
        }
        _ => MemoryFault::None,
    });
    let timers = node(&store).handle("q", |_: &Due<()>| ()).start().unwrap();
    wait::next(&tried);
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    wait::until("it is settled", || timers.get("q", "k").wait() == Ok(None));
    assert_eq!(timers.stats().stopped_work, 0);
    assert_eq!(timers.dead("q", 0, 10).wait().unwrap().len(), 1);
}

#[test]
fn run_now_makes_a_timer_due() {
    let (store, _clock) = store();
    let timers = Durable::builder(store).start().unwrap();
    timers.schedule("q", "k", DAY, &()).wait().unwrap();
    assert!(timers.run_now("q", "k").wait().unwrap().is_moved());
    let late = TimerFilter::all().state(StoredState::Overdue);
    assert_eq!(
        timers.list(late, &Paging::first(10)).wait().unwrap().len(),
        1
    );
    assert_eq!(
        timers.run_now("q", "none").wait(),
        Ok(RescheduleAnswer::NotFound)
    );
}

#[test]
fn filters_that_no_timer_can_meet_are_refused() {
    let (store, _clock) = store();
    let timers = Durable::builder(store).start().unwrap();
    let invalid = |answer: Result<_, CallError>| match answer {
        Err(CallError::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    };
    let long = "x".repeat(513);
    let list = |filter: TimerFilter| timers.list(filter, &Paging::first(1)).wait().map(drop);
    let dead = |filter: DeadFilter| timers.dead(filter, 0, 1).wait().map(drop);
    assert_eq!(
        invalid(list(TimerFilter::queue(""))),
        Invalid::QueueLength(0)
    );
    assert_eq!(
        invalid(list(TimerFilter::all().prefix(&long))),
        Invalid::KeyLength(513)
    );
    assert_eq!(
        invalid(list(TimerFilter::all().prefix("a\0"))),
        Invalid::KeyNul
    );
    assert_eq!(
        invalid(dead(DeadFilter::queue(&long))),
        Invalid::QueueLength(513)
    );
    assert_eq!(
        invalid(dead(DeadFilter::all().prefix("\0"))),
        Invalid::KeyNul
    );
    let revived = timers.revive_dead(DeadFilter::queue("")).wait().map(drop);
    assert_eq!(invalid(revived), Invalid::QueueLength(0));
    let discarded = timers
        .discard_dead(DeadFilter::all().prefix(&long))
        .wait()
        .map(drop);
    assert_eq!(invalid(discarded), Invalid::KeyLength(513));
    assert_eq!(list(TimerFilter::all().prefix("")), Ok(()));
}
