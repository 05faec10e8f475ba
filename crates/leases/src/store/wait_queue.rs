//! The callers of this process that wait for a name.
//!
//! A release wakes the caller that has waited longest, of those that were not woken already. The
//! woken caller asks for the name. If another process was faster, the caller keeps its place in the
//! queue. If the caller gives up without having asked, its drop wakes the next one.
//!
//! **WAITQUEUE-1**: if a name was released while callers wait, then one of them has asked for it
//! since, or one of them was woken and has not asked yet.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use ahash::RandomState;

use super::Watch;
use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// The callers of this process that wait for names of a store, in one queue for each name. For stores that
/// announce releases: they return a place in a queue from [`LeaseStore::watch`](crate::LeaseStore::watch).
///
/// A release wakes the caller that has waited longest, of those that were not woken already. The woken
/// caller asks for the name. If another process was faster, the caller keeps its place. If the caller
/// gives up without having asked, the drop of its place wakes the next one.
///
/// A waker that panics is passed over, and keeps nobody else from being woken.
///
/// Clones share the queues. In a forked copy of the process, places do nothing. Do not call a method of the
/// queues there, since another thread may have held their lock at the fork.
///
/// # Examples
///
/// ```
/// use std::task::Waker;
/// use tourbillon_leases::{WaitQueue, Watch};
///
/// let queue = WaitQueue::default();
/// let place = queue.watch("report", Waker::noop());
/// assert!(queue.waits_for("report") && !queue.is_empty());
/// queue.released("report"); // wakes the caller
/// place.looks(); // the caller asks for the name, in vain
/// queue.all_may_be_free(); // the connection was lost: a release may have been missed
/// drop(place);
/// assert!(queue.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct WaitQueue(Arc<Mutex<Waiters>>);

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    names: HashMap<String, VecDeque<QueuedWaiter>, RandomState>,
}

#[derive(Debug)]
struct QueuedWaiter {
    number: u64,
    waker: Waker,
    /// Whether the caller was woken and has not asked since.
    woken: bool,
}

impl WaitQueue {
    /// Adds a caller to the queue of a name, until the returned value is dropped.
    #[must_use]
    pub fn watch(&self, name: &str, waker: &Waker) -> Box<dyn Watch> {
        let (name, waker) = (name.to_owned(), waker.clone());
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state
            .names
            .entry(name.clone())
            .or_default()
            .push_back(QueuedWaiter {
                number,
                waker,
                woken: false,
            });
        drop(state);
        Box::new(WaitHandle {
            wait_queue: self.clone(),
            name,
            number,
            origin: Origin::here(),
        })
    }

    /// Wakes one caller that waits for `name`, since the name may be free. The waker runs on the calling
    /// thread.
    pub fn released(&self, name: &str) {
        let waker = {
            let mut state = self.0.lock();
            let waiting = state.names.get_mut(name).into_iter().flatten();
            waiting.into_iter().find(|one| !one.woken).map(|one| {
                one.woken = true;
                one.waker.clone()
            })
        };
        // Without the lock: a waker is a runtime's code.
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    /// Wakes all callers, since releases may have been missed.
    pub fn all_may_be_free(&self) {
        let mut wakers = Vec::new();
        for one in self.0.lock().names.values_mut().flatten() {
            one.woken = true;
            wakers.push(one.waker.clone());
        }
        wakers.into_iter().for_each(wake);
    }

    /// Returns whether a caller waits for `name`.
    #[must_use]
    pub fn waits_for(&self, name: &str) -> bool {
        self.0.lock().names.contains_key(name)
    }

    /// Returns whether no caller waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().names.is_empty()
    }
}

/// A waker that panics keeps nobody else from being woken.
fn wake(waker: Waker) {
    let _ = catch_panic(|| waker.wake());
}

