//! Who in this process waits for which name to be released.
//!
//! A release wakes the one who has waited longest and is not on its way already. That one may find
//! the name taken by another process: it keeps its place. It may also give up without having looked;
//! then its drop wakes the next one. **HUB-1**: a name that was released while somebody waits has
//! been looked at by somebody since, or somebody who was woken has not looked yet.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use super::store::Watch;
use crate::sync::{Arc, Mutex, Origin};

/// Clones are one hub.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hub(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    names: HashMap<String, VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    waker: Waker,
    /// Woken, and has not looked since.
    woken: bool,
}

impl Hub {
    /// Somebody waits from now on.
    pub(crate) fn watch(&self, name: &str, waker: &Waker) -> Box<dyn Watch> {
        let (name, waker) = (name.to_owned(), waker.clone());
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state
            .names
            .entry(name.clone())
            .or_default()
            .push_back(Waiting {
                number,
                waker,
                woken: false,
            });
        drop(state);
        Box::new(Place {
            hub: self.clone(),
            name,
            number,
            origin: Origin::here(),
        })
    }

    /// The name may be free: wakes one.
    pub(crate) fn released(&self, name: &str) {
        let waker = {
            let mut state = self.0.lock();
            let waiting = state.names.get_mut(name).into_iter().flatten();
            waiting.into_iter().find(|one| !one.woken).map(|one| {
                one.woken = true;
                one.waker.clone()
            })
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes everybody: releases may have been missed.
    pub(crate) fn all_may_be_free(&self) {
        let mut wakers = Vec::new();
        for one in self.0.lock().names.values_mut().flatten() {
            one.woken = true;
            wakers.push(one.waker.clone());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether nobody waits.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().names.is_empty()
    }
}

/// The place of one who waits.
struct Place {
    hub: Hub,
    name: String,
    number: u64,
    /// In a forked copy the hub's lock may be held for ever.
    origin: Origin,
}

impl Watch for Place {
    fn looks(&self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let mut state = self.hub.0.lock();
        let waiting = state.names.get_mut(&self.name).into_iter().flatten();
        if let Some(own) = waiting.into_iter().find(|one| one.number == self.number) {
            own.woken = false;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let own = {
            let mut state = self.hub.0.lock();
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
        if own.is_some_and(|own| own.woken) {
            self.hub.released(&self.name);
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

    fn waiter(hub: &Hub, name: &str) -> (Arc<Bell>, Box<dyn Watch>) {
        let bell = Arc::new(Bell::default());
        let place = hub.watch(name, &Waker::from(Arc::clone(&bell)));
        (bell, place)
    }

    fn rung(bells: &[&Arc<Bell>]) -> Vec<usize> {
        bells.iter().map(|bell| bell.0.load(SeqCst)).collect()
    }

    #[test]
    fn a_release_wakes_one_after_the_other_in_their_order() {
        let hub = Hub::default();
        let (a, place_a) = waiter(&hub, "x");
        let (b, _place_b) = waiter(&hub, "x");
        let (other, _place) = waiter(&hub, "y");
        hub.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 0, 0]);
        // The first is on its way.
        hub.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 1, 0]);
        hub.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [1, 1, 0]);
        // It looked, in vain, and keeps its place.
        place_a.looks();
        hub.released("x");
        assert_eq!(rung(&[&a, &b, &other]), [2, 1, 0]);
        hub.released("unknown");
    }

    #[test]
    fn who_gives_up_without_a_look_passes_it_on_and_leaves_nothing() {
        let hub = Hub::default();
        let (_, place_a) = waiter(&hub, "x");
        let (b, place_b) = waiter(&hub, "x");
        hub.released("x");
        drop(place_a);
        assert_eq!(rung(&[&b]), [1]);
        place_b.looks();
        drop(place_b);
        assert!(hub.is_empty());
        hub.released("x");
        assert_eq!(rung(&[&b]), [1]);
    }

    #[test]
    fn everybody_is_woken_when_something_may_have_been_missed() {
        let hub = Hub::default();
        let (a, _place_a) = waiter(&hub, "x");
        let (b, _place_b) = waiter(&hub, "y");
        hub.all_may_be_free();
        assert_eq!(rung(&[&a, &b]), [1, 1]);
    }
}
