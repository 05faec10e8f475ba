//! What is around the node: the thread that owns it, the lanes to the store, a wheel that wakes it,
//! and the pool that runs closures.
//!
//! The wheel has a thread of its own, and not the runtime that the pool is on. The node's lease
//! depends on it. On a runtime whose workers are all in handlers, it would need one more worker,
//! which the system may refuse.

#[cfg(feature = "test-util")]
mod stepped;

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use tourbillon::{BuildError, Scheduler, Timer};

use super::handler::Handler;
use super::lanes::{Lanes, LanesError, Wake};
use super::node_lease::{LocalClock, NodeLease};
use super::notifications::NotificationForwarder;
use super::queue_options::QueueOptions;
use super::signs::NodeSigns;
use super::task::{Runs, Task};
use crate::calls::StartError;
use crate::client::StoreHandle;
use crate::events::DurableEvent;
use crate::node::{Command, Input, Mono, Near, Node, NodeConfig, Reply, Stopped, StoreCall};
use crate::store::{ClaimedRun, Notification, Outcome, Run, StoreError, Subscription};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::{Arc, Origin, RunsOn, Weak, catch_panic, thread};
#[cfg(feature = "test-util")]
pub(crate) use stepped::Rest;
#[cfg(feature = "test-util")]
use stepped::{Steps, Turn};

/// How many closures the pool may run at one time at least, whatever the queues allow.
const LEAST_MAX_RUNNING: usize = 64;

/// How many tasks a pool of the core may run at one time at most.
const MOST_RUNNING: usize = 1_024;

/// The pause after the first attempt to listen to the doorbell that has failed. It doubles with
/// each further one.
const FIRST_LISTEN: Duration = Duration::from_millis(100);

/// The longest of these pauses.
const LONGEST_LISTEN: Duration = Duration::from_secs(10);

/// The greatest number of inputs between two polls of the time.
const INPUTS_AT_ONCE: usize = 256;

/// A message to the thread of the node.
pub(crate) enum Message {
    Input(Input),
    /// The store's doorbell is to be listened to again.
    Listen,
    /// The node ends at once, as if its process had died.
    Crash,
    /// A test lets the node work.
    #[cfg(feature = "test-util")]
    Turn(Turn),
    /// A test lets the process die right after its next run.
    #[cfg(feature = "test-util")]
    CrashAfterRun,
}

/// Sends messages to a node.
#[derive(Clone)]
pub(crate) struct NodeSender {
    sender: Sender<Message>,
    /// A forked copy of this process has no node, and a lock of the channel may stay locked there.
    origin: Origin,
}

impl NodeSender {
    /// Returns a sender, and what the node gets by it.
    pub(crate) fn new() -> (Self, Receiver<Message>) {
        let (sender, receiver) = unbounded();
        let origin = Origin::here();
        (NodeSender { sender, origin }, receiver)
    }

    /// Sends an input. A node that has ended does not need it.
    pub(crate) fn send(&self, input: Input) {
        self.tell(Message::Input(input));
    }

    /// Reports the end of a run.
    pub(crate) fn finished(&self, run: Run, outcome: Outcome) {
        self.send(Input::Finished { run, outcome });
    }

    /// Reports timers that are due soon.
    pub(crate) fn near(&self, near: Vec<Near>) {
        self.send(Input::Near(near));
    }

    /// Ends the node without leaving.
    pub(crate) fn crash(&self) {
        self.tell(Message::Crash);
    }

    fn tell(&self, message: Message) {
        if !self.origin.is_elsewhere() {
            drop(self.sender.send(message));
        }
    }
}

impl fmt::Debug for NodeSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSender").finish_non_exhaustive()
    }
}

/// The parts that a shell is made of.
pub(crate) struct NodeParts {
    pub(crate) config: NodeConfig,
    pub(crate) queues: HashMap<Arc<str>, (Arc<QueueOptions>, Handler)>,
    pub(crate) sender: NodeSender,
    pub(crate) receiver: Receiver<Message>,
    pub(crate) store_handle: Arc<StoreHandle>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) signs: Arc<NodeSigns>,
    pub(crate) clock: LocalClock,
    pub(crate) runs_on: RunsOn,
    pub(crate) keep_dead_for: Duration,
    /// Whether a test lets the node work, turn by turn.
    #[cfg(feature = "test-util")]
    pub(crate) is_stepped: bool,
    /// Called when the node has ended, with its report unless it crashed.
    pub(crate) on_end: Box<dyn FnOnce(NodeEnd) + Send>,
}