/// The place of one caller in a queue.
struct WaitHandle {
    wait_queue: WaitQueue,
    name: String,
    number: u64,
    /// In a forked copy of the process the lock of the queues may stay locked forever.
    origin: Origin,
}

impl Watch for WaitHandle {
    fn looks(&self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let mut state = self.wait_queue.0.lock();
        let waiting = state.names.get_mut(&self.name).into_iter().flatten();
        if let Some(own) = waiting.into_iter().find(|one| one.number == self.number) {
            own.woken = false;
        }
    }
}

impl Drop for WaitHandle {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let own = {
            let mut state = self.wait_queue.0.lock();
            let Some(waiting) = state.names.get_mut(&self.name) else {
                return;
            };
            let at = waiting.iter().position(|one| one.number == self.number);
            let own = at.and_then(|at| waiting.remove(at));
            if waiting.is_empty() {
                state.names.remove(&self.name);
            }
            own
        };
        // This caller was woken and did not ask. The wake-up passes to the next one (WAITQUEUE-1).
        if own.is_some_and(|own| own.woken) {
            self.wait_queue.released(&self.name);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn waiter(wait_queue: &WaitQueue, name: &str) -> (Arc<Bell>, Box<dyn Watch>) {
        let bell = Arc::new(Bell::default());
        let place = wait_queue.watch(name, &Waker::from(Arc::clone(&bell)));
        (bell, place)
    }

    fn rung(bells: &[&Arc<Bell>]) -> Vec<usize> {
        bells.iter().map(|bell| bell.0.load(SeqCst)).collect()
    }

    #[test]
    fn a_release_wakes_one_after_the_other_in_their_order() {
        let wait_queue = WaitQueue::default();
        let (a, place_a) = waiter(&wait_queue, "x");
        let (b, _place_b) = waiter(&wait_queue, "x");
        let (other, _place) = waiter(&wait_queue, "y");
        wait_queue.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 0, 0]);
        // The first caller is woken and has not asked yet.
        wait_queue.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 1, 0]);
        wait_queue.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 1, 0]);
        // It asked in vain, and keeps its place.
        place_a.looks();
        wait_queue.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [2, 1, 0]);
        wait_queue.released("unknown");
    }

    #[test]
    fn who_gives_up_without_a_look_passes_it_on_and_leaves_nothing() {
        let wait_queue = WaitQueue::default();
        let (_, place_a) = waiter(&wait_queue, "x");
        let (b, place_b) = waiter(&wait_queue, "x");
        wait_queue.released("x");
        drop(place_a);
        assert_eq!(rung(&[&b]), [1]);
        place_b.looks();
        drop(place_b);
        assert!(wait_queue.is_empty());
        wait_queue.released("x");
        assert_eq!(rung(&[&b]), [1]);
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_woken() {
        struct Bomb;

        impl Wake for Bomb {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }

        let wait_queue = WaitQueue::default();
        let bomb = Waker::from(Arc::new(Bomb));
        let _places = ["x", "y", "z"].map(|name| wait_queue.watch(name, &bomb));
        let waiters = ["x", "y", "z"].map(|name| waiter(&wait_queue, name));
        wait_queue.all_may_be_free();
        waiters.iter().for_each(|(_, place)| place.looks());
        // The bomb is woken first where it has asked since.
        let again = wait_queue.watch("w", &bomb);
        wait_queue.released("w");
        drop(again);
        wait_queue.released("x");
        let rung = waiters.each_ref().map(|(bell, _)| bell.0.load(SeqCst));
        assert_eq!(rung, [2, 1, 1]);
    }

    #[test]
    fn everybody_is_woken_when_something_may_have_been_missed() {
        let wait_queue = WaitQueue::default();
        let (a, _place_a) = waiter(&wait_queue, "x");
        let (b, _place_b) = waiter(&wait_queue, "y");
        wait_queue.all_may_be_free();
        assert_eq!(rung(&[&a, &b]), [1, 1]);
    }
}
