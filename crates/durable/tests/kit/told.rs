//! The outages that a node tells of.
//!
//! A call without an answer for a second is an outage of its own, and a busy machine makes such
//! calls. A test that is about another reason passes over an outage of this kind, from its begin to
//! its end.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::cell::Cell;
use std::sync::mpsc::Receiver;

use kit::wait;
use tourbillon_durable::{Durable, DurableEvent, StoreWork};

/// Whether an outage began with a call that was only slow.
pub(crate) fn is_slow(reason: &str) -> bool {
    reason.contains("no answer for 1s")
}

/// The events of outages of one node, in their order.
pub(crate) struct Told {
    pub(crate) events: Receiver<DurableEvent>,
    /// The calls that had failed when all parts worked last.
    failed: Cell<u64>,
}

impl Told {
    /// `events` has `StoreDown` and `StoreUp` alone.
    pub(crate) fn new(events: Receiver<DurableEvent>) -> Self {
        Told {
            events,
            failed: Cell::new(0),
        }
    }

    /// Waits until an outage has begun in which calls fail, and returns its reason. `None`: it has
    /// begun with a slow call, so it tells no other reason. Then the test can mend what it has
    /// broken, and break it again.
    #[track_caller]
    pub(crate) fn down(&self, timers: &Durable) -> Option<(StoreWork, String)> {
        loop {
            match wait::next(&self.events) {
                DurableEvent::StoreDown { work, error, .. } if !is_slow(&error) => {
                    return Some((work, error));
                }
                DurableEvent::StoreDown { .. } => {}
                other => panic!("{other:?}"),
            }
            let mut up = None;
            wait::until("the slow calls are over, or others fail", || {
                up = self.events.try_recv().ok();
                up.is_some() || timers.stats().store_errors > self.failed.get()
            });
            match up {
                Some(up) => assert_eq!(up, DurableEvent::StoreUp),
                None => return None,
            }
        }
    }

    /// Waits until the outage is over.
    #[track_caller]
    pub(crate) fn up(&self, timers: &Durable) {
        assert_eq!(wait::next(&self.events), DurableEvent::StoreUp);
        self.failed.set(timers.stats().store_errors);
    }

    /// Ends the node. No call has failed since the last outage was over, and no other event has
    /// come.
    #[track_caller]
    pub(crate) fn ends(self, timers: Durable) {
        wait::until("all works", || timers.stats().stopped_work == 0);
        assert_eq!(timers.stats().store_errors, self.failed.get());
        drop(timers);
        let more = wait::all(&self.events);
        let slow = |event: &DurableEvent| match event {
            DurableEvent::StoreDown { error, .. } => is_slow(error),
            other => *other == DurableEvent::StoreUp,
        };
        assert!(more.iter().all(slow), "{more:?}");
    }
}
