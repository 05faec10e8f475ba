//! Guards for user code that belongs to no run. `shard/user_code.rs` says what that is and holds
//! the protocol between these threads and a shutdown.

use super::{Engine, Frontend};
use crate::shard::{UserCodeCounts, UserCodeKind};

/// Makes a shutdown wait for this thread while the guard lives.
pub(super) struct UserCodeScope<'a, F: Frontend> {
    engine: &'a Engine<F>,
    stripe: usize,
    what: UserCodeKind,
}

impl<F: Frontend> Engine<F> {
    /// Counts this thread as being in user code that follows a run of this stripe. Must be called
    /// under the stripe's lock, in the hold that ends the run (USER-1). The guard must be dropped
    /// without the lock.
    pub(super) fn after_run(&self, stripe: usize) -> UserCodeScope<'_, F> {
        self.shards().shard_of(stripe).user_code.enter_after_run();
        UserCodeScope {
            engine: self,
            stripe,
            what: UserCodeKind::AfterRun,
        }
    }

    /// Counts this thread as handing over a batch with timers of this stripe. Returns `None` if the
    /// engine is shutting down and no ticket of the batch stands for a timer (USER-3).
    pub(super) fn hand_over_of(&self, stripe: usize) -> Option<UserCodeScope<'_, F>> {
        let user_code = &self.shards().shard_of(stripe).user_code;
        // Made only if the entry was accepted: its drop leaves.
        if !user_code.try_enter_hand_over() {
            return None;
        }
        Some(UserCodeScope {
            engine: self,
            stripe,
            what: UserCodeKind::HandOver,
        })
    }

    /// Sums the counts of all shards.
    pub(super) fn outside(&self) -> UserCodeCounts {
        let mut sum = UserCodeCounts::default();
        for shard in 0..self.shards().shards() {
            let counts = self.shards().shard(shard).user_code.counts();
            sum.after_runs += counts.after_runs;
            sum.hand_overs += counts.hand_overs;
        }
        sum
    }
}

impl<F: Frontend> Drop for UserCodeScope<'_, F> {
    fn drop(&mut self) {
        let shard = self.engine.shards().shard_of(self.stripe);
        if shard.user_code.leave(self.what) && !self.engine.is_forked() {
            self.engine.closing().wake_waiters();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Timer;

    #[test]
    fn a_refused_hand_over_is_not_counted() {
        let ((server, _tickers), _hand) = Timer::builder().stepped_parts(7).unwrap();
        let engine = server.engine();
        let user_code = &engine.shards().shard(0).user_code;
        let entered = engine.hand_over_of(0);
        user_code.end();
        assert!(engine.hand_over_of(0).is_none());
        assert_eq!(engine.outside().hand_overs, 1);
        drop(entered);
        assert_eq!(engine.outside(), UserCodeCounts::default());
        assert!(user_code.is_over());
    }
}
