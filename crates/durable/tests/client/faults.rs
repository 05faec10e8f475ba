//! A store that fails, hangs or panics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::{gate::Gate, quiet, wait};
use tourbillon_durable::store::{
    Connection, Notification, NotificationListener, Store, StoreError, Subscription,
};
use tourbillon_durable::{
    CallError, Due, Durable, DurableEvent, Memory, MemoryCall, MemoryFault, Paging, StartError,
};

const SECOND: Duration = Duration::from_secs(1);

fn unavailable() -> StoreError {
    StoreError::Unavailable("the cable is cut".into())
}

#[test]
fn a_call_says_whether_it_may_have_been_carried_out() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();

    store.inject(|_| MemoryFault::Fail(unavailable()));
    let error = timers.schedule("q", "a", SECOND, &()).wait().unwrap_err();
    assert_eq!(error, CallError::Unavailable("the cable is cut".into()));
    assert!(error.may_pass());
    store.heal();
    assert_eq!(timers.get("q", "a").wait().unwrap(), None);

    store.inject(|call| match call {
        MemoryCall::Write(_) => MemoryFault::LoseAnswer(StoreError::Unknown("lost".into())),
        _ => MemoryFault::None,
    });
    let error = timers.schedule("q", "b", SECOND, &()).wait().unwrap_err();
    assert_eq!(error, CallError::Unknown("lost".into()));
    store.heal();
    assert!(timers.get("q", "b").wait().unwrap().is_some());

    store.inject(|_| MemoryFault::Fail(StoreError::Refused("read-only".into())));
    let error = timers.schedule("q", "c", SECOND, &()).wait().unwrap_err();
    assert_eq!(error, CallError::Refused("read-only".into()));
    assert!(!error.may_pass());
    store.heal();
    assert_eq!(timers.stats().failed_calls, 3);
}

#[test]
fn all_calls_report_the_same_errors() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|_| MemoryFault::Fail(unavailable()));
    let expected = CallError::Unavailable("the cable is cut".into());
    let errors = [
        timers.reschedule("q", "k", SECOND).wait().err(),
        timers.cancel("q", "k").wait().err(),
        timers
            .schedule_if_absent("q", "k", SECOND, &())
            .wait()
            .err(),
        timers
            .schedule_many("q", [("k", SECOND, ())])
            .wait()
            .unwrap()
            .remove(0)
            .err(),
        timers
            .cancel_many("q", ["k"])
            .wait()
            .unwrap()
            .remove(0)
            .err(),
        timers.get("q", "k").wait().err(),
        timers.list("q", &Paging::first(1)).wait().err(),
        timers.counts().wait().err(),
        timers.pause("q").wait().err(),
        timers.resume("q").wait().err(),
        timers.dead("q", 0, 1).wait().err(),
        timers.revive(1).wait().err(),
    ];
    for error in errors {
        assert_eq!(error.as_ref(), Some(&expected));
    }
}

#[test]
fn a_failed_connection_is_opened_again_and_a_good_one_is_kept() {
    let store = Memory::new();
    let connects = Arc::new(AtomicU64::new(0));
    let fails = Arc::new(AtomicU64::new(0));
    let (count, fail) = (Arc::clone(&connects), Arc::clone(&fails));
    store.inject(move |call| match call {
        MemoryCall::Connect => {
            count.fetch_add(1, Ordering::SeqCst);
            MemoryFault::None
        }
        MemoryCall::Write(_) if fail.swap(0, Ordering::SeqCst) > 0 => {
            MemoryFault::Fail(unavailable())
        }
        _ => MemoryFault::None,
    });
    let timers = Durable::builder(store).start().unwrap();
    assert_eq!(connects.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    }
    assert_eq!(connects.load(Ordering::SeqCst), 1);
    fails.store(1, Ordering::SeqCst);
    timers.schedule("q", "k", SECOND, &()).wait().unwrap_err();
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    assert_eq!(connects.load(Ordering::SeqCst), 2);
}

#[test]
fn a_start_without_a_store_fails() {
    let store = Memory::new();
    store.inject(|_| MemoryFault::Fail(unavailable()));
    let error = Durable::builder(store.clone()).start().unwrap_err();
    assert!(matches!(
        &error,
        StartError::Store(StoreError::Unavailable(_))
    ));
    assert!(error.to_string().contains("the cable is cut"));
    quiet::hush();
    store.inject(|_| panic!("{}: no store", quiet::WANTED));
    let error = Durable::builder(store).start().unwrap_err();
    assert!(error.to_string().contains("no store"), "{error}");
}

