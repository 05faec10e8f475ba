//! Where events go: to a listener, on a thread of its own, so that a listener may call the timers,
//! and may be slow.

use std::fmt;
use std::io;

use super::DurableEvent;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Sender, TrySendError, bounded};
use crate::sync::{Arc, catch_panic, thread};

/// Events that wait for the listener. Further ones are dropped and counted.
const MOST_WAITING: usize = 1_024;

/// A closure of the user, which is called with each event.
pub(crate) type Listener<E = DurableEvent> = Box<dyn Fn(&E) + Send + Sync>;

/// A kind of events, which has a listener and a channel of its own: many events of one kind displace
/// none of another kind.
pub(crate) trait Event: Send + Sized + 'static {
    /// The name of the listener's thread.
    const THREAD: &'static str;

    /// Tells a subscriber of `tracing`, if it is told of events of this kind.
    #[cfg(feature = "tracing")]
    const TRACE: Option<fn(&Self)>;

    /// The event that tells of events that were dropped.
    fn dropped(events: u64) -> Self;
}

impl Event for DurableEvent {
    const THREAD: &'static str = "events";

    #[cfg(feature = "tracing")]
    const TRACE: Option<fn(&Self)> = Some(super::trace::tell);

    fn dropped(events: u64) -> Self {
        DurableEvent::Dropped { events }
    }
}

/// The way to the listener. The thread ends when the last clone is dropped.
pub(crate) struct EventSink<E = DurableEvent>(Option<Arc<EventWay<E>>>);

struct EventWay<E> {
    sender: Sender<E>,
    dropped: Arc<AtomicU64>,
}

impl<E> Clone for EventSink<E> {
    fn clone(&self) -> Self {
        EventSink(self.0.clone())
    }
}

impl<E: Event> EventSink<E> {
    /// Starts the thread of the listener, if there is one. With the feature `tracing`, a subscriber
    /// that is there at the start listens, too.
    pub(crate) fn start(listener: Option<Listener<E>>) -> io::Result<Self> {
        #[cfg(feature = "tracing")]
        let listener = match (E::TRACE.filter(|_| super::trace::hears()), listener) {
            (None, listener) => listener,
            (Some(trace), None) => Some(Box::new(trace) as Listener<E>),
            (Some(trace), Some(listener)) => Some(Box::new(move |event: &E| {
                drop(catch_panic(|| trace(event)));
                listener(event);
            }) as Listener<E>),
        };
        let Some(listener) = listener else {
            return Ok(EventSink(None));
        };
        let (sender, receiver) = bounded(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = Arc::clone(&dropped);
        // The listener's panic is not an error of the timers. Its message goes to the panic hook.
        let tell = move |event: &E| drop(catch_panic(|| listener(event)));
        thread::spawn(E::THREAD, move || {
            for event in &receiver {
                tell(&event);
                // Relaxed: the number alone is read.
                let events = missed.swap(0, Ordering::Relaxed);
                if events > 0 {
                    tell(&E::dropped(events));
                }
            }
            // The captures of the listener are the user's.
            drop(catch_panic(move || drop(tell)));
        })?;
        Ok(EventSink(Some(Arc::new(EventWay { sender, dropped }))))
    }

    /// Whether somebody listens.
    pub(crate) fn listens(&self) -> bool {
        self.0.is_some()
    }

    /// Sends an event, without waiting. It is made only if somebody listens.
    pub(crate) fn send(&self, event: impl FnOnce() -> E) {
        let Some(way) = &self.0 else { return };
        if let Err(TrySendError::Full(_)) = way.sender.try_send(event()) {
            // Relaxed: the number alone is read.
            way.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<E> fmt::Debug for EventSink<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink")
            .field("listens", &self.0.is_some())
            .finish()
    }
}
