//! Counts, for each of a number of tasks, how often the task ran and how often its captures were
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The counts of all tasks. Clones share them.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<[Line]>);

#[derive(Default, Debug)]
struct Line {
    ran: AtomicU32,
    dropped: AtomicU32,
}

/// Stands for one task, which captures it. Its drop is counted.
#[derive(Debug)]
pub struct Token {
    ledger: Ledger,
    number: usize,
}

impl Ledger {
    /// A ledger for `tasks` tasks, numbered from 0.
    pub fn new(tasks: usize) -> Self {
        Ledger((0..tasks).map(|_| Line::default()).collect())
    }

    /// A token for task `number`.
    pub fn token(&self, number: usize) -> Token {
        Token {
            ledger: self.clone(),
            number,
        }
    }

    /// How often task `number` ran, and how many of its tokens were dropped.
    pub fn of(&self, number: usize) -> (u32, u32) {
        let line = &self.0[number];
        (
            line.ran.load(Ordering::SeqCst),
            line.dropped.load(Ordering::SeqCst),
        )
    }

    /// The total number of runs, and of dropped tokens.
    pub fn sums(&self) -> (usize, usize) {
        (0..self.0.len())
            .map(|number| self.of(number))
            .fold((0, 0), |(ran, dropped), line| {
                (ran + line.0 as usize, dropped + line.1 as usize)
            })
    }
}

impl Token {
    /// Counts one run of the task.
    pub fn run(&self) {
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
