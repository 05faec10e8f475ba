//! A small engine for the models: the real one, with a ledger for a face. What it is made of is
//! numbers: a key is a number, and so is a task, which only notes that it ran.
//!
//! The ledger's counters are std's, not loom's: they are looked at when everything has ended, or
//! with certainty of their own, and must not order anything that the protocols leave unordered.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool as Note, AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::bounded_channel::BoundedSender;
use crate::clock::{Clock, ManualClock};
use crate::config::Valid;
use crate::engine::{
    Detached, Ended, Engine, EngineParts, ExecutorKind, Frontend, RunInfo, Server, TickerState,
    TickerStep,
};
use crate::executor::Worker;
use crate::job::catch_panic;
use crate::shard::{
    Arming, Cancelling, EntryId, EntryInfo, KeyHash, Moving, Refusal, Start, Stays, Taken,
};
use crate::stats::Counters;
use crate::sync::{Arc, Parker, Unparker};
use crate::tick::{TickSize, Time};

/// So many tasks at most; their numbers are below this.
const TASKS: usize = 5;

/// The task that leaves its worker, and is settled by who takes it from the ledger.
pub(crate) const LEAVING: usize = 3;

/// The task that a shutdown keeps back.
pub(crate) const SLEEPING: usize = 2;

/// The task that repeats, so long after each deadline.
pub(crate) const REPEATING: usize = 4;
pub(crate) const PERIOD: Duration = Duration::from_nanos(100);

/// Where every model's clock begins. Not at zero, which is what a promise means by awake.
pub(crate) const START: u64 = 10;

pub(crate) fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// What tasks did.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ran: [Count; TASKS],
    early: Note,
    panicked: Note,
    /// When so many have run, the last one stops the engine.
    stop_after: Option<usize>,
    /// Runs that have left their worker, with their places. A lock that the checker does not see.
    left: std::sync::Mutex<Vec<(Detached<Ledger>, u32, EntryId)>>,
    /// Tasks that sleep, as it were: a shutdown wakes them instead of handing them back.
    woken: Count,
    /// Where their numbers go.
    delivery: Option<BoundedSender<usize>>,
}

impl Ledger {
    /// How often a task ran.
    pub(crate) fn ran(&self, task: usize) -> usize {
        self.ran[task].load(Relaxed)
    }

    /// How many sleeping tasks a shutdown has woken.
    pub(crate) fn woken(&self) -> usize {
        self.woken.load(Relaxed)
    }

    pub(crate) fn end_delivery(&self) {
        self.delivery.as_ref().expect("it delivers").end();
    }

    /// A run that has left its worker.
    pub(crate) fn take_left(&self) -> Option<(Detached<Ledger>, u32, EntryId)> {
        self.left.lock().expect("nobody panics").pop()
    }

    /// How many tasks ran.
    pub(crate) fn ran_in_all(&self) -> usize {
        (0..TASKS).map(|task| self.ran(task)).sum()
    }
}

impl Frontend for Ledger {
    type Key = u32;
    type Payload = usize;
    type Access = Arc<Engine<Ledger>>;

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

    fn start(task: &mut usize, deadline: Time, _: Time) -> Start {
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
    ) -> Ended<usize> {
        let ended = catch_panic(|| Self::run(engine, info, task));
        let panicked = ended.is_err();
        if let Err(message) = ended {
            Self::panicked(engine, info, &message);
        }
        let stays = (task == REPEATING).then(|| Stays {
            value: task,
            next: Some(info.deadline + PERIOD),
        });
        let left = task == LEAVING;
        if left {
            let run = Detached::new(engine, info.stripe, info.id);
            let mut runs = engine.frontend.left.lock().expect("nobody panics");
            runs.push((run, info.stripe, info.id));
        }
        Ended {
            panicked,
            stays,
            left,
        }
    }

    fn keep_back(&self, taken: &mut Vec<Taken<u32, usize>>) {
        let before = taken.len();
        taken.retain(|(_, _, task)| *task != SLEEPING);
        self.woken.fetch_add(before - taken.len(), Relaxed);
    }

    fn panicked(engine: &Arc<Engine<Ledger>>, _: &RunInfo<'_, u32>, _: &str) {
        engine.frontend.panicked.store(true, Relaxed);
    }
}

/// How to build a [`Rig`]; the default is as small as it can be.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) stripes: usize,
    pub(crate) workers: usize,
    /// Seats for more workers than those.
    pub(crate) extra: usize,
    pub(crate) backlog: usize,
    pub(crate) max_pending: Option<usize>,
    /// Expirations in a second.
    pub(crate) pace: Option<NonZeroU32>,
    pub(crate) inline: bool,
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
            stop_after: None,
        }
    }
}