/// How a node has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeEnd {
    pub(crate) stopped: Stopped,
    /// Whether the store knows that the node has left.
    pub(crate) has_left: bool,
}

/// Starts the threads of a node, when its connections are open and its calls work. Returns the pool
/// that runs closures, which ends with the node.
pub(crate) fn start(parts: NodeParts) -> Result<Option<Weak<Timer>>, StartError> {
    let watch = Arc::new(Watch {
        runs: Arc::clone(&parts.runs),
        has_left: AtomicBool::new(false),
    });
    let wake = Scheduler::<Wake>::builder()
        .inline()
        .shards(1)
        .clock(parts.clock.clock())
        .build()
        .map_err(not_built)?;
    let lanes = {
        let (sender, watch) = (parts.sender.clone(), Arc::clone(&watch));
        let answered = move |id, call: &StoreCall, result| {
            watch.saw(call, &result);
            sender.send(Input::Reply { id, result });
        };
        let lanes = Lanes::start(
            &parts.store_handle,
            &wake.handle(),
            parts.keep_dead_for,
            &(Arc::new(answered) as _),
        );
        lanes.map_err(|error| match error {
            LanesError::Spawn(error) => StartError::Spawn(error),
            LanesError::Store(error) => StartError::Store(error),
        })?
    };
    let pool = pool(&parts)?.map(Arc::new);
    let watched = pool.as_ref().map(Arc::downgrade);
    let notifications = notifications(&parts);
    let node = Node::new(parts.config);
    let mut shell = Shell {
        lease: NodeLease::new(node.epoch(), parts.clock.clone()),
        node,
        clock: parts.clock,
        sender: parts.sender,
        lanes,
        notifications,
        store_handle: parts.store_handle,
        subscription: None,
        listen_failures: 0,
        is_stopping: false,
        wake,
        wakes_at: None,
        pool,
        queues: parts.queues,
        runs: parts.runs,
        signs: parts.signs,
        watch,
        commands: Vec::new(),
        #[cfg(feature = "test-util")]
        steps: parts.is_stepped.then(Steps::default),
    };
    shell.listen();
    let (receiver, on_end) = (parts.receiver, parts.on_end);
    thread::spawn("node", move || {
        let end = shell.run(&receiver);
        on_end(end);
    })
    .map_err(StartError::Spawn)?;
    Ok(watched)
}

/// Passes the rings of the doorbell on to the node.
fn notifications(parts: &NodeParts) -> Arc<NotificationForwarder> {
    let queues = parts
        .config
        .queues
        .iter()
        .map(|queue| Arc::clone(&queue.name));
    let (counters, events) = (Arc::clone(&parts.runs.counters), parts.runs.events.clone());
    let sender = parts.sender.clone();
    let tell = Box::new(move |queue| sender.send(Input::Rang(queue)));
    NotificationForwarder::new(queues, counters, events, Arc::clone(&parts.signs), tell)
}

/// The pool that runs closures, if there are any.
fn pool(parts: &NodeParts) -> Result<Option<Timer>, StartError> {
    let closures = parts.queues.values();
    let closures = closures.filter(|(_, handler)| matches!(handler, Handler::Closure(_)));
    let running: usize = closures.map(|(options, _)| options.running).sum();
    if running == 0 {
        return Ok(None);
    }
    // A closure that may run must not wait for threads that other closures block.
    let most = running.clamp(LEAST_MAX_RUNNING, MOST_RUNNING);
    let pool = Timer::builder()
        .shards(1)
        .max_running(most)
        .clock(parts.clock.clock());
    let pool = parts.runs_on.tell(pool).build();
    pool.map(Some).map_err(not_built)
}

fn not_built(error: BuildError) -> StartError {
    match error {
        BuildError::Spawn(error) => StartError::Spawn(error),
        error => StartError::Runtime(error),
    }
}

/// Sees all answers of the store to the node.
struct Watch {
    runs: Arc<Runs>,
    has_left: AtomicBool,
}

