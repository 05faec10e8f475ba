//! Turns for awaited calls. A bounded number of calls of one destination run at one time, and the
//! others wait in order. So a destination that hangs does not take all workers from the others.
//!
//! **TURN-1** While a task waits, the greatest allowed number of tasks of its destination runs. A
//! worker that has run its task takes the next one, or stops, under one hold of the lock.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::sync::{Mutex, catch_panic};

type Task = Box<dyn FnOnce() + Send>;

/// The running and the waiting tasks of each destination.
pub(crate) struct Turns<D> {
    /// The number of tasks of one destination that may run at one time.
    most: usize,
    /// The awaited calls of each destination (TURN-1).
    lines: Mutex<HashMap<D, Waiting>>,
}

#[derive(Default)]
struct Waiting {
    running: usize,
    /// The waiting tasks by number, which is the order in which they came.
    tasks: BTreeMap<u64, Task>,
}

impl<D: Copy + Eq + Hash> Turns<D> {
    /// Returns turns for `most` tasks of each destination at one time.
    pub(crate) fn new(most: usize) -> Self {
        Turns {
            most,
            lines: Mutex::new(HashMap::new()),
        }
    }

    /// Runs a task on this thread, and then the tasks that wait. If the destination has no free
    /// turn, leaves the task to the threads that have one.
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
            // The panic hook has reported a panic already.
            let _ = catch_panic(task);
            next = self.next(destination);
        }
    }

    /// Returns the next task, or gives up the turn of this thread.
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

    /// Removes a task that waits. Does nothing if it has begun.
    pub(crate) fn leave(&self, destination: D, number: u64) {
        let task = {
            let mut lines = self.lines.lock();
            let line = lines.get_mut(&destination);
            line.and_then(|line| line.tasks.remove(&number))
        };
        // Without the lock: the task owns values of a caller.
        drop(task);
    }
}
