//! The polls of tasks on the workers, and their bound.

use std::collections::VecDeque;
use std::time::Duration;

use tourbillon::Handle;
use tourbillon::reentrancy::when_unlocked;

use super::task::{TaskWorkers, WorkerTask};
use super::timer_key::TimerKey;
use crate::sync::{Arc, Mutex, catch_panic};

/// The polls that run at one time. Fewer than the jobs of the scheduler, so that rounds, the limits of
/// calls and other wake-ups go on however many polls of a user's store block.
const MAX_POLLS: usize = 240;

/// Polls a task on the workers for renewals.
pub(super) struct PollsTask {
    pub(super) work: Handle<TimerKey>,
    pub(super) alarm: TimerKey,
    pub(super) slots: Arc<PollSlots>,
}

impl TaskWorkers for PollsTask {
    fn poll_soon(&self, task: Arc<WorkerTask<Self>>) {
        let (work, alarm, slots) = (self.work.clone(), self.alarm, Arc::clone(&self.slots));
        // The task may be woken under a lock, where nothing can be scheduled.
        when_unlocked(move || {
            // After the end of the scheduler nothing can go on, and the task is dropped.
            let _ = work.schedule(alarm, Duration::ZERO, move |_| slots.poll(task));
        });
    }
}

/// Counts the polls that run, and has the tasks that wait for one of them to end.
#[derive(Default)]
pub(super) struct PollSlots(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    running: usize,
    /// Empty while there is room.
    waiting: VecDeque<Arc<WorkerTask<PollsTask>>>,
}

impl PollSlots {
    /// Polls a task on this thread. If [`MAX_POLLS`] polls run already, the thread whose poll ends first
    /// polls the task.
    pub(super) fn poll(&self, task: Arc<WorkerTask<PollsTask>>) {
        {
            let mut state = self.0.lock();
            if state.running == MAX_POLLS {
                state.waiting.push_back(task);
                return;
            }
            state.running += 1;
        }
        let mut next = Some(task);
        while let Some(task) = next {
            // Nothing else may have the task, and the drop of its future is a store's code.
            let _ = catch_panic(move || task.poll());
            let mut state = self.0.lock();
            next = state.waiting.pop_front();
            if next.is_none() {
                state.running -= 1;
            }
        }
    }
}
