//! Forwards what the store's doorbell says to the node.

use std::collections::HashMap;

use super::signs::NodeSigns;
use crate::events::{Counters, DurableEvent, EventSink};
use crate::store::Notification;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Tells the node which queue rang. `None` is any queue.
type Tell = Box<dyn Fn(Option<Arc<str>>) + Send + Sync>;

/// Forwards rings to the node, at most one of each queue at a time: while one waits for the node,
/// others of the same queue say nothing new.
pub(crate) struct NotificationForwarder {
    /// The queues of the node, and whether a ring of each waits for the node.
    waiting: HashMap<Arc<str>, AtomicBool>,
    is_down: AtomicBool,
    counters: Arc<Counters>,
    events: EventSink,
    signs: Arc<NodeSigns>,
    tell: Tell,
}

impl NotificationForwarder {
    pub(crate) fn new(
        queues: impl Iterator<Item = Arc<str>>,
        counters: Arc<Counters>,
        events: EventSink,
        signs: Arc<NodeSigns>,
        tell: Tell,
    ) -> Arc<Self> {
        Arc::new(NotificationForwarder {
            waiting: queues
                .map(|queue| (queue, AtomicBool::new(false)))
                .collect(),
            is_down: AtomicBool::new(false),
            counters,
            events,
            signs,
            tell,
        })
    }

    pub(crate) fn take(&self, notification: Notification<'_>) {
        match notification {
            Notification::Ring(queue) => {
                let Some((queue, waits)) = self.waiting.get_key_value(queue) else {
                    return;
                };
                self.counters.node.rings.increment();
                // AcqRel: pairs with the swap in `taken`. Either that comes later and the node
                // polls after this ring, or this one finds `false` and sends another ring.
                if !waits.swap(true, Ordering::AcqRel) {
                    (self.tell)(Some(Arc::clone(queue)));
                }
            }
            Notification::Open => {
                // Relaxed: nothing else is read by way of it.
                if self.is_down.swap(false, Ordering::Relaxed) {
                    self.signs.doorbell(false);
                    self.events.send(|| DurableEvent::DoorbellUp);
                }
                (self.tell)(None);
            }
            Notification::Lost(error) => {
                // Relaxed: nothing else is read by way of it.
                if !self.is_down.swap(true, Ordering::Relaxed) {
                    self.signs.doorbell(true);
                    let error = error.to_string();
                    self.events.send(|| DurableEvent::DoorbellDown { error });
                }
            }
        }
    }

    /// Whether the store has said that no ring is heard.
    pub(crate) fn is_down(&self) -> bool {
        // Relaxed: nothing else is read by way of it.
        self.is_down.load(Ordering::Relaxed)
    }

    /// The node takes a ring, and sends its poll after this.
    pub(crate) fn taken(&self, queue: &str) {
        if let Some(waits) = self.waiting.get(queue) {
            // AcqRel: pairs with the swap in `take`.
            waits.swap(false, Ordering::AcqRel);
        }
    }
}
