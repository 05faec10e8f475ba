//! A cluster: masters, each of which serves some slots.
//!
//! - **CLUSTER-1** The store has a map of the slots. Any node can be asked for it. The first answer
//!   counts that knows of no older failover than the map before; if there is none, the newest one. So
//!   a node that is cut off is not believed. The map is learned anew every 3 s while there are calls,
//!   after calls that got no answer, and when a node sends a call away. So renewals go to a server that
//!   was replaced for some seconds at most, as with Sentinels (SENTINEL-3).
//! - **CLUSTER-2** Each call goes to the node that serves the slot of its key. The calls of a batch are
//!   sent to all nodes at once. If a node sends a call to another one, that call alone is made again,
//!   and the others keep their answers.
//! - **CLUSTER-3** Each node has a marker, at the first of 1,024 keys in its slots. The script of a grant
//!   reads it in the same step as the lock (`acquire.lua`), so nothing can be lost between the two. The
//!   marker lies in another slot than the lock, and a call must not name keys of two slots. So it is an
//!   argument, and the script finds out that it is there: a script without flags may use each key
//!   of its node. If the slot of the marker has moved, the script fails before it changes anything, and
//!   the map is learned anew.
//! - **CLUSTER-4** Grants carry the epoch of the node, the number of the last failover or move by which
//!   it got a slot. So after either a node waits for the longest lease before it grants (SENTINEL-2).

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::sync::Mutex as Turn;
use tokio::time::{sleep, timeout};
use tourbillon::Clock;

use super::address::Seeds;
use super::errors::{CallFault, answered, cut};
use super::keys::{Keys, SLOTS, slot_of};
use super::scripts::{Call, Standing};
use super::server::Server;
use super::slot::{Slot, Whose};
use super::topology::{NodeSlots, Topology, address};
use crate::remote::Limit;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// How often the map is learned anew.
const AGAIN: Duration = Duration::from_secs(3);
/// The least time between two attempts that calls without an answer make necessary.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the map may take if no call waits for it.
const ASKING: Duration = Duration::from_secs(5);
/// After so long without an answer another node is asked, too.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often a call is sent elsewhere.
const HOPS: u32 = 6;
/// The pause before a call is sent elsewhere again. Nodes agree some milliseconds after a move.
const STEP: Duration = Duration::from_millis(10);

/// The answer to each call.
pub(super) type ScriptAnswers = Vec<Result<Value, StoreError>>;

/// The nodes of a cluster, and the connections to them.
pub(super) struct Cluster {
    server: Arc<Server>,
    clock: Clock,
    /// The keys of the markers, with their slots.
    markers: Vec<(u16, Arc<str>)>,
    map: Mutex<Option<Arc<SlotMap>>>,
    /// Held while somebody learns the map. When that last began without a call that waits for it.
    turn: Arc<Turn<Option<Instant>>>,
}

/// Which node serves which slot.
struct SlotMap {
    masters: Vec<Arc<Node>>,
    /// The place of a master for each slot.
    owners: Vec<Option<usize>>,
    newest: u64,
    learned: Instant,
    /// Nodes that serve no slot yet, to which calls were sent.
    others: Mutex<Vec<Arc<Node>>>,
}

/// A node, with its connections.
struct Node {
    host: String,
    port: u16,
    standing: Standing,
    /// The place of its marker.
    marker: Option<usize>,
    callers: Slot,
    holders: Slot,
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

