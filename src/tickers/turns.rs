//! Which of the tickers of a thread takes the next step.
//!
//! Those that have work are in a queue, so each waits for one step of each other one at most. Those
//! that sleep by a clock that runs are in the order of their moments, all counted by the clock of
//! the thread. A manual clock rings for those that sleep by it.

use std::collections::{BTreeSet, VecDeque};

use super::Ticks;
#[cfg(not(loom))]
use crate::clock::Clock;
use crate::clock::{Alarm, ManualClock};
use crate::sync::{Parker, Ring};
use crate::tick::Time;

pub(super) struct Turns {
    #[cfg(not(loom))]
    clock: Clock,
    /// By number.
    tickers: Vec<Option<Served>>,
    count: usize,
    /// The numbers of those that have work.
    queue: VecDeque<usize>,
    /// The moments of those that sleep by a clock that runs, and their numbers.
    asleep: BTreeSet<(Time, usize)>,
}

struct Served {
    ticker: Box<dyn Ticks>,
    ring: Ring,
    hand: Option<ManualClock>,
    state: ServedState,
}

enum ServedState {
    /// It is in the queue, or takes its step.
    HasTurn,
    /// Until this moment of the thread's clock, or until its bell rings.
    Sleeps(Time),
    /// Until its bell rings; with a moment of a manual clock at which that happens.
    Waits(Option<Alarm>),
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            #[cfg(not(loom))]
            clock: Clock::system(),
            tickers: Vec::new(),
            count: 0,
            queue: VecDeque::new(),
            asleep: BTreeSet::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a ticker, and gives it a turn.
    pub(super) fn add(&mut self, ring: Ring, ticker: Box<dyn Ticks>) {
        let number = ring.number();
        if self.tickers.len() <= number {
            self.tickers.resize_with(number + 1, || None);
        }
        let served = Served {
            hand: ticker.clock().as_manual(),
            ticker,
            ring,
            state: ServedState::HasTurn,
        };
        debug_assert!(self.tickers[number].is_none(), "numbers are unique");
        self.tickers[number] = Some(served);
        self.count += 1;
        self.queue.push_back(number);
    }

    /// Takes out a ticker that has a turn and is not in the queue.
    pub(super) fn remove(&mut self, number: usize) -> Box<dyn Ticks> {
        self.count -= 1;
        self.tickers[number].take().expect(KNOWN).ticker
    }

    pub(super) fn ticker(&mut self, number: usize) -> &mut dyn Ticks {
        self.tickers[number].as_mut().expect(KNOWN).ticker.as_mut()
    }

    /// Gives a turn to a ticker. Returns whether there is one of this number.
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let Some(served) = self.tickers.get_mut(number).and_then(Option::as_mut) else {
            return false;
        };
        match std::mem::replace(&mut served.state, ServedState::HasTurn) {
            ServedState::HasTurn => return true,
            ServedState::Sleeps(at) => {
                self.asleep.remove(&(at, number));
            }
            ServedState::Waits(alarm) => drop(alarm),
        }
        self.queue.push_back(number);
        true
    }

    /// Gives a turn to the one whose moment comes first.
    pub(super) fn wake_first(&mut self) {
        if let Some(&(_, number)) = self.asleep.first() {
            self.wake(number);
        }
    }

    /// Returns who takes the next step, or nobody before the first moment comes.
    pub(super) fn next(&mut self) -> Option<usize> {
        let number = self.queue.pop_front()?;
        // With nobody asleep, no clock is read. With nobody in the queue, the sleep reads it.
        #[cfg(not(loom))]
        if !self.asleep.is_empty() {
            let now = self.clock.now();
            while self.asleep.first().is_some_and(|(at, _)| *at <= now) {
                self.wake_first();
            }
        }
        Some(number)
    }

    /// Puts a ticker that has taken its step at the end of the queue.
    pub(super) fn again(&mut self, number: usize) {
        self.queue.push_back(number);
    }

    /// Lets a ticker that has taken its step sleep until `at` of its own clock.
    pub(super) fn sleep(&mut self, number: usize, at: Time) {
        let served = self.tickers[number].as_mut().expect(KNOWN);
        served.state = match &served.hand {
            _ if at == Time::MAX => ServedState::Waits(None),
            Some(hand) => match hand.ring_at(at, &served.ring) {
                None => return self.again(number),
                alarm => ServedState::Waits(alarm),
            },
            #[cfg(not(loom))]
            None => {
                let at = self.clock.when(served.ticker.clock(), at);
                self.asleep.insert((at, number));
                ServedState::Sleeps(at)
            }
            #[cfg(loom)]
            None => unreachable!("models have manual clocks"),
        };
    }

    /// Blocks until the first moment comes, or until the parker is unparked.
    pub(super) fn park(&self, parker: &Parker) {
        match self.asleep.first() {
            #[cfg(not(loom))]
            Some((at, _)) => self.clock.park_until(parker, Some(*at)),
            _ => parker.park(),
        }
    }
}

const KNOWN: &str = "it has a turn, so it is here";