impl Size {
    /// For an engine of one shard, and the hand of its clock.
    pub(crate) fn parts(&self) -> (EngineParts, ManualClock) {
        let hand = ManualClock::starting_at(at(START));
        let parts = EngineParts {
            config: Valid {
                tick: TickSize::from_nanos(1),
                shards: 1,
                stripes: self.stripes,
                workers: self.workers,
                max_workers: self.workers + self.extra,
                max_pending: self.max_pending,
                pace: self.pace,
                shutdown_limit: Duration::MAX,
                quiet: Duration::MAX,
                backlog: self.backlog,
                injector: 4,
            },
            clock: Clock::manual(&hand),
            executor_kind: if self.inline {
                ExecutorKind::Inline
            } else {
                ExecutorKind::Pool
            },
            seed: Some(0),
            stepped: false,
        };
        (parts, hand)
    }
}

/// An engine without threads, for the model's threads to share.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) server: Arc<Server<Ledger>>,
    pub(crate) hand: ManualClock,
}

impl Rig {
    /// With one shard, whose ticker's seat comes along.
    pub(crate) fn new(size: &Size) -> (Rig, TickerState) {
        Self::with(size, None)
    }

    /// One whose tasks go into a channel.
    pub(crate) fn delivering(size: &Size, sender: BoundedSender<usize>) -> (Rig, TickerState) {
        Self::with(size, Some(sender))
    }

    fn with(size: &Size, delivery: Option<BoundedSender<usize>>) -> (Rig, TickerState) {
        let (parts, hand) = size.parts();
        let ledger = Ledger {
            stop_after: size.stop_after,
            delivery,
            ..Ledger::default()
        };
        let (server, mut ticker_states) = Engine::assemble(parts, ledger);
        let ticker_state = ticker_states.pop().expect("one shard");
        (Rig { server, hand }, ticker_state)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<Ledger>> {
        self.server.engine()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.engine().frontend
    }

    // === what producers do ===

    /// Keys are spread over the stripes in turn.
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

    /// By somebody who read the clock before.
    pub(crate) fn arm_as_of(
        &self,
        now: Time,
        key: u32,
        task: usize,
        deadline: Time,
    ) -> Result<Arming<u32, usize>, Refusal> {
        let hash = hash(key);
        let mut given = Some(task);
        self.engine().arm(
            self.stripe_of(key),
            &mut given,
            |stripe, _| stripe.admit(hash, &key, false),
            |stripe, admission, task| stripe.arm(admission, hash, key, task, deadline, now),
        )
    }

    pub(crate) fn touch(&self, key: u32, deadline: Time) -> Moving {
        let now = self.engine().now();
        self.engine().with(self.stripe_of(key), |stripe| {
            stripe.reschedule(hash(key), &key, deadline, now, false)
        })
    }

    pub(crate) fn cancel(&self, key: u32) -> Cancelling<u32, usize> {
        self.engine()
            .with(self.stripe_of(key), |stripe| stripe.cancel(hash(key), &key))
    }

    pub(crate) fn get(&self, key: u32) -> Option<EntryInfo> {
        (self.engine().shards()).peek(self.stripe_of(key), |stripe| stripe.get(hash(key), &key))
    }

    // === what threads do ===

    /// A worker that sits down.
    pub(crate) fn worker(&self) -> Worker {
        self.engine().pool().take_slot().expect("a free seat")
    }

    /// A worker's thread, until the engine is stopped.
    pub(crate) fn work(&self, worker: Worker) {
        worker.run(self.server.as_ref(), self.engine().clock());
    }

    /// A worker that sat down serves what it finds, without sleeping.
    pub(crate) fn serve(&self, worker: &mut Worker) {
        while worker.step(self.server.as_ref()) {}
    }

    /// A ticker's thread, until the engine is stopped or until `done` says so.
    pub(crate) fn tick(&self, ticker_state: &mut TickerState, done: impl Fn() -> bool) {
        while !done() {
            match self.step(ticker_state) {
                TickerStep::Worked => {}
                TickerStep::SleepUntil(at) => {
                    self.engine()
                        .clock()
                        .park_until(ticker_state.parker(), Some(at));
                }
                TickerStep::Stop => return,
            }
        }
    }

    fn step(&self, ticker_state: &mut TickerState) -> TickerStep {
        self.engine()
            .ticker_step(&self.server, ticker_state, &mut |_| {})
    }

    /// When the ticker is to look at its stripes again.
    pub(crate) fn least_due(&self) -> Time {
        self.engine().shards().shard(0).least_due()
    }

    /// When a stripe has something to do, in truth.
    pub(crate) fn next_due_of(&self, stripe: usize) -> Time {
        (self.engine().shards()).peek(stripe, |stripe| stripe.next_due())
    }

    /// How many tickets nobody has claimed.
    pub(crate) fn unclaimed(&self) -> usize {
        self.engine().shards().shard(0).backlog.unclaimed()
    }

    /// How many tickets lie in queues.
    pub(crate) fn queued(&self) -> usize {
        self.engine().pool().queued_hint()
    }

    // === when all is over ===

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

    /// The counters, after a look that they balance, that what ran is what the ledger says, and
    /// that nothing ran early or panicked.
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

/// Wakes a thread that waits for a future.
struct Thread(Unparker);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future; who is never woken shows as a deadlock.
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
