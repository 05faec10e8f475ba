//! Batches for a foreign executor, and the tickets that come back.

use super::{Engine, Frontend, Server, task_scope};
use crate::executor::{Executor, Job};
use crate::job::{Claim, Ticket, catch_panic};
use crate::sync::Arc;

impl<F: Frontend> Server<F> {
    /// Hands tickets to a foreign executor as one job. The job's `Drop` returns whatever the
    /// executor refuses or drops.
    ///
    /// All of them are in the job before the call of the executor: it may block, and a ticket that
    /// this worker kept would wait for it.
    pub(super) fn submit(
        &self,
        executor: &dyn Executor,
        first: Ticket,
        more: &mut dyn FnMut() -> Option<Ticket>,
    ) {
        let engine = self.engine();
        let mut tickets: Vec<Ticket> = std::iter::once(first)
            .chain(std::iter::from_fn(more))
            .collect();
        let Some(server) = engine.server() else {
            engine.take_back(&tickets);
            return;
        };
        // Nobody can tell whether the threads of an executor are blocked.
        if F::LIGHT && engine.frontend.has_light() {
            tickets.retain(|ticket| !self.serve_if_light(*ticket));
        }
        // USER-3: after everything pending was taken out, no ticket of a batch stands for a timer.
        let Some(first) = tickets.first() else { return };
        let Some(_user_code) = engine.hand_over_of(first.stripe as usize) else {
            engine.take_back(&tickets);
            return;
        };
        let claim: Arc<dyn Claim> = server;
        let job = Job::new(claim, tickets);
        // A task that waits for runs to end must notice that it would wait for this thread.
        let _inside = task_scope::TaskScope::enter(engine.tag());
        // If the job is refused, dropped or lost in a panic, its drop returns and counts the rest.
        let _ = catch_panic(|| drop(executor.execute(job)));
    }
}

impl<F: Frontend> Engine<F> {
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
