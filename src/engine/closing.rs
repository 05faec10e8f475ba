//! How an engine ends.
//!
//! ```text
//! Running --begin--> Closing --finish--> Closed
//! ```
//!
//! 1. *begin*: one caller wins; all others are told that it is closed.
//! 2. Every stripe's gate is closed under its lock. An arming is before the gate (accepted, and
//!    accounted for below) or after it (refused). **CLOSE-1**
//! 3. By mode: `HandBack` takes everything out at once; `Drain` waits until the stripes are empty;
//!    `RunNow` makes everything due, then waits.
//! 4. What is left after the limit is taken out under the stripes' locks: it was claimed before,
//!    and runs, or is handed back: never both. **CLOSE-2** Whoever sleeps on a timer that was taken
//!    out is woken now: a task that is still running may keep step 5 waiting for long.
//! 5. Running tasks are waited for, and so is user code outside of a run (`shard/user_code.rs`),
//!    up to the limit.
//! 6. *stop*: tickers and workers leave at their next look; they look after they announced their
//!    sleep, so none sleeps through it. **CLOSE-3**
//!
//! A closed stripe without pending and running armings reports once that it is empty; nothing can
//! fill it again. The last one wakes who waits: it registers under a lock and looks afterwards, the
//! last stripe counts first and takes the lock afterwards. **CLOSE-4**

use super::{Engine, Face};
use crate::shard::Taken;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, Parker, Unparker};
use crate::tick::Time;
use std::time::Duration;

/// How far a scheduler's life has come. Only ever goes on, never back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lifecycle {
    /// Accepts new timers.
    Running,
    /// Accepts none; what is pending may still run.
    Closing,
    /// Nothing is pending, and nothing runs but what outlasted the limit.
    Closed,
}

/// What happens to the timers that are pending when a scheduler is shut down.
///
/// In every mode nothing new is accepted, running tasks are waited for (up to the builder's
/// `shutdown_limit`), and a timer either runs or is handed back, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// What has not started comes back in the report.
    HandBack,
    /// Every pending timer still runs at its own deadline; of one that repeats, the round that is
    /// pending, or the one that it is put off to. What has not started when the limit has
    /// passed is handed back.
    Drain {
        /// How long to wait for the pending ones, by the scheduler's clock. With a
        /// [`pace`](crate::Builder::pace) they take longer.
        limit: Duration,
    },
    /// Every pending timer runs at once, whatever its deadline: the one case where a task starts
    /// early. What has not started after `shutdown_limit` is handed back. A
    /// [`pace`](crate::Builder::pace) holds here, too: leave it the time.
    RunNow,
}

/// What an engine's end left.
#[derive(Debug)]
pub(crate) struct Ending<K, V> {
    pub(crate) taken: Vec<Taken<K, V>>,
    pub(crate) still_running: usize,
}

/// The engine's progress to its end.
#[derive(Debug)]
pub(crate) struct Closing {
    state: AtomicUsize,
    stopped: AtomicBool,
    /// Stripes that have not reported to be empty.
    busy_stripes: AtomicUsize,
    waiters: Mutex<Vec<Unparker>>,
}

const RUNNING: usize = 0;
const CLOSING: usize = 1;
const CLOSED: usize = 2;

