//! Bad input is refused before anything is sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tourbillon_durable::{
    CallError, Due, Durable, Invalid, Memory, MemoryCall, MemoryFault, Paging, RetryPolicy,
    StartError,
};

const SECOND: Duration = Duration::from_secs(1);

/// A client, and the number of its writes.
fn client() -> (Durable, Arc<AtomicU64>) {
    let store = Memory::new();
    let writes = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&writes);
    store.inject(move |call| {
        if let MemoryCall::Write(_) = call {
            count.fetch_add(1, Ordering::SeqCst);
        }
        MemoryFault::None
    });
    (Durable::builder(store).start().unwrap(), writes)
}

#[test]
fn names_and_keys_have_their_lengths() {
    let (timers, writes) = client();
    let (longest_queue, longest_key) = ("q".repeat(64), "k".repeat(512));
    for (queue, key, expected) in [
        ("", "k", Invalid::QueueLength(0)),
        (&*"q".repeat(65), "k", Invalid::QueueLength(65)),
        ("a\0b", "k", Invalid::QueueNul),
        ("q", "", Invalid::KeyLength(0)),
        ("q", &*"k".repeat(513), Invalid::KeyLength(513)),
        ("q", "\0", Invalid::KeyNul),
    ] {
        let expected = CallError::Invalid(expected);
        let refused = [
            timers.schedule(queue, key, SECOND, &()).wait().err(),
            timers
                .schedule(queue, key, SystemTime::now(), &())
                .wait()
                .err(),
            timers
                .schedule_if_absent(queue, key, SECOND, &())
                .wait()
                .err(),
            timers.reschedule(queue, key, SECOND).wait().err(),
            timers
                .reschedule(queue, key, SystemTime::now())
                .wait()
                .err(),
            timers.cancel(queue, key).wait().err(),
            timers.get(queue, key).wait().err(),
        ];
        for error in refused {
            assert_eq!(error.as_ref(), Some(&expected));
        }
        assert!(!expected.may_pass() && !expected.to_string().is_empty());
    }
    for queue in ["", "\0"] {
        assert!(
            timers
                .schedule_many(queue, [("k", SECOND, ())])
                .wait()
                .is_err()
        );
        assert!(timers.cancel_many(queue, ["k"]).wait().is_err());
        assert!(timers.list(queue, &Paging::first(1)).wait().is_err());
        assert!(timers.pause(queue).wait().is_err() && timers.resume(queue).wait().is_err());
        assert!(timers.dead(queue, 0, 1).wait().is_err());
    }
    assert_eq!(writes.load(Ordering::SeqCst), 0);
    timers
        .schedule(&longest_queue, &longest_key, SECOND, &())
        .wait()
        .unwrap();
    // Bytes count, not characters.
    assert!(
        timers
            .schedule("q", &"é".repeat(257), SECOND, &())
            .wait()
            .is_err()
    );
    timers
        .schedule("q", &"é".repeat(256), SECOND, &())
        .wait()
        .unwrap();
}

#[test]
fn pages_have_a_greatest_length() {
    let (timers, _) = client();
    for limit in [0, 10_001, u32::MAX] {
        let expected = CallError::Invalid(Invalid::PageLimit(limit));
        assert_eq!(
            timers.list("q", &Paging::first(limit)).wait(),
            Err(expected.clone())
        );
        assert_eq!(timers.dead("q", 0, limit).wait(), Err(expected));
    }
    assert!(timers.list("q", &Paging::first(10_000)).wait().is_ok());
}

