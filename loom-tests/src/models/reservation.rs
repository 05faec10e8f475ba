//! Reservations of a released name. If a caller is due at the release, it gets the name, even if
//! others ask at that moment. A reservation that no caller uses delays the others only until it
//! ends. `crates/leases/src/store/memory.rs` reserves, `crates/leases/src/store/wait_queue.rs`
//! wakes.
//!
//! If a waiting caller is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/reservation-is-not-made.patch`
//! - `teeth/reservation-in-a-second-hold.patch`: a newcomer takes the name in between.
//! - `teeth/reservation-for-who-asks-late.patch`: the first claim of a waiting caller is not noted.
//! - `teeth/reservation-has-no-end.patch`
//! - `teeth/reservation-wakes-nobody.patch`

use std::task::{Wake, Waker};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::store::MemoryStore;
use crate::leases::store::{
    Acquired, Claim, Destination, Holding, LeaseStore, Released, Secret, StoreError, StoreFuture,
    Watch, complete, only,
};
use crate::rig::{START, at};
use crate::sync::{Arc, Parker, Unparker};

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(1);

fn store() -> (MemoryStore, ManualClock) {
    let hand = ManualClock::starting_at(at(START) + LEASE);
    (MemoryStore::with_clock(Clock::manual(&hand)), hand)
}

/// Returns the answer to a batch of one, which is there at the first poll.
fn answer<T>(call: StoreFuture<'_, Vec<Result<T, StoreError>>>) -> Result<T, StoreError> {
    let clock = Clock::manual(&ManualClock::starting_at(at(START)));
    complete(&clock, LIMIT, call).and_then(only)
}

fn release(store: &MemoryStore) -> Result<Released, StoreError> {
    let batch = [Holding::new("x", Secret::new("holder"))];
    answer(store.release(Destination::default(), &batch, LIMIT))
}

fn ask(store: &MemoryStore, owner: &str) -> Acquired {
    let batch = [Claim::new("x", owner, Secret::new(owner), LEASE)];
    let call = store.acquire(Destination::default(), &batch, LIMIT);
    answer(call).unwrap()
}

fn ask_waiting(store: &MemoryStore, owner: &str, waited: Duration) -> Acquired {
    let claim = Claim::new("x", owner, Secret::new(owner), LEASE).waiting();
    let batch = [claim.waited(waited)];
    let call = store.acquire(Destination::default(), &batch, LIMIT);
    answer(call).unwrap()
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

/// Returns a registered wait, and the parker that it wakes.
fn waiter(store: &MemoryStore) -> (Parker, Box<dyn Watch>) {
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(Rouse(parker.unparker().clone())));
    let watch = store.watch("x", &waker).unwrap();
    (parker, watch)
}

/// The holder asks again at once, and a third caller asks at any time.
#[test]
fn the_name_goes_to_the_one_who_is_due() {
    check(3, || {
        let (store, hand) = store();
        assert!(is_granted(&ask(&store, "holder")));
        let (parker, watch) = waiter(&store);
        // It has told since when it waits, and does not ask again before it is woken.
        assert!(!is_granted(&ask_waiting(&store, "due", Duration::ZERO)));
        hand.advance(Claim::TURN);
        let newcomer = {
            let store = store.clone();
            thread::spawn(move || ask(&store, "newcomer"))
        };
        let holder = {
            let store = store.clone();
            thread::spawn(move || {
                let released = release(&store);
                assert_eq!(released, Ok(Released::Released));
                ask(&store, "holder-again")
            })
        };
        // The caller is woken once, and that is enough.
        parker.park();
        watch.looks();
        let due = ask_waiting(&store, "due", Claim::TURN);
        assert!(is_granted(&due));
        assert!(!is_granted(&newcomer.join().unwrap()));
        assert!(!is_granted(&holder.join().unwrap()));
    });
}

/// The caller that is due gives up, before the release, during it or afterwards. Another caller,
/// which is not due, waits as in `Leases`.
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
                let released = release(&store);
                assert_eq!(released, Ok(Released::Released));
                // A reservation ends within this time; the lease lasts longer.
                hand.advance(Duration::from_millis(25));
            })
        };
        let (parker, watch) = waiter(&store);
        loop {
            // The clock moves only once, and may move while the answer is on its way.
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
