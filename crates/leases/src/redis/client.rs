//! Calls scripts on the connections of a store. The future of a call can be polled anywhere.
//!
//! - **CLIENT-1** A forked copy sends nothing, takes no lock, and drops nothing that belongs to a
//!   runtime. Each call and each poll first checks whether it runs in such a copy.

use std::collections::HashMap;

use tokio::runtime::Handle;
use tourbillon::Clock;

use super::cluster::{Cluster, ScriptAnswers};
use super::keys::Keys;
use super::scripts::{Call, Spot};
use super::server::Server;
use super::slot::{Slot, Whose};
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
    /// Has the connections if the server is a cluster.
    cluster: Option<Arc<Cluster>>,
}

impl Client {
    pub(super) fn new(
        server: Arc<Server>,
        keys: &Keys,
        clock: Clock,
        runtime: Option<Handle>,
    ) -> Self {
        let cluster = server
            .seeds()
            .map(|_| Cluster::new(&server, keys, clock.clone()));
        Client(ForkSafe::new(Wires {
            io: Io::new("tb-redis", runtime),
            server,
            clock,
            slots: Mutex::default(),
            cluster: cluster.map(Arc::new),
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

    /// Calls scripts, and returns the answer of each. In a cluster their keys lead them to their nodes.
    pub(super) async fn call(
        &self,
        whose: Whose,
        destination: Destination,
        calls: Vec<Call>,
        limit: Limit,
    ) -> Result<ScriptAnswers, StoreError> {
        let number = calls.len();
        let wires = self.0.get()?;
        let call = match &wires.cluster {
            Some(cluster) => {
                let cluster = Arc::clone(cluster);
                let call =
                    async move { Ok::<_, StoreError>(cluster.call(whose, calls, limit).await) };
                wires.io.call(call)?.await?
            }
            None => {
                let slot = wires.slot(destination, whose);
                let call = async move { slot.call(&calls, limit).await };
                let answers = wires.io.call(call)?.await?;
                answers.map(|answers| Ok(answers?.into_iter().map(Ok).collect()))
            }
        };
        let answers: ScriptAnswers =
            call.ok_or_else(|| no_runtime(&wires.server.to_string()))??;
        if answers.len() != number {
            return Err(StoreError::no_answer());
        }
        // The error of all calls is that of the whole. Different ones differ in whether calls may have
        // been executed.
        match answers.first() {
            Some(Err(first)) if answers.iter().all(|one| one.as_ref().err() == Some(first)) => {
                Err(first.clone())
            }
            _ => Ok(answers),
        }
    }

    /// Returns all nodes, if this is a cluster.
    pub(super) async fn nodes(&self, limit: Limit) -> Result<Option<Vec<Spot>>, StoreError> {
        let wires = self.0.get()?;
        let Some(cluster) = wires.cluster.clone() else {
            return Ok(None);
        };
        let call = wires.io.call(async move { cluster.nodes(limit).await })?;
        let nodes = call
            .await?
            .ok_or_else(|| no_runtime(&wires.server.to_string()))?;
        nodes.map(Some)
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
