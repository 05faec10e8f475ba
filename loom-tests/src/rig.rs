//! A small engine for the models: the real engine, with a ledger as its front end. A key is a
//! number, and a task is a number, which only notes that it ran.
//!
//! The counters of the ledger are std's, not loom's. They are read when everything has ended, or
//! where another operation orders the read. They must not order anything that the protocols leave
//! unordered.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool as Note, AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::bounded_channel::BoundedSender;
use crate::clock::{ClaimReading, Clock, ManualClock};
use crate::config::Valid;
use crate::engine::{
    Detached, Engine, EngineParts, ExecutorKind, Frontend, FrontendTypes, Items, RunInfo,
    RunOutcome, Server, TickerState,
};
use crate::executor::{PoolWorkers, Worker, WorkerThread};
use crate::job::catch_panic;
use crate::shard::batch::{ArmMany, ITEMS_PER_HOLD, Located, keys_by_stripe};
use crate::shard::{
    Admission, Arming, Cancelling, EntryId, EntryInfo, KeyHash, Moving, PutOff, Refusal, Start,
    Stripe, Taken, UsualCall,
};
use crate::stats::Counters;
use crate::sync::{Arc, Bell, Parker, Ring, Unparker};
use crate::tick::{TickSize, Time};
use crate::tickers::TickerStep;

/// The number of tasks. All task numbers are below it.
const TASKS: usize = 5;

/// The task that leaves its worker. The model that takes it from the ledger completes it.
pub(crate) const LEAVING: usize = 3;

/// The task that only wakes another one. A shutdown wakes it instead of handing it back.
pub(crate) const SLEEPING: usize = 2;

/// The task that repeats, one [`PERIOD`] after each deadline.
pub(crate) const REPEATING: usize = 4;
pub(crate) const PERIOD: Duration = Duration::from_nanos(100);

/// The start time of every model's clock. It is not zero, since a promise of zero means that the
/// ticker is awake.
pub(crate) const START: u64 = 10;

pub(crate) fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// Counts what the tasks did.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ran: [Count; TASKS],
    early: Note,
    panicked: Note,
    /// After this number of runs the last one stops the engine.
    stop_after: Option<usize>,
    /// Runs that have left their worker, each with its stripe and entry. The checker does not see
    /// this lock.
    left: std::sync::Mutex<Vec<(Detached<Ledger>, u32, EntryId)>>,
    /// The number of sleeping tasks that a shutdown has woken.
    woken: Count,
    /// Whether the ticker wakes sleeping tasks while the workers are blocked.
    helped: bool,
    /// The channel into which tasks send their numbers, if any.
    delivery: Option<BoundedSender<usize>>,
}

impl Ledger {
    /// Returns how often a task ran.
    pub(crate) fn ran(&self, task: usize) -> usize {
        self.ran[task].load(Relaxed)
    }

    /// Returns how many sleeping tasks a shutdown has woken.
    pub(crate) fn woken(&self) -> usize {
        self.woken.load(Relaxed)
    }

    pub(crate) fn end_delivery(&self) {
        self.delivery.as_ref().expect("it delivers").end();
    }

    /// Takes a run that has left its worker.
    pub(crate) fn take_left(&self) -> Option<(Detached<Ledger>, u32, EntryId)> {
        self.left.lock().expect("nobody panics").pop()
    }

    /// Returns the number of runs of all tasks.
    pub(crate) fn ran_in_all(&self) -> usize {
        (0..TASKS).map(|task| self.ran(task)).sum()
    }
}

impl FrontendTypes for Ledger {
    type Key = u32;
    type Payload = usize;
    type Access = Arc<Engine<Ledger>>;
}

impl Frontend for Ledger {
    const HAS_WAKE_UPS: bool = true;
    const LIGHT: bool = true;

    fn has_light(&self) -> bool {
        self.helped
    }

    fn access(engine: &Arc<Engine<Ledger>>) -> Arc<Engine<Ledger>> {
        Arc::clone(engine)
    }

    fn run(engine: &Arc<Engine<Ledger>>, info: &RunInfo<'_, u32>, task: usize) {
        let ledger = &engine.frontend;
        ledger.early.fetch_or(info.started < info.deadline, Relaxed);
        ledger.ran[task].fetch_add(1, Relaxed);
        if let Some(sender) = &ledger.delivery {
            sender.send(task).expect("somebody receives");
        }
        if ledger.stop_after == Some(ledger.ran_in_all()) {
            engine.stop();
        }
    }

