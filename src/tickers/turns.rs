//! Which of the tickers of a thread takes the next step.
//!
//! Those that have work are in a queue, so each waits for one step of each other one at most. Those
//! that sleep by a clock that runs are in the order of their moments, all of them instants of the
//! system's clock. A manual clock rings for those that sleep by it.
//!
//! Most threads have one ticker that wakes, takes two steps and sleeps. So the front of the queue
//! has a place of its own, and who sleeps is in a sorted list rather than in a tree.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{TickerStep, Ticks};
use crate::clock::{Alarm, ManualClock};
use crate::sync::{Parker, Ring};
use crate::tick::Time;

/// How long a ticker pauses after a step that failed. A failure that recurs at once would burn a
/// core without it.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Turns {
    /// By number.
    tickers: Vec<Option<Served>>,
    count: usize,
    /// The number of the one that takes the next step. Without it, nobody is in the queue.
    front: Option<usize>,
    /// The numbers of those behind it that have work.
    queue: VecDeque<usize>,
    /// The moments of those that sleep by a clock that runs, and their numbers. The earliest moment
    /// is the last one.
    asleep: Vec<(Instant, usize)>,
}

struct Served {
    ticker: Box<dyn Ticks>,
    ring: Ring,
    hand: Option<ManualClock>,
    state: ServedState,
    /// What rings at a moment of a manual clock, while it waits for one.
    alarm: Option<Alarm>,
}

#[derive(Clone, Copy)]
enum ServedState {
    /// It is in the queue, or takes its step.
    HasTurn,
    /// Until this moment, or until its bell rings.
    Sleeps(Instant),
    /// Until its bell rings.
    Waits,
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            tickers: Vec::new(),
            count: 0,
            front: None,
            queue: VecDeque::new(),
            asleep: Vec::new(),
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
            alarm: None,
        };
        debug_assert!(self.tickers[number].is_none(), "numbers are unique");
        self.tickers[number] = Some(served);
        self.count += 1;
        self.again(number);
    }

    /// Takes out a ticker that has a turn and is not in the queue.
    pub(super) fn remove(&mut self, number: usize) -> Box<dyn Ticks> {
        self.count -= 1;
        self.tickers[number].take().expect(KNOWN).ticker
    }

    /// Has a ticker take its step.
    pub(super) fn step(&mut self, number: usize) -> Option<TickerStep> {
        self.tickers[number].as_mut().expect(KNOWN).ticker.step()
    }

    /// Gives a turn to a ticker. Returns whether there is one of this number.
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let Some(served) = self.tickers.get_mut(number).and_then(Option::as_mut) else {
            return false;
        };
        match std::mem::replace(&mut served.state, ServedState::HasTurn) {
            ServedState::HasTurn => return true,
            ServedState::Sleeps(at) => {
                let place = self.place((at, number));
                self.asleep.remove(place);
            }
            ServedState::Waits => served.alarm = None,
        }
        self.again(number);
        true
    }

    /// Gives a turn to the one whose moment comes first.
    pub(super) fn wake_first(&mut self) {
        if let Some((_, number)) = self.asleep.pop() {
            self.tickers[number].as_mut().expect(KNOWN).state = ServedState::HasTurn;
            self.again(number);
        }
    }

    /// Returns who takes the next step, or nobody before the first moment comes.
    pub(super) fn next(&mut self) -> Option<usize> {
        let number = self.front.take()?;
        self.front = self.queue.pop_front();
        // With nobody asleep, no clock is read. With nobody in the queue, the sleep reads it.
        if !self.asleep.is_empty() {
            let now = Instant::now();
            while self.asleep.last().is_some_and(|(at, _)| *at <= now) {
                self.wake_first();
            }
        }
        Some(number)
    }

    /// Returns the place of one that sleeps, or where it belongs.
    fn place(&self, sleeper: (Instant, usize)) -> usize {
        self.asleep.partition_point(|other| *other > sleeper)
    }

    /// Puts a ticker at the end of the queue.
    pub(super) fn again(&mut self, number: usize) {
        match self.front {
            None => self.front = Some(number),
            Some(_) => self.queue.push_back(number),
        }
    }

    /// Lets a ticker that has taken its step sleep until `at` of its own clock.
    pub(super) fn sleep(&mut self, number: usize, at: Time) {
        let served = self.tickers[number].as_mut().expect(KNOWN);
        served.state = match &served.hand {
            _ if at == Time::MAX => ServedState::Waits,
            Some(hand) => match hand.ring_at(at, &served.ring) {
                None => return self.again(number),
                alarm => {
                    served.alarm = alarm;
                    ServedState::Waits
                }
            },
            #[cfg(not(loom))]
            None => match served.ticker.clock().instant_of(at) {
                None => ServedState::Waits,
                Some(at) => return self.sleep_until(number, at),
            },
            #[cfg(loom)]
            None => unreachable!("models have manual clocks"),
        };
    }

    /// Lets a ticker whose step has failed sleep for a while, whatever its own clock shows: a manual
    /// one may stand still, and nobody rings for a ticker that has not promised when it wakes.
    #[cold]
    pub(super) fn pause(&mut self, number: usize) {
        self.sleep_until(number, Instant::now() + PAUSE);
    }

    #[inline(always)]
    fn sleep_until(&mut self, number: usize, at: Instant) {
        self.tickers[number].as_mut().expect(KNOWN).state = ServedState::Sleeps(at);
        let place = self.place((at, number));
        self.asleep.insert(place, (at, number));
    }

    /// Blocks until the first moment comes, or until the parker is unparked.
    pub(super) fn park(&self, parker: &Parker) {
        match self.asleep.last() {
            #[cfg(not(loom))]
            Some((at, _)) => parker.park_deadline(*at),
            _ => parker.park(),
        }
    }
}

const KNOWN: &str = "it has a turn, so it is here";
