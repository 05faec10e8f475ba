//! The node as a member: its epoch, beats and lease, and what it has observed of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::interface::Mono;
use crate::store::{Epoch, SeenNode};

/// The beats of its own that an observer needs before it declares another node gone.
const GOOD_BEATS: u64 = 5;

/// Another node, as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Observed {
    beat: i64,
    /// When the beat was first seen, or when the observation began anew.
    since: Mono,
    /// The number of own good beats at that time.
    good_beats: u64,
    /// Since when the next beat is awaited. An observation that begins anew does not make an
    /// overdue beat punctual.
    awaited: Mono,
    /// When the node has known the others for long enough.
    knows_others: Mono,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) epoch: Epoch,
    /// Whether the store has said that the node is in the table.
    pub(super) joined: bool,
    /// Whether the node may be in the table.
    pub(super) join_sent: bool,
    /// When the next beat is due.
    pub(super) next_beat: Mono,
    node_lease: Duration,
    lease_end: Option<Mono>,
    last_good_beat: Option<Mono>,
    /// When a call has found another store, or an older one.
    replaced: Option<Mono>,
    good_beats: u64,
    others: BTreeMap<Epoch, Observed>,
    /// Whether a snapshot has shown them.
    knows_others: bool,
    /// Nodes to declare gone, with their beats.
    silent: BTreeMap<Epoch, i64>,
    /// Nodes whose shards others poll as well.
    unranked: BTreeSet<Epoch>,
}

impl Membership {
    pub(super) fn new(epoch: Epoch, node_lease: Duration) -> Self {
        Membership {
            epoch,
            joined: false,
            join_sent: false,
            next_beat: Mono::ZERO,
            node_lease,
            lease_end: None,
            last_good_beat: None,
            replaced: None,
            good_beats: 0,
            others: BTreeMap::new(),
            knows_others: false,
            silent: BTreeMap::new(),
            unranked: BTreeSet::new(),
        }
    }

    /// Begins another epoch, after the last one was declared gone.
    pub(super) fn start_anew(&mut self, epoch: Epoch) {
        *self = Membership::new(epoch, self.node_lease);
    }

    /// The time between two beats.
    pub(super) fn beat_interval(&self) -> Duration {
        self.node_lease / 5
    }

    /// How long a beat must stand still until its node is declared gone. It is longer than the
    /// lease, since the clocks of two machines do not run at exactly the same rate.
    fn silence(&self) -> Duration {
        self.node_lease + (self.node_lease / 15).max(Duration::from_millis(10))
    }

    /// How long a beat may stand still until the next one is overdue. The beat was written before
    /// it was seen, so a node that lives has written the next one by then, unless it is late.
    fn patience(&self) -> Duration {
        self.beat_interval() + self.beat_interval() / 12
    }

    /// How long others poll the shards of a node that has just joined. It may not know yet whose
    /// beats are overdue, and leave shards to a node that has died. It knows after its first
    /// snapshot and the patience.
    fn probation(&self) -> Duration {
        self.beat_interval() * 3 / 2
    }

    /// The nodes whose beats are overdue, and those that joined a moment ago. Others poll their
    /// shards meanwhile.
    pub(super) fn unranked(&self) -> &BTreeSet<Epoch> {
        &self.unranked
    }

    /// When the beat of a further node is overdue, if no poll shows it before.
    pub(super) fn next_overdue(&self) -> Option<Mono> {
        let others = self.others.iter();
        let ranked = others.filter(|(epoch, _)| !self.unranked.contains(epoch));
        let awaited = ranked.map(|(_, observed)| observed.awaited).min();
        awaited.map(|since| since + self.patience())
    }

    pub(super) fn node_lease(&self) -> Duration {
        self.node_lease
    }

    pub(super) fn lease_end(&self) -> Option<Mono> {
        self.lease_end
    }

    /// Whether the node may start runs.
    pub(super) fn is_held(&self, now: Mono) -> bool {
        self.lease_end.is_some_and(|end| now < end)
    }

