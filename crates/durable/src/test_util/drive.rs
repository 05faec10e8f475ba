//! The thread that moves the clocks of a test, and lets nodes work in turn.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tourbillon::ManualClock;

use crate::node::Mono;
use crate::run::{NodeSender, Rest};
use crate::store::{Connection, Epoch, Poll, Store, StoreError, StoreTime};
use crate::sync::channel::Receiver;
use crate::sync::{Arc, catch_panic};

/// What the thread is to do.
pub(super) type Order = Box<dyn FnOnce(&mut Drive) + Send>;

/// A node that takes its turns.
pub(super) struct DrivenNode {
    pub(super) sender: NodeSender,
    pub(super) queues: Arc<HashSet<Arc<str>>>,
    lease: Duration,
    /// What it was after its last turn.
    rest: Option<Rest>,
}

impl DrivenNode {
    pub(super) fn new(sender: NodeSender, queues: Arc<HashSet<Arc<str>>>, lease: Duration) -> Self {
        DrivenNode {
            sender,
            queues,
            lease,
            rest: None,
        }
    }
}

/// The clocks of a test, and its nodes.
pub(super) struct Drive {
    store: Arc<dyn Store>,
    connection: Option<Box<dyn Connection>>,
    /// The local clock of all nodes. It moves by whole microseconds.
    hand: ManualClock,
    /// The store's clock, as it was seen or set last.
    now: StoreTime,
    nodes: Vec<DrivenNode>,
    /// The nodes in the store that are not driven, and the local time at which each was first seen.
    /// They may have died, and the driven ones find that out by their local clock.
    strangers: BTreeMap<i64, Mono>,
}

/// What the store has for the nodes.
#[derive(Clone, Copy, Default, Debug)]
struct Work {
    /// The number of timers that are due and not claimed.
    overdue: u64,
    /// The number of those that run.
    running: u64,
    /// When the first of the others is due.
    next: Option<StoreTime>,
}

/// The least span by which a clock is moved.
const LEAST: Duration = Duration::from_micros(1);

impl Drive {
    /// Opens a connection, and sees whether the store's clock can be moved.
    pub(super) fn new(store: Arc<dyn Store>, hand: ManualClock) -> Result<Self, StoreError> {
        let mut drive = Drive {
            store,
            connection: None,
            hand,
            now: StoreTime::default(),
            nodes: Vec::new(),
            strangers: BTreeMap::new(),
        };
        drive.now = drive.read_clock()?;
        drive.set(drive.now)?;
        Ok(drive)
    }

    /// Drives this node as well.
    pub(super) fn join(&mut self, node: DrivenNode) {
        self.nodes.push(node);
        // It has not observed anybody so far.
        self.strangers.clear();
        self.settle(false);
    }