    fn is_wake_up(task: &usize) -> bool {
        *task == SLEEPING
    }

    fn wake_up(engine: &Arc<Engine<Ledger>>, task: usize) {
        engine.frontend.ran[task].fetch_add(1, Relaxed);
    }

    fn start(task: &mut usize, deadline: Time, _: &mut ClaimReading<'_>) -> Start {
        if *task == REPEATING {
            Start::Round(deadline)
        } else {
            Start::Once
        }
    }

    fn run_to_its_end(
        engine: &Arc<Engine<Ledger>>,
        info: &RunInfo<'_, u32>,
        task: usize,
    ) -> RunOutcome<usize> {
        let ended = catch_panic(|| Self::run(engine, info, task));
        let panicked = ended.is_err();
        if let Err(message) = ended {
            Self::panicked(engine, info, &message);
        }
        match task {
            REPEATING => RunOutcome::Repeat {
                panicked,
                payload: task,
                next: Some(info.deadline + PERIOD),
            },
            LEAVING => {
                let run = Detached::new(engine, info.stripe, info.id);
                let mut runs = engine.frontend.left.lock().expect("nobody panics");
                runs.push((run, info.stripe, info.id));
                RunOutcome::Detached
            }
            _ => RunOutcome::Done { panicked },
        }
    }

    fn keep_back(&self, taken: &mut Vec<Taken<u32, usize>>, _: bool) {
        let before = taken.len();
        taken.retain(|(_, _, task)| *task != SLEEPING);
        self.woken.fetch_add(before - taken.len(), Relaxed);
    }

    fn panicked(engine: &Arc<Engine<Ledger>>, _: &RunInfo<'_, u32>, _: &str) {
        engine.frontend.panicked.store(true, Relaxed);
    }
}

/// The options of a [`Rig`]. The default is the smallest one.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) stripes: usize,
    pub(crate) workers: usize,
    /// The number of slots for further workers.
    pub(crate) extra: usize,
    pub(crate) backlog: usize,
    pub(crate) max_pending: Option<usize>,
    /// The number of expirations in a second.
    pub(crate) pace: Option<NonZeroU32>,
    pub(crate) inline: bool,
    /// Whether the ticker helps blocked workers.
    pub(crate) helped: bool,
    pub(crate) stop_after: Option<usize>,
}

impl Default for Size {
    fn default() -> Self {
        Size {
            stripes: 1,
            workers: 1,
            extra: 0,
            backlog: 4,
            max_pending: None,
            pace: None,
            inline: false,
            helped: false,
            stop_after: None,
        }
    }
}

impl Size {
    /// Returns the parts of an engine with one shard, and the clock that moves it.
    pub(crate) fn parts(&self) -> (EngineParts, ManualClock) {
        let hand = ManualClock::starting_at(at(START));
        let clock = Clock::manual(&hand);
        let most = if self.inline {
            0
        } else {
            self.workers + self.extra
        };
        let workers = PoolWorkers::new(self.workers, most, Duration::MAX, clock.clone());
        let parts = EngineParts {
            config: Valid {
                tick: TickSize::from_nanos(1),
                shards: 1,
                stripes: self.stripes,
                workers: self.workers,
                max_running: self.workers + self.extra,
                max_pending: self.max_pending,
                pace: self.pace,
                shutdown_limit: Duration::MAX,
                quiet: Duration::MAX,
                backlog: self.backlog,
                injector: 4,
                name: None,
            },
            clock,
            executor_kind: if self.inline {
                ExecutorKind::Inline
            } else {
                ExecutorKind::Pool
            },
            seed: Some(0),
            stepped: false,
            workers: Arc::new(workers),
            shares_workers: false,
        };
        (parts, hand)
    }
}

/// An engine without threads of its own, which the threads of a model share.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) server: Arc<Server<Ledger>>,
    pub(crate) hand: ManualClock,
}

/// A ticker with a thread of its own. `models/tickers.rs` has the thread that serves several.
#[derive(Debug)]
pub(crate) struct RigTicker {
    state: TickerState,
    clock: Clock,
    parker: Parker,
}

impl RigTicker {
    pub(crate) fn of(rig: &Rig, state: TickerState) -> Self {
        let parker = Parker::new();
        let bell = Arc::new(Bell::new(parker.unparker().clone()));
        let shard = rig.engine().shards().shard(state.shard());
        shard.bell.rings(Ring::new(&bell, 0));
        let clock = rig.engine().clock().clone();
        RigTicker {
            state,
            clock,
            parker,
        }
    }

