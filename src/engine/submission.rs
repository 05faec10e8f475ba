//! Batches for a foreign executor, and the tickets that come back.

use super::{Engine, Frontend, task_scope};
use crate::executor::{Executor, Job};
use crate::job::{Claim, Ticket, catch_panic};
use crate::sync::Arc;

impl<F: Frontend> Engine<F> {
    /// Hands a batch to a foreign executor. The job's `Drop` returns whatever the executor refuses
    /// or drops.
    pub(super) fn submit(&self, executor: &dyn Executor, mut tickets: Vec<Ticket>) {
        let Some(server) = self.server() else {
            self.take_back(&tickets);
            return;
        };
        // Nobody can tell whether the threads of an executor are blocked.
        if F::LIGHT && self.frontend.has_light() {
            tickets.retain(|ticket| !server.serve_if_light(*ticket));
        }
        // USER-3: after everything pending was taken out, no ticket of a batch stands for a timer.
        let Some(first) = tickets.first() else { return };
        let Some(_user_code) = self.hand_over_of(first.stripe as usize) else {
            self.take_back(&tickets);
            return;
        };
        let claim: Arc<dyn Claim> = server;
        let job = Job::new(claim, tickets);
        // A task that waits for runs to end must notice that it would wait for this thread.
        let _inside = task_scope::TaskScope::enter(self.tag);
        // If the job is refused, dropped or lost in a panic, its drop returns and counts the rest.
        let _ = catch_panic(|| drop(executor.execute(job)));
    }

    /// Takes back tickets that nobody will claim. Their timers expire again with the next tick.
    pub(super) fn take_back(&self, tickets: &[Ticket]) {
        if self.is_forked() {
            // No ticker would see them, and its bell may be locked.
            return;
        }
        let now = self.clock.now();
        for ticket in tickets {
            let stripe = ticket.stripe as usize;
            self.with(stripe, |stripe| stripe.give_back(ticket.slot, now));
            let shard = self.shards.shard_of(stripe);
            shard.backlog.claimed(&shard.bell);
        }
    }
}
