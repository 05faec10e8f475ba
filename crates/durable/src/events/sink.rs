//! Where events go: to the listener, on a thread of its own, so that a listener may call the
//! timers, and may be slow.

use std::fmt;
use std::io;

use super::DurableEvent;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Sender, TrySendError, bounded};
use crate::sync::{Arc, catch_panic, thread};

/// Events that wait for the listener. Further ones are dropped and counted.
const MOST_WAITING: usize = 1_024;

/// A closure of the user, which is called with each event.
pub(crate) type Listener = Box<dyn Fn(&DurableEvent) + Send + Sync>;

/// The way to the listener. The thread ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct EventSink(Option<Arc<EventWay>>);

struct EventWay {
    sender: Sender<DurableEvent>,
    dropped: Arc<AtomicU64>,
}

impl EventSink {
    /// Starts the thread of the listener, if there is one.
    pub(crate) fn start(listener: Option<Listener>) -> io::Result<Self> {
        let Some(listener) = listener else {
            return Ok(EventSink(None));
        };
        let (sender, receiver) = bounded(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = Arc::clone(&dropped);
        // The listener's panic is not an error of the timers. Its message goes to the panic hook.
        let tell = move |event: &DurableEvent| drop(catch_panic(|| listener(event)));
        thread::spawn("events", move || {
            for event in &receiver {
                tell(&event);
                // Relaxed: the number alone is read.
                let events = missed.swap(0, Ordering::Relaxed);
                if events > 0 {
                    tell(&DurableEvent::Dropped { events });
                }
            }
            // The captures of the listener are the user's.
            drop(catch_panic(move || drop(tell)));
        })?;
        Ok(EventSink(Some(Arc::new(EventWay { sender, dropped }))))
    }

    /// Sends an event, without waiting. It is made only if somebody listens.
    pub(crate) fn send(&self, event: impl FnOnce() -> DurableEvent) {
        let Some(way) = &self.0 else { return };
        if let Err(TrySendError::Full(_)) = way.sender.try_send(event()) {
            // Relaxed: the number alone is read.
            way.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink")
            .field("listens", &self.0.is_some())
            .finish()
    }
}