    /// Carries out orders until nobody can send one any more.
    pub(super) fn work(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            order(&mut self);
        }
    }

    /// Returns the store's clock.
    pub(super) fn now(&mut self) -> StoreTime {
        self.look_at_clock();
        self.now
    }

    /// Lets everything end that is due now.
    pub(super) fn settle(&mut self, waits: bool) {
        self.look_at_clock();
        self.turns(false, waits);
        // Only a poll finds timers that other processes have scheduled.
        while self.work_left().is_some_and(|work| work.overdue > 0) {
            if !self.turns(true, waits) {
                return;
            }
        }
    }

    /// Sets the store's clock, forward or back, and lets everything end that is due then.
    pub(super) fn jump_to(&mut self, to: StoreTime, waits: bool) -> Result<(), StoreError> {
        self.set(to.min(StoreTime::LATEST))?;
        self.turns(true, waits);
        self.settle(waits);
        Ok(())
    }

    /// Lets time pass by this span.
    pub(super) fn advance(&mut self, by: Duration, waits: bool) -> Result<(), StoreError> {
        self.look_at_clock();
        self.advance_to(self.now + by, waits)
    }

    /// Lets time pass until `to`, and stops wherever something is due.
    pub(super) fn advance_to(&mut self, to: StoreTime, waits: bool) -> Result<(), StoreError> {
        let to = to.min(StoreTime::LATEST);
        self.settle(waits);
        while self.now < to {
            let left = self.work_left();
            let next = left.and_then(|left| left.next);
            let left = left.filter(|_| !self.awaits_takeover());
            match left {
                // Nothing happens before the next timer is due. For the nodes the store's clock is
                // set forward: they need not poll and beat meanwhile.
                Some(Work {
                    overdue: 0,
                    running: 0,
                    next,
                }) => {
                    let next = next.unwrap_or(to).max(self.now + LEAST);
                    self.set(next.min(to))?;
                    self.turns(true, waits);
                }
                // Something waits for the local clock of a node, or a node for the silence of another
                // one, or the store fails.
                _ => {
                    let span = self.until_wake().clamp(LEAST, to.since(self.now));
                    // What a node does not know of yet is found by the poll of the turn that follows.
                    let until_due = next.filter(|next| *next > self.now);
                    let span = until_due.map_or(span, |next| span.min(next.since(self.now)));
                    // First the store's: the nodes must not take it for later than it is.
                    self.set(self.now + span)?;
                    self.hand.advance(span);
                }
            }
            self.settle(waits);
        }
        Ok(())
    }

    /// Whether a node may have died whose timers the driven ones have not taken over yet. Two leases
    /// after it was first seen they have, or it lives and somebody else drives it.
    fn awaits_takeover(&mut self) -> bool {
        let Some(lease) = self.nodes.iter().map(|node| node.lease).max() else {
            return false;
        };
        let Ok(mut strangers) = self.call(|connection| connection.nodes()) else {
            return true;
        };
        let rests = self.nodes.iter().filter_map(|node| node.rest);
        let driven: HashSet<i64> = rests.map(|rest| rest.epoch.0).collect();
        strangers.retain(|node| node.gone.is_none() && !driven.contains(&node.id));
        let now = self.local_now();
        let first_seen = strangers.iter().map(|node| {
            let seen = self.strangers.get(&node.id).copied();
            (node.id, seen.unwrap_or(now))
        });
        self.strangers = first_seen.collect();
        let mut seen = self.strangers.values();
        seen.any(|seen| now.saturating_sub(*seen) < lease * 2)
    }

    fn local_now(&self) -> Mono {
        self.hand.now().since(tourbillon::Time::ZERO)
    }

    /// The time until a node has something to do, in whole microseconds.
    fn until_wake(&self) -> Duration {
        let rests = self.nodes.iter().filter_map(|node| node.rest);
        let wakes = rests.filter_map(|rest| rest.wakes_in);
        let micros = wakes
            .min()
            .unwrap_or(Duration::MAX)
            .as_nanos()
            .div_ceil(1_000);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Lets each node take turns until none of them begins a run. Returns whether one did.
    fn turns(&mut self, polls: bool, waits: bool) -> bool {
        let mut any = false;
        let mut polls = polls;
        loop {
            let mut began = false;
            self.nodes.retain_mut(|node| {
                let Some(rest) = node.sender.turn(polls, waits) else {
                    return false;
                };
                began |= rest.began > node.rest.map_or(0, |rest| rest.began);
                node.rest = Some(rest);
                true
            });
            if !began {
                return any;
            }
            // What one of them ran may have made work for another one.
            any = true;
            polls = false;
        }
    }

    /// What the store has for the nodes. `None` if it can't be asked.
    fn work_left(&mut self) -> Option<Work> {
        let counts = self.call(|connection| connection.counts()).ok()?;
        let mut work = Work::default();
        for counts in counts {
            let queue = counts.queue.as_str();
            if !self.nodes.iter().any(|node| node.queues.contains(queue)) {
                continue;
            }
            work.running += counts.running;
            if !counts.paused {
                work.overdue += counts.overdue;
                let oldest = counts.oldest.map(StoreTime::from);
                work.next = work.next.into_iter().chain(oldest).min();
            }
        }
        Some(work)
    }

    /// Somebody else may have moved the clock. If the store can't say it, it counts as it was.
    fn look_at_clock(&mut self) {
        if let Ok(now) = self.read_clock() {
            self.now = now;
        }
    }

    fn read_clock(&mut self) -> Result<StoreTime, StoreError> {
        let nothing = Poll {
            epoch: Epoch(0),
            ranges: Vec::new(),
            bands: Vec::new(),
            complete: false,
        };
        self.call(|connection| connection.poll(&nothing).map(|snapshot| snapshot.now))
    }

    fn set(&mut self, now: StoreTime) -> Result<(), StoreError> {
        self.call(|connection| connection.set_clock(now))?;
        self.now = now;
        Ok(())
    }

    /// Makes a call. After a panic the next one opens another connection: one that has failed tries
    /// again by itself.
    fn call<R>(
        &mut self,
        make: impl FnOnce(&mut dyn Connection) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let (store, kept) = (&self.store, self.connection.take());
        let panicked = |message| {
            Err(StoreError::Unknown(format!(
                "the store has panicked: {message}"
            )))
        };
        let (connection, result) = catch_panic(move || {
            let mut connection = match kept {
                Some(connection) => connection,
                None => store.connect()?,
            };
            let result = make(connection.as_mut());
            Ok((connection, result))
        })
        .unwrap_or_else(panicked)?;
        self.connection = Some(connection);
        result
    }
}