    /// Sleeps until the bell rings.
    pub(crate) fn park(&self) {
        self.parker.park();
    }

    pub(crate) fn park_until(&self, at: Time) {
        self.clock.park_until(&self.parker, Some(at));
    }
}

impl std::ops::Deref for RigTicker {
    type Target = TickerState;

    fn deref(&self) -> &TickerState {
        &self.state
    }
}

impl std::ops::DerefMut for RigTicker {
    fn deref_mut(&mut self) -> &mut TickerState {
        &mut self.state
    }
}

impl Rig {
    /// Creates a rig with one shard, and the ticker of it.
    pub(crate) fn new(size: &Size) -> (Rig, RigTicker) {
        Self::with(size, None)
    }

    /// Creates a rig whose tasks send their numbers into a channel.
    pub(crate) fn delivering(size: &Size, sender: BoundedSender<usize>) -> (Rig, RigTicker) {
        Self::with(size, Some(sender))
    }

    fn with(size: &Size, delivery: Option<BoundedSender<usize>>) -> (Rig, RigTicker) {
        let (parts, hand) = size.parts();
        let ledger = Ledger {
            helped: size.helped,
            stop_after: size.stop_after,
            delivery,
            ..Ledger::default()
        };
        let (server, mut ticker_states) = Engine::assemble(parts, ledger);
        let ticker_state = ticker_states.pop().expect("one shard");
        let rig = Rig { server, hand };
        let ticker = RigTicker::of(&rig, ticker_state);
        (rig, ticker)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<Ledger>> {
        self.server.engine()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.engine().frontend
    }

    // === calls of producers ===

    /// Returns the stripe of a key. Consecutive keys lie in consecutive stripes.
    pub(crate) fn stripe_of(&self, key: u32) -> usize {
        key as usize % self.engine().shards().stripes()
    }

    pub(crate) fn arm(
        &self,
        key: u32,
        task: usize,
        deadline: Time,
    ) -> Result<Arming<u32, usize>, Refusal> {
        self.arm_as_of(self.engine().now(), key, task, deadline)
    }

    /// Arms a timer as a caller does that read the clock before.
    pub(crate) fn arm_as_of(
        &self,
        now: Time,
        key: u32,
        task: usize,
        deadline: Time,
    ) -> Result<Arming<u32, usize>, Refusal> {
        let hash = hash(key);
        let (mut stripe, admission) = (self.engine()).admit(self.stripe_of(key), |stripe| {
            stripe.admit(hash, &key, false)
        })?;
        Ok(stripe.arm(admission, hash, key, task, deadline, now))
    }

    /// Moves a timer as the handle does: as a usual call if it is one, and otherwise anew.
    pub(crate) fn touch(&self, key: u32, deadline: Time) -> Moving {
        let now = self.engine().now();
        let shards = self.engine().usual().unwrap();
        if let Some(mut call) = UsualCall::lock(shards, self.stripe_of(key)) {
            let put_off = call.stripe().put_usual_off(
                hash(key),
                &key,
                || (deadline > now).then_some(deadline),
                |_, deadline| Some((deadline, ())),
                |_, ()| (),
            );
            call.end();
            if let Some(PutOff { before, .. }) = put_off {
                return Moving::Moved { before };
            }
        }
        self.engine().with(self.stripe_of(key), |stripe| {
            stripe.reschedule(hash(key), &key, || (deadline, now), false)
        })
    }

    /// Arms keys in one call. A task has the number of its key.
    pub(crate) fn arm_many(&self, keys: &[u32], deadline: Time) -> Vec<Result<(), Refusal>> {
        let places = keys.iter().map(|key| (self.stripe_of(*key), hash(*key)));
        let places: Vec<_> = places.collect();
        let mut armings = Armings {
            deadline,
            now: self.engine().now(),
            items: Items::new(keys.iter().copied()),
        };
        (self.engine()).arm_many(&places, deadline <= armings.now, &mut armings);
        armings.items.into_answers()
    }

    /// Moves keys in one call, and returns how many were found.
    pub(crate) fn move_many(&self, keys: &[u32], deadline: Time) -> usize {
        let now = self.engine().now();
        let stripes = self.engine().shards().stripes();
        let located = keys_by_stripe(stripes, keys, |key| (self.stripe_of(*key), hash(*key)));
        let mut found = 0;
        let mut groups = self.engine().groups(&located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            let slots = groups.find();
            groups.each_at(&slots, |stripe, slot, _| {
                stripe.reschedule_slot(slot, deadline, now, false);
                found += 1;
            });
            groups.release();
        }
        found
    }

    pub(crate) fn cancel(&self, key: u32) -> Cancelling<u32, usize> {
        self.engine()
            .with(self.stripe_of(key), |stripe| stripe.cancel(hash(key), &key))
    }

    pub(crate) fn get(&self, key: u32) -> Option<EntryInfo> {
        (self.engine().shards()).peek(self.stripe_of(key), |stripe| stripe.get(hash(key), &key))
    }

    // === loops of threads ===

    /// Takes a worker slot.
    pub(crate) fn worker(&self) -> Worker {
        self.engine().pool().take_slot().expect("a free seat")
    }

    /// Takes the worker of a thread.
    pub(crate) fn thread(&self) -> WorkerThread {
        WorkerThread::take(self.engine().pool().threads(), false).expect("a free number")
    }

    /// Runs a worker's thread until the engine is stopped.
    pub(crate) fn work(&self, worker: WorkerThread) {
        worker.run();
    }

    /// Runs a worker until it finds nothing more. It does not sleep.
    pub(crate) fn serve(&self, worker: &mut Worker) {
        while worker.step(self.server.as_ref()) {}
    }

    /// Runs a ticker's thread until the engine is stopped or `done` returns true.
    pub(crate) fn tick(&self, ticker_state: &mut RigTicker, done: impl Fn() -> bool) {
        while !done() {
            match self.step(ticker_state) {
                TickerStep::Worked => {}
                TickerStep::SleepUntil(at) => ticker_state.park_until(at),
                TickerStep::Stop => return,
            }
        }
    }

    fn step(&self, ticker_state: &mut TickerState) -> TickerStep {
        self.engine()
            .ticker_step(&self.server, ticker_state, &mut |_| true)
    }

    /// Returns when the ticker has to check its stripes again.
    pub(crate) fn least_due(&self) -> Time {
        self.engine().shards().shard(0).least_due()
    }

    /// Returns when a stripe really has something to do.
    pub(crate) fn next_due_of(&self, stripe: usize) -> Time {
        (self.engine().shards()).peek(stripe, |stripe| stripe.next_due())
    }

    /// Returns the number of tickets that no worker has claimed.
    pub(crate) fn unclaimed(&self) -> usize {
        self.engine().shards().shard(0).backlog.unclaimed()
    }

    /// Returns the number of tickets in queues.
    pub(crate) fn queued(&self) -> usize {
        self.engine().pool().queued_hint()
    }

    // === checks at the end ===

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for stripe in 0..self.engine().shards().stripes() {
            let counters = self
                .engine()
                .shards()
                .peek(stripe, |stripe| stripe.counters());
            sum.add(&counters);
        }
        sum
    }

