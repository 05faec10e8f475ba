//! The bound on the futures of a map's handler: no more places than there are, and a worker that
//! waits goes on when one becomes free. `src/expiry/places.rs` has the protocol, PLACES-1.
//!
//! If the worker is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/places-worker-registers-in-a-second-hold.patch`
//! - `teeth/places-free-before-they-are-counted.patch`: the handle is taken out in an earlier hold
//!   than the one that counts.

use loom::thread;

use super::check;
use crate::places::Places;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_worker_that_waits_goes_on_when_a_place_is_free() {
    check(3, || {
        let (places, taken) = (Arc::new(Places::new(1)), Arc::new(AtomicUsize::new(0)));
        let mut futures = Vec::new();
        for _ in 0..3 {
            let place = places.take();
            // Relaxed: the lock of the places orders both.
            assert_eq!(taken.fetch_add(1, Ordering::Relaxed), 0, "one place");
            let taken = Arc::clone(&taken);
            futures.push(thread::spawn(move || {
                taken.fetch_sub(1, Ordering::Relaxed);
                drop(place);
            }));
        }
        for future in futures {
            future.join().unwrap();
        }
        assert!(places.are_free());
    });
}

#[test]
fn two_that_end_at_the_same_time_free_two_places() {
    check(3, || {
        let places = Arc::new(Places::new(2));
        let futures = [0, 1].map(|_| {
            let place = places.take();
            thread::spawn(move || drop(place))
        });
        let both = [places.take(), places.take()];
        assert!(!places.are_free());
        for future in futures {
            future.join().unwrap();
        }
        drop(both);
    });
}
