//! What is said about a timer beside its payload.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use kit::wait;
use tourbillon_durable::{Due, Durable, Memory, Meta, StoredTimer};

const HOUR: Duration = Duration::from_secs(3_600);

fn tenant(name: &str) -> Meta {
    Meta::new(&BTreeMap::from([("tenant", name)])).expect("an object")
}

fn read(timers: &Durable, key: &str) -> Option<Meta> {
    let timer: Option<StoredTimer> = timers.get("q", key).wait().expect("the store answers");
    timer.expect("it was scheduled").meta
}

#[test]
fn each_call_that_schedules_takes_a_meta_and_the_others_leave_it() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let (acme, other) = (tenant("acme"), tenant("other"));
    timers
        .meta(&acme)
        .schedule("q", "one", HOUR, &1)
        .wait()
        .unwrap();
    let absent = timers.meta(&acme).schedule_if_absent("q", "two", HOUR, &2);
    assert!(absent.wait().unwrap().is_scheduled());
    let many = [("three", HOUR, 3), ("four", HOUR, 4)];
    let results = timers.meta(&acme).schedule_many("q", many).wait().unwrap();
    assert!(results.iter().all(Result::is_ok));
    for key in ["one", "two", "three", "four"] {
        assert_eq!(read(&timers, key), Some(acme.clone()), "{key}");
    }
    // One that is there keeps its own.
    let exists = timers.meta(&other).schedule_if_absent("q", "one", HOUR, &1);
    assert!(!exists.wait().unwrap().is_scheduled());
    timers.reschedule("q", "one", HOUR * 2).wait().unwrap();
    assert_eq!(read(&timers, "one"), Some(acme));
    timers
        .meta(&other)
        .schedule("q", "one", HOUR, &1)
        .wait()
        .unwrap();
    assert_eq!(read(&timers, "one"), Some(other));
    timers.schedule("q", "one", HOUR, &1).wait().unwrap();
    assert_eq!(read(&timers, "one"), None);
}

#[test]
fn a_handler_reads_the_meta_of_its_timer() {
    let (sender, receiver) = mpsc::channel();
    let timers = Durable::builder(Memory::new())
        .handle("q", move |due: &Due<u32>| {
            sender.send((*due.payload(), due.meta().cloned())).unwrap();
        })
        .start()
        .unwrap();
    let acme = tenant("acme");
    timers
        .meta(&acme)
        .schedule("q", "with", Duration::ZERO, &1)
        .wait()
        .unwrap();
    assert_eq!(wait::next(&receiver), (1, Some(acme)));
    timers
        .schedule("q", "without", Duration::ZERO, &2)
        .wait()
        .unwrap();
    assert_eq!(wait::next(&receiver), (2, None));
}