#[test]
fn a_start_that_the_store_refuses_ahead_waits_for_no_thread() {
    #[derive(Clone, Debug, Default)]
    struct Refusing(Arc<AtomicU64>);
    impl Store for Refusing {
        fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Memory::new().connect()
        }
        fn refusal(&self) -> Option<StoreError> {
            Some(StoreError::Forked)
        }
    }
    let store = Refusing::default();
    let client = Durable::builder(store.clone());
    let node = Durable::builder(store.clone()).handle("q", |_: &Due<()>| ());
    for started in [client.start(), node.start()] {
        let refused = matches!(started, Err(StartError::Store(StoreError::Forked)));
        assert!(refused, "{started:?}");
    }
    assert_eq!(store.0.load(Ordering::SeqCst), 0);
}

#[test]
fn a_box_passes_each_call_on_to_the_store_in_it() {
    #[derive(Debug)]
    struct Odd;
    impl Store for Odd {
        fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
            Err(StoreError::Refused("no connection".into()))
        }
        fn refusal(&self) -> Option<StoreError> {
            Some(StoreError::Forked)
        }
        fn namespace(&self) -> &str {
            "odd"
        }
        fn writers(&self) -> usize {
            7
        }
        fn lock_limit(&self) -> Duration {
            SECOND * 7
        }
        fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
            listener(Notification::Open);
            Some(Subscription::new(|| ()))
        }
    }
    let store: Box<dyn Store> = Box::new(Odd);
    // As `Durable::builder` takes it: by its own type, not by what it contains.
    fn is_passed_on(store: &impl Store) {
        let error = store.connect().err();
        assert_eq!(error, Some(StoreError::Refused("no connection".into())));
        assert_eq!(store.refusal(), Some(StoreError::Forked));
        assert_eq!(store.namespace(), "odd");
        assert_eq!(store.writers(), 7);
        assert_eq!(store.lock_limit(), SECOND * 7);
        let (sender, notifications) = mpsc::channel();
        let listener = move |notification: Notification<'_>| {
            assert_eq!(notification, Notification::Open);
            sender.send(()).unwrap();
        };
        assert!(store.listen(Box::new(listener)).is_some());
        assert_eq!(notifications.try_recv(), Ok(()));
    }
    is_passed_on(&store);
    is_passed_on(&Box::new(store));
}

#[test]
fn a_store_that_panics_ends_no_thread() {
    quiet::hush();
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|_| panic!("{}: in the store", quiet::WANTED));
    let error = timers.schedule("q", "k", SECOND, &()).wait().unwrap_err();
    assert!(matches!(&error, CallError::Unknown(why) if why.contains("in the store")));
    assert!(timers.get("q", "k").wait().is_err());
    store.heal();
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    assert!(timers.get("q", "k").wait().unwrap().is_some());
}