    /// Returns the places of the markers of all masters, in the order of the slots.
    pub(super) async fn marked(self: &Arc<Self>, limit: Limit) -> Result<Vec<usize>, StoreError> {
        let map = self.map(limit).await?;
        let all: Option<Vec<_>> = map.masters.iter().map(|node| node.marker).collect();
        let mut all =
            all.ok_or_else(|| self.fault("a node serves no slot yet that can have a marker"))?;
        if all.is_empty() {
            return Err(self.fault("no node serves a slot"));
        }
        all.sort_unstable();
        Ok(all)
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
            let _ = self.learn(Some(map), hint, limit).await;
        }
        all.extend(self.send(whose, again, hops - 1, limit).await);
        all
    }

    /// Returns the node of a call.
    fn node(&self, map: &SlotMap, item: &Item) -> Result<Arc<Node>, StoreError> {
        let node = match &item.to {
            Some((host, port)) => map.at(host, *port, || {
                self.new_node(host, *port, Standing::default(), None)
            }),
            None => {
                let owner = map.owners[usize::from(item.slot)];
                let why = || self.fault(&format!("no node serves slot {}", item.slot));
                Arc::clone(&map.masters[owner.ok_or_else(why)?])
            }
        };
        if item.call.grants() && node.marker.is_none() {
            let (host, port) = (&node.host, node.port);
            let why = format!("{host}:{port} serves no slot yet that can have a marker");
            return Err(self.fault(&why));
        }
        Ok(node)
    }

    fn new_node(
        &self,
        host: &str,
        port: u16,
        standing: Standing,
        marker: Option<usize>,
    ) -> Arc<Node> {
        let server = Arc::new(self.server.node(host, port, standing.clone()));
        let slot =
            |whose: Whose| Slot::new(Arc::clone(&server), whose.portion(), self.clock.clone());
        Arc::new(Node {
            host: host.to_owned(),
            port,
            standing,
            marker,
            callers: slot(Whose::Callers),
            holders: slot(Whose::Holders),
        })
    }

    /// Returns the map, and has it learned anew from time to time.
    async fn map(self: &Arc<Self>, limit: Limit) -> Result<Arc<SlotMap>, StoreError> {
        let map = self.map.lock().clone();
        let Some(map) = map else {
            return self.learn(None, None, limit).await;
        };
        if map.learned.elapsed() >= AGAIN {
            self.learn_later(&map);
        }
        Ok(map)
    }

    /// Learns the map while the calls go on, since it may be wrong, if nobody does so already.
    fn learn_later(self: &Arc<Self>, seen: &Arc<SlotMap>) {
        if let Ok(mut turn) = Arc::clone(&self.turn).try_lock_owned()
            && turn.is_none_or(|last| last.elapsed() >= PAUSE)
        {
            *turn = Some(Instant::now());
            let (cluster, seen) = (Arc::clone(self), Arc::clone(seen));
            tokio::spawn(async move {
                // Without an answer the old map is used on.
                let _ = cluster.ask_all(Some(&seen), None, Limit::new(ASKING)).await;
                drop(turn);
            });
        }
    }

    /// Learns the map, unless somebody has learned another one than this. Asks `first` first.
    async fn learn(
        &self,
        seen: Option<&Arc<SlotMap>>,
        first: Option<(String, u16)>,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, StoreError> {
        let late = || StoreError::from(CallFault::late(&*self.server));
        let learned = async {
            let _turn = self.turn.lock().await;
            self.ask_all(seen, first, limit).await
        };
        let learned = timeout(limit.left(), learned).await;
        learned.unwrap_or_else(|_| Err(late()))
    }

    async fn ask_all(
        &self,
        seen: Option<&Arc<SlotMap>>,
        first: Option<(String, u16)>,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, StoreError> {
        let before = self.map.lock().clone();
        if let Some(map) = &before
            && !seen.is_some_and(|seen| Arc::ptr_eq(seen, map))
        {
            return Ok(Arc::clone(map));
        }
        let newest = before.as_ref().map_or(0, |map| map.newest);
        let seeds = self.server.seeds().map_or_else(Vec::new, Seeds::in_turn);
        let mut hosts = first.into_iter().chain(seeds);
        let (mut asked, mut best, mut refused, mut fault) =
            (FuturesUnordered::new(), None::<Topology>, true, None);
        loop {
            let next = hosts.next();
            let patience = if next.is_some() {
                PATIENCE
            } else {
                limit.left()
            };
            asked.extend(next.map(|(host, port)| self.ask(host, port, limit)));
            match timeout(patience.min(limit.left()), asked.next()).await {
                Ok(Some(Ok(found))) => {
                    let is_good = found.newest >= newest && !found.masters.is_empty();
                    let age = |one: &Topology| (!one.masters.is_empty(), one.newest);
                    if best.as_ref().is_none_or(|best| age(best) < age(&found)) {
                        best = Some(found);
                    }
                    if is_good {
                        break;
                    }
                }
                Ok(Some(Err(error))) => {
                    let refuses = matches!(error, CallFault::Other(StoreError::Refused(_)));
                    refused &= refuses;
                    if refuses || fault.is_none() {
                        fault = Some(error);
                    }
                }
                Ok(None) => break,
                Err(_) if limit.is_near() => break,
                Err(_) => {}
            }
        }
        let Some(best) = best else {
            let fault = fault.unwrap_or_else(|| CallFault::late(&*self.server));
            return Err(match StoreError::from(fault) {
                StoreError::Refused(why) if !refused || !asked.is_empty() => {
                    StoreError::Unavailable(why)
                }
                error => error,
            });
        };
        let map = Arc::new(self.drawn(&best, before.as_deref()));
        if let Some(seeds) = self.server.seeds() {
            let masters = map.masters.iter();
            seeds.found(masters.map(|node| (node.host.clone(), node.port)).collect());
        }
        let old = self.map.lock().replace(Arc::clone(&map));
        // After unlocking, since closing a connection takes system calls.
        drop(old);
        Ok(map)
    }

    /// Asks a node for the cluster.
    async fn ask(&self, host: String, port: u16, limit: Limit) -> Result<Topology, CallFault> {
        let mut open = self.server.open_at(&host, port, limit).await?;
        let mut questions = Pipeline::new();
        questions.cmd("CLUSTER").arg("NODES");
        questions.cmd("CLUSTER").arg("SLOTS");
        let answers = open.connection.send_packed_commands(&questions, 0, 2).await;
        let answers = answers.map_err(|error| open.fault(&error, &self.server))?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                let said = error.details().unwrap_or_default();
                return Err(CallFault::Other(
                    match said.contains("cluster support disabled") {
                        true => StoreError::Refused(format!(
                            "{}: {host}:{port} is no node of a cluster: use a URL that begins with redis://",
                            self.server
                        )),
                        false => answered(error),
                    },
                ));
            }
        }
        let found = match &answers[..] {
            [nodes, slots] => Topology::read(nodes, slots, &host),
            _ => None,
        };
        found.ok_or_else(|| {
            let shown = cut(&format!("{answers:?}"));
            CallFault::Other(StoreError::Refused(format!(
                "{}: an answer that no node of a cluster gives, from {host}:{port}: {shown}",
                self.server
            )))
        })
    }

    /// Makes the map of a topology. Nodes that were there before keep their connections.
    fn drawn(&self, topology: &Topology, before: Option<&SlotMap>) -> SlotMap {
        let mut owners = vec![None; usize::from(SLOTS)];
        for (place, master) in topology.masters.iter().enumerate() {
            for &(first, last) in &master.ranges {
                owners[usize::from(first)..=usize::from(last)].fill(Some(place));
            }
        }
        let masters = topology.masters.iter().enumerate();
        let masters = masters.map(|(place, master)| {
            let own = |(slot, _): &(u16, _)| owners[usize::from(*slot)] == Some(place);
            let marker = self.markers.iter().position(own);
            let standing = Standing {
                epoch: Some(master.epoch),
                marker: marker.map(|at| Arc::clone(&self.markers[at].1)),
            };
            let NodeSlots { host, port, .. } = master;
            let known = before.and_then(|map| map.find(host, *port));
            let known = known.filter(|node| node.standing == standing);
            known.unwrap_or_else(|| self.new_node(host, *port, standing, marker))
        });
        SlotMap {
            masters: masters.collect(),
            owners,
            newest: topology.newest,
            learned: Instant::now(),
            others: Mutex::default(),
        }
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

impl SlotMap {
    fn find(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let is_it = |node: &&Arc<Node>| node.host == host && node.port == port;
        self.masters.iter().find(is_it).cloned()
    }

    /// Returns a node that may serve no slot yet.
    fn at(&self, host: &str, port: u16, new: impl FnOnce() -> Arc<Node>) -> Arc<Node> {
        self.find(host, port).unwrap_or_else(|| {
            let mut others = self.others.lock();
            let is_it = |node: &&Arc<Node>| node.host == host && node.port == port;
            let known = others.iter().find(is_it).cloned();
            known.unwrap_or_else(|| {
                let node = new();
                others.push(Arc::clone(&node));
                node
            })
        })
    }
}

impl Node {
    fn slot(&self, whose: Whose) -> &Slot {
        match whose {
            Whose::Callers => &self.callers,
            Whose::Holders => &self.holders,
        }
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
            _ if details.contains("attempted to access a non local key") => Some(Elsewhere::Marker),
            _ => None,
        }
    }
}

/// Whether a node does not serve its slots any more, or not yet.
fn shows_change(answer: &Result<Value, StoreError>) -> bool {
    matches!(answer, Ok(Value::ServerError(error))
        if ["CLUSTERDOWN", "READONLY", "MASTERDOWN"].contains(&error.code()))
}
