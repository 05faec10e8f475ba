//! What became of each of a number of tasks: how often it ran, and how often what it captured was
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone)]
pub(crate) struct Ledger(Arc<[Line]>);

#[derive(Default)]
struct Line {
    ran: AtomicU32,
    dropped: AtomicU32,
}

/// To be captured by the task with this number.
pub(crate) struct Token {
    ledger: Ledger,
    number: usize,
}

impl Ledger {
    pub(crate) fn new(tasks: usize) -> Self {
        Ledger((0..tasks).map(|_| Line::default()).collect())
    }

    pub(crate) fn token(&self, number: usize) -> Token {
        Token {
            ledger: self.clone(),
            number,
        }
    }

    /// How often task `number` ran, and how often its token was dropped.
    pub(crate) fn of(&self, number: usize) -> (u32, u32) {
        let line = &self.0[number];
        (
            line.ran.load(Ordering::SeqCst),
            line.dropped.load(Ordering::SeqCst),
        )
    }

    /// How many runs and how many drops there were in all.
    pub(crate) fn sums(&self) -> (usize, usize) {
        (0..self.0.len())
            .map(|number| self.of(number))
            .fold((0, 0), |(ran, dropped), line| {
                (ran + line.0 as usize, dropped + line.1 as usize)
            })
    }
}

impl Token {
    pub(crate) fn run(&self) {
        self.ledger.0[self.number]
            .ran
            .fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.ledger.0[self.number]
            .dropped
            .fetch_add(1, Ordering::SeqCst);
    }
}
