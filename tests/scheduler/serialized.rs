//! Statistics, infos and events as JSON. Fields may be added; those that are here keep their names
//! and forms.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json, to_value};
use tourbillon::{ExpiryMap, Lifecycle, Scheduler, Time};

const SECOND: Duration = Duration::from_secs(1);

/// A summary of `count` starts, none of which was late.
fn on_time(count: u64) -> Value {
    let zero = json!({"secs": 0, "nanos": 0});
    json!({"count": count, "p50": zero, "p99": zero, "p99_9": zero, "max": zero})
}

fn shard(count: u64, pending: u64) -> Value {
    json!({
        "pending": pending, "queued": 0,
        "lateness": on_time(count), "tick_lag": on_time(count), "queue_lag": on_time(count),
    })
}

#[test]
fn statistics_of_a_scheduler() {
    let builder = Scheduler::<u64>::builder().shards(1).workers(2);
    let scheduler = builder.build_stepped(1).unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, SECOND, |_| ()).unwrap();
    timers.schedule(2, 9 * SECOND, |_| ()).unwrap();
    scheduler.advance(SECOND);
    let expected = json!({
        "scheduled": 2, "ran": 1, "cancelled": 0, "replaced": 0, "handed_back": 0, "panicked": 0,
        "pending": 1, "queued": 0, "running": 0, "workers": 2, "idle_workers": 0, "saturated": 0,
        "failed_spawns": 0, "refused": 0, "held_back": 0, "ticker_panics": 0,
        "shards": [shard(1, 1)], "lateness": on_time(1),
    });
    assert_eq!(to_value(timers.stats()).unwrap(), expected);
}

#[test]
fn statistics_of_a_map() {
    let builder = ExpiryMap::<u64, u64>::builder().shards(1).workers(2);
    let stepped = builder.build_stepped(1, |_, _| ()).unwrap();
    let map = stepped.map();
    map.insert(1, 1).unwrap();
    assert_eq!(map.get(&1), Some(1));
    let expected = json!({
        "inserted": 1, "expired": 0, "evicted": 0, "removed": 0, "replaced": 0, "handed_back": 0,
        "pending": 1, "queued": 0, "running": 0, "panicked": 0, "unreceived": 0, "touched": 0,
        "found": 1, "missed": 0, "held_back": 0, "workers": 2, "idle_workers": 0, "saturated": 0,
        "failed_spawns": 0, "refused": 0, "ticker_panics": 0,
        "shards": [shard(0, 1)], "lateness": on_time(0),
    });
    assert_eq!(to_value(map.stats()).unwrap(), expected);
}

#[test]
fn infos_of_timers() {
    let scheduler = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    let (send, infos) = mpsc::channel();
    let first = timers.schedule(1, SECOND, move |firing| {
        let next = firing.handle().schedule(1, SECOND, |_| ()).unwrap();
        send.send((firing.handle().get(&1).unwrap(), next.id))
            .unwrap();
    });
    let first = to_value(first.unwrap().id).unwrap();
    let digits = first.as_str().expect("an id is a text");
    assert!(digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let info = to_value(timers.get(&1)).unwrap();
    let pending = json!({"id": first, "deadline": 1_000_000_000, "state": "Pending"});
    assert_eq!(info, pending);

    scheduler.advance(SECOND);
    let (info, next) = infos.try_recv().unwrap();
    let next = to_value(next).unwrap();
    assert_ne!(next, first);
    let running = json!({"Running": {"next": [next, 2_000_000_000_u64]}});
    let expected = json!({"id": first, "deadline": 1_000_000_000, "state": running});
    assert_eq!(to_value(info).unwrap(), expected);
    assert_eq!(to_value(Time::MAX).unwrap(), u64::MAX);
    assert_eq!(to_value(timers.state()).unwrap(), "Running");
    assert_eq!(to_value(Lifecycle::Closed).unwrap(), "Closed");
}

#[test]
fn entries_that_expire_and_panics() {
    let (send, events) = mpsc::channel();
    let expired = send.clone();
    let stepped = ExpiryMap::<u64, &str>::builder()
        .time_to_idle(SECOND)
        .on_panic(move |panic| send.send(to_value(panic).unwrap()).unwrap())
        .build_stepped(1, move |_, entry| {
            expired.send(to_value(entry).unwrap()).unwrap();
            panic!("no more");
        })
        .unwrap();
    stepped.map().insert(7, "Ada").unwrap();
    stepped.advance(SECOND);
    let second = 1_000_000_000;
    let entry = json!({
        "key": 7, "value": "Ada", "deadline": second,
        "lateness": {"secs": 0, "nanos": 0}, "reason": "Idle",
    });
    let panic = json!({"key": 7, "deadline": second, "message": "no more"});
    assert_eq!(events.try_iter().collect::<Vec<_>>(), [entry, panic]);
}