impl Closing {
    pub(crate) fn new(stripes: usize) -> Self {
        Closing {
            state: AtomicUsize::new(RUNNING),
            stopped: AtomicBool::new(false),
            busy_stripes: AtomicUsize::new(stripes),
            waiters: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn state(&self) -> Lifecycle {
        // Acquire pairs with the Release halves below: who sees Closed sees what led to it.
        match self.state.load(Ordering::Acquire) {
            RUNNING => Lifecycle::Running,
            CLOSING => Lifecycle::Closing,
            _ => Lifecycle::Closed,
        }
    }

    /// Whether the caller is the one who closes.
    pub(crate) fn begin(&self) -> bool {
        // AcqRel: pairs with `state`.
        self.state
            .compare_exchange(RUNNING, CLOSING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(crate) fn finish(&self) {
        // Release pairs with the Acquire in `state`.
        self.state.store(CLOSED, Ordering::Release);
    }

    /// CLOSE-3: set before the bells are rung and the sleepers woken, whose fences order it.
    fn stop(&self) {
        // Release pairs with the Acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// CLOSE-4: counts first, takes the lock afterwards. Whether it was the last one.
    pub(crate) fn stripe_emptied(&self) -> bool {
        // AcqRel: the last one has seen what all did before.
        let last = self.busy_stripes.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.wake_waiters();
        }
        last
    }

    /// Those who wait for the end look again. They stay registered: user code that follows the last
    /// run wakes them once more.
    pub(super) fn wake_waiters(&self) {
        for waiter in &*self.waiters.lock() {
            waiter.unpark();
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        // Acquire pairs with the AcqRel in `stripe_emptied`.
        self.busy_stripes.load(Ordering::Acquire) == 0
    }

    /// CLOSE-4: registers. Whoever calls this looks afterwards.
    pub(crate) fn wake_when_quiet(&self, parker: &Parker) {
        self.waiters.lock().push(parker.unparker().clone());
    }
}

/// So many armings are taken out under one hold of a lock.
const TAKEN_PER_HOLD: usize = 256;

impl<F: Face> Engine<F> {
    /// Steps 2 to 6, for the caller who began, at the moment `begun`, from which the limit of a
    /// drain counts. `wait` waits until the engine is quiet or the moment has come.
    pub(crate) fn wind_down(
        &self,
        mode: Shutdown,
        begun: Time,
        wait: &mut dyn FnMut(Time),
    ) -> Ending<F::Key, F::Payload> {
        self.close_gates();
        match mode {
            Shutdown::HandBack => {}
            Shutdown::Drain { limit } => wait(begun + limit),
            Shutdown::RunNow => {
                self.make_all_due();
                wait(self.now() + self.shutdown_limit);
            }
        }
        let mut taken = self.take_pending(true);
        self.face.keep_back(&mut taken);
        for shard in 0..self.shards().shards() {
            self.shards().shard(shard).user_code.end();
        }
        wait(self.now() + self.shutdown_limit);
        let still_running = self.still_running();
        self.stop();
        Ending {
            taken,
            still_running,
        }
    }

    /// Step 2.
    pub(crate) fn close_gates(&self) {
        for stripe in 0..self.shards().stripes() {
            self.with(stripe, |stripe| {
                stripe.close();
            });
        }
    }

    /// Step 3 of `RunNow`.
    pub(crate) fn make_all_due(&self) {
        let now = self.now();
        for stripe in 0..self.shards().stripes() {
            self.with(stripe, |stripe| stripe.make_all_due(now));
        }
    }

    /// Steps 3 and 4: takes out what is pending, counted as handed back or as cancelled.
    pub(crate) fn take_pending(&self, handed_back: bool) -> Vec<Taken<F::Key, F::Payload>> {
        let mut all = Vec::new();
        // Appended outside the lock, since a long vector takes long to grow.
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

    /// Waits until no stripe has anything pending or running, or until `limit`. From step 5 on also
    /// until no thread is in user code.
    pub(crate) fn wait_until_quiet(&self, limit: Time) -> bool {
        let parker = Parker::new();
        self.closing().wake_when_quiet(&parker);
        while !self.is_over() {
            if self.now() >= limit {
                return false;
            }
            self.clock().park_until(&parker, Some(limit));
        }
        true
    }

    /// The stripes first: whoever finds the last run settled finds what follows it counted.
    pub(crate) fn is_over(&self) -> bool {
        self.closing().is_quiet()
            && (0..self.shards().shards())
                .all(|shard| self.shards().shard(shard).user_code.is_over())
    }

    /// Step 6.
    pub(crate) fn stop(&self) {
        self.closing().stop();
        for shard in 0..self.shards().shards() {
            self.shards().shard(shard).bell.ring_for(Time::ZERO);
        }
        self.pool().stop();
    }

    /// How many threads are in user code: in a run, behind one, or, if there is neither, in an
    /// executor that was handed a batch.
    ///
    /// A thread that ends its run between the two looks would be counted twice. So this looks until
    /// nothing has changed meanwhile, which is soon: no run begins any more.
    pub(crate) fn still_running(&self) -> usize {
        loop {
            let outside = self.outside();
            let running = self.running();
            if self.outside() != outside {
                continue;
            }
            // An executor may run its batch in the call, and then the runs are counted already.
            return match running + outside.after_runs {
                0 => outside.hand_overs,
                count => count,
            };
        }
    }

    /// How many runs have not been settled.
    pub(crate) fn running(&self) -> usize {
        (0..self.shards().stripes())
            .map(|stripe| self.shards().peek(stripe, |stripe| stripe.running()))
            .sum()
    }
}
