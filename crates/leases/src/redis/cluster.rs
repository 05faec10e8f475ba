//! A cluster: masters, each of which serves some slots.
//!
//! - **CLUSTER-1** The store has a map of the slots. Any node can be asked for it (`learning.rs`). The
//!   first answer counts that knows of no older failover than the map before; if all nodes have answered or
//!   failed and there is none, the newest one. So a node that is cut off is not believed. The map is learned
//!   anew every 3 s while there are calls, before a call if it is older than 6 s, after calls that got no
//!   answer, and when a node sends a call away. So renewals go to a server that was replaced for some
//!   seconds at most, as with Sentinels (SENTINEL-3).
//! - **CLUSTER-2** Each call goes to the node that serves the slot of its key. The calls of a batch are
//!   sent to all nodes at once. If a node sends a call to another one, that call alone is made again,
//!   and the others keep their answers. Calls for a whole node have no key, and go to it by its identity.
//! - **CLUSTER-3** Each node has a marker, at the first of 1,024 keys in its slots. The script of a grant
//!   reads it in the same step as the lock (`acquire.lua`), so nothing can be lost between the two. The
//!   marker lies in another slot than the lock, and a call must not name keys of two slots. So it is an
//!   argument, and the script finds out that it is there: a script without flags may use each key
//!   of its node. The script reads the marker before it writes a grant. If the slot of the marker has
//!   moved, it fails there, and the map is learned anew.
//! - **CLUSTER-4** Grants carry the epoch of the node, the number of its last failover. After a failover
//!   the node waits for the longest lease before it grants (SENTINEL-2). A move of a slot raises the epoch
//!   of its target only if that is not the greatest one already. So grants also carry their slot, and the
//!   marker has the slots that were waited for (`guard.lua`).

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::sync::Mutex as Turn;
use tokio::time::sleep;
use tourbillon::Clock;

use super::errors::is_down;
use super::keys::{Keys, slot_of};
use super::scripts::{Call, Spot, Standing};
use super::server::Server;
use super::slot::{Slot, Whose};
use super::slot_map::{Node, Pace, SlotMap};
use super::topology::address;
use crate::remote::Limit;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// How often a call is sent elsewhere.
const HOPS: u32 = 6;
/// The pause before a call is sent elsewhere again. Nodes agree some milliseconds after a move.
const STEP: Duration = Duration::from_millis(10);

/// The answer to each call.
pub(super) type ScriptAnswers = Vec<Result<Value, StoreError>>;

/// The nodes of a cluster, and the connections to them.
pub(super) struct Cluster {
    pub(super) server: Arc<Server>,
    clock: Clock,
    /// The keys of the markers, with their slots.
    pub(super) markers: Vec<(u16, Arc<str>)>,
    pub(super) map: Mutex<Option<Arc<SlotMap>>>,
    /// Held while somebody learns the map.
    pub(super) turn: Arc<Turn<Pace>>,
}

/// A call on its way.
struct Item {
    /// Its place among all calls.
    at: usize,
    slot: u16,
    call: Call,
    /// The node to which its slot moves.
    to: Option<(String, u16)>,
}

impl Cluster {
    pub(super) fn new(server: &Arc<Server>, keys: &Keys, clock: Clock) -> Self {
        let markers = keys.markers().iter();
        Cluster {
            server: Arc::clone(server),
            clock,
            markers: markers
                .map(|marker| (slot_of(marker), marker.as_str().into()))
                .collect(),
            map: Mutex::default(),
            turn: Arc::default(),
        }
    }

    /// Calls scripts, and returns the answer of each. Call this within a runtime.
    pub(super) async fn call(
        self: &Arc<Self>,
        whose: Whose,
        calls: Vec<Call>,
        limit: Limit,
    ) -> ScriptAnswers {
        let mut answers: ScriptAnswers = Vec::new();
        answers.resize_with(calls.len(), || Err(StoreError::no_answer()));
        let items = calls.into_iter().enumerate().map(|(at, call)| Item {
            at,
            slot: slot_of(call.key()),
            call,
            to: None,
        });
        for (at, answer) in self.send(whose, items.collect(), HOPS, limit).await {
            answers[at] = answer;
        }
        answers
    }

