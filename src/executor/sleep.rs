//! How a worker goes to sleep without missing a ticket.
//!
//! ```text
//!            announce               check: nothing              token, or a moment came
//!   Awake ------------> Announced ----------------> Parked -----------------------------.
//!     ^                   |   |                       |                                 |
//!     |  check: something |   | chosen                | chosen                          |
//!     |      (retract)    |   v                       v                                 v
//!     '-------------------+-- Chosen (no longer in the list; its token is set or will be) --> Awake
//! ```
//!
//! - **Awake**: not in the list. The worker looks for tickets, serves them, and looks again. It
//!   need not be woken.
//! - **Announced**, **Parked**: in the list and counted. A thread that has a reason to wake a
//!   worker may choose it.
//! - **Chosen**: a waker took it off the list, lowered the count, and unparks it after releasing
//!   the list's lock. The worker looks at all queues once more before it announces itself again,
//!   leaves or ends.
//!
//! The steps of each side, in this order:
//!
//! ```text
//!   worker (`Worker::rest`)                        thread that makes a ticket visible
//!     announce: list, count                          push
//!     its fence(SeqCst), in `announce`               its fence(SeqCst), in `wake_one_if`
//!     check stop, then every queue                   read the count; 0: done
//!     park, if there was nothing                     take one off the list, lower the count
//!     retract: off the list, if not chosen           unpark it
//! ```
//!
//! The threads that make tickets visible are a ticker that announces a batch, a caller of `inject`,
//! and a thief, whose steal may have moved more tickets into its own deque.
//!
//! # Why nothing is lost
//!
//! - **SLEEP-1** For a push and an announcement, the worker's fence and the waker's fence have an
//!   order. If the worker's is first, the waker's read of the count sees the announcement, or a
//!   later value of the count. If the waker's is first, the worker's check sees the push, or that
//!   the ticket has been taken meanwhile.
//! - **SLEEP-2** The count is only written under the list's lock, together with the list. So a
//!   count that no longer contains an announcement means that its worker was chosen or has
//!   retracted. That worker is awake, and its next announcement comes with another fence, to which
//!   SLEEP-1 applies. So when all workers are parked for good, each push was seen by a check or has
//!   chosen a worker.
//! - **SLEEP-3** A chosen worker learns of the choice through the list's lock (in `retract`), which
//!   the waker took after the push. So its next check sees the ticket, or that it has been taken. A
//!   chosen worker therefore never leaves and never ends before it has checked again (see
//!   `Worker::rest`).
//!
//!   A wake-up may also meet a worker that has found work by itself. It is not wasted: that worker
//!   checks all queues when the work is done, and the steal of that work wakes the next worker if
//!   there was more.
//! - **SLEEP-4** A token may stay behind in a parker, if its worker was chosen and did not need to
//!   park. It ends one later park early, which costs one check in vain.
//! - **SLEEP-5** A wake-up in vain does not cost another worker its wake-up. Each waker takes
//!   exactly one worker off the list, so the next waker takes another one. When the list is empty,
//!   no worker sleeps.
//! - **SLEEP-6** `stop` sets its flag before its fence and empties the list. The check reads the
//!   flag after the worker's fence.
//!
//! # Why no ticket waits while a worker sleeps
//!
//! Announcing a batch wakes one worker, and tasks may take long. So that a batch of ten occupies
//! ten workers, each worker wakes the next one:
//!
//! - **SLEEP-7** While a ticket waits and a worker sleeps, some worker is *looking*: it is chosen
//!   or awake, and in no task. A looking worker either finds nothing anywhere, or steals, and then
//!   wakes a sleeper if a ticket remains *anywhere*. Popping a worker's own deque needs no wake-up,
//!   because its tickets came with a steal.
//!
//! It is not enough to check the queue that the worker stole from and its own deque. Take three
//! tickets. A steals two of them, keeps one in its deque, wakes B and starts its task. B steals the
//! third ticket, sees nothing left there, and wakes no worker. Then the ticket in A's deque waits
//! for A's task while C sleeps.
//!
//! A wake-up stands for all tickets that wait at that moment, so it has to be passed on for all of
//! them. This costs a check of every queue, and only while a worker sleeps.
//!
//! The worker with the lowest number is chosen first. Extra workers have the highest numbers, so
//! they sleep while the others suffice, and leave.

use crate::sync::Mutex;
use crate::sync::Unparker;
use crate::sync::atomic::{AtomicUsize, Ordering, fence};

const BITS: usize = u64::BITS as usize;

/// The list of sleeping workers.
pub(super) struct Sleepers {
    /// Number of workers in `idle`. Written under its lock only; wakers read it without the lock.
    count: AtomicUsize,
    /// One bit per worker slot whose worker has announced itself and was not chosen yet. Unpark
    /// after unlocking.
    idle: Mutex<Box<[u64]>>,
    unparkers: Box<[Unparker]>,
}

impl Sleepers {
    /// Creates an empty list for the workers with these unparkers.
    pub(super) fn new(unparkers: Box<[Unparker]>) -> Self {
        Sleepers {
            count: AtomicUsize::new(0),
            idle: Mutex::new(vec![0; unparkers.len().div_ceil(BITS)].into()),
            unparkers,
        }
    }

