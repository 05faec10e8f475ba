//! Learns the map of a cluster.
//!
//! - **LEARN-1** A round asks the nodes, for [`ROUND`] at most, whatever the limit is of the call that has
//!   begun it. There is one at a time. A call that needs a map goes on with further rounds until its own
//!   limit. So nobody waits behind the limit of another call, and a short limit cuts no round short.
//! - **LEARN-2** Each round that brings nothing new doubles the pause before the next one, up to
//!   [`AGAIN`]. So a node that is down for long costs each process one round in 3 s. Calls that were sent
//!   away, lists and checks wait for the first pause only. While there is no map, calls in the pause get the
//!   last error.
//! - **LEARN-3** A map that is older than [`OLD`] is used only if a round brings no other one, or the
//!   pause after such a round goes on.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::address::Seeds;
use super::cluster::Cluster;
use super::errors::{CallFault, answered, cut};
use super::keys::SLOTS;
use super::scripts::Standing;
use super::slot_map::{Pace, SlotMap};
use super::topology::{NodeSlots, Topology};
use crate::remote::Limit;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// Why a round brings no map.
enum Unlearned {
    /// Some node has not answered in time.
    Late(StoreError),
    /// All attempts have failed.
    Ended(StoreError),
}

/// How often the map is learned anew, and the longest pause.
const AGAIN: Duration = Duration::from_secs(3);
/// A map of this age is learned anew before it is used.
const OLD: Duration = Duration::from_secs(6);
/// The first pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a round may take.
const ROUND: Duration = Duration::from_secs(2);
/// After so long without an answer another node is asked, too.
const PATIENCE: Duration = Duration::from_millis(250);

impl Cluster {
    /// Returns the map, and has it learned anew from time to time.
    pub(super) async fn map(self: &Arc<Self>, limit: Limit) -> Result<Arc<SlotMap>, StoreError> {
        let map = self.map.lock().clone();
        let Some(map) = map else {
            return self.learn(None, None, false, limit).await;
        };
        let age = map.learned.elapsed();
        if age >= OLD {
            // The most of the time is for the call.
            let part = Limit::new((limit.left() / 4).min(ROUND));
            return Ok(self
                .learn(Some(&map), None, false, part)
                .await
                .unwrap_or(map));
        }
        if age >= AGAIN {
            self.learn_later(&map);
        }
        Ok(map)
    }