    /// Returns all masters, in the order of their identities. Learns the map first.
    ///
    /// # Errors
    ///
    /// If nobody serves some slot.
    pub(super) async fn nodes(self: &Arc<Self>, limit: Limit) -> Result<Vec<Spot>, StoreError> {
        let map = self.new_map(limit).await?;
        if let Some(slot) = map.owners.iter().position(Option::is_none) {
            return Err(self.fault(&format!("no node serves slot {slot}")));
        }
        let masters = map.masters.iter();
        Ok(masters.map(|node| Spot::Node((*node.id).into())).collect())
    }

    /// Sends calls to their nodes, and follows them `hops` times.
    fn send<'a>(
        self: &'a Arc<Self>,
        whose: Whose,
        items: Vec<Item>,
        hops: u32,
        limit: Limit,
    ) -> BoxFuture<'a, Vec<(usize, Result<Value, StoreError>)>> {
        Box::pin(async move {
            let map = match self.map(limit).await {
                Ok(map) => map,
                Err(error) => {
                    let failed = items.into_iter().map(|item| (item.at, Err(error.clone())));
                    return failed.collect();
                }
            };
            let mut all = Vec::with_capacity(items.len());
            let mut groups: Vec<(Arc<Node>, Vec<Item>)> = Vec::new();
            for item in items {
                match self.node(&map, &item) {
                    Ok(node) => {
                        match groups.iter_mut().find(|group| Arc::ptr_eq(&group.0, &node)) {
                            Some((_, items)) => items.push(item),
                            None => groups.push((node, vec![item])),
                        }
                    }
                    Err(error) => {
                        self.learn_later(&map);
                        all.push((item.at, Err(error)));
                    }
                }
            }
            let mut sent: FuturesUnordered<_> = groups
                .into_iter()
                .map(|(node, items)| self.send_to(&map, node, whose, (items, hops), limit))
                .collect();
            while let Some(some) = sent.next().await {
                all.extend(some);
            }
            all
        })
    }

    /// Sends calls to a node, and those elsewhere that it does not serve.
    async fn send_to(
        self: &Arc<Self>,
        map: &Arc<SlotMap>,
        node: Arc<Node>,
        whose: Whose,
        (items, hops): (Vec<Item>, u32),
        limit: Limit,
    ) -> Vec<(usize, Result<Value, StoreError>)> {
        let mut places = Vec::with_capacity(items.len());
        let mut calls = Vec::with_capacity(items.len());
        for item in items {
            places.push((item.at, item.slot));
            calls.push(item.call);
        }
        let answers = match node.slot(whose).call(&calls, limit).await {
            Ok(answers) => answers,
            Err(error) => {
                self.learn_later(map);
                let failed = places.into_iter().map(|(at, _)| (at, Err(error.clone())));
                return failed.collect();
            }
        };
        let mut all = Vec::with_capacity(calls.len());
        let (mut again, mut hint, mut moved) = (Vec::new(), None, false);
        for (((at, slot), mut call), answer) in places.into_iter().zip(calls).zip(answers) {
            let elsewhere = Elsewhere::of(&answer, &node.host);
            if elsewhere.is_none() || hops == 0 {
                all.push((
                    at,
                    elsewhere.map_or(Ok(answer), |_| Err(self.unsettled(slot))),
                ));
                continue;
            }
            let to = match elsewhere {
                Some(Elsewhere::Asks(to)) => Some(to),
                elsewhere => {
                    moved = true;
                    if let Some(Elsewhere::Moved(to)) = elsewhere {
                        hint = to.or(hint);
                    }
                    None
                }
            };
            call.set_asking(to.is_some());
            again.push(Item { at, slot, call, to });
        }
        if all.iter().any(|(_, answer)| shows_change(answer)) {
            self.learn_later(map);
        }
        if again.is_empty() {
            return all;
        }
        if hops < HOPS {
            sleep(limit.left().min(STEP * (HOPS - hops))).await;
        }
        if moved {
            // The node to which a call is sent away knows best, but only once: it may send it away, too.
            let hint = hint.filter(|_| hops == HOPS);
            // Without a new map the calls are sent by the old one, and fail in the same way.
            let _ = self.learn(Some(map), hint, true, limit).await;
        }
        all.extend(self.send(whose, again, hops - 1, limit).await);
        all
    }

    /// Returns the node of a call.
    fn node(&self, map: &SlotMap, item: &Item) -> Result<Arc<Node>, StoreError> {
        let node = match (&item.to, item.call.node()) {
            (Some((host, port)), _) => map.at(host, *port, || {
                self.new_node(("", host, *port), Standing::default())
            }),
            (None, Some(id)) => {
                let node = map.masters.iter().find(|node| node.id == id);
                let why = || self.fault(&format!("the node {id} serves no slot any more"));
                Arc::clone(node.ok_or_else(why)?)
            }
            (None, None) => {
                let owner = map.owners[usize::from(item.slot)];
                let why = || self.fault(&format!("no node serves slot {}", item.slot));
                Arc::clone(&map.masters[owner.ok_or_else(why)?])
            }
        };
        if item.call.grants() && node.standing.marker.is_none() {
            let (host, port) = (&node.host, node.port);
            let why = format!("{host}:{port} serves no slot yet that can have a marker");
            return Err(self.fault(&why));
        }
        Ok(node)
    }

    /// Makes a node with this identity and address.
    pub(super) fn new_node(
        &self,
        (id, host, port): (&str, &str, u16),
        standing: Standing,
    ) -> Arc<Node> {
        let server = Arc::new(self.server.node(host, port, standing.clone()));
        let slot =
            |whose: Whose| Slot::new(Arc::clone(&server), whose.portion(), self.clock.clone());
        Arc::new(Node {
            id: id.to_owned(),
            host: host.to_owned(),
            port,
            standing,
            callers: slot(Whose::Callers),
            holders: slot(Whose::Holders),
        })
    }

    fn fault(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("{}: {why}", self.server))
    }

    fn unsettled(&self, slot: u16) -> StoreError {
        self.fault(&format!(
            "its nodes do not agree yet who serves slot {slot}"
        ))
    }
}

/// Why a call has to be sent again.
enum Elsewhere {
    /// The slot has moved, to this node.
    Moved(Option<(String, u16)>),
    /// The slot moves, and the key is at this node already.
    Asks((String, u16)),
    /// The slot of the marker has moved.
    Marker,
}

impl Elsewhere {
    /// Reads an answer of a node at this host.
    fn of(answer: &Value, host: &str) -> Option<Self> {
        let Value::ServerError(error) = answer else {
            return None;
        };
        let details = error.details().unwrap_or_default();
        match error.code() {
            "MOVED" => Some(Elsewhere::Moved(address(details, host))),
            "ASK" => address(details, host).map(Elsewhere::Asks),
            // The words of all versions for a key of a script.
            _ if details.contains("ttempted to access a non local key")
                || details.contains("ttempted to access a slot not served") =>
            {
                Some(Elsewhere::Marker)
            }
            _ => None,
        }
    }
}

/// Whether a node does not serve its slots any more, or not yet.
fn shows_change(answer: &Result<Value, StoreError>) -> bool {
    matches!(answer, Ok(Value::ServerError(error))
        if ["CLUSTERDOWN", "READONLY", "MASTERDOWN"].contains(&error.code())
            || error.details().is_some_and(is_down))
}