#[test]
fn payloads_have_a_size_a_depth_and_clean_strings() {
    let (timers, writes) = client();
    let refused = |error: Result<_, CallError>| match error {
        Err(CallError::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    };
    let schedule = |payload: &serde_json::Value| timers.schedule("q", "k", SECOND, payload).wait();
    let text = |length| serde_json::Value::String("x".repeat(length));
    let nested = |depth| {
        (0..depth).fold(serde_json::Value::Null, |inner, _| {
            serde_json::Value::Array(vec![inner])
        })
    };
    // With its quotes.
    assert_eq!(
        refused(schedule(&text(65_535))),
        Invalid::PayloadSize(65_536)
    );
    assert_eq!(refused(schedule(&nested(128))), Invalid::PayloadDepth);
    assert_eq!(refused(schedule(&"a\0b".into())), Invalid::PayloadText);
    let keys = BTreeMap::from([((1, 2), 3)]);
    assert!(matches!(
        refused(timers.schedule("q", "k", SECOND, &keys).wait()),
        Invalid::PayloadJson(_)
    ));
    assert_eq!(writes.load(Ordering::SeqCst), 0);

    schedule(&text(65_534)).unwrap();
    schedule(&nested(127)).unwrap();
    schedule(&"\\u0000 \u{1F600} \u{1}".into()).unwrap();
}

#[test]
fn the_limit_of_payloads_is_an_option() {
    let start = |bytes| Durable::builder(Memory::new()).payload_limit(bytes).start();
    let timers = start(4).unwrap();
    timers.schedule("q", "k", SECOND, &1_234).wait().unwrap();
    let error = timers
        .schedule("q", "k", SECOND, &12_345)
        .wait()
        .unwrap_err();
    assert_eq!(error, CallError::Invalid(Invalid::PayloadSize(4)));
    assert!(matches!(start(0), Err(StartError::Option(_))));
    assert!(matches!(start(usize::MAX), Err(StartError::Option(_))));
}

#[test]
fn far_dates_are_refused() {
    let (timers, writes) = client();
    let far = CallError::Invalid(Invalid::TooFar);
    let year_10_000 = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800);
    assert_eq!(
        timers.schedule("q", "k", Duration::MAX, &()).wait(),
        Err(far.clone())
    );
    assert_eq!(
        timers.schedule("q", "k", year_10_000, &()).wait(),
        Err(far.clone())
    );
    assert_eq!(
        timers.reschedule("q", "k", Duration::MAX).wait(),
        Err(far.clone())
    );
    assert_eq!(
        timers.reschedule("q", "k", year_10_000).wait(),
        Err(far.clone())
    );
    let error = timers
        .schedule_if_absent("q", "k", Duration::MAX, &())
        .wait();
    assert_eq!(error, Err(far));
    assert_eq!(writes.load(Ordering::SeqCst), 0);
    timers
        .schedule("q", "k", year_10_000 - SECOND, &())
        .wait()
        .unwrap();
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let builder = || Durable::builder(Memory::new());
    let queue = || builder().handle("q", |_: &Due<()>| ());
    let ms = Duration::from_millis;
    let starts = [
        builder().poll_interval(ms(9)).start(),
        builder().poll_interval(ms(60_001)).start(),
        builder().node_lease(ms(99)).poll_interval(ms(10)).start(),
        builder().node_lease(ms(3_600_001)).start(),
        builder().node_lease(ms(3_999)).start(),
        queue().running(0).start(),
        queue().running(10_001).start(),
        queue().pace(0).start(),
        queue().crash_limit(0).start(),
        queue().retry(RetryPolicy::fixed(Duration::ZERO)).start(),
        queue().retry(RetryPolicy::never().attempts(0)).start(),
        queue().retry(RetryPolicy::never().jitter(2.0)).start(),
    ];
    for start in starts {
        let Err(StartError::Option(what)) = start else {
            panic!("{start:?}");
        };
        assert!(what.contains(|c: char| c.is_ascii_digit()), "{what}");
    }
    let twice = queue().handle("q", |_: &Due<u8>| ()).start();
    assert!(matches!(twice, Err(StartError::SameQueue(queue)) if queue == "q"));
    let nameless = builder().handle("", |_: &Due<()>| ()).start();
    assert!(matches!(
        nameless,
        Err(StartError::Queue(Invalid::QueueLength(0)))
    ));
}