    /// Announces that the worker in this slot is about to sleep. After this call and before it
    /// parks, the worker must check the stop flag and every queue. It must `retract` afterwards.
    pub(super) fn announce(&self, slot: usize) {
        {
            let mut idle = self.idle.lock();
            debug_assert_eq!(idle[slot / BITS] & bit(slot), 0, "announced twice");
            idle[slot / BITS] |= bit(slot);
            self.add_to_count(1);
        }
        // Pairs with the fences in `wake_one_if` and `wake_all`: the check that follows sees the
        // tickets that were pushed before the waker's fence, or the waker sees the count from
        // above.
        fence(Ordering::SeqCst);
    }

    /// Announces that the worker in this slot is awake. Returns true if a waker has chosen it
    /// meanwhile. Then there may be a ticket that only this worker knows of, and it must check
    /// again before it leaves.
    pub(super) fn retract(&self, slot: usize) -> bool {
        let mut idle = self.idle.lock();
        if idle[slot / BITS] & bit(slot) == 0 {
            return true;
        }
        idle[slot / BITS] &= !bit(slot);
        self.add_to_count(-1);
        false
    }

    /// Wakes one sleeper, and returns whether there was one. Called after a ticket was made
    /// visible.
    pub(super) fn wake_one(&self) -> bool {
        self.wake_one_if(|| true)
    }

    /// Wakes one sleeper if there is one and `reason` returns true. `reason` is called only if
    /// there is one.
    pub(super) fn wake_one_if(&self, reason: impl FnOnce() -> bool) -> bool {
        // Pairs with the fence in `announce`: a worker that announced itself before is seen here,
        // and a worker that does so later sees the ticket.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fences. A busy pool pays for the fence and this read, no lock.
        if self.count.load(Ordering::Relaxed) == 0 || !reason() {
            return false;
        }
        let chosen = {
            let mut idle = self.idle.lock();
            let chosen = idle
                .iter()
                .position(|word| *word != 0)
                .map(|word| word * BITS + idle[word].trailing_zeros() as usize);
            if let Some(slot) = chosen {
                idle[slot / BITS] &= !bit(slot);
                // Removed by the waker, so that the next waker does not choose the same worker.
                self.add_to_count(-1);
            }
            chosen
        };
        // Outside the lock, because a woken worker takes that lock first.
        if let Some(slot) = chosen {
            self.unparkers[slot].unpark();
        }
        chosen.is_some()
    }

    /// Wakes every sleeper. Called after the stop flag was set.
    pub(super) fn wake_all(&self) {
        // Pairs with the fence in `announce`, as in `wake_one_if`, this time for the stop flag.
        fence(Ordering::SeqCst);
        let chosen = {
            let mut idle = self.idle.lock();
            let empty = vec![0; idle.len()].into();
            // Relaxed: see `add_to_count`.
            self.count.store(0, Ordering::Relaxed);
            std::mem::replace(&mut *idle, empty)
        };
        for (slot, unparker) in self.unparkers.iter().enumerate() {
            if chosen[slot / BITS] & bit(slot) != 0 {
                unparker.unpark();
            }
        }
    }

    /// Returns how many workers are in the list.
    pub(super) fn sleeping(&self) -> usize {
        // Relaxed: callers only want an estimate.
        self.count.load(Ordering::Relaxed)
    }

    /// Changes the count. The caller holds the list's lock.
    fn add_to_count(&self, by: isize) {
        // Relaxed, twice: the lock makes this the only writer, and readers order themselves by the
        // fences of `announce` and `wake_one_if`.
        let count = self.count.load(Ordering::Relaxed);
        debug_assert!(count.checked_add_signed(by).is_some(), "{count} and {by}");
        self.count
            .store(count.wrapping_add_signed(by), Ordering::Relaxed);
    }
}

fn bit(slot: usize) -> u64 {
    1 << (slot % BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Parker;

    fn sleep(slots: usize) -> (Sleepers, Vec<Parker>) {
        let parkers: Vec<_> = (0..slots).map(|_| Parker::new()).collect();
        let unparkers = parkers.iter().map(|p| p.unparker().clone()).collect();
        (Sleepers::new(unparkers), parkers)
    }

    #[test]
    fn the_lowest_number_is_chosen_first_and_each_only_once() {
        let (sleep, parkers) = sleep(130);
        for slot in [129, 64, 3] {
            sleep.announce(slot);
        }
        assert_eq!(sleep.sleeping(), 3);
        for slot in [3, 64, 129] {
            assert!(sleep.wake_one());
            // Returns at once: its token is set.
            parkers[slot].park();
            assert!(sleep.retract(slot), "{slot} was chosen");
        }
        assert_eq!(sleep.sleeping(), 0);
        assert!(!sleep.wake_one(), "nobody sleeps");
        assert_eq!(sleep.sleeping(), 0);
    }

    #[test]
    fn who_retracts_in_time_is_not_chosen() {
        let (sleep, parkers) = sleep(2);
        sleep.announce(0);
        sleep.announce(1);
        assert!(!sleep.retract(0));
        assert!(sleep.wake_one());
        parkers[1].park();
        assert!(sleep.retract(1));
    }

    #[test]
    fn waking_all_empties_the_list() {
        let (sleep, parkers) = sleep(70);
        for slot in [0, 1, 69] {
            sleep.announce(slot);
        }
        sleep.wake_all();
        for slot in [0, 1, 69] {
            parkers[slot].park();
            assert!(sleep.retract(slot));
        }
        assert_eq!(sleep.sleeping(), 0);
    }
}
