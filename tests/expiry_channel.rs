//! An `ExpiryMap` whose expired entries go into a channel: nothing is lost, nobody is held up, and
//! both sides see the other's end.

#[path = "kit/wait.rs"]
mod wait;

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, never, select};
use tourbillon::{
    Clock, Expired, Expiry, ExpiryMap, InsertRefusal, Lifecycle, ManualClock, Reason, Removed,
    Shutdown, Touch,
};
use wait::until;

const IDLE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);

type Map = ExpiryMap<u32, String>;
type Gone = Receiver<Expired<u32, String>>;

fn with_capacity(capacity: usize) -> (ManualClock, Map, Gone) {
    let clock = ManualClock::new();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .build_channel(capacity)
        .unwrap();
    (clock, map, gone)
}

fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        map.insert(key, key.to_string()).unwrap();
    }
}

fn next(gone: &Gone) -> Expired<u32, String> {
    gone.recv_timeout(PATIENCE).expect("an entry has expired")
}

#[test]
fn expired_entries_come_through_the_channel_each_once() {
    for capacity in [0, 1, 7, 5_000] {
        let (clock, map, gone) = with_capacity(capacity);
        fill(&map, 0..1_000);
        clock.advance(IDLE);
        let mut keys: Vec<_> = (0..1_000)
            .map(|_| {
                let expired = next(&gone);
                assert_eq!(expired.value, expired.key.to_string());
                assert_eq!(expired.reason, Reason::Idle);
                expired.key
            })
            .collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        assert!(map.is_empty() && gone.is_empty());
    }
}

#[test]
fn what_a_full_channel_keeps_waiting_is_counted_and_can_be_saved_or_removed() {
    let (clock, map, gone) = with_capacity(1);
    fill(&map, 0..10);
    clock.advance(IDLE);
    // One lies in the channel, one is in the hand of the thread that sends.
    until("two are taken", || map.stats().ran == 2);
    assert_eq!(map.len(), 8);
    let waiting: Vec<u32> = map.iter().map(|(key, _)| key).collect();
    assert_eq!(waiting.len(), 8);
    assert!(matches!(map.remove(&waiting[0]), Removed::Removed { .. }));
    for key in &waiting[1..5] {
        assert!(matches!(map.touch(key), Touch::Touched { .. }));
    }
    let mut keys: Vec<u32> = (0..5).map(|_| next(&gone).key).collect();
    until("nothing is under way", || map.stats().running == 0);
    assert!(gone.is_empty());
    assert!(waiting[1..5].iter().all(|key| !keys.contains(key)));
    // And no ticker stood still meanwhile: what was saved expires in its time.
    clock.advance(IDLE);
    keys.extend((0..4).map(|_| next(&gone).key));
    keys.push(waiting[0]);
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..10));
    assert!(map.stats().balances());
}

#[test]
fn the_receiver_works_in_select() {
    let (clock, map, gone) = with_capacity(4);
    fill(&map, [7]);
    clock.advance(IDLE);
    let idle: Receiver<()> = never();
    let key = select! {
        recv(gone) -> expired => expired.unwrap().key,
        recv(idle) -> _ => unreachable!("it never has anything"),
        default(PATIENCE) => panic!("nothing came"),
    };
    assert_eq!(key, 7);
}

#[test]
fn the_channel_ends_after_the_map_and_after_all_that_was_sent() {
    let (clock, map, gone) = with_capacity(100);
    fill(&map, 0..10);
    clock.advance(IDLE);
    until("all are sent", || gone.len() == 10);
    map.insert_with(10, "left".to_owned(), Expiry::NEVER)
        .unwrap();
    let report = map.shutdown(Shutdown::HandBack).unwrap();
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(gone.iter().count(), 10, "the map itself is still there");
    assert_eq!(map.state(), Lifecycle::Closed);

    let (clock, map, gone) = with_capacity(100);
    fill(&map, 0..10);
    clock.advance(IDLE);
    until("all are sent", || gone.len() == 10);
    drop(map);
    for _ in 0..10 {
        next(&gone);
    }
    let end = gone.recv_timeout(PATIENCE);
    assert_eq!(end.unwrap_err(), RecvTimeoutError::Disconnected);
}

#[test]
fn a_shutdown_that_delivers_at_once_needs_somebody_who_receives() {
    let (_clock, map, gone) = with_capacity(0);
    fill(&map, 0..100);
    let receiver = std::thread::spawn(move || gone.iter().map(|expired| expired.reason).collect());
    let report = map.shutdown(Shutdown::RunNow).unwrap();
    assert!(report.handed_back.is_empty() && report.still_running == 0);
    let reasons: Vec<Reason> = receiver.join().unwrap();
    assert_eq!(reasons, [Reason::Shutdown; 100]);
}

#[test]
fn a_map_whose_receiver_is_gone_closes_at_the_next_expiry() {
    for capacity in [0, 1] {
        let (clock, map, gone) = with_capacity(capacity);
        fill(&map, 0..10);
        // It may wait in the middle of a send.
        clock.advance(IDLE);
        until("one is taken", || map.stats().ran > 0);
        drop(gone);
        until("the map closes", || map.state() != Lifecycle::Running);
        until("all is dropped", || map.is_empty());
        let error = map.insert(11, String::new()).unwrap_err();
        assert_eq!(error.refusal, InsertRefusal::Closed);
        assert!(map.stats().balances());
    }
}
