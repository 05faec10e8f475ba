//! The argument of the module `marks`, played: transactions that write timers, in all orders of
//! their steps, beside a node that polls. A bound is wrong if a timer is due before it that the
//! poll did not see.

use std::time::Duration;

use crate::node::marks::{MARGIN, Marks};
use crate::node::numbers::Numbers;
use crate::store::{Complete, Horizon, StoreTime};

/// A step of a transaction that writes one timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Number,
    /// It is busy with something else, for a random time.
    Elsewhere,
    Lock,
    /// It reads the clock. Its timer is due then.
    Clock,
    /// From here on others see what it has done.
    Commit,
    Unlock,
}

use Step::{Clock, Commit, Elsewhere, Lock, Number, Unlock};

const RIGHT: [Step; 6] = [Number, Elsewhere, Lock, Clock, Commit, Unlock];

/// What the store does, and what it may do wrong.
#[derive(Clone, Copy, Debug)]
struct Store {
    steps: [Step; 6],
    /// The open writes are read before the snapshot of the poll.
    reads_open_writes_first: bool,
    /// The snapshot has the clock of the moment at which the open writes were read.
    has_their_clock: bool,
    /// A horizon has the clock of a moment before its number was taken.
    takes_number_last: bool,
}

const GOOD: Store = Store {
    steps: RIGHT,
    reads_open_writes_first: true,
    has_their_clock: true,
    takes_number_last: true,
};

#[derive(Clone, Default, Debug)]
struct Transaction {
    done: usize,
    number: Option<u64>,
    locked: bool,
    due: Option<StoreTime>,
    committed: bool,
}

struct World {
    store: Store,
    random: Numbers,
    now: StoreTime,
    /// The last number that was taken.
    number: u64,
    transactions: Vec<Transaction>,
    marks: Marks,
    /// The first half of a horizon.
    beat: Option<(StoreTime, u64)>,
    /// The first half of a poll.
    open: Option<Complete>,
    /// The committed transactions that a poll whose snapshot came too early has seen.
    early: Option<Vec<bool>>,
    bounds: u64,
    /// The bounds that were given while a transaction with a number was busy elsewhere.
    beside_busy: u64,
}

impl World {
    fn new(store: Store, seed: u64) -> Self {
        World {
            store,
            random: Numbers::new(seed),
            now: StoreTime::from_micros(1_000_000_000_000),
            number: 100,
            transactions: vec![Transaction::default(); 4],
            marks: Marks::default(),
            beat: None,
            open: None,
            early: None,
            bounds: 0,
            beside_busy: 0,
        }
    }

    fn take_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn transact(&mut self, index: usize) {
        let random = self.random.next();
        let mut transaction = std::mem::take(&mut self.transactions[index]);
        if let Some(step) = self.store.steps.get(transaction.done) {
            transaction.done += 1;
            match step {
                Number => transaction.number = Some(self.take_number()),
                Elsewhere if random.is_multiple_of(8) => {}
                Elsewhere => transaction.done -= 1,
                Lock => transaction.locked = true,
                Clock => transaction.due = Some(self.now),
                Commit => transaction.committed = true,
                Unlock => transaction.locked = false,
            }
            self.transactions[index] = transaction;
        }
    }

    /// Half a beat: the clock is read, and the number is taken.
    fn beat(&mut self) {
        let number = self.take_number();
        let Some((at, early_number)) = self.beat.take() else {
            self.beat = Some((self.now, number));
            return;
        };
        self.marks.learn(Some(match self.store.takes_number_last {
            true => Horizon { number, at },
            false => Horizon {
                number: early_number,
                at: self.now,
            },
        }));
    }

    fn open_writes(&self) -> Complete {
        let open = self.transactions.iter().filter(|one| one.locked);
        Complete {
            below: open.filter_map(|one| one.number).min().unwrap_or(u64::MAX),
            at: self.now,
        }
    }

