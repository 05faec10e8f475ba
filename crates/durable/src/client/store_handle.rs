//! A handle of the store, and a connection that is opened when it is needed and dropped when it has
//! failed.

use std::time::Duration;

use super::outages::Outages;
use crate::events::StoreWork;
use crate::store::{Connection, NotificationListener, Store, StoreError, Subscription};
use crate::sync::{Arc, catch_panic};

/// The store, and the parts of the work with it that have stopped.
#[derive(Debug)]
pub(crate) struct StoreHandle {
    store: Arc<dyn Store>,
    outages: Arc<Outages>,
    /// Whether the calls of users are the only work. With a node its own work shows each outage: it
    /// goes on all the time.
    is_client: bool,
}

impl StoreHandle {
    pub(crate) fn new(store: Arc<dyn Store>, outages: Arc<Outages>, is_client: bool) -> Arc<Self> {
        Arc::new(StoreHandle {
            store,
            outages,
            is_client,
        })
    }

    pub(crate) fn outages(&self) -> &Arc<Outages> {
        &self.outages
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
    pub(crate) fn listen(
        &self,
        listener: NotificationListener,
    ) -> Result<Option<Subscription>, StoreError> {
        catch_panic(|| self.store.listen(listener))
            .map_err(|panic| StoreError::Unavailable(panicked(&panic)))
    }
}

/// A connection of one thread.
pub(crate) struct ReconnectingConnection {
    store_handle: Arc<StoreHandle>,
    /// The work of users that it is for.
    work: StoreWork,
    connection: Option<Box<dyn Connection>>,
}

impl ReconnectingConnection {
    /// A connection that writes, or that belongs to a node.
    pub(crate) fn new(store_handle: &Arc<StoreHandle>) -> Self {
        ReconnectingConnection {
            store_handle: Arc::clone(store_handle),
            work: StoreWork::Write,
            connection: None,
        }
    }

    /// A connection for the reads of users.
    pub(crate) fn reading(store_handle: &Arc<StoreHandle>) -> Self {
        ReconnectingConnection {
            work: StoreWork::Read,
            ..ReconnectingConnection::new(store_handle)
        }
    }

    /// Opens the connection, unless it is open.
    pub(crate) fn open(&mut self) -> Result<&mut dyn Connection, StoreError> {
        if self.connection.is_none() {
            let connected = catch_panic(|| self.store_handle.store.connect())
                .unwrap_or_else(|panic| Err(StoreError::Unavailable(panicked(&panic))));
            self.connection = Some(connected?);
        }
        match &mut self.connection {
            Some(connection) => Ok(connection.as_mut()),
            None => Err(StoreError::Unavailable("there is no connection".to_owned())),
        }
    }

    /// Makes a call of users. In a process without a node its failure is an outage.
    pub(crate) fn call<R>(
        &mut self,
        make: impl FnOnce(&mut dyn Connection) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let began = self.store_handle.outages.begin();
        let result = self.make(make);
        let error = result.as_ref().err();
        match self.store_handle.is_client {
            true => self.store_handle.outages.ended(self.work, began, error),
            false => self.store_handle.outages.notice(error),
        }
        result
    }

    /// Makes a call, whose end the caller reports. After a failure the next one opens a new
    /// connection: after a refusal too, since the rights, the settings or the server of another
    /// connection may be other ones.
    pub(crate) fn make<R>(
        &mut self,
        make: impl FnOnce(&mut dyn Connection) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let connection = self.open()?;
        // Whether a call that panicked was carried out is not known.
        let result = catch_panic(|| make(connection))
            .unwrap_or_else(|panic| Err(StoreError::Unknown(panicked(&panic))));
        if result.is_err() {
            let broken = self.connection.take();
            drop(catch_panic(move || drop(broken)));
        }
        result
    }
}

fn panicked(message: &str) -> String {
    format!("the store has panicked: {message}")
}