    /// Returns a map that was learned just now.
    pub(super) async fn new_map(
        self: &Arc<Self>,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, StoreError> {
        let map = self.map.lock().clone();
        match map {
            Some(map) if map.learned.elapsed() < PAUSE => Ok(map),
            map => self.learn(map.as_ref(), None, true, limit).await,
        }
    }

    /// Learns the map while the calls go on, since it may be wrong, if nobody does so already.
    pub(super) fn learn_later(self: &Arc<Self>, seen: &Arc<SlotMap>) {
        if let Ok(pace) = Arc::clone(&self.turn).try_lock_owned()
            && pace.left(AGAIN).is_zero()
            && self.other(Some(seen)).is_none()
        {
            // Without an answer the old map is used on.
            drop(self.begin(pace, None));
        }
    }

    /// Begins a round, which ends by itself: others may wait for it, too.
    fn begin(
        self: &Arc<Self>,
        mut pace: OwnedMutexGuard<Pace>,
        first: Option<(String, u16)>,
    ) -> JoinHandle<Result<Arc<SlotMap>, Unlearned>> {
        let cluster = Arc::clone(self);
        tokio::spawn(async move { cluster.round(&mut pace, first, Limit::new(ROUND)).await })
    }

    /// Learns the map, unless somebody has learned another one than this. Asks `first` first. If it is not
    /// urgent, and there is a map, it fails in the pause.
    pub(super) async fn learn(
        self: &Arc<Self>,
        seen: Option<&Arc<SlotMap>>,
        first: Option<(String, u16)>,
        is_urgent: bool,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, StoreError> {
        let late = || StoreError::from(CallFault::late(&*self.server));
        loop {
            let turn = timeout(limit.left(), Arc::clone(&self.turn).lock_owned()).await;
            let pace = turn.map_err(|_| late())?;
            if let Some(map) = self.other(seen) {
                return Ok(map);
            }
            let pause = pace.left(if is_urgent { PAUSE } else { AGAIN });
            if pause.is_zero() {
                let round = timeout(limit.left(), self.begin(pace, first.clone())).await;
                match round.map_err(|_| late())?.map_err(|_| late())? {
                    Ok(map) => return Ok(map),
                    // Perhaps a node wakes up.
                    Err(Unlearned::Late(_)) if seen.is_none() && !limit.is_near() => continue,
                    Err(Unlearned::Late(error) | Unlearned::Ended(error)) => return Err(error),
                }
            }
            match (&pace.failed, seen) {
                (Some(error), None) => return Err(error.clone()),
                (_, Some(_)) if !is_urgent => return Err(late()),
                _ => {}
            }
            drop(pace);
            // Without the turn: others may bring the map.
            sleep(pause.min(limit.left())).await;
            if limit.is_near() {
                return Err(late());
            }
        }
    }

    /// Returns the map if it is another one than this.
    fn other(&self, seen: Option<&Arc<SlotMap>>) -> Option<Arc<SlotMap>> {
        let map = self.map.lock().clone();
        map.filter(|map| !seen.is_some_and(|seen| Arc::ptr_eq(seen, map)))
    }

    /// Asks all nodes once, and notes how it went.
    async fn round(
        &self,
        pace: &mut Pace,
        first: Option<(String, u16)>,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, Unlearned> {
        let before = self.map.lock().clone();
        let learned = timeout(limit.left(), self.ask_all(before.as_ref(), first, limit)).await;
        let late = |_| Err(Unlearned::Late(CallFault::late(&*self.server).into()));
        let learned = learned.unwrap_or_else(late);
        let is_new = match (&learned, &before) {
            (Ok(map), Some(before)) => !map.is_like(before),
            (learned, _) => learned.is_ok(),
        };
        pace.pause = match is_new {
            true => PAUSE,
            false => (pace.pause * 2).clamp(PAUSE, AGAIN),
        };
        pace.last = Some(Instant::now());
        pace.failed = match &learned {
            Err(Unlearned::Ended(error)) => Some(error.clone()),
            _ => None,
        };
        learned
    }

    /// Asks one node after the other, without waiting long for any.
    ///
    /// A map that knows of an older failover than the one before counts only if all nodes have been asked
    /// and none can say more. So a node that is cut off is not believed while another one hangs.
    async fn ask_all(
        &self,
        before: Option<&Arc<SlotMap>>,
        first: Option<(String, u16)>,
        limit: Limit,
    ) -> Result<Arc<SlotMap>, Unlearned> {
        let newest = before.map_or(0, |map| map.newest);
        let seeds = self.server.seeds().map_or_else(Vec::new, Seeds::in_turn);
        let mut hosts = first.into_iter().chain(seeds);
        let (mut asked, mut best, mut refused, mut fault) =
            (FuturesUnordered::new(), None::<Topology>, true, None);
        loop {
            let next = hosts.next();
            let patience = match &next {
                Some(_) => {
                    let others = hosts.size_hint().0 as u32 + 2;
                    PATIENCE.min(limit.left() / others)
                }
                None => limit.left(),
            };
            asked.extend(next.map(|(host, port)| self.ask(host, port, limit)));
            match timeout(patience, asked.next()).await {
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
                Err(_) if limit.is_near() => {
                    let late = fault.unwrap_or_else(|| CallFault::late(&*self.server));
                    return Err(Unlearned::Late(match StoreError::from(late) {
                        StoreError::Refused(why) => StoreError::Unavailable(why),
                        error => error,
                    }));
                }
                Err(_) => {}
            }
        }
        let Some(best) = best else {
            let fault = fault.unwrap_or_else(|| CallFault::late(&*self.server));
            return Err(Unlearned::Ended(match StoreError::from(fault) {
                StoreError::Refused(why) if !refused => StoreError::Unavailable(why),
                error => error,
            }));
        };
        let map = Arc::new(self.drawn(&best, before.map(|map| &**map)));
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
            let NodeSlots { id, host, port, .. } = master;
            let known = before.and_then(|map| map.find(host, *port));
            let known = known.filter(|node| node.standing == standing && node.id == *id);
            known.unwrap_or_else(|| self.new_node((id, host, *port), standing))
        });
        SlotMap {
            masters: masters.collect(),
            owners,
            newest: topology.newest,
            learned: Instant::now(),
            others: Mutex::default(),
        }
    }
}