    fn committed(&self) -> Vec<bool> {
        self.transactions.iter().map(|one| one.committed).collect()
    }

    /// Half a poll. Returns whether its bound is right.
    fn poll(&mut self) -> bool {
        let (mut open, seen) = match (self.open.take(), self.early.take()) {
            (Some(open), _) => (open, self.committed()),
            (None, Some(seen)) => (self.open_writes(), seen),
            (None, None) => {
                match self.store.reads_open_writes_first {
                    true => self.open = Some(self.open_writes()),
                    false => self.early = Some(self.committed()),
                }
                return true;
            }
        };
        if !self.store.has_their_clock {
            open.at = self.now;
        }
        let Some(bound) = self.marks.bound(Some(open)) else {
            return true;
        };
        self.bounds += 1;
        let is_busy = |one: &Transaction| one.number.is_some() && one.done == 1;
        self.beside_busy += u64::from(self.transactions.iter().any(is_busy));
        let unseen = self.transactions.iter().zip(seen).filter(|(_, seen)| !seen);
        let mut dues = unseen.filter_map(|(one, _)| one.due);
        dues.all(|due| due >= bound + MARGIN)
    }

    /// A random step of somebody. Returns whether all is right.
    fn step(&mut self) -> bool {
        let random = self.random.next();
        self.now = self.now + Duration::from_secs(random >> 62);
        match random % 8 {
            0 | 1 => {
                // Nobody commits between the halves of a poll and is forgotten by the other half.
                if self.open.is_none() && self.early.is_none() {
                    let ended = |one: &Transaction| one.committed && !one.locked;
                    for one in self.transactions.iter_mut().filter(|one| ended(one)) {
                        *one = Transaction::default();
                    }
                }
                self.beat();
                true
            }
            2 | 3 => self.poll(),
            index => {
                self.transact(index as usize - 4);
                true
            }
        }
    }

    /// Plays this number of steps, or fewer if a bound is wrong. Returns whether all were right.
    fn holds(&mut self, steps: usize) -> bool {
        (0..steps).all(|_| self.step())
    }
}

#[test]
fn no_unseen_timer_is_due_before_a_bound() {
    // NODE-6
    for seed in 0..10 {
        let mut world = World::new(GOOD, seed);
        assert!(world.holds(100_000), "seed {seed}");
        assert!(world.bounds > 5_000, "seed {seed}: {}", world.bounds);
        // A transaction that is busy elsewhere holds nothing back, also if it writes a timer later.
        assert!(world.beside_busy > 500, "{}", world.beside_busy);
    }
}

#[test]
fn each_step_of_the_argument_is_needed() {
    let with_steps = |steps| Store { steps, ..GOOD };
    let faults = [
        with_steps([Elsewhere, Lock, Clock, Number, Commit, Unlock]),
        with_steps([Number, Elsewhere, Clock, Lock, Commit, Unlock]),
        with_steps([Number, Elsewhere, Lock, Clock, Unlock, Commit]),
        Store {
            reads_open_writes_first: false,
            ..GOOD
        },
        Store {
            has_their_clock: false,
            ..GOOD
        },
        Store {
            takes_number_last: false,
            ..GOOD
        },
    ];
    for store in faults {
        assert!(!World::new(store, 1).holds(1_000_000), "{store:?}");
    }
}

#[test]
fn the_oldest_horizon_is_reached_even_if_new_ones_come_all_the_time() {
    let at = |second: u64| StoreTime::from_micros(0) + Duration::from_secs(second);
    let mut marks = Marks::default();
    for second in 1..1_000 {
        let number = second;
        let at = at(second);
        marks.learn(Some(Horizon { number, at }));
    }
    let mut bound = |below| {
        let at = at(2_000);
        marks.bound(Some(Complete { below, at }))
    };
    assert_eq!(bound(0), None);
    assert_eq!(bound(1), Some(at(1).back_by(MARGIN)));
    assert_eq!(bound(2_000), Some(at(999).back_by(MARGIN)));
}
