//! Turns for calls that are awaited: so many of one destination run at one time, and the others wait
//! in their order. So a destination that hangs does not take all workers from the others.
//!
//! **TURN-1** While a task waits, as many as may run of its destination do. Who has run its task
//! takes the next one, in the hold of the lock in which it would stop.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::panics::contain;
use crate::sync::Mutex;

type Task = Box<dyn FnOnce() + Send>;

pub(crate) struct Turns<D> {
    most: usize,
    lines: Mutex<HashMap<D, Waiting>>,
}

#[derive(Default)]
struct Waiting {
    running: usize,
    /// By number, which is the order of their coming.
    tasks: BTreeMap<u64, Task>,
}

impl<D: Copy + Eq + Hash> Turns<D> {
    /// So many of each destination.
    pub(crate) fn new(most: usize) -> Self {
        Turns {
            most,
            lines: Mutex::new(HashMap::new()),
        }
    }

    /// Runs a task on this thread, and then those that wait for their turn; or leaves it to those that
    /// run.
    pub(crate) fn run(&self, destination: D, number: u64, task: Task) {
        {
            let mut lines = self.lines.lock();
            let line = lines.entry(destination).or_default();
            if line.running >= self.most {
                line.tasks.insert(number, task);
                return;
            }
            line.running += 1;
        }
        let mut next = Some(task);
        while let Some(task) = next {
            // Of what panics the panic hook has told.
            let _ = contain(task);
            next = self.next(destination);
        }
    }

    /// The next task, or one fewer runs.
    fn next(&self, destination: D) -> Option<Task> {
        let mut lines = self.lines.lock();
        let line = lines.get_mut(&destination)?;
        if let Some((_, task)) = line.tasks.pop_first() {
            return Some(task);
        }
        line.running -= 1;
        if line.running == 0 {
            lines.remove(&destination);
        }
        None
    }

    /// A task that waits does not begin.
    pub(crate) fn leave(&self, destination: D, number: u64) {
        let task = {
            let mut lines = self.lines.lock();
            let line = lines.get_mut(&destination);
            line.and_then(|line| line.tasks.remove(&number))
        };
        drop(task);
    }
}
