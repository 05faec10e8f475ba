//! How a worker goes to sleep without missing a ticket.
//!
//! ```text
//!            announce                look: nothing              token, or a moment came
//!   Awake ------------> Announced ----------------> Parked -----------------------------.
//!     ^                   |   |                       |                                 |
//!     |   look: something |   | chosen                | chosen                          |
//!     |      (retract)    |   v                       v                                 v
//!     '-------------------+-- Chosen (no longer in the list; its token is set or will be) --> Awake
//! ```
//!
//! - **Awake**: not in the list. Looks for tickets, serves them, and looks again; nobody has to
//!   wake it.
//! - **Announced**, **Parked**: in the list and counted. Whoever has a reason to wake somebody may
//!   choose it.
//! - **Chosen**: a waker took it off the list, lowered the count and unparks it after the list's
//!   lock is released. It looks at all queues once more before it announces itself again, leaves or
//!   ends.
//!
//! What each side does, in this order:
//!
//! ```text
//!   worker (`Worker::rest`)                        whoever makes a ticket visible
//!     announce: list, count                          push
//!     its fence(SeqCst), in `announce`               its fence(SeqCst), in `wake_one_if`
//!     look at stop, then at every queue              read the count; 0: done
//!     park, if there was nothing                     take one off the list, lower the count
//!     retract: off the list, if nobody chose it      unpark it
//! ```
//!
//! "Whoever makes a ticket visible" is a ticker that announces a batch, a caller of `inject`, and a
//! thief, whose steal may have moved more into its own deque.
//!
//! # Why nothing is lost
//!
//! - **SLEEP-1** For a push and an announcement, the worker's fence and the waker's fence have an
//!   order. If the worker's is first, the waker's read of the count sees the announcement, or a
//!   later value of the count. If the waker's is first, the worker's look sees the push, or that
//!   the ticket has been taken meanwhile.
//! - **SLEEP-2** The count is only written under the list's lock, next to the list. A count that no
//!   longer contains an announcement therefore means that its worker was chosen or has retracted:
//!   it is awake, and whatever it announces next comes with another fence, to which SLEEP-1
//!   applies. So when all workers are parked for good, every push was seen by a look or has chosen
//!   somebody.
//! - **SLEEP-3** A chosen worker learns of it through the list's lock (in `retract`), after the
//!   waker took the lock, after the push: its next look sees the ticket or that it has been taken.
//!   So a chosen worker never leaves and never ends before it looked again (`Worker::rest` says
//!   so), and a wake-up that meets a worker which had found work by itself is used up rightly: it
//!   looks at everything when that work is done, and the steal of that work wakes the next if there
//!   was more.
//! - **SLEEP-4** A token that stays behind in a parker (its worker was chosen and did not need to
//!   park) ends one later park early: one look for nothing, no harm.
//! - **SLEEP-5** A wake-up in vain costs nobody else's: a waker takes exactly one off the list, so
//!   the next waker takes another one. When the list is empty, nobody sleeps.
//! - **SLEEP-6** `stop` sets its flag before its fence and empties the list; the look reads the
//!   flag after the worker's fence.
//!
//! # Why nothing waits beside a sleeper
//!
//! Announcing a batch wakes one worker, and tasks may take long. So that a batch of ten occupies
//! ten workers, each wakes the next:
//!
//! - **SLEEP-7** As long as a ticket waits and a worker sleeps, some worker is *looking*: chosen or
//!   awake, and in no task. A looking worker either finds nothing anywhere, or steals, and then
//!   wakes a sleeper if there is a ticket left *anywhere*. It does not do to look at the queue it
//!   stole from and its own deque alone. Three tickets: A steals two of them, keeps one in its
//!   deque, wakes B and starts. B steals the third, sees nothing left there, wakes nobody; the
//!   ticket in A's deque waits for A's task while C sleeps. A wake-up stands for all that waits at
//!   that moment, so it has to be passed on for all of it. This costs a look at every queue, and
//!   only while somebody sleeps. Popping the own deque needs no wake-up: its tickets came with a
//!   steal.
//!
//! The lowest number is chosen first. Extra workers have the highest numbers: they sleep while the
//! others suffice, and leave.

use crate::sync::Mutex;
use crate::sync::Unparker;
use crate::sync::atomic::{AtomicUsize, Ordering, fence};

const BITS: usize = u64::BITS as usize;

