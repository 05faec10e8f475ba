//! A world in virtual time: nodes over the store in memory, driven event by event. The same
//! scenario with the same faults gives the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::memory::Memory;
use crate::node::numbers::{Numbers, hash, mix};
use crate::node::{
    Command, Input, MOST_AWAKE, Near, Node, NodeConfig, QueueConfig, Reply, Stopped, StoreCall,
};
use crate::store::{
    Action, Answer, Call, ClaimedRun, Connection, DueAt, Epoch, Outcome, Page, Run, Settled,
    StoreError, StoreTime, WallClock,
};
use crate::sync::Arc;

/// What the tests do to a call of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Fine,
    /// The node dies before the call reaches the store.
    CrashBefore,
    /// The call is carried out, and the node dies before it has the answer.
    CrashAfter,
    /// The call is carried out, and the node gets an error.
    LoseAnswer,
    /// The call is not carried out, and the node gets an error.
    Fail,
    /// The node gets an error at once, and the call is carried out after this time.
    Late(Duration),
    /// The call reaches the store after this time, and nobody has given it up.
    Slow(Duration),
    /// The node stands still for this time before it has the answer.
    Pause(Duration),
}

impl Fate {
    /// The name under which it is counted.
    fn name(self) -> Option<&'static str> {
        match self {
            Fate::Fine => None,
            Fate::CrashBefore => Some("crashes before a call"),
            Fate::CrashAfter => Some("crashes after a call"),
            Fate::LoseAnswer => Some("lost answers"),
            Fate::Fail => Some("lost calls"),
            Fate::Late(_) => Some("late calls"),
            Fate::Slow(_) => Some("slow calls"),
            Fate::Pause(_) => Some("nodes that stood still"),
        }
    }
}

