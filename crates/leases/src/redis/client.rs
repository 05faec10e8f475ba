//! Calls scripts on the connections of a store. The future of a call can be polled anywhere.
//!
//! - **CLIENT-1** A forked copy sends nothing, takes no lock, and drops nothing that belongs to a
//!   runtime. Each call and each poll first checks whether it runs in such a copy.

use std::collections::HashMap;

use redis::Value;
use tokio::runtime::Handle;
use tourbillon::Clock;

use super::scripts::Call;
use super::server::Server;
use super::slot::Slot;
use crate::remote::{ForkSafe, Io, Limit, no_runtime};
use crate::store::{Destination, StoreError};
use crate::sync::{Arc, Mutex};

/// The connections of a store.
pub(super) struct Client(ForkSafe<Wires>);

struct Wires {
    io: Io,
    server: Arc<Server>,
    clock: Clock,
    slots: Mutex<HashMap<(Destination, Whose), Arc<Slot>>>,
}

/// For whom a call is made. Each destination has a connection for either.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Whose {
    /// Callers, of whom there may be any number, with batches of any size.
    Callers,
    /// Renewals and releases. They must not wait behind the calls of users.
    Holders,
}

impl Whose {
    /// The most calls of a batch that are sent together. Callers take turns on their connection.
    fn portion(self) -> usize {
        match self {
            Whose::Callers => 100,
            Whose::Holders => 1_000,
        }
    }
}

impl Client {
    pub(super) fn new(server: Arc<Server>, clock: Clock, runtime: Option<Handle>) -> Self {
        Client(ForkSafe::new(Wires {
            io: Io::new("tb-redis", runtime),
            server,
            clock,
            slots: Mutex::default(),
        }))
    }

    /// Returns whether this process is a forked copy of the one that created the client. The copy has
    /// the same connections, and would take the answers that the original waits for.
    pub(super) fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// Returns where the connections are.
    pub(super) fn io(&self) -> Result<&Io, StoreError> {
        self.0.get().map(|wires| &wires.io)
    }

    /// Calls scripts, and returns the answer of each.
    pub(super) async fn call(
        &self,
        whose: Whose,
        destination: Destination,
        calls: Vec<Call>,
        limit: Limit,
    ) -> Result<Vec<Value>, StoreError> {
        let number = calls.len();
        let wires = self.0.get()?;
        let slot = wires.slot(destination, whose);
        let call = wires
            .io
            .call(async move { slot.call(&calls, limit).await })?;
        match call.await? {
            Some(Ok(answers)) if answers.len() != number => Err(StoreError::no_answer()),
            Some(answers) => answers,
            None => Err(no_runtime(&wires.server.to_string())),
        }
    }
}

impl Wires {
    fn slot(&self, destination: Destination, whose: Whose) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let slot = slots.entry((destination, whose)).or_insert_with(|| {
            let server = Arc::clone(&self.server);
            Arc::new(Slot::new(server, whose.portion(), self.clock.clone()))
        });
        Arc::clone(slot)
    }
}
