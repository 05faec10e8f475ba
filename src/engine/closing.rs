//! How an engine ends.
//!
//! ```text
//! Running --begin--> Closing --finish--> Closed
//! ```
//!
//! 1. *begin*: one caller wins. All other callers learn that the engine is closed.
//! 2. Every stripe's gate is closed under its lock. An arming before the gate is accepted,
//!    and accounted for below. An arming after it is refused. **CLOSE-1** Callers that wait for the
//!    computation of a map's value are released.
//! 3. The mode decides: `HandBack` takes everything out at once. `Drain` waits until the stripes
//!    are empty. `RunNow` makes everything due, then waits.
//! 4. The timers that are left after the limit are taken out under the stripes' locks. Each timer
//!    was claimed before, and runs, or it is handed back; never both. **CLOSE-2** A task that
//!    sleeps on such a timer is woken now, since a running task may keep step 5 waiting for long.
//! 5. The engine waits, up to the limit, for running tasks and for user code outside of a run
//!    (`shard/user_code.rs`).
//! 6. *stop*: tickers and workers leave at their next check. They check after they announced their
//!    sleep, so none of them sleeps through the stop. **CLOSE-3**
//!
//! **CLOSE-5** With `HandBack`, what follows a run that ends in step 5 comes back, too: its next
//! round, or its successor. Step 4 has visited its stripe already, so the stripe keeps it. Step 6
//! counts the runs first and then takes what the stripes keep, so a run that ends in between is
//! in both, and never in neither. From then on a stripe refuses rounds. So the mode is part
//! of the state that *begin* sets: whoever closes a gate first, also a caller that did not begin
//! the shutdown, closes it in that mode.
//!
//! A closed stripe reports exactly once that it has nothing pending and nothing running; nothing
//! can fill it again. The last stripe to report wakes the waiting threads. A waiting thread
//! registers under a lock and checks afterwards. The last stripe counts first and takes the lock
//! afterwards. So either the check sees the count, or the stripe finds the registration.
//! **CLOSE-4**

use super::{Engine, Frontend, FrontendTypes};
use crate::shard::Taken;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Parker, Sleeper};
use crate::tick::Time;
use std::time::Duration;

/// The stage of a scheduler's life. It only ever advances.
///
/// # Examples
///
/// ```
/// use tourbillon::{Lifecycle, Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle();
/// assert_eq!(timers.state(), Lifecycle::Running);
/// scheduler.shutdown(Shutdown::HandBack).wait()?;
/// assert_eq!(timers.state(), Lifecycle::Closed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Lifecycle {
    /// The scheduler accepts new timers.
    Running,
    /// The scheduler accepts no new timers. Pending ones may still run.
    Closing,
    /// Nothing is pending. A task may still run if it outlasted the limit of the shutdown, or if
    /// the scheduler was dropped.
    Closed,
}

/// What happens to the pending timers when a scheduler is shut down.
///
/// In every mode:
///
/// - nothing new is accepted,
/// - the shutdown waits for running tasks, up to the builder's `shutdown_limit`,
/// - a timer either runs or is handed back, never both.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<&str>::new()?;
/// let timers = scheduler.handle();
/// timers.schedule("save", Duration::from_secs(60), |_| println!("saving"))?;
/// // Saves now instead of in a minute.
/// let report = scheduler.shutdown(Shutdown::RunNow).wait()?;
/// assert!(report.handed_back.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("drain", "graceful"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// Timers that have not started come back in the report. Of a repeating timer whose round runs
    /// meanwhile, the next round comes back, unless the round outlasts `shutdown_limit`.
    HandBack,
    /// Every pending timer still runs at its own deadline. Of a repeating timer, only the pending
    /// round runs; if that round is put off, it runs at the later time. Timers that have not
    /// started when the limit has passed are handed back.
    Drain {
        /// How long to wait for the pending timers, by the scheduler's clock. With a
        /// [`pace`](crate::SchedulerBuilder::pace) they take longer.
        limit: Duration,
    },
    /// Every pending timer runs at once, whatever its deadline. This is the only case in which a
    /// task starts early. Timers that have not started after `shutdown_limit` are handed back. A
    /// [`pace`](crate::SchedulerBuilder::pace) holds here, too, so the limit has to leave time for
    /// it.
    RunNow,
}