    /// Returns the counters, after these checks: the counters balance, the number of runs is the
    /// ledger's, and no task ran early or panicked.
    pub(crate) fn balance(&self) -> Counters {
        let sum = self.counters();
        let ended = sum.ran + sum.cancelled + sum.replaced + sum.handed_back;
        assert_eq!(sum.scheduled, ended + sum.pending, "{sum:?}");
        assert_eq!(sum.ran, self.ledger().ran_in_all() as u64, "{sum:?}");
        assert!(!self.ledger().early.load(Relaxed), "a task ran early");
        assert!(!self.ledger().panicked.load(Relaxed), "a task panicked");
        sum
    }
}

pub(crate) fn hash(key: u32) -> KeyHash {
    KeyHash(u64::from(key))
}

/// The keys of a call that arms many.
struct Armings {
    deadline: Time,
    now: Time,
    items: Items<u32, Result<(), Refusal>>,
}

impl ArmMany<u32, usize> for Armings {
    fn key(&self, index: usize) -> &u32 {
        self.items.get(index)
    }

    fn arm(
        &mut self,
        stripe: &mut Stripe<u32, usize>,
        admission: Admission,
        item: &Located<KeyHash>,
    ) {
        let key = self.items.take(item.index());
        let (deadline, now) = (self.deadline, self.now);
        stripe.arm(admission, item.item, key, key as usize, deadline, now);
        self.items.answer(item.index(), Ok(()));
    }

    fn settle(&mut self) {}

    fn refuse(&mut self, index: usize, refusal: Refusal) {
        self.items.take(index);
        self.items.answer(index, Err(refusal));
    }
}

/// Wakes a thread that waits for a future.
struct Thread(Unparker);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future. If it is never woken, loom reports a deadlock.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(Thread(parker.unparker().clone())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => parker.park(),
        }
    }
}
