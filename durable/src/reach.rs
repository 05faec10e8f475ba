//! One connection to the store, opened when it is needed and dropped when it has failed.

use std::time::Duration;

use crate::event_sink::EventSink;
use crate::events::Event;
use crate::panics::catch_panic;
use crate::store::{Connection, Hear, Listening, Store, StoreError};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The store, and whether its last call has succeeded.
#[derive(Debug)]
pub(crate) struct Reach {
    store: Arc<dyn Store>,
    is_down: AtomicBool,
    events: EventSink,
}

impl Reach {
    pub(crate) fn new(store: Arc<dyn Store>, events: EventSink) -> Arc<Self> {
        Arc::new(Reach {
            store,
            is_down: AtomicBool::new(false),
            events,
        })
    }

    /// How long a call is repeated whose row others have locked.
    pub(crate) fn lock_limit(&self) -> Duration {
        // A store that panics here has the limit of the others.
        catch_panic(|| self.store.lock_limit()).unwrap_or(Duration::from_secs(1))
    }

    /// What the names of the store's tables have in common.
    pub(crate) fn namespace(&self) -> Arc<str> {
        // A store that panics here has no other one.
        catch_panic(|| self.store.namespace().into()).unwrap_or_else(|_| Arc::from(""))
    }

    /// Listens to the store's doorbell, if it has one.
    pub(crate) fn listen(&self, hear: Hear) -> Option<Listening> {
        // A store that panics here has no doorbell.
        catch_panic(|| self.store.listen(hear)).unwrap_or(None)
    }

    /// Reports a change between calls that fail and calls that succeed.
    fn note(&self, error: Option<&StoreError>) {
        let is_down = error.is_some();
        // Relaxed, twice: only the value itself matters. The load spares the write to a line that
        // all connections share.
        if self.is_down.load(Ordering::Relaxed) == is_down
            || self.is_down.swap(is_down, Ordering::Relaxed) == is_down
        {
            return;
        }
        self.events.send(|| match error {
            Some(error) => Event::StoreDown {
                error: error.to_string(),
            },
            None => Event::StoreUp,
        });
    }
}

/// A connection of one thread.
pub(crate) struct StoreLink {
    reach: Arc<Reach>,
    connection: Option<Box<dyn Connection>>,
}

impl StoreLink {
    pub(crate) fn new(reach: &Arc<Reach>) -> Self {
        StoreLink {
            reach: Arc::clone(reach),
            connection: None,
        }
    }

    /// Opens the connection, unless it is open.
    pub(crate) fn open(&mut self) -> Result<&mut dyn Connection, StoreError> {
        if self.connection.is_none() {
            let connected = catch_panic(|| self.reach.store.connect())
                .unwrap_or_else(|panic| Err(StoreError::Unavailable(panicked(&panic))));
            match connected {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    self.reach.note(Some(&error));
                    return Err(error);
                }
            }
        }
        match &mut self.connection {
            Some(connection) => Ok(connection.as_mut()),
            None => Err(StoreError::Unavailable("there is no connection".to_owned())),
        }
    }

    /// Makes a call. After a failure that may pass, the next one opens a new connection.
    pub(crate) fn call<R>(
        &mut self,
        make: impl FnOnce(&mut dyn Connection) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let connection = self.open()?;
        // Whether a call that panicked was carried out is not known.
        let result = catch_panic(|| make(connection))
            .unwrap_or_else(|panic| Err(StoreError::Unknown(panicked(&panic))));
        match &result {
            Err(error) if error.may_pass() => {
                let broken = self.connection.take();
                drop(catch_panic(move || drop(broken)));
                self.reach.note(Some(error));
            }
            // A refusal is an answer, too.
            _ => self.reach.note(None),
        }
        result
    }
}

fn panicked(message: &str) -> String {
    format!("the store has panicked: {message}")
}
