//! User code that belongs to no run: see `shard/user_code.rs` for what that is, and for the
//! protocol with the end of the engine.

use super::{Engine, Face};
use crate::shard::{Outside, OutsideCounts};

/// While it lives, the end of the engine waits for this thread.
pub(super) struct InUserCode<'a, F: Face> {
    engine: &'a Engine<F>,
    stripe: usize,
    what: Outside,
}

impl<F: Face> Engine<F> {
    /// The thread is behind a run of this stripe. To be called under the stripe's lock, in the hold
    /// that ends the run (USER-1), and dropped without it.
    pub(super) fn after_run(&self, stripe: usize) -> InUserCode<'_, F> {
        self.shards().shard_of(stripe).user_code.enter_after_run();
        InUserCode {
            engine: self,
            stripe,
            what: Outside::AfterRun,
        }
    }

    /// The thread hands a batch with timers of this stripe over. `None`: the engine ends, and the
    /// batch stands for nothing (USER-3).
    pub(super) fn hand_over_of(&self, stripe: usize) -> Option<InUserCode<'_, F>> {
        let user_code = &self.shards().shard_of(stripe).user_code;
        user_code.try_enter_hand_over().then_some(InUserCode {
            engine: self,
            stripe,
            what: Outside::HandOver,
        })
    }

    /// All shards' counts.
    pub(super) fn outside(&self) -> OutsideCounts {
        let mut sum = OutsideCounts::default();
        for shard in 0..self.shards().shards() {
            let counts = self.shards().shard(shard).user_code.counts();
            sum.after_runs += counts.after_runs;
            sum.hand_overs += counts.hand_overs;
        }
        sum
    }
}

impl<F: Face> Drop for InUserCode<'_, F> {
    fn drop(&mut self) {
        let shard = self.engine.shards().shard_of(self.stripe);
        if shard.user_code.leave(self.what) {
            self.engine.closing().wake_waiters();
        }
    }
}