#[test]
fn the_outage_of_a_store_is_reported_once() {
    let (sender, events) = mpsc::channel();
    let store = Memory::new();
    let timers = Durable::builder(store.clone())
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .start()
        .unwrap();
    store.inject(|_| MemoryFault::Fail(unavailable()));
    for _ in 0..3 {
        timers.schedule("q", "k", SECOND, &()).wait().unwrap_err();
    }
    store.heal();
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    let down = wait::next(&events);
    assert!(matches!(&down, DurableEvent::StoreDown { error, .. } if error.contains("cut")));
    assert_eq!(wait::next(&events), DurableEvent::StoreUp);
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn a_listener_may_call_the_timers_and_panic() {
    quiet::hush();
    let (sender, done) = mpsc::channel();
    let shared: Arc<std::sync::OnceLock<Durable>> = Arc::default();
    let own = Arc::downgrade(&shared);
    let store = Memory::new();
    let timers = Durable::builder(store.clone())
        .on_event(move |event| {
            if *event == DurableEvent::StoreUp {
                let shared = own.upgrade().unwrap();
                let timers = shared.get().unwrap();
                sender.send(timers.get("q", "k").wait().is_ok()).unwrap();
            } else {
                panic!("{}: in a listener", quiet::WANTED);
            }
        })
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    store.inject(|_| MemoryFault::Fail(unavailable()));
    timers.cancel("q", "k").wait().unwrap_err();
    store.heal();
    timers.cancel("q", "k").wait().unwrap();
    assert!(wait::next(&done));
}

#[test]
fn a_slow_listener_loses_events_and_is_told_how_many() {
    let gate = Gate::default();
    let (sender, events) = mpsc::channel();
    let pass = gate.clone();
    let store = Memory::new();
    let timers = Durable::builder(store.clone())
        .on_event(move |event| {
            pass.pass();
            sender.send(event.clone()).unwrap();
        })
        .start()
        .unwrap();
    let outages = 1_000;
    for _ in 0..outages {
        store.inject(|_| MemoryFault::Fail(unavailable()));
        timers.cancel("q", "k").wait().unwrap_err();
        store.heal();
        timers.cancel("q", "k").wait().unwrap();
    }
    gate.open();
    drop(timers);
    let events = wait::all(&events);
    let dropped = events.iter().find_map(|event| match event {
        DurableEvent::Dropped { events, .. } => Some(*events),
        _ => None,
    });
    let kept = events.len() as u64 - 1;
    assert_eq!(kept + dropped.expect("events were dropped"), 2 * outages);
}

#[test]
fn a_hanging_write_delays_no_read() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    timers.schedule("q", "old", SECOND, &()).wait().unwrap();
    store.inject(|call| match call {
        MemoryCall::Write(_) => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let hangs = timers.schedule("q", "new", SECOND, &());
    assert!(timers.get("q", "old").wait().unwrap().is_some());
    store.heal();
    hangs.wait().unwrap();
}

#[test]
fn a_hanging_read_delays_no_write() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|call| match call {
        MemoryCall::Counts => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let hangs = timers.counts();
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
    store.heal();
    hangs.wait().unwrap();
}

#[test]
fn too_many_waiting_calls_fail_at_once() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|call| match call {
        MemoryCall::Write(_) | MemoryCall::Get { .. } => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let most = 65_536;
    let mut waiting: Vec<_> = (0..most)
        .map(|n| timers.schedule("q", &n.to_string(), SECOND, &()))
        .collect();
    let error = timers.schedule("q", "k", SECOND, &()).wait().unwrap_err();
    assert!(matches!(error, CallError::Unavailable(_)));
    // A call that was refused here is answered here, also within a batch.
    let many = timers
        .schedule_many("q", [("a", SECOND, ()), ("b", SECOND, ())])
        .wait()
        .unwrap();
    assert!(
        many.iter()
            .all(|one| matches!(one, Err(CallError::Unavailable(_))))
    );
    let reads: Vec<_> = (0..=4_097).map(|_| timers.get("q", "k")).collect();
    store.heal();
    let last = waiting.pop().unwrap();
    last.wait().unwrap();
    assert!(waiting.into_iter().all(|one| one.wait().is_ok()));
    let refused = reads.into_iter().filter_map(|one| one.wait().err());
    assert!(refused.count() >= 1);
    timers.schedule("q", "k", SECOND, &()).wait().unwrap();
}

#[test]
fn a_stop_waits_for_the_calls_that_were_sent_before() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    let gate = Gate::default();
    let pass = gate.clone();
    store.inject(move |call| match call {
        MemoryCall::Write(_) => {
            let pass = pass.clone();
            MemoryFault::Then(Box::new(move || pass.pass()))
        }
        _ => MemoryFault::None,
    });
    let first = timers.schedule("q", "1", SECOND, &());
    gate.crowd(1);
    let second = timers.schedule("q", "2", SECOND, &());
    let stop = timers.stop(SECOND);
    gate.open();
    first.wait().unwrap();
    second.wait().unwrap();
    stop.wait().unwrap();
    assert_eq!(
        timers.schedule("q", "3", SECOND, &()).wait(),
        Err(CallError::Stopped)
    );
    assert_eq!(timers.get("q", "1").wait(), Err(CallError::Stopped));
    assert_eq!(timers.pause("q").wait(), Err(CallError::Stopped));
    assert_eq!(
        timers.schedule_many("q", [("k", SECOND, ())]).wait(),
        Err(CallError::Stopped)
    );
    assert_eq!(timers.stop(SECOND).wait().unwrap().unfinished, 0);
}