impl Watch {
    fn saw(&self, call: &StoreCall, result: &Result<Reply, StoreError>) {
        let runs = &self.runs;
        match (call, result) {
            (_, Err(_)) => runs.counters.node.store_errors.increment(),
            (_, Ok(Reply::Beat(Some(beat)))) => runs.store_clock.shows(beat.now),
            (_, Ok(Reply::Snapshot(snapshot))) => runs.store_clock.shows(snapshot.now),
            (_, Ok(Reply::Claimed(claimed))) if !claimed.gone => {
                runs.store_clock.shows(claimed.now);
                if claimed.dead > 0 {
                    runs.counters.dead_by_crashes.add(claimed.dead.into());
                    let timers = claimed.dead;
                    runs.events.send(|| DurableEvent::DeadByCrashes { timers });
                }
                for refused in &claimed.refused {
                    runs.refused(&refused.queue, &refused.key, &refused.error);
                }
            }
            (StoreCall::Settle(settle), Ok(Reply::Settled(settled))) => {
                for (settlement, settled) in settle.settlements.iter().zip(settled) {
                    match settled {
                        Ok(settled) => runs.settled(settle.epoch, settlement, *settled),
                        Err(error) => {
                            runs.refused(&settlement.run.queue, &settlement.run.key, error);
                        }
                    }
                }
            }
            // Relaxed: the node's thread reads it after the reply, which comes by a channel.
            (_, Ok(Reply::Left)) => self.has_left.store(true, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// The thread of the node.
struct Shell {
    node: Node,
    clock: LocalClock,
    sender: NodeSender,
    lanes: Lanes,
    notifications: Arc<NotificationForwarder>,
    store_handle: Arc<StoreHandle>,
    /// `None` if the store has no doorbell or could not listen to it, and after a stop.
    subscription: Option<Subscription>,
    listen_failures: u32,
    is_stopping: bool,
    /// Sends the node its wake-ups.
    wake: Scheduler<Wake>,
    wakes_at: Option<Mono>,
    pool: Option<Arc<Timer>>,
    queues: HashMap<Arc<str>, (Arc<QueueOptions>, Handler)>,
    runs: Arc<Runs>,
    signs: Arc<NodeSigns>,
    /// The lease of the present epoch.
    lease: Arc<NodeLease>,
    watch: Arc<Watch>,
    /// Empty between two steps of the node.
    commands: Vec<Command>,
    /// A node that works turn by turn has its state here.
    #[cfg(feature = "test-util")]
    steps: Option<Steps>,
}

impl Shell {
    fn run(mut self, receiver: &Receiver<Message>) -> NodeEnd {
        #[cfg(feature = "test-util")]
        let stopped = match self.steps {
            Some(_) => self.work_in_turns(receiver),
            None => self.work(receiver),
        };
        #[cfg(not(feature = "test-util"))]
        let stopped = self.work(receiver);
        self.signs.ended();
        self.lease.set_end(Duration::ZERO);
        // Relaxed: see `Watch::saw`.
        let has_left = self.watch.has_left.load(Ordering::Relaxed);
        // Handlers capture values of the user, whose drop may panic.
        drop(catch_panic(move || drop(self)));
        NodeEnd {
            stopped: stopped.unwrap_or_default(),
            has_left,
        }
    }

    /// Works until the node has stopped, or crashes.
    fn work(&mut self, receiver: &Receiver<Message>) -> Option<Stopped> {
        let mut next = Some(Message::Input(Input::Wake));
        loop {
            let mut inputs = 0;
            while let Some(message) = next.take() {
                if let ControlFlow::Break(end) = self.take(message) {
                    return end;
                }
                inputs += 1;
                if inputs < INPUTS_AT_ONCE {
                    next = receiver.try_recv().ok();
                }
            }
            self.show();
            self.arm();
            next = Some(receiver.recv().ok()?);
        }
    }

    /// Takes a message. It breaks with the end of the node, or with none if the node crashes.
    fn take(&mut self, message: Message) -> ControlFlow<Option<Stopped>> {
        let input = match message {
            Message::Input(input) => input,
            Message::Listen => {
                self.listen();
                return ControlFlow::Continue(());
            }
            Message::Crash => return ControlFlow::Break(None),
            // `work_in_turns` takes them.
            #[cfg(feature = "test-util")]
            Message::Turn(_) | Message::CrashAfterRun => return ControlFlow::Continue(()),
        };
        match &input {
            Input::Wake => self.wakes_at = None,
            Input::Rang(Some(queue)) => self.notifications.taken(queue),
            Input::Stop { .. } => self.stop_listening(),
            _ => {}
        }
        let mut commands = std::mem::take(&mut self.commands);
        self.node.step(self.now(), input, &mut commands);
        // Before the starts: a run asks for its lease.
        self.publish();
        for command in commands.drain(..) {
            match command {
                Command::Ask { id, call } => self.ask(id, call),
                Command::Start(run) => self.begin(run),
                Command::Stopped(stopped) => return ControlFlow::Break(Some(stopped)),
            }
        }
        self.commands = commands;
        ControlFlow::Continue(())
    }

    /// The time of the node.
    fn now(&self) -> Mono {
        #[cfg(feature = "test-util")]
        if let Some(steps) = &self.steps {
            return self.clock.now() + steps.ahead;
        }
        self.clock.now()
    }

    fn ask(&mut self, id: u64, call: StoreCall) {
        #[cfg(feature = "test-util")]
        if let Some(steps) = &mut self.steps {
            steps.asked += 1;
        }
        self.lanes.send(id, call);
    }

    /// Shows people and probes how far the node is.
    fn show(&self) {
        let upcoming = self.node.upcoming();
        self.runs.counters.node.coming.set(upcoming as u64);
        self.signs.first_due(self.node.first_due());
        self.signs.wakes_at(self.node.next_wake());
    }

    /// Listens to the store's doorbell. If the store has one and can't listen to it, it is asked
    /// again.
    fn listen(&mut self) {
        if self.is_stopping || self.subscription.is_some() {
            return;
        }
        // Between two turns nobody hears it.
        #[cfg(feature = "test-util")]
        if self.steps.is_some() {
            return;
        }
        let notifications = Arc::clone(&self.notifications);
        let listener =
            Box::new(move |notification: Notification<'_>| notifications.take(notification));
        self.subscription = self.store_handle.listen(listener).unwrap_or_else(|error| {
            self.notifications.take(Notification::Lost(&error));
            None
        });
        if self.subscription.is_some() || !self.notifications.is_down() {
            return;
        }
        let pause = FIRST_LISTEN.saturating_mul(1 << self.listen_failures.min(16));
        self.listen_failures = self.listen_failures.saturating_add(1);
        let pause = pause.min(LONGEST_LISTEN);
        let (wake, sender) = (self.wake.handle(), self.sender.clone());
        // A wheel that is shut down wakes nobody: the node has ended.
        drop(wake.schedule(Wake::Listen, pause, move |_| sender.tell(Message::Listen)));
    }

    /// A node that stops polls no more.
    fn stop_listening(&mut self) {
        self.is_stopping = true;
        let subscription = self.subscription.take();
        // The store may be the user's.
        drop(catch_panic(move || drop(subscription)));
    }

    /// Publishes the end of the lease. A lease of an epoch that is over never comes back.
    fn publish(&mut self) {
        let epoch = self.node.epoch();
        if epoch != self.lease.epoch {
            self.lease.set_end(Duration::ZERO);
            self.lease = NodeLease::new(epoch, self.clock.clone());
            self.runs.new_epoch(epoch);
            self.runs.counters.node.gone.increment();
            self.runs.events.send(|| DurableEvent::NodeGone);
        }
        let end = self.node.lease_end();
        self.lease.set_end(end.unwrap_or_default());
        self.signs.lease(end);
    }

    /// Arms the node's next wake-up.
    fn arm(&mut self) {
        let wake = self.node.next_wake();
        if wake == self.wakes_at {
            return;
        }
        self.wakes_at = wake;
        let Some(wake) = wake else { return };
        let delay = wake.saturating_sub(self.clock.now());
        let sender = self.sender.clone();
        // It takes the place of the wake-up that was armed before.
        let armed = self
            .wake
            .handle()
            .schedule(Wake::Node, delay, move |_| sender.send(Input::Wake));
        if armed.is_err() {
            // Without a timer nothing would wake the node, so it goes on at once.
            self.sender.send(Input::Wake);
        }
    }

    fn begin(&mut self, claimed: ClaimedRun) {
        // The node claims only what its queues handle.
        let Some((options, handler)) = self.queues.get(&claimed.run.queue) else {
            return;
        };
        #[cfg(feature = "test-util")]
        if let Some(steps) = &mut self.steps {
            steps.began += 1;
            match handler {
                Handler::Closure(run) => {
                    // Here, so that runs have one order, and the turn ends after them.
                    let task = Task::new(claimed, &self.lease, options, &self.runs);
                    return run(task);
                }
                #[cfg(feature = "tokio")]
                Handler::Future(..) => {}
            }
        }
        let task = Task::new(claimed, &self.lease, options, &self.runs);
        match handler {
            Handler::Closure(run) => {
                let run = Arc::clone(run);
                if let Some(pool) = &self.pool {
                    // A pool that is closed drops the task, which gives the timer back.
                    drop(pool.after(Duration::ZERO, move || run(task)));
                }
            }
            #[cfg(feature = "tokio")]
            Handler::Future(runtime, run) => {
                // A runtime that was shut down drops the task, which gives the timer back.
                drop(catch_panic(|| runtime.spawn(run(task))));
            }
        }
    }
}
