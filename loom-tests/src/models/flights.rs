//! Single flight of a map: callers that lack the value of one key. One of them computes it, once,
//! and the others get its answer. If it fails, the next one computes. `expiry/flights.rs` has the
//! rules.
//!
//! If a waiting thread or task is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/flights-takes-its-seat-in-a-second-hold.patch`
//! - `teeth/flights-end-wakes-nobody.patch`
//! - `teeth/flights-failure-ends-nothing.patch`
//! - `teeth/flights-lead-looks-once.patch`
//! - `teeth/flights-close-in-a-second-hold.patch`
//! - `teeth/flights-close-forgets-who-waits.patch`

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Waker};

use loom::thread;

use super::check;
use crate::flights::{CallMode, FlightLead, FlightWait, Flights, Joined, WaitEnd};
use crate::rig::{block_on, hash};
use crate::shard::Waiter;
use crate::sync::{Arc, Mutex, Parker};

/// A map with one key, whose values are numbers.
struct Map {
    value: Mutex<Option<u32>>,
    flights: Arc<Flights<u32, u32>>,
    /// Of std: it must not order anything.
    computed: Count,
}

impl Map {
    fn new() -> Arc<Map> {
        Arc::new(Map {
            value: Mutex::new(None),
            flights: Arc::new(Flights::with_shards(1)),
            computed: Count::new(0),
        })
    }

    fn look(&self) -> Option<u32> {
        *self.value.lock()
    }

    /// What `compute.rs` does with a lead, for a computation that returns `value`.
    fn lead(&self, lead: FlightLead<u32, u32>, value: Option<u32>) -> Option<u32> {
        self.computed.fetch_add(1, Relaxed);
        let value = value?;
        *self.value.lock() = Some(value);
        lead.complete(|| value);
        Some(value)
    }

    fn block(&self, value: Option<u32>) -> Option<u32> {
        loop {
            if let Some(found) = self.look() {
                return Some(found);
            }
            let parker = Parker::new();
            let waiter = Waiter::Thread(parker.unparker().clone());
            let joined = self
                .flights
                .join(hash(7), &7, CallMode::Blocking, waiter, || self.look());
            let answer = match joined {
                Joined::Found(found) => return Some(found),
                Joined::Leads(lead) => return self.lead(lead, value),
                Joined::Waits(wait) => block(wait, &parker),
                _ => unreachable!("nothing is recursive, and no lock is held"),
            };
            match answer {
                WaitEnd::Answered(answer) => return Some(answer),
                WaitEnd::Unanswered => {}
                WaitEnd::Closed => unreachable!("nothing is shut down"),
            }
        }
    }

    /// The first poll of a wait has another waker, as if the task had moved.
    fn wait_as_task(&self, value: Option<u32>) -> Option<u32> {
        loop {
            if let Some(found) = self.look() {
                return Some(found);
            }
            let waiter = Waiter::Task(Waker::noop().clone());
            let joined = self
                .flights
                .join(hash(7), &7, CallMode::Awaited, waiter, || self.look());
            let answer = match joined {
                Joined::Found(found) => return Some(found),
                Joined::Leads(lead) => return self.lead(lead, value),
                Joined::Waits(wait) => block_on(wait),
                _ => unreachable!("nothing is recursive, and no lock is held"),
            };
            match answer {
                WaitEnd::Answered(answer) => return Some(answer),
                WaitEnd::Unanswered => {}
                WaitEnd::Closed => unreachable!("nothing is shut down"),
            }
        }
    }
}

/// What `compute.rs` does with a wait that has no limit.
fn block(wait: FlightWait<u32, u32>, parker: &Parker) -> WaitEnd<u32> {
    let end = wait.block(|| {
        parker.park();
        true
    });
    end.expect("it does not give up")
}

#[test]
fn one_computes_and_the_other_gets_its_value() {
    check(3, || {
        let map = Map::new();
        let other = Arc::clone(&map);
        let other = thread::spawn(move || other.block(Some(1)));
        let own = map.block(Some(2));
        assert_eq!(other.join().unwrap(), own);
        assert_eq!(map.computed.load(Relaxed), 1, "computed twice");
    });
}

#[test]
fn a_task_that_waits_is_woken() {
    check(3, || {
        let map = Map::new();
        let other = Arc::clone(&map);
        let other = thread::spawn(move || other.block(Some(1)));
        let own = map.wait_as_task(Some(2));
        assert_eq!(other.join().unwrap(), own);
        assert_eq!(map.computed.load(Relaxed), 1);
    });
}

