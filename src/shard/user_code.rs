//! How many threads are in user code that belongs to no run.
//!
//! Most user code runs inside a run, and its stripe counts that. Some runs outside of one: the drop
//! of a key whose run is settled, the wakers of those who waited for that run, and a foreign
//! executor that is handed a batch. The end of an engine waits for this code too, and reports what
//! outlasts its limit. A thread that is in no user code ends promptly.
//!
//! One word per shard holds two counts, and a bit that the end sets:
//!
//! ```text
//! a thread                                  the end
//!  enter: count += 1                         set the bit
//!  user code                                 register under the lock of `closing.rs`
//!  leave: count -= 1                         sleep while count > 0
//!  the bit was set: take that lock,
//!  wake those who are registered
//! ```
//!
//! - **USER-1** A thread enters in the same hold of the stripe's lock that settles the run. So the
//!   end finds the run, or the count.
//! - **USER-2** No thread leaves without the end knowing of it. Leaving and setting the bit change
//!   the same word, so one of them is first. If the thread leaves first, the end reads the lower
//!   count. If the bit is set first, the thread finds it and takes the lock. Either the end is
//!   registered by then and is woken, or it registers afterwards and reads the lower count.
//! - **USER-3** A batch that finds the bit when it enters is not handed over. When the bit is set
//!   nothing is pending, so no ticket of that batch stands for anything.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The counts of one shard.
#[derive(Debug)]
pub(crate) struct UserCode(AtomicU64);

/// The bit that the end sets.
const ENDING: u64 = 1;
/// 31 bits for threads that are behind a run.
const AFTER_RUN: u64 = 1 << 1;
/// The rest for hand-overs to a foreign executor.
const HAND_OVER: u64 = 1 << 32;

/// What a thread does outside of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outside {
    AfterRun,
    HandOver,
}

impl Outside {
    fn unit(self) -> u64 {
        match self {
            Outside::AfterRun => AFTER_RUN,
            Outside::HandOver => HAND_OVER,
        }
    }
}

/// How many threads are where.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct OutsideCounts {
    pub(crate) after_runs: usize,
    pub(crate) hand_overs: usize,
}

impl UserCode {
    pub(super) fn new() -> Self {
        UserCode(AtomicU64::new(0))
    }

    /// Enters, under the lock of a stripe (USER-1).
    pub(crate) fn enter_after_run(&self) {
        // Relaxed: the stripe's lock orders it before the look of whoever finds the run settled.
        self.0.fetch_add(AFTER_RUN, Ordering::Relaxed);
    }

    /// Enters for a hand-over. False: not any more (USER-3).
    pub(crate) fn try_enter_hand_over(&self) -> bool {
        let one_more = |word| (word & ENDING == 0).then_some(word + HAND_OVER);
        // Relaxed: nothing but the order of the changes of this word matters.
        (self.0)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    /// Leaves. Whether the end is to be woken (USER-2).
    pub(crate) fn leave(&self, what: Outside) -> bool {
        // Release pairs with the Acquire in `counts`: the user code is over for whoever reads this.
        self.0.fetch_sub(what.unit(), Ordering::Release) & ENDING != 0
    }

    /// Sets the bit (USER-2).
    pub(crate) fn end(&self) {
        // Relaxed: nothing but the order of the changes of this word matters.
        self.0.fetch_or(ENDING, Ordering::Relaxed);
    }

    /// Whether the end has nothing to wait for here: also before the bit is set, when it does not
    /// ask yet.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire pairs with the Release in `leave`.
        let word = self.0.load(Ordering::Acquire);
        word & ENDING == 0 || word == ENDING
    }

    pub(crate) fn counts(&self) -> OutsideCounts {
        // Acquire pairs with the Release in `leave`.
        let word = self.0.load(Ordering::Acquire);
        OutsideCounts {
            after_runs: (word % HAND_OVER / AFTER_RUN) as usize,
            hand_overs: (word / HAND_OVER) as usize,
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
        let counts = |after_runs, hand_overs| OutsideCounts {
            after_runs,
            hand_overs,
        };
        assert_eq!(code.counts(), counts(3, 3));
        assert!(!code.leave(Outside::HandOver));
        assert!(code.is_over(), "nobody asks yet");
        code.end();
        assert!(!code.is_over());
        assert!(!code.try_enter_hand_over());
        code.enter_after_run();
        assert_eq!(code.counts(), counts(4, 2));
        for _ in 0..4 {
            assert!(code.leave(Outside::AfterRun));
        }
        for _ in 0..2 {
            assert!(!code.is_over());
            assert!(code.leave(Outside::HandOver));
        }
        assert_eq!(code.counts(), counts(0, 0));
        assert!(code.is_over());
    }
}