/// What a user does.
#[derive(Clone, Debug)]
pub(super) enum UserCall {
    Schedule(&'static str, String, Duration),
    Cancel(&'static str, String),
    Reschedule(&'static str, String, Duration),
    SetPaused(&'static str, bool),
    Stop(usize, Duration),
    /// The doorbell rings this often for a queue.
    Storm(&'static str, u32),
    /// The store's clock is set by this, in microseconds.
    SetClock(i64),
    /// No call reaches the store for this time.
    Outage(Duration),
}

#[derive(Debug)]
enum Event {
    Step {
        node: usize,
        life: u32,
        input: Input,
    },
    /// It counts only if it is the node's latest wish. An earlier one that counted would make the
    /// next one, so that their number would only grow.
    Wake {
        node: usize,
        life: u32,
    },
    /// The doorbell rings for a queue.
    Ring {
        node: usize,
        life: u32,
        queue: &'static str,
    },
    Execute {
        node: usize,
        life: u32,
        id: u64,
        call: StoreCall,
        fate: Fate,
    },
    Birth(usize),
}

/// What happens from outside, by the time of the day.
#[derive(Debug)]
enum Outside {
    Call(UserCall),
    Birth(usize),
}

/// A stretch without work that is longer than this is skipped.
const IDLE: Duration = Duration::from_secs(20);

/// So much of it is played before the work goes on.
const WAKING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) machine: Option<Node>,
    life: u32,
    born: Duration,
    /// Stands still until this time.
    still_until: Duration,
    wake: Option<Duration>,
    pub(super) stopped: Option<Stopped>,
}

/// How long a run lasts and how it ends. `starts` counts the starts of the timer with this one.
pub(super) type Handler = fn(run: &ClaimedRun, starts: u32) -> (Duration, Outcome);

/// What happens to a call: by its number and its time.
type Fates = Box<dyn FnMut(usize, Duration, &StoreCall) -> Fate>;

pub(super) struct World {
    pub(super) time: Duration,
    clock: WallClock,
    pub(super) store: Memory,
    pub(super) nodes: Vec<SimNode>,
    events: BTreeMap<(Duration, u64), Event>,
    outside: BTreeMap<(Duration, u64), Outside>,
    /// The time of the day without `time`: the idle stretches that were skipped. For the nodes the
    /// store's clock has made a step forward there.
    pub(super) skipped: Option<Duration>,
    /// When the world was last seen busy.
    busy: Duration,
    numbered: u64,
    config: NodeConfig,
    handler: Handler,
    /// The number of calls that nodes have sent so far.
    pub(super) calls: usize,
    fate: Fates,
    /// The number of events that have happened.
    pub(super) played: u64,
    /// The number of faults of each kind.
    pub(super) faults: BTreeMap<&'static str, u64>,
    random: Numbers,
    /// The epochs that are in the table and not gone.
    live: BTreeSet<Epoch>,
    ended: BTreeSet<Epoch>,
    /// The runs that go on, by their timers: the node, its life and its epoch.
    running: BTreeMap<TimerName, Vec<(usize, u32, Epoch)>>,
    pub(super) ledger: Ledger,
    outage_until: Duration,
    /// Whether lateness is measured. Not if the clock is set.
    pub(super) bounds: bool,
    /// Whether near timers ring the doorbell. One ring of this number is lost, none if it is zero.
    pub(super) bell: Option<u64>,
    /// The rings on their way. Like the shell's, a ring is dropped while one for its queue is on
    /// its way.
    rings: BTreeSet<(usize, &'static str)>,
    /// Whether the store can't say which parts have anything due, like one that does not know
    /// bands.
    pub(super) without_surveys: bool,
    /// Dead and stopped nodes come back after this.
    pub(super) reborn: Option<Duration>,
}

pub(super) const START: StoreTime = StoreTime::from_micros(1_000_000_000_000_000);

pub(super) fn options(queues: &[(&str, usize, Option<u32>)]) -> NodeConfig {
    NodeConfig {
        name: "test".into(),
        node_lease: Duration::from_secs(15),
        poll_interval: Duration::from_secs(1),
        queues: queues
            .iter()
            .map(|(name, running, pace)| QueueConfig {
                name: Arc::from(*name),
                running: *running,
                pace: *pace,
                crash_limit: 10,
            })
            .collect(),
        most_awake: MOST_AWAKE,
        seed: 0,
        schedules: Default::default(),
    }
}

impl World {
    pub(super) fn new(
        config: NodeConfig,
        nodes: usize,
        seed: u64,
        handler: Handler,
        fate: impl FnMut(usize, Duration, &StoreCall) -> Fate + 'static,
    ) -> Self {
        let clock = WallClock::manual(START.into());
        let mut world = World {
            time: Duration::ZERO,
            store: Memory::with_clock(clock.clone()),
            clock,
            nodes: Vec::new(),
            events: BTreeMap::new(),
            outside: BTreeMap::new(),
            skipped: None,
            busy: Duration::ZERO,
            numbered: 0,
            config,
            handler,
            calls: 0,
            fate: Box::new(fate),
            played: 0,
            faults: BTreeMap::new(),
            random: Numbers::new(seed),
            live: BTreeSet::new(),
            ended: BTreeSet::new(),
            running: BTreeMap::new(),
            ledger: Ledger::default(),
            outage_until: Duration::ZERO,
            bounds: true,
            bell: None,
            rings: BTreeSet::new(),
            without_surveys: false,
            reborn: None,
        };
        for node in 0..nodes {
            world.nodes.push(SimNode {
                machine: None,
                life: 0,
                born: Duration::ZERO,
                still_until: Duration::ZERO,
                wake: None,
                stopped: None,
            });
            // They do not start at the same moment.
            world.birth_at(Duration::from_millis(7 * node as u64), node);
        }
        world
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.numbered += 1;
        self.events.insert((time, self.numbered), event);
    }

    pub(super) fn user_at(&mut self, time: Duration, call: UserCall) {
        self.numbered += 1;
        self.outside
            .insert((time, self.numbered), Outside::Call(call));
    }

    pub(super) fn birth_at(&mut self, time: Duration, node: usize) {
        self.numbered += 1;
        self.outside
            .insert((time, self.numbered), Outside::Birth(node));
    }

    /// The time of the day: with the stretches that were skipped.
    pub(super) fn day(&self) -> Duration {
        self.time + self.skipped.unwrap_or_default()
    }

    /// Runs until this time of the day.
    pub(super) fn run(&mut self, until: Duration) {
        loop {
            self.skip_idle(until);
            let skipped = self.skipped.unwrap_or_default();
            let event = self.events.first_key_value();
            let event = event.map(|((time, number), _)| (*time + skipped, *number));
            let outside = self.outside.first_key_value().map(|(entry, _)| *entry);
            let Some(next) = event.into_iter().chain(outside).min() else {
                break;
            };
            if next.0 > until {
                break;
            }
            self.set_time(next.0.saturating_sub(skipped));
            self.played += 1;
            if Some(next) == event {
                let event = self.events.pop_first();
                self.happen(event.expect("it was seen").1);
            } else {
                let outside = self.outside.pop_first();
                match outside.expect("it was seen").1 {
                    Outside::Call(call) => self.user(call),
                    Outside::Birth(node) => self.birth(node),
                }
            }
        }
        self.set_time(until.saturating_sub(self.skipped.unwrap_or_default()));
    }

    /// Skips a stretch in which nothing is scheduled, due, or running.
    fn skip_idle(&mut self, until: Duration) {
        let (Some(skipped), day) = (self.skipped, self.day()) else {
            return;
        };
        let next = self.outside.first_key_value();
        let mut next = next.map_or(until, |((time, _), _)| *time).min(until);
        let mut runs = self.running.values().flatten();
        let runs = runs.any(|(node, life, _)| self.nodes[*node].life == *life);
        if next < day + IDLE || runs {
            self.busy = self.time;
            return;
        }
        // Reading the whole store is slow, so it waits until users have made no calls for a while.
        if self.time < self.busy + WAKING {
            return;
        }
        self.busy = self.time;
        let now = self.store_now();
        for queue in &self.config.queues {
            let first = self.store.clone().list(&Page::first(&queue.name, 1));
            if let Some(first) = first.expect("no fault").first() {
                next = next.min(day + first.due.since(now));
            }
        }
        if next >= day + IDLE {
            let span = next - WAKING - day;
            self.clock.advance(span);
            self.skipped = Some(skipped + span);
        }
    }

    fn set_time(&mut self, time: Duration) {
        let time = time.max(self.time);
        // The store's clock may have been set; it goes on by the same span.
        self.clock.advance(time - self.time);
        self.time = time;
        self.ledger.time = time;
    }

    pub(super) fn store_now(&self) -> StoreTime {
        self.clock.store_time()
    }

    /// The time a message takes.
    fn travel(&mut self) -> Duration {
        Duration::from_micros(100 + self.random.next() % 400)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Birth(node) => self.birth(node),
            Event::Wake { node, life } => {
                if self.nodes[node].life == life && self.nodes[node].wake == Some(self.time) {
                    self.nodes[node].wake = None;
                    self.step(node, life, Input::Wake);
                }
            }
            Event::Step { node, life, input } => self.step(node, life, input),
            Event::Ring { node, life, queue } => {
                self.rings.remove(&(node, queue));
                self.step(node, life, Input::Rang(Some(queue.into())));
            }
            Event::Execute {
                node,
                life,
                id,
                call,
                fate,
            } => self.execute(node, life, id, &call, fate),
        }
    }

    fn birth(&mut self, number: usize) {
        let seed = mix(hash("node") ^ mix(number as u64) ^ self.random.next());
        let node = &mut self.nodes[number];
        if node.machine.is_some() {
            return;
        }
        node.life += 1;
        node.born = self.time;
        node.wake = None;
        node.stopped = None;
        node.machine = Some(Node::new(NodeConfig {
            seed,
            ..self.config.clone()
        }));
        let life = node.life;
        self.step(number, life, Input::Wake);
    }

    /// A node dies without a word.
    pub(super) fn crash(&mut self, number: usize) {
        let now = self.store_now();
        let node = &mut self.nodes[number];
        node.life += 1;
        if let Some(machine) = node.machine.take() {
            self.ledger.died.insert(machine.epoch(), now);
            self.come_back(number);
        }
    }

    fn come_back(&mut self, node: usize) {
        if let Some(after) = self.reborn {
            self.at(self.time + after, Event::Birth(node));
        }
    }

    fn step(&mut self, number: usize, life: u32, input: Input) {
        let node = &mut self.nodes[number];
        if node.life != life {
            return;
        }
        if self.time < node.still_until {
            let until = node.still_until;
            return self.at(
                until,
                Event::Step {
                    node: number,
                    life,
                    input,
                },
            );
        }
        if let Input::Finished { run, .. } = &input {
            let name = (run.queue.clone(), run.key.clone());
            if let Some(running) = self.running.get_mut(&name) {
                let of_node =
                    |(other, of, _): &(usize, u32, Epoch)| (*other, *of) == (number, life);
                if let Some(index) = running.iter().position(of_node) {
                    running.remove(index);
                }
                if running.is_empty() {
                    self.running.remove(&name);
                }
            }
        }
        let now = self.time - node.born;
        let Some(machine) = &mut node.machine else {
            return;
        };
        let mut out = Vec::new();
        machine.step(now, input, &mut out);
        let epoch = machine.epoch();
        let held = machine.is_held(now);
        let wake = machine
            .next_wake()
            .map(|wake| (wake + node.born).max(self.time));
        let changed = node.wake != wake;
        node.wake = wake;
        if let Some(wake) = wake.filter(|_| changed) {
            self.at(wake, Event::Wake { node: number, life });
        }
        for command in out {
            match command {
                Command::Ask { id, call } => self.ask(number, life, id, call),
                Command::Start(run) => {
                    assert!(held, "{run:?} starts after the end of the lease");
                    self.start(number, life, epoch, run);
                }
                Command::Stopped(stopped) => {
                    let node = &mut self.nodes[number];
                    node.stopped = Some(stopped);
                    node.machine = None;
                    node.wake = None;
                    self.come_back(number);
                }
            }
            if self.nodes[number].life != life {
                return;
            }
        }
    }

    fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    fn ask(&mut self, node: usize, life: u32, id: u64, call: StoreCall) {
        let number = self.calls;
        self.calls += 1;
        let day = self.day();
        let fate = match self.time < self.outage_until {
            true => Fate::Fail,
            false => (self.fate)(number, day, &call),
        };
        match self.time < self.outage_until {
            true => self.fault("calls in an outage"),
            false => fate.name().into_iter().for_each(|name| self.fault(name)),
        }
        let (go, back) = (self.travel(), self.travel());
        match fate {
            Fate::CrashBefore => self.crash(node),
            Fate::Fail | Fate::Late(_) => {
                let error = StoreError::Unknown("lost".into());
                let input = Input::Reply {
                    id,
                    result: Err(error),
                };
                self.at(self.time + go + back, Event::Step { node, life, input });
                if let Fate::Late(late) = fate {
                    self.at(
                        self.time + go + late,
                        Event::Execute {
                            node,
                            life,
                            id,
                            call,
                            fate,
                        },
                    );
                }
            }
            _ => {
                let slow = match fate {
                    Fate::Slow(slow) => slow,
                    _ => Duration::ZERO,
                };
                self.at(
                    self.time + go + slow,
                    Event::Execute {
                        node,
                        life,
                        id,
                        call,
                        fate,
                    },
                );
            }
        }
    }

    fn execute(&mut self, node: usize, life: u32, id: u64, call: &StoreCall, fate: Fate) {
        let mut store = self.store.clone();
        let mut reply = call
            .make(&mut store)
            .expect("no fault is injected into the store itself");
        if let (true, Reply::Snapshot(snapshot)) = (self.without_surveys, &mut reply) {
            snapshot.survey = None;
        }
        self.note_members(call, &reply);
        self.ledger
            .executed(self.clock.store_time(), call, &reply, &self.live);
        if self.nodes[node].life != life {
            return;
        }
        let result = match fate {
            Fate::CrashAfter => return self.crash(node),
            Fate::Late(_) => return,
            Fate::LoseAnswer => Err(StoreError::Unknown("lost".into())),
            Fate::Pause(span) => {
                let now = self.clock.store_time();
                let epoch = self.nodes[node].machine.as_ref().map(Node::epoch);
                self.ledger.died.extend(epoch.map(|epoch| (epoch, now)));
                self.nodes[node].still_until = self.time + span;
                Ok(reply)
            }
            _ => Ok(reply),
        };
        let back = self.travel();
        self.at(
            self.time + back,
            Event::Step {
                node,
                life,
                input: Input::Reply { id, result },
            },
        );
    }

    /// Notes which epochs are live after a call, and that nobody was declared gone within its
    /// lease.
    fn note_members(&mut self, call: &StoreCall, reply: &Reply) {
        match (call, reply) {
            (StoreCall::Join(node), _) if !self.ended.contains(&node.epoch) => {
                self.live.insert(node.epoch);
            }
            (StoreCall::Leave(epoch), _) => self.end_epoch(*epoch),
            (StoreCall::DeclareGone { epoch, .. }, Reply::DeclaredGone(true)) => {
                self.end_epoch(*epoch);
                for node in &self.nodes {
                    let machine = node.machine.as_ref();
                    let same = machine.filter(|machine| machine.epoch() == *epoch);
                    let holds = same.is_some_and(|same| same.is_held(self.time - node.born));
                    assert!(!holds, "{epoch:?} was declared gone within its lease");
                }
            }
            _ => {}
        }
    }

    fn end_epoch(&mut self, epoch: Epoch) {
        self.live.remove(&epoch);
        self.ended.insert(epoch);
    }

    fn start(&mut self, number: usize, life: u32, epoch: Epoch, run: ClaimedRun) {
        let name = (run.run.queue.clone(), run.run.key.clone());
        let others = self.running.entry(name).or_default();
        let nodes = &self.nodes;
        others.retain(|(node, life, _)| nodes[*node].life == *life);
        for (_, _, held_by) in others.iter() {
            let live = self.live.contains(held_by);
            assert!(!live, "one key, two runs: {:?}", run.run);
        }
        others.push((number, life, epoch));
        let starts = self
            .ledger
            .started(self.clock.store_time(), epoch, &run, self.bounds);
        let (lasts, outcome) = (self.handler)(&run, starts);
        let input = Input::Finished {
            run: run.run,
            outcome,
        };
        self.at(
            self.time + lasts,
            Event::Step {
                node: number,
                life,
                input,
            },
        );
    }

    // === users ===

    fn user(&mut self, call: UserCall) {
        let (queue, key, action) = match call {
            UserCall::Schedule(queue, key, after) => {
                let payload = self.ledger.ops.len().to_string().into();
                (
                    queue,
                    key,
                    Action::Schedule {
                        when: DueAt::After(after),
                        payload,
                    },
                )
            }
            UserCall::Cancel(queue, key) => (queue, key, Action::Cancel),
            UserCall::Reschedule(queue, key, after) => (
                queue,
                key,
                Action::Reschedule {
                    when: DueAt::After(after),
                },
            ),
            UserCall::SetPaused(queue, paused) => {
                if paused {
                    self.fault("pauses of a queue");
                }
                self.store
                    .clone()
                    .set_paused(queue, paused)
                    .expect("no fault");
                self.ledger.paused(queue, paused, self.clock.store_time());
                let first = self.nodes[0].life;
                return self.step(0, first, Input::PollNow);
            }
            UserCall::Stop(node, grace) => {
                let now = self.clock.store_time();
                self.fault("stops");
                let machine = self.nodes[node].machine.as_ref();
                self.ledger
                    .died
                    .extend(machine.map(|node| (node.epoch(), now)));
                let life = self.nodes[node].life;
                return self.step(node, life, Input::Stop { grace });
            }
            UserCall::Storm(queue, rings) => {
                self.fault("storms of rings");
                for _ in 0..rings {
                    self.ring(queue, 0);
                }
                return;
            }
            UserCall::SetClock(micros) => {
                self.fault("steps of the store's clock");
                let now = self.clock.store_time().as_micros();
                return self.clock.set(StoreTime::from_micros(now + micros).into());
            }
            UserCall::Outage(span) => {
                self.fault("outages");
                self.outage_until = self.outage_until.max(self.time + span);
                return;
            }
        };
        let call = Call {
            queue: queue.into(),
            key: key.into(),
            action,
        };
        let answers = self.store.clone().write(std::slice::from_ref(&call));
        let answer = answers.expect("no fault").remove(0).expect("a good call");
        self.ledger.answered(&call, answer);
        // The user's process has the node 0.
        let near = match answer {
            Answer::Scheduled { due, shard, .. } => Some((due, shard)),
            Answer::Moved { to, shard, .. } => Some((to, shard)),
            _ => None,
        };
        if let Some((due, shard)) = near {
            if self.bell.is_some() && due < self.store_now() + Duration::from_secs(2) {
                self.ring(queue, 1);
            }
            let near = Near {
                queue: call.queue,
                key: call.key,
                shard,
                due,
                bytes: Some(4),
            };
            let life = self.nodes[0].life;
            self.step(0, life, Input::Near(vec![near]));
        }
    }

    /// Rings for the nodes from this one on.
    fn ring(&mut self, queue: &'static str, from: usize) {
        for node in from..self.nodes.len() {
            if !self.rings.insert((node, queue)) {
                continue;
            }
            let life = self.nodes[node].life;
            let time = self.time + self.travel();
            match self.random.next().is_multiple_of(self.bell.unwrap_or(0)) {
                true => drop(self.rings.remove(&(node, queue))),
                false => self.at(time, Event::Ring { node, life, queue }),
            }
        }
    }

    /// When the last timer in the store is due, or now.
    pub(super) fn last_due(&self) -> StoreTime {
        let queues = self.config.queues.iter();
        let timers = queues.flat_map(|queue| {
            let page = Page::first(&queue.name, 1_000_000);
            self.store.clone().list(&page).expect("no fault")
        });
        let dues = timers.map(|timer| timer.due);
        dues.max().unwrap_or(self.store_now())
    }

    /// The number of timers in the store.
    pub(super) fn timers(&self) -> usize {
        self.left().len()
    }

    /// The keys of the timers in the store.
    pub(super) fn left(&self) -> Vec<String> {
        let queues = self.config.queues.iter();
        let keys = queues.flat_map(|queue| {
            let page = Page::first(&queue.name, 1_000_000);
            self.store.clone().list(&page).expect("no fault")
        });
        keys.map(|timer| timer.key).collect()
    }
}

/// A timer of one generation of a key.
type TimerName = (Arc<str>, Box<str>);

/// What a schedule has asked for.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) due: StoreTime,
    /// Whether it was scheduled during a run of its key.
    follows: bool,
    /// From then on it may not be claimed: it was cancelled or replaced.
    pub(super) closed: Option<Duration>,
    /// From then on it may not start.
    pub(super) never: Option<Duration>,
    pub(super) starts: u32,
}

/// All that happened, and the promises that it is held against.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The time that nobody sets.
    time: Duration,
    pub(super) ops: Vec<Op>,
    /// The last schedules of each key that were not closed.
    open: BTreeMap<TimerName, Vec<usize>>,
    /// When nodes died.
    pub(super) died: BTreeMap<Epoch, StoreTime>,
    /// The last claim of each key: who, which run, when, and whether the answer was lost.
    last_claim: BTreeMap<TimerName, (Epoch, Run, StoreTime, Duration)>,
    /// The runs that have not settled, by name, and those that took the place of one whose node has
    /// died: they could not start before.
    unsettled: BTreeMap<TimerName, Run>,
    taken_over: BTreeSet<Run>,
    /// Runs that ended without a crash, by generation: those counted for the crashes.
    ended_well: BTreeMap<(TimerName, i64), u32>,
    /// Attempts before the counts were set back.
    forgiven: BTreeMap<(TimerName, i64), u32>,
    resumed: BTreeMap<String, StoreTime>,
    pub(super) starts: u32,
    pub(super) adopted: u32,
    pub(super) crashes: u32,
    pub(super) fenced: u32,
    /// The greatest lateness of a run that nobody had claimed before.
    pub(super) latest_unclaimed: Duration,
    /// When timers that nobody had claimed before were due, and how late they started.
    pub(super) unclaimed: Vec<(StoreTime, Duration)>,
    /// The longest time from the death of a node to the next start of what it had claimed.
    pub(super) latest_takeover: Duration,
}

fn op_of(run: &ClaimedRun) -> usize {
    run.payload.parse().expect("the number of a schedule")
}

impl Ledger {
    fn executed(
        &mut self,
        now: StoreTime,
        call: &StoreCall,
        reply: &Reply,
        live: &BTreeSet<Epoch>,
    ) {
        match (call, reply) {
            (StoreCall::Claim(claim), Reply::Claimed(claimed)) => {
                for run in &claimed.runs {
                    self.claimed(now, claim.epoch, run, live);
                }
            }
            (StoreCall::Settle(settle), Reply::Settled(answers)) => {
                for (settlement, settled) in settle.settlements.iter().zip(answers) {
                    let name = (settlement.run.queue.clone(), settlement.run.key.clone());
                    if *settled == Ok(Settled::Fenced) {
                        self.fenced += 1;
                        continue;
                    }
                    let last = self.last_claim.get(&name);
                    let (epoch, run, ..) = last.expect("only claimed runs are settled");
                    assert_eq!(
                        *epoch, settle.epoch,
                        "a run that was taken over has settled"
                    );
                    assert_eq!(*run, settlement.run, "an older run has settled");
                    self.unsettled.remove(&name);
                    let well = (name, settlement.run.generation);
                    *self.ended_well.entry(well).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    fn claimed(&mut self, now: StoreTime, epoch: Epoch, run: &ClaimedRun, live: &BTreeSet<Epoch>) {
        let name = (run.run.queue.clone(), run.run.key.clone());
        let op = &self.ops[op_of(run)];
        if let Some((before, last, ..)) = self.last_claim.get(&name)
            && *last == run.run
        {
            assert_eq!(*before, epoch, "adopted from another node");
            self.adopted += 1;
            return;
        }
        assert!(run.due <= now, "{run:?} claimed early at {now:?}");
        assert!(live.contains(&epoch), "claimed by a node that is gone");
        assert!(
            op.closed.is_none_or(|closed| self.time <= closed),
            "{run:?} claimed at {now:?}, closed at {:?}",
            op.closed
        );
        let generation = (name.clone(), run.run.generation);
        let well = self.ended_well.get(&generation).copied().unwrap_or(0);
        let forgiven = self.forgiven.get(&generation).copied().unwrap_or(0);
        assert_eq!(
            run.crashes,
            run.run.attempt - 1 - well - forgiven,
            "{run:?}: {well} ended well, {forgiven} forgiven"
        );
        self.crashes += run.crashes;
        let left = self.unsettled.insert(name.clone(), run.run.clone());
        if left.is_some() && (run.crashes > 0 || op.follows) {
            self.taken_over.insert(run.run.clone());
        }
        self.last_claim
            .insert(name, (epoch, run.run.clone(), now, self.time));
    }

    fn started(&mut self, now: StoreTime, epoch: Epoch, run: &ClaimedRun, bounds: bool) -> u32 {
        self.starts += 1;
        let name = (run.run.queue.clone(), run.run.key.clone());
        let (holder, last, claimed, claimed_at) =
            self.last_claim.get(&name).expect("it was claimed");
        assert_eq!(
            (*holder, last),
            (epoch, &run.run),
            "a run that was taken over starts"
        );
        let (claimed, claimed_at, number) = (*claimed, *claimed_at, op_of(run));
        let op = &mut self.ops[number];
        op.starts += 1;
        let starts = op.starts;
        assert!(
            op.never.is_none_or(|never| self.time < never),
            "{run:?} starts after {:?}",
            op.never
        );
        // A claim that is already there when the timer is cancelled or replaced may still start.
        assert!(op.closed.is_none_or(|closed| claimed_at <= closed));
        // By the clock of the claim, since the store's clock may have been set back after it.
        // Later runs are due by the clock at the end of the run before.
        let is_first = op.starts == 1;
        assert!(
            !is_first || op.due <= claimed,
            "{run:?} was moved to {:?}",
            op.due
        );
        let resumed = self.resumed.get(&*run.run.queue).copied();
        let ready = resumed.map_or(run.due, |resumed| run.due.max(resumed));
        if bounds && !run.run.key.starts_with("paced") {
            // Of two nodes that end one after the other, the last one counts.
            let deaths = self.died.values().filter(|died| **died <= now);
            let last_death = deaths.clone().max().copied();
            if run.crashes == 0 && !self.taken_over.contains(&run.run) {
                self.unclaimed.push((run.due, now.since(run.due)));
                let second = last_death.filter(|_| deaths.count() > 1);
                let ready = second.map_or(ready, |death| ready.max(death));
                self.latest_unclaimed = self.latest_unclaimed.max(now.since(ready));
            } else if let Some(died) = last_death {
                let takeover = now.since(died.max(ready));
                self.latest_takeover = self.latest_takeover.max(takeover);
            }
        }
        starts
    }

    fn paused(&mut self, queue: &str, paused: bool, now: StoreTime) {
        if !paused {
            self.resumed.insert(queue.to_owned(), now);
        }
    }

    fn answered(&mut self, call: &Call, answer: Answer) {
        let name = (call.queue.clone(), call.key.clone());
        match answer {
            Answer::Scheduled { due, running, .. } => {
                self.close(&name, running);
                let number = self.ops.len();
                self.open.entry(name).or_default().push(number);
                self.ops.push(Op {
                    due,
                    follows: running,
                    closed: None,
                    never: None,
                    starts: 0,
                });
            }
            Answer::Cancelled { .. } => self.close(&name, false),
            Answer::Running { .. } if call.action == Action::Cancel => {
                self.close(&name, true);
            }
            Answer::Moved { to, running, .. } => {
                let open = self.open.get(&name);
                if let Some(number) = open.and_then(|open| open.last()) {
                    self.ops[*number].due = to;
                }
                if let Some((_, run, ..)) = self.last_claim.get(&name).filter(|_| !running) {
                    let generation = (name.clone(), run.generation);
                    let well = self.ended_well.get(&generation).copied().unwrap_or(0);
                    self.forgiven.insert(generation, run.attempt - well);
                }
            }
            _ => {}
        }
    }

    /// Nothing that was scheduled for this key so far is claimed any more. If nothing of it runs,
    /// then nothing of it starts either.
    fn close(&mut self, name: &TimerName, running: bool) {
        let now = self.time;
        let Some(open) = self.open.get_mut(name) else {
            return;
        };
        for number in open.iter() {
            let op = &mut self.ops[*number];
            op.closed.get_or_insert(now);
            if !running {
                op.never.get_or_insert(now);
            }
        }
        if !running {
            open.clear();
        }
    }

    /// Each timer that was not cancelled or replaced has run.
    pub(super) fn check_all_ran(&self) {
        for (number, op) in self.ops.iter().enumerate() {
            assert!(
                op.starts > 0 || op.closed.is_some(),
                "{number} never ran: {op:?}"
            );
        }
    }
}
