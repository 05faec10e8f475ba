//! A shutdown that got no thread of its own, because the system refused one.
//!
//! Its work is left in one place. The tickers look there after each of their steps, and so does a
//! thread that waits for the report. Whoever finds that the next step need not wait takes the work
//! out, takes that step, and puts the work back. So the shutdown goes on while nobody waits for it,
//! and a thread that waits does not depend on tickers: with inline execution, or in the call of a
//! foreign executor, a ticker may be in user code for long.
//!
//! - **THREADLESS-1** Whoever takes a step has taken the work out under the lock, and takes the
//!   step without the lock, since it may call wakers. So each step is taken exactly once. Whoever
//!   takes the last step sends the report. A thread that waits joins the other threads before
//!   that. A ticker does not: its own thread may serve other engines.
//! - **THREADLESS-2** Nobody sleeps through a step that need not wait. The work is left before the
//!   bells ring, and a ticker looks for it after its promise. A thread is registered to be woken
//!   (CLOSE-4) before it looks. It sleeps until the limit that it has read, or, while the work is
//!   taken, until the one that has the work puts it back and wakes all that are registered.

use super::closing::{Asked, Ending, StepTaken, WindingDown};
use super::{Engine, Frontend, FrontendTypes, TickerState};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Parker, Sleeper};
use crate::tick::Time;

/// The place where such a shutdown is left.
pub(crate) struct Threadless<F: FrontendTypes> {
    is_left: AtomicBool,
    work: Mutex<Work<F>>,
}

enum Work<F: FrontendTypes> {
    /// Nothing was left here, or the last step is taken.
    None,
    Left(WindingDown<F>),
    /// Somebody takes a step.
    Taken,
}

/// What a thread finds that looks for a shutdown without a thread.
pub(crate) enum Attended<F: FrontendTypes> {
    /// There is none, or somebody else has taken its last step.
    Nothing,
    /// Look again at this moment, or when woken.
    LookAgain(Time),
    /// The calling thread has taken the last step, and must conclude the shutdown.
    Last(Concluding<F>),
}

/// A shutdown after its last step.
pub(crate) struct Concluding<F: FrontendTypes> {
    pub(crate) asked: Asked<F>,
    pub(crate) ending: Ending<F::Key, F::Payload>,
}

impl<F: FrontendTypes> Threadless<F> {
    pub(super) fn new() -> Self {
        Threadless {
            is_left: AtomicBool::new(false),
            work: Mutex::new(Work::None),
        }
    }
}

impl<F: Frontend> Engine<F> {
    /// Leaves a shutdown to the tickers, and to a thread that waits for its report.
    pub(crate) fn leave_to_tickers(&self, asked: Asked<F>) {
        *self.threadless.work.lock() = Work::Left(WindingDown::new(asked));
        // Release pairs with the Acquire in `attend`.
        self.threadless.is_left.store(true, Ordering::Release);
        // THREADLESS-2: last.
        for shard in 0..self.shards().shards() {
            self.shards().shard(shard).bell.ring_for(Time::ZERO);
        }
    }

    /// Looks for such a shutdown, and takes its steps as far as they need not wait. A ticker calls
    /// this after each of its steps.
    pub(crate) fn attend_as_ticker(&self, ticker_state: &mut TickerState) -> Attended<F> {
        // Acquire pairs with the Release in `leave_to_tickers`.
        if !self.threadless.is_left.load(Ordering::Acquire) {
            return Attended::Nothing;
        }
        let bell = &self.shards().shard(ticker_state.shard()).bell;
        if ticker_state.registers()
            && let Some(ring) = bell.ring()
        {
            self.closing()
                .wake_when_quiet(Sleeper::Ticker(ring.clone()));
        }
        self.attend()
    }

    /// Takes the steps of such a shutdown until nothing of it is left. Returns the shutdown if the
    /// calling thread has to conclude it. Blocks while the steps have to wait.
    pub(crate) fn attend_to_the_end(&self) -> Option<Concluding<F>> {
        // Acquire: as above.
        if !self.threadless.is_left.load(Ordering::Acquire) {
            return None;
        }
        let parker = Parker::new();
        self.closing()
            .wake_when_quiet(Sleeper::Thread(parker.unparker().clone()));
        loop {
            match self.attend() {
                Attended::Nothing => return None,
                Attended::LookAgain(at) => self.clock().park_until(&parker, Some(at)),
                Attended::Last(concluding) => return Some(concluding),
            }
        }
    }

    fn attend(&self) -> Attended<F> {
        loop {
            let mut winding_down = {
                let mut work = self.threadless.work.lock();
                if let Work::Left(winding_down) = &*work
                    && let Some(limit) = winding_down.waits_until(self)
                {
                    return Attended::LookAgain(limit);
                }
                match std::mem::replace(&mut *work, Work::Taken) {
                    Work::Left(winding_down) => winding_down,
                    Work::Taken => return Attended::LookAgain(Time::MAX),
                    Work::None => {
                        *work = Work::None;
                        return Attended::Nothing;
                    }
                }
            };
            // THREADLESS-1: without the lock.
            let (left, concluding) = match winding_down.advance(self) {
                StepTaken::Goes => (Work::Left(winding_down), None),
                StepTaken::Ended(ending) => {
                    let asked = winding_down.asked;
                    (Work::None, Some(Concluding { asked, ending }))
                }
            };
            *self.threadless.work.lock() = left;
            // THREADLESS-2: others found the work taken.
            self.closing().wake_waiters();
            if let Some(concluding) = concluding {
                return Attended::Last(concluding);
            }
        }
    }
}

impl<F: FrontendTypes> std::fmt::Debug for Threadless<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threadless").finish_non_exhaustive()
    }
}