    /// Ends the lease by the node's own will.
    pub(super) fn let_go(&mut self) {
        self.lease_end = None;
    }

    /// A beat that was sent at `sent` was good.
    pub(super) fn beat_was_good(&mut self, sent: Mono, now: Mono) {
        if self.replaced.is_some_and(|at| sent < at) {
            // It may have been written to the store that was there before.
            self.next_beat = now;
            return;
        }
        // A node that stood still does not know how long the others did.
        let stood_still = self
            .last_good_beat
            .is_some_and(|last| sent.saturating_sub(last) > self.node_lease / 2);
        if stood_still {
            self.observe_anew(now);
        }
        self.last_good_beat = Some(sent);
        self.good_beats += 1;
        self.lease_end = Some(sent + self.node_lease);
        self.next_beat = sent + self.beat_interval();
    }

    /// A beat failed.
    pub(super) fn beat_failed(&mut self, now: Mono) {
        self.next_beat = now;
        self.observe_anew(now);
    }

    /// A call has found another store than the one of the beats before, or an older one: the lease
    /// ends at once. The next good beat begins another one.
    pub(super) fn store_was_replaced(&mut self, now: Mono) {
        self.let_go();
        self.replaced = Some(now);
        self.beat_failed(now);
    }

    /// An outage or a pause of this node says nothing about the others.
    fn observe_anew(&mut self, now: Mono) {
        for (epoch, observed) in &mut self.others {
            observed.since = now;
            observed.good_beats = self.good_beats;
            if !self.unranked.contains(epoch) {
                observed.awaited = now;
            }
        }
        self.silent.clear();
    }

    /// Takes the beats of all nodes. Returns whether the node itself is among them.
    pub(super) fn saw(&mut self, nodes: &[SeenNode], now: Mono) -> bool {
        let (silence, patience) = (self.silence(), self.patience());
        // Those of the first snapshot were there before this node.
        let first = !std::mem::replace(&mut self.knows_others, true);
        let knows_others = if first { now } else { now + self.probation() };
        self.silent.clear();
        self.unranked.clear();
        let others = nodes.iter().filter(|node| node.epoch != self.epoch);
        for node in others.clone() {
            let fresh = Observed {
                beat: node.beat,
                since: now,
                good_beats: self.good_beats,
                awaited: now,
                knows_others,
            };
            let observed = self.others.entry(node.epoch).or_insert(fresh);
            if observed.beat != node.beat {
                *observed = Observed {
                    knows_others: observed.knows_others,
                    ..fresh
                };
            }
            if now.saturating_sub(observed.awaited) >= patience || now < observed.knows_others {
                self.unranked.insert(node.epoch);
            }
            let beats = self.good_beats - observed.good_beats;
            if now.saturating_sub(observed.since) >= silence && beats >= GOOD_BEATS {
                self.silent.insert(node.epoch, node.beat);
            }
        }
        let others = others.count();
        if self.others.len() > others {
            let present: BTreeSet<Epoch> = nodes.iter().map(|node| node.epoch).collect();
            self.others.retain(|epoch, _| present.contains(epoch));
        }
        nodes.len() > others
    }

    /// The next node to declare gone. Its observation begins anew, so that it is asked for only
    /// once.
    pub(super) fn take_silent(&mut self, now: Mono) -> Option<(Epoch, i64)> {
        let (epoch, beat) = self.silent.pop_first()?;
        if let Some(observed) = self.others.get_mut(&epoch) {
            observed.since = now;
            observed.good_beats = self.good_beats;
        }
        Some((epoch, beat))
    }

    /// The declaration failed: the next poll repeats it, if the beat is still the same.
    pub(super) fn declare_again(&mut self, epoch: Epoch) {
        if let Some(observed) = self.others.get_mut(&epoch) {
            observed.since = Mono::ZERO;
            observed.good_beats = 0;
        }
    }
}
