//! Counts the threads in user code that belongs to no run.
//!
//! Most user code runs inside a run, which its stripe counts. Some user code runs outside of a run:
//!
//! - the drop of a key whose run is complete,
//! - the wakers of tasks that waited for that run,
//! - a foreign executor that is handed a batch.
//!
//! The shutdown of an engine waits for this code too, and reports calls that outlast its limit. A
//! thread that is in no user code ends promptly.
//!
//! One word per shard holds two counts, and a bit that the shutdown sets:
//!
//! ```text
//! a thread                                  the shutdown
//!  enter: count += 1                         set the bit
//!  user code                                 register under the lock of `closing.rs`
//!  leave: count -= 1                         sleep while count > 0
//!  the bit was set: take that lock,
//!  wake the registered threads
//! ```
//!
//! - **USER-1** A thread enters in the same hold of the stripe's lock that completes the run. So
//!   the shutdown finds the run or the count.
//! - **USER-2** The shutdown learns of every thread that leaves. Leaving and setting the bit change
//!   the same word, so one of them is first. If the thread leaves first, the shutdown reads the
//!   lower count. If the bit is set first, the leaving thread finds it and takes the lock. Then
//!   either the waiting thread is registered already and is woken, or it registers afterwards and
//!   reads the lower count.
//! - **USER-3** A batch that finds the bit when it enters is not handed over. Nothing is pending
//!   when the bit is set, so no ticket of that batch can become a run.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The counts of one shard.
#[derive(Debug)]
pub(crate) struct UserCode(AtomicU64);

/// The bit that the shutdown sets.
const ENDING: u64 = 1;
/// One thread in user code after a run: the lowest of 31 bits.
const AFTER_RUN: u64 = 1 << 1;
/// One hand-over to a foreign executor: the lowest of the remaining bits.
const HAND_OVER: u64 = 1 << 32;

/// Kind of user code that a thread is in outside of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UserCodeKind {
    /// The drop of a key or a waker, after a run was completed.
    AfterRun,
    /// An executor that is handed a batch.
    HandOver,
}

impl UserCodeKind {
    fn unit(self) -> u64 {
        match self {
            UserCodeKind::AfterRun => AFTER_RUN,
            UserCodeKind::HandOver => HAND_OVER,
        }
    }
}

/// Number of threads in each kind of user code.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct UserCodeCounts {
    pub(crate) after_runs: usize,
    pub(crate) hand_overs: usize,
}

impl UserCode {
    pub(super) fn new() -> Self {
        UserCode(AtomicU64::new(0))
    }

    /// Enters after a run: counts a thread that will be in user code. The caller holds the stripe's
    /// lock (USER-1).
    pub(crate) fn enter_after_run(&self) {
        // Relaxed: the stripe's lock orders it before the check of a thread that finds the run
        // complete.
        self.0.fetch_add(AFTER_RUN, Ordering::Relaxed);
    }

    /// Enters for a hand-over. Returns false if the bit is set, and then nothing may be handed over
    /// (USER-3).
    pub(crate) fn try_enter_hand_over(&self) -> bool {
        let one_more = |word| (word & ENDING == 0).then_some(word + HAND_OVER);
        // Relaxed: nothing but the order of the changes of this word matters.
        (self.0)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    /// Leaves. Returns whether the threads that wait for the shutdown must be woken (USER-2).
    pub(crate) fn leave(&self, what: UserCodeKind) -> bool {
        // Release pairs with the Acquire in `counts` and `is_over`: a thread that reads this value
        // knows that the user code has ended.
        let before = self.0.fetch_sub(what.unit(), Ordering::Release);
        debug_assert!(
            UserCodeCounts::of(before).of_kind(what) > 0,
            "{what:?} was entered"
        );
        before & ENDING != 0
    }

    /// Sets the bit (USER-2).
    pub(crate) fn end(&self) {
        // Relaxed: nothing but the order of the changes of this word matters.
        self.0.fetch_or(ENDING, Ordering::Relaxed);
    }

    /// Returns whether the shutdown has nothing to wait for in this shard. True before the bit is
    /// set, because the shutdown does not ask yet.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        // Acquire pairs with the Release in `leave`.
        let word = self.0.load(Ordering::Acquire);
        word & ENDING == 0 || word == ENDING
    }

    /// Returns the current counts.
    pub(crate) fn counts(&self) -> UserCodeCounts {
        // Acquire pairs with the Release in `leave`.
        UserCodeCounts::of(self.0.load(Ordering::Acquire))
    }
}

impl UserCodeCounts {
    fn of(word: u64) -> Self {
        UserCodeCounts {
            after_runs: (word % HAND_OVER / AFTER_RUN) as usize,
            hand_overs: (word / HAND_OVER) as usize,
        }
    }

    fn of_kind(self, what: UserCodeKind) -> usize {
        match what {
            UserCodeKind::AfterRun => self.after_runs,
            UserCodeKind::HandOver => self.hand_overs,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_disturb_each_other_and_the_end_refuses_hand_overs() {
        let code = UserCode::new();
        for _ in 0..3 {
            code.enter_after_run();
            assert!(code.try_enter_hand_over());
        }
        let counts = |after_runs, hand_overs| UserCodeCounts {
            after_runs,
            hand_overs,
        };
        assert_eq!(code.counts(), counts(3, 3));
        assert!(!code.leave(UserCodeKind::HandOver));
        assert!(code.is_over(), "the bit is not set yet");
        code.end();
        assert!(!code.is_over());
        assert!(!code.try_enter_hand_over());
        code.enter_after_run();
        assert_eq!(code.counts(), counts(4, 2));
        for _ in 0..4 {
            assert!(code.leave(UserCodeKind::AfterRun));
        }
        for _ in 0..2 {
            assert!(!code.is_over());
            assert!(code.leave(UserCodeKind::HandOver));
        }
        assert_eq!(code.counts(), counts(0, 0));
        assert!(code.is_over());
    }
}