pub(super) struct Sleep {
    /// How many are in `idle`. Written under its lock only; read without it by wakers.
    count: AtomicUsize,
    /// One bit per seat whose worker has announced itself and was not chosen yet.
    idle: Mutex<Box<[u64]>>,
    unparkers: Box<[Unparker]>,
}

impl Sleep {
    pub(super) fn new(unparkers: Box<[Unparker]>) -> Self {
        Sleep {
            count: AtomicUsize::new(0),
            idle: Mutex::new(vec![0; unparkers.len().div_ceil(BITS)].into()),
            unparkers,
        }
    }

    /// Says that the worker on this seat is about to sleep. It must look at the stop flag and at
    /// every queue after this and before it parks, and `retract` afterwards.
    pub(super) fn announce(&self, seat: usize) {
        {
            let mut idle = self.idle.lock();
            debug_assert_eq!(idle[seat / BITS] & bit(seat), 0, "announced once");
            idle[seat / BITS] |= bit(seat);
            self.add_to_count(1);
        }
        // Pairs with the fences in `wake_one_if` and `wake_all`: the look that follows sees what
        // was pushed before the waker's fence, or the waker sees the count of above.
        fence(Ordering::SeqCst);
    }

    /// Says that the worker on this seat is awake. True if a waker has chosen it meanwhile: then
    /// there is something that only this worker may know of, and it must look again before it
    /// leaves.
    pub(super) fn retract(&self, seat: usize) -> bool {
        let mut idle = self.idle.lock();
        if idle[seat / BITS] & bit(seat) == 0 {
            return true;
        }
        idle[seat / BITS] &= !bit(seat);
        self.add_to_count(-1);
        false
    }

    /// Wakes one sleeper, and says whether there was one. Called after a ticket was made visible.
    pub(super) fn wake_one(&self) -> bool {
        self.wake_one_if(|| true)
    }

    /// Wakes one sleeper, if there is one and a reason for it. The reason is looked for only then.
    pub(super) fn wake_one_if(&self, reason: impl FnOnce() -> bool) -> bool {
        // Pairs with the fence in `announce`: whoever announced itself before is seen here, and
        // whoever does so later sees the ticket.
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
            if let Some(seat) = chosen {
                idle[seat / BITS] &= !bit(seat);
                // By the waker, so that the next waker does not choose the same one.
                self.add_to_count(-1);
            }
            chosen
        };
        // Outside the lock: who wakes up takes that lock first of all.
        if let Some(seat) = chosen {
            self.unparkers[seat].unpark();
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
        for (seat, unparker) in self.unparkers.iter().enumerate() {
            if chosen[seat / BITS] & bit(seat) != 0 {
                unparker.unpark();
            }
        }
    }

    pub(super) fn sleeping(&self) -> usize {
        // Relaxed: a figure for `stats`.
        self.count.load(Ordering::Relaxed)
    }

    /// The caller holds the list's lock.
    fn add_to_count(&self, by: isize) {
        // Relaxed, twice: the lock makes this the only writer, and readers order themselves by the
        // fences of `announce` and `wake_one_if`.
        let count = self.count.load(Ordering::Relaxed);
        self.count
            .store(count.wrapping_add_signed(by), Ordering::Relaxed);
    }
}

fn bit(seat: usize) -> u64 {
    1 << (seat % BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Parker;

    fn sleep(seats: usize) -> (Sleep, Vec<Parker>) {
        let parkers: Vec<_> = (0..seats).map(|_| Parker::new()).collect();
        let unparkers = parkers.iter().map(|p| p.unparker().clone()).collect();
        (Sleep::new(unparkers), parkers)
    }

    #[test]
    fn the_lowest_number_is_chosen_first_and_each_only_once() {
        let (sleep, parkers) = sleep(130);
        for seat in [129, 64, 3] {
            sleep.announce(seat);
        }
        assert_eq!(sleep.sleeping(), 3);
        for seat in [3, 64, 129] {
            assert!(sleep.wake_one());
            // Returns at once: its token is set.
            parkers[seat].park();
            assert!(sleep.retract(seat), "{seat} was chosen");
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
        for seat in [0, 1, 69] {
            sleep.announce(seat);
        }
        sleep.wake_all();
        for seat in [0, 1, 69] {
            parkers[seat].park();
            assert!(sleep.retract(seat));
        }
        assert_eq!(sleep.sleeping(), 0);
    }
}