/// The result of a shutdown.
#[derive(Debug)]
pub(crate) struct Ending<K, V> {
    pub(crate) taken: Vec<Taken<K, V>>,
    pub(crate) still_running: usize,
}

/// The timers of an engine that had not started when a shutdown took them out.
pub(crate) type Left<F> = Vec<Taken<<F as FrontendTypes>::Key, <F as FrontendTypes>::Payload>>;

/// A shutdown that has begun.
pub(crate) struct Asked<F: FrontendTypes> {
    pub(crate) mode: Shutdown,
    pub(crate) begun: Time,
    /// Turns the ending into the report, and sends it.
    pub(crate) answer: Answer<F>,
}

type Answer<F> =
    Box<dyn FnOnce(Ending<<F as FrontendTypes>::Key, <F as FrontendTypes>::Payload>) + Send>;

/// A shutdown in steps that never wait: steps 2 to 6 for a caller that has something else to do
/// meanwhile.
pub(crate) struct WindingDown<F: FrontendTypes> {
    pub(crate) asked: Asked<F>,
    next: NextStep<F>,
}

/// What a shutdown does next.
enum NextStep<F: FrontendTypes> {
    /// Step 2, and step 3 up to its wait.
    Close,
    /// Step 4, when nothing is pending any more or this moment has come.
    Take(Time),
    /// Step 6, when nothing runs any more or this moment has come.
    Stop(Time, Left<F>),
}

/// The result of a step.
pub(crate) enum StepTaken<F: FrontendTypes> {
    Goes,
    /// It was the last one.
    Ended(Ending<F::Key, F::Payload>),
}

impl<F: Frontend> WindingDown<F> {
    pub(crate) fn new(asked: Asked<F>) -> Self {
        WindingDown {
            asked,
            next: NextStep::Close,
        }
    }

    /// Returns until when the next step waits at most; `None` if it need not wait.
    pub(crate) fn waits_until(&self, engine: &Engine<F>) -> Option<Time> {
        let (NextStep::Take(limit) | NextStep::Stop(limit, _)) = self.next else {
            return None;
        };
        (!engine.is_over() && engine.now() < limit).then_some(limit)
    }

    /// Takes the next step, whether or not it should wait.
    pub(crate) fn advance(&mut self, engine: &Engine<F>) -> StepTaken<F> {
        let (mode, begun) = (self.asked.mode, self.asked.begun);
        // The last step leaves the first one behind. Nobody takes it.
        self.next = match std::mem::replace(&mut self.next, NextStep::Close) {
            NextStep::Close => NextStep::Take(engine.close_and_make_due(mode, begun)),
            NextStep::Take(_) => {
                let (taken, limit) = engine.take_what_is_left();
                NextStep::Stop(limit, taken)
            }
            NextStep::Stop(_, taken) => return StepTaken::Ended(engine.stop_and_count(taken)),
        };
        StepTaken::Goes
    }
}

/// The progress of a shutdown.
#[derive(Debug)]
pub(crate) struct ClosingState {
    state: AtomicUsize,
    stopped: AtomicBool,
    /// When the shutdown began, in nanoseconds of the clock; all ones before it is noted.
    begun: AtomicU64,
    /// The number of stripes that have not reported to be empty.
    busy_stripes: AtomicUsize,
    /// The threads and tickers that wait for the shutdown.
    waiters: Mutex<Vec<Sleeper>>,
}

const RUNNING: usize = 0;
const CLOSING: usize = 1;
/// Closing, and what follows a run is handed back.
const HANDING_BACK: usize = 2;
const CLOSED: usize = 3;