#[test]
fn after_a_failure_the_next_one_computes() {
    check(3, || {
        let map = Map::new();
        let fails = Arc::clone(&map);
        let fails = thread::spawn(move || fails.block(None));
        assert_eq!(map.block(Some(2)), Some(2));
        // It fails, or finds the value of the other one.
        let failed = fails.join().unwrap().is_none();
        assert_eq!(map.computed.load(Relaxed), 1 + usize::from(failed));
    });
}

/// Two callers wait, and a third one fails. One of the two computes for both.
#[test]
fn a_failure_leaves_nobody_behind() {
    check(2, || {
        let map = Map::new();
        let [one, other] = [Some(1), Some(2)].map(|value| {
            let map = Arc::clone(&map);
            thread::spawn(move || map.block(value))
        });
        let failed = map.wait_as_task(None).is_none();
        assert_eq!(one.join().unwrap(), other.join().unwrap());
        assert_eq!(map.computed.load(Relaxed), 1 + usize::from(failed));
    });
}

#[test]
fn a_caller_that_gives_up_leaves_nothing_behind() {
    check(3, || {
        let map = Map::new();
        let leads = Arc::clone(&map);
        let leads = thread::spawn(move || leads.block(Some(1)));
        let waiter = Waiter::Task(Waker::noop().clone());
        match (map.flights).join(hash(7), &7, CallMode::Awaited, waiter, || map.look()) {
            Joined::Found(value) => assert_eq!(value, 1),
            Joined::Leads(lead) => drop(lead),
            Joined::Waits(mut wait) => {
                let mut context = Context::from_waker(Waker::noop());
                let _ = std::pin::Pin::new(&mut wait).poll(&mut context);
                drop(wait);
            }
            _ => unreachable!("nothing is recursive, and no lock is held"),
        }
        assert_eq!(leads.join().unwrap(), Some(1));
        assert_eq!(map.block(Some(2)), Some(1));
    });
}

/// A computation that hangs, and a shutdown beside a caller that takes its seat.
#[test]
fn a_shutdown_releases_whoever_waits_for_a_computation_that_hangs() {
    for awaits in [false, true] {
        check(3, move || {
            let map = Map::new();
            let waiter = Waiter::Task(Waker::noop().clone());
            let join = |map: &Map, waiter, mode| {
                (map.flights).join(hash(7), &7, mode, waiter, || map.look())
            };
            let Joined::Leads(hangs) = join(&map, waiter, CallMode::Awaited) else {
                unreachable!("nobody else is there")
            };
            let closes = Arc::clone(&map);
            let closes = thread::spawn(move || closes.flights.close());
            let parker = Parker::new();
            let (mode, waiter) = match awaits {
                true => (CallMode::Awaited, Waiter::Task(Waker::noop().clone())),
                false => (
                    CallMode::Blocking,
                    Waiter::Thread(parker.unparker().clone()),
                ),
            };
            match join(&map, waiter, mode) {
                Joined::Closed => {}
                Joined::Waits(wait) if awaits => assert_eq!(block_on(wait), WaitEnd::Closed),
                Joined::Waits(wait) => assert_eq!(block(wait, &parker), WaitEnd::Closed),
                _ => unreachable!("the other computation has not ended"),
            }
            closes.join().unwrap();
            drop(hangs);
        });
    }
}

/// The computation ends while the map is shut down. The caller that waits gets its answer, or
/// learns of the shutdown.
#[test]
fn a_shutdown_beside_the_end_of_a_computation_leaves_nobody_behind() {
    check(3, || {
        let map = Map::new();
        let waiter = Waiter::Task(Waker::noop().clone());
        let joined = (map.flights).join(hash(7), &7, CallMode::Awaited, waiter, || map.look());
        let Joined::Leads(lead) = joined else {
            unreachable!("nobody else is there")
        };
        let parker = Parker::new();
        let waiter = Waiter::Thread(parker.unparker().clone());
        let joined = (map.flights).join(hash(7), &7, CallMode::Blocking, waiter, || map.look());
        let Joined::Waits(wait) = joined else {
            unreachable!("the computation is in progress")
        };
        let closes = Arc::clone(&map);
        let closes = thread::spawn(move || closes.flights.close());
        let other = Arc::clone(&map);
        let leads = thread::spawn(move || other.lead(lead, Some(1)));
        let end = block(wait, &parker);
        assert!(
            matches!(end, WaitEnd::Answered(1) | WaitEnd::Closed),
            "{end:?}"
        );
        closes.join().unwrap();
        leads.join().unwrap();
    });
}
