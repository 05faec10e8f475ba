//! The threads of tickers. One thread serves any number of tickers, of any clocks.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the thread: who comes, who is rung, when it sleeps, how it ends |
//! | `turns.rs` | which ticker takes the next step |
//!
//! A ticker does its work in steps that never block. The thread gives each ticker that has work one
//! step in turn. A ticker that sleeps has its turn when its moment comes, or when its bell is rung.
//!
//! ```text
//! somebody else                            thread
//!  publish; ring: note the number           nobody has a turn: park until the first moment
//!            (BELL-1), unpark               take the numbers that were rung
//! ```
//!
//! It also takes the numbers after each step: those who were rung go before a ticker that has more
//! work, and a thread that never parks hears its bell, too.
//!
//! - **TICKERS-1** A ticker is left under the lock before anybody has its ring, and counts as asleep
//!   for ever. The thread looks for new tickers when it takes a number that it does not know, or when
//!   it has no tickers. So to build an engine wakes no thread.
//! - **TICKERS-2** The thread ends when it has no tickers, nobody has come, and nobody will come.
//!   It asks for both under one lock, and whoever says that nobody will come unparks it afterwards.
//! - **TICKERS-3** A number is used again after its ticker has stopped. A late ring then gives
//!   another ticker a turn in vain.

mod turns;

#[cfg(all(test, not(loom)))]
mod tests;

use turns::Turns;

use crate::clock::Clock;
use crate::sync::{Arc, Bell, Mutex, Parker, Ring};
use crate::tick::Time;

/// The next action of a ticker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TickerStep {
    /// Take another step at once: there may be more work.
    Worked,
    /// Sleep until this moment of its clock, unless the bell rings earlier.
    SleepUntil(Time),
    Stop,
}

/// What a thread of tickers serves.
pub(crate) trait Ticks: Send {
    /// The clock of the moments at which it wakes. It is always the same.
    fn clock(&self) -> &Clock;

    /// Takes a step. It must neither block nor panic. In a forked copy of the process in which it
    /// was made, the step is [`TickerStep::Stop`]. `None` if the step has failed: then the next one
    /// is due after a pause.
    fn step(&mut self) -> Option<TickerStep>;

    /// Drops it after its last step. Must not panic.
    fn stop(self: Box<Self>);

    /// Whether this process is a forked copy of the one in which it was made.
    fn is_forked(&self) -> bool;
}

/// A thread of tickers, for those that have tickers for it.
#[derive(Debug)]
pub(crate) struct TickerThread {
    bell: Arc<Bell>,
    arrivals: Mutex<Arrivals>,
}

/// Those who come to a thread.
#[derive(Default)]
struct Arrivals {
    new: Vec<(Ring, Box<dyn Ticks>)>,
    /// Numbers that nobody has any more.
    free: Vec<usize>,
    /// The least number that nobody had yet.
    unused: usize,
    /// Nobody will come any more.
    ended: bool,
}

/// What the thread itself runs.
pub(crate) struct TickerLoop {
    thread: Arc<TickerThread>,
    parker: Parker,
    turns: Turns,
    /// Numbers that were rung. It is empty between two looks.
    rung: Vec<usize>,
}

impl TickerThread {
    /// Returns the loop that a new thread is to run.
    pub(crate) fn new() -> (Arc<Self>, TickerLoop) {
        let parker = Parker::new();
        let thread = Arc::new(TickerThread {
            bell: Arc::new(Bell::new(parker.unparker().clone())),
            arrivals: Mutex::new(Arrivals::default()),
        });
        let ticker_loop = TickerLoop {
            thread: Arc::clone(&thread),
            parker,
            turns: Turns::new(),
            rung: Vec::new(),
        };
        (thread, ticker_loop)
    }

    /// Adds the ticker that `make` returns. It is given the ring that wakes the ticker. Nothing wakes
    /// it now: a ticker that is made has nothing to do.
    pub(crate) fn add(&self, make: impl FnOnce(Ring) -> Box<dyn Ticks>) {
        let number = {
            let mut arrivals = self.arrivals.lock();
            arrivals.free.pop().unwrap_or_else(|| {
                arrivals.unused += 1;
                arrivals.unused - 1
            })
        };
        let ring = Ring::new(&self.bell, number);
        let ticker = make(ring.clone());
        self.arrivals.lock().new.push((ring, ticker));
    }

    /// Has the thread end when all its tickers have stopped. Nobody may be added after this.
    pub(crate) fn end(&self) {
        // TICKERS-2: in this order.
        self.arrivals.lock().ended = true;
        self.bell.wake();
    }
}

impl TickerLoop {
    /// Serves the tickers until there are none and none will come. In a forked copy of the process
    /// it returns after the step that forked.
    pub(crate) fn run(mut self) {
        loop {
            let ends = match self.turns.next() {
                Some(number) => self.step(number),
                None => self.wait(),
            };
            if ends {
                return;
            }
        }
    }

    /// Waits until somebody may have a turn. Returns whether the thread ends.
    fn wait(&mut self) -> bool {
        if self.turns.is_empty() {
            let ends = self.have_come();
            if ends || !self.turns.is_empty() {
                return ends;
            }
        }
        self.turns.park(&self.parker);
        if !self.look_at_bell() {
            // Most likely the first moment has come. If not, its ticker says so, and nobody has
            // read a clock for it.
            self.turns.wake_first();
        }
        false
    }

    /// Gives a turn to those who were rung, and to those who have come. Returns whether anybody rang.
    fn look_at_bell(&mut self) -> bool {
        let any = self.thread.bell.take(&mut self.rung);
        if any {
            self.wake_rung();
        }
        any
    }

    #[cold]
    fn wake_rung(&mut self) {
        let mut unknown = false;
        for &number in &self.rung {
            unknown |= !self.turns.wake(number);
        }
        self.rung.clear();
        if unknown {
            self.have_come();
        }
    }

    /// Takes in who has come. Returns whether nobody has, and nobody will.
    fn have_come(&mut self) -> bool {
        let mut arrivals = self.thread.arrivals.lock();
        for (ring, ticker) in arrivals.new.drain(..) {
            self.turns.add(ring, ticker);
        }
        self.turns.is_empty() && arrivals.ended
    }

    /// Gives a ticker its step. Returns whether the process is a forked copy now.
    fn step(&mut self, number: usize) -> bool {
        let Some(step) = self.turns.step(number) else {
            self.turns.pause(number);
            self.look_at_bell();
            return false;
        };
        match step {
            TickerStep::Worked => {
                // Those who were rung or have come during the step go first.
                self.look_at_bell();
                self.turns.again(number);
            }
            TickerStep::SleepUntil(at) => {
                // In this order: a ring for this ticker wakes it only if it sleeps.
                self.turns.sleep(number, at);
                self.look_at_bell();
            }
            TickerStep::Stop => {
                let ticker = self.turns.remove(number);
                if ticker.is_forked() {
                    return true;
                }
                ticker.stop();
                self.thread.arrivals.lock().free.push(number);
                self.look_at_bell();
            }
        }
        false
    }
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}