impl ClosingState {
    pub(crate) fn new(stripes: usize) -> Self {
        ClosingState {
            state: AtomicUsize::new(RUNNING),
            stopped: AtomicBool::new(false),
            begun: AtomicU64::new(u64::MAX),
            busy_stripes: AtomicUsize::new(stripes),
            waiters: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn state(&self) -> Lifecycle {
        // Acquire pairs with the Release halves below: a reader of Closed sees everything before
        // it.
        match self.state.load(Ordering::Acquire) {
            RUNNING => Lifecycle::Running,
            CLOSING | HANDING_BACK => Lifecycle::Closing,
            _ => Lifecycle::Closed,
        }
    }

    /// Begins the shutdown. Returns whether the caller is the one that began it. `hands_back` says
    /// whether what follows a run is kept for the report (CLOSE-5).
    pub(crate) fn begin(&self, hands_back: bool) -> bool {
        let closing = if hands_back { HANDING_BACK } else { CLOSING };
        // AcqRel: pairs with `state`. A caller that comes too late sees the mode, too.
        self.state
            .compare_exchange(RUNNING, closing, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns whether what follows a run is kept for the report.
    fn hands_back(&self) -> bool {
        // Acquire: as in `state`.
        self.state.load(Ordering::Acquire) == HANDING_BACK
    }

    /// Notes when the shutdown began, for people.
    pub(crate) fn began_at(&self, begun: Time) {
        // Relaxed: nothing is decided by it.
        self.begun.store(begun.as_nanos(), Ordering::Relaxed);
    }

    /// Returns when the shutdown began, once that is noted.
    pub(crate) fn begun(&self) -> Option<Time> {
        // Relaxed: as above.
        let begun = Time::from_nanos(self.begun.load(Ordering::Relaxed));
        (begun != Time::MAX).then_some(begun)
    }

    /// Ends the shutdown.
    pub(crate) fn finish(&self) {
        // Release pairs with the Acquire in `state`.
        self.state.store(CLOSED, Ordering::Release);
    }

    /// CLOSE-3: raises the stop flag. This must come before the bells are rung and the sleepers are
    /// woken, whose fences order it.
    fn stop(&self) {
        // Release pairs with the Acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Counts an empty stripe and wakes the waiting threads after the last one. Returns whether it
    /// was the last one. CLOSE-4: this counts first and takes the lock afterwards.
    pub(crate) fn stripe_emptied(&self) -> bool {
        // AcqRel: the last stripe sees everything that all others did before.
        let before = self.busy_stripes.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a stripe reports once");
        let last = before == 1;
        if last {
            self.wake_waiters();
        }
        last
    }

    /// Makes those that wait for the shutdown check again. They stay registered, since user
    /// code that follows the last run wakes them once more.
    pub(super) fn wake_waiters(&self) {
        for waiter in &*self.waiters.lock() {
            waiter.wake();
        }
    }

    /// Returns whether every stripe has reported to be empty.
    pub(crate) fn is_quiet(&self) -> bool {
        // Acquire pairs with the AcqRel in `stripe_emptied`.
        self.busy_stripes.load(Ordering::Acquire) == 0
    }

    /// CLOSE-4: registers a thread or a ticker to be woken. It must check after this call.
    pub(crate) fn wake_when_quiet(&self, sleeper: Sleeper) {
        self.waiters.lock().push(sleeper);
    }
}

/// The number of armings taken out under one hold of a lock.
const TAKEN_PER_HOLD: usize = 256;

impl<F: Frontend> Engine<F> {
    /// Does steps 2 to 6 for the caller that began at `begun`. The limit of a drain counts from
    /// `begun`. `wait` waits until the engine is quiet or the given moment has come.
    pub(crate) fn wind_down(
        &self,
        mode: Shutdown,
        begun: Time,
        wait: &mut dyn FnMut(Time),
    ) -> Ending<F::Key, F::Payload> {
        let limit = self.close_and_make_due(mode, begun);
        if mode != Shutdown::HandBack {
            wait(limit);
        }
        let (taken, limit) = self.take_what_is_left();
        wait(limit);
        self.stop_and_count(taken)
    }

    /// Does step 2, and step 3 up to its wait. Returns the limit of that wait, which has passed if
    /// nothing waits.
    pub(crate) fn close_and_make_due(&self, mode: Shutdown, begun: Time) -> Time {
        // From here on the set of pending timers only shrinks.
        self.close_gates();
        match mode {
            Shutdown::HandBack => begun,
            Shutdown::Drain { limit } => begun + limit,
            Shutdown::RunNow => {
                self.make_all_due();
                self.now() + self.shutdown_limit
            }
        }
    }

    /// Does step 4, and step 5 up to its wait. Returns what had not started, and the limit of that
    /// wait.
    pub(crate) fn take_what_is_left(&self) -> (Left<F>, Time) {
        // Sleeping tasks are woken before step 5, which may wait long for a running task.
        let mut taken = self.take_pending(true);
        self.frontend.keep_back(&mut taken, true);
        // Nothing is pending any more, so a batch that is handed over from here on stands for
        // nothing (USER-3), and the wait also covers user code outside of runs.
        for shard in 0..self.shards().shards() {
            self.shards().shard(shard).user_code.end();
        }
        (taken, self.now() + self.shutdown_limit)
    }

    /// Does step 6.
    pub(crate) fn stop_and_count(&self, mut taken: Left<F>) -> Ending<F::Key, F::Payload> {
        // The count comes first: it says which tasks outlasted the limit (CLOSE-5).
        let still_running = self.still_running();
        let mut kept = Vec::new();
        for stripe in 0..self.shards().stripes() {
            self.with(stripe, |stripe| stripe.take_kept(&mut kept));
        }
        self.frontend.keep_back(&mut kept, true);
        taken.append(&mut kept);
        self.stop();
        Ending {
            taken,
            still_running,
        }
    }

    /// Does step 2: closes every stripe's gate.
    pub(crate) fn close_gates(&self) {
        let hands_back = self.closing().hands_back();
        for stripe in 0..self.shards().stripes() {
            self.with(stripe, |stripe| {
                stripe.close(hands_back);
            });
        }
        self.frontend.closing();
    }

    /// Does step 3 of `RunNow`: makes every pending timer due.
    pub(crate) fn make_all_due(&self) {
        let now = self.now();
        for stripe in 0..self.shards().stripes() {
            self.with(stripe, |stripe| stripe.make_all_due(now));
        }
    }

    /// Does steps 3 and 4: takes the pending timers out and counts them as handed back or as
    /// cancelled.
    pub(crate) fn take_pending(&self, handed_back: bool) -> Vec<Taken<F::Key, F::Payload>> {
        let mut all = Vec::new();
        // Appended to `all` outside the lock, since growing a long vector takes long.
        let mut portion = Vec::with_capacity(TAKEN_PER_HOLD);
        for stripe in 0..self.shards().stripes() {
            let mut next = Some(0);
            while let Some(from) = next {
                next = self.with(stripe, |stripe| {
                    stripe.take_pending(from, TAKEN_PER_HOLD, handed_back, &mut portion)
                });
                all.append(&mut portion);
            }
        }
        all
    }

    /// Waits until no stripe has anything pending or running, or until `limit`. From step 5 on it
    /// also waits until no thread is in user code outside of a run. Returns whether that was
    /// reached.
    pub(crate) fn wait_until_quiet(&self, limit: Time) -> bool {
        let parker = Parker::new();
        self.closing()
            .wake_when_quiet(Sleeper::Thread(parker.unparker().clone()));
        while !self.is_over() {
            if self.now() >= limit {
                return false;
            }
            self.clock().park_until(&parker, Some(limit));
        }
        true
    }

    /// Returns whether nothing is left to wait for. The stripes are checked first: a thread that
    /// finds the last run completed also finds the user code that follows it counted.
    pub(crate) fn is_over(&self) -> bool {
        self.closing().is_quiet()
            && (0..self.shards().shards())
                .all(|shard| self.shards().shard(shard).user_code.is_over())
    }

    /// Does step 6: raises the stop flag, then wakes all tickers and workers.
    pub(crate) fn stop(&self) {
        self.closing().stop();
        for shard in 0..self.shards().shards() {
            self.shards().shard(shard).bell.ring_for(Time::ZERO);
        }
        if self.shares_workers {
            self.pool().close();
        } else {
            self.pool().stop();
        }
        self.limits.close();
    }

    /// Counts the threads in user code: those in a run and those that follow one. If there are
    /// none, it counts the threads in an executor that was handed a batch.
    ///
    /// A thread that completes its run between the two reads would be counted twice. So this reads
    /// again until nothing has changed in between. That ends soon, since no run begins any more.
    pub(crate) fn still_running(&self) -> usize {
        loop {
            let outside = self.outside();
            let running = self.running();
            if self.outside() != outside {
                continue;
            }
            // An executor may run its batch inside the call. Then those runs are counted already.
            return match running + outside.after_runs {
                0 => outside.hand_overs,
                count => count,
            };
        }
    }

    /// Counts the runs that have not been completed.
    pub(crate) fn running(&self) -> usize {
        (0..self.shards().stripes())
            .map(|stripe| self.shards().peek(stripe, |stripe| stripe.running()))
            .sum()
    }
}
