//! A release while somebody is due leaves the name to that one, whoever else asks at that moment;
//! and a reservation that nobody uses keeps nobody waiting for longer than it lasts.
//! `leases/memory.rs` reserves, `leases/wait_queue.rs` wakes.
//!
//! A waiter that nobody wakes shows as a deadlock.
//!
//! Teeth:
//! - `teeth/reservation-is-not-made.patch`
//! - `teeth/reservation-in-a-second-hold.patch`: a newcomer takes the name in between.
//! - `teeth/reservation-has-no-end.patch`
//! - `teeth/reservation-wakes-nobody.patch`

use std::task::{Wake, Waker};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::memory::MemoryStore;
use crate::leases::store::{Acquired, Claim, LeaseStore, Released, Watch};
use crate::rig::{START, at};
use crate::sync::{Arc, Parker, Unparker};

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(1);

fn store() -> (MemoryStore, ManualClock) {
    let hand = ManualClock::starting_at(at(START) + LEASE);
    (MemoryStore::with_clock(Clock::manual(&hand)), hand)
}

fn ask(store: &MemoryStore, owner: &str) -> Acquired {
    let claim = Claim::new("x", owner, LEASE);
    store.acquire(&claim, LIMIT).unwrap()
}

fn ask_waiting(store: &MemoryStore, owner: &str, waited: Duration) -> Acquired {
    let claim = Claim::new("x", owner, LEASE).waiting().waited(waited);
    store.acquire(&claim, LIMIT).unwrap()
}

fn is_granted(answer: &Acquired) -> bool {
    matches!(answer, Acquired::Granted { .. })
}

struct Rouse(Unparker);

impl Wake for Rouse {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A place in the hub, and what it wakes.
fn waiter(store: &MemoryStore) -> (Parker, Box<dyn Watch>) {
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(Rouse(parker.unparker().clone())));
    let watch = store.watch("x", &waker).unwrap();
    (parker, watch)
}

/// The holder asks again at once, and a third one asks at any time.
#[test]
fn the_name_goes_to_the_one_who_is_due() {
    check(3, || {
        let (store, _hand) = store();
        assert!(is_granted(&ask(&store, "holder")));
        let (parker, watch) = waiter(&store);
        assert!(!is_granted(&ask_waiting(&store, "due", Claim::TURN)));
        let newcomer = {
            let store = store.clone();
            thread::spawn(move || ask(&store, "newcomer"))
        };
        let holder = {
            let store = store.clone();
            thread::spawn(move || {
                let released = store.release("x", "holder", LIMIT);
                assert_eq!(released, Ok(Released::Released));
                ask(&store, "holder-again")
            })
        };
        // It is woken once, and that once is enough.
        parker.park();
        watch.looks();
        let due = ask_waiting(&store, "due", Claim::TURN);
        assert!(is_granted(&due));
        assert!(!is_granted(&newcomer.join().unwrap()));
        assert!(!is_granted(&holder.join().unwrap()));
    });
}

/// The one who is due gives up, before the release, during it or afterwards. Another one, who is
/// not due, waits as `Leases` do.
#[test]
fn a_turn_that_nobody_takes_passes() {
    check(3, || {
        let (store, hand) = store();
        let clock = Clock::manual(&hand);
        assert!(is_granted(&ask(&store, "holder")));
        let (_gone, watch) = waiter(&store);
        assert!(!is_granted(&ask_waiting(&store, "due", Claim::TURN)));
        let gives_up = thread::spawn(move || drop(watch));
        let holder = {
            let store = store.clone();
            thread::spawn(move || {
                let released = store.release("x", "holder", LIMIT);
                assert_eq!(released, Ok(Released::Released));
                // A reservation is no longer than this; the lease is.
                hand.advance(Duration::from_millis(25));
            })
        };
        let (parker, watch) = waiter(&store);
        loop {
            // The clock is moved once, and may be moved while the answer is on its way.
            let asked = clock.now();
            watch.looks();
            let Acquired::Held { remaining } = ask_waiting(&store, "other", Duration::ZERO) else {
                break;
            };
            clock.park_until(&parker, Some(asked + remaining));
        }
        gives_up.join().unwrap();
        holder.join().unwrap();
    });
}
