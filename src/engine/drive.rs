//! One step of a ticker. A step never blocks. It returns until when the ticker may sleep.
//!
//! 1. Mark the ticker awake: the promise becomes 0, so nobody rings. Wake the tasks that have
//!    waited until their limit (`limits.rs`).
//! 2. Collect a batch, from several stripes if they are small, and hand it over, unless the backlog
//!    is at its bound. After a batch, start over. With a pace, the batch is limited to the rest of
//!    the reserved share. If this limit holds entries back, reserve the next share; if that share
//!    has begun already, start over.
//! 3. If nothing is due, check whether tickets have grown old while workers are blocked, and let
//!    the pool grow.
//!    If they are old and all workers are in long tasks, the ticker *helps*: it sifts the queues,
//!    serves what is light itself, and leaves the rest to the workers. See *Helping*.
//! 4. Promise to wake at the earliest of the least due moment, the next limit and the next check of
//!    the pool.
//!    Entries that are held back count as due when the share begins.
//! 5. Check again everything that is published for a ticker: due moments, limits, the backlog, the
//!    stop flag. If something is new, mark the ticker awake and start over. Otherwise sleep until
//!    the promise. A ticker that hands over injected tickets itself also checks the queues. A
//!    ticket is counted before it is pushed, so the backlog may count a ticket that is in no queue
//!    yet.
//!
//! # Helping
//!
//! A payload is light if it only wakes a task or spawns a future. It must not wait for workers that
//! are blocked in tasks of the user, since a time limit exists for just that case. While a ticker
//! helps,
//!
//! - it sifts each batch before it hands it over, and it collects beyond the bound of the backlog,
//!   since light payloads may be due behind it. **HELP-1**
//! - what was due at once, and what a worker took along and left in its deque, is sifted before the
//!   ticker sleeps, and step 5 checks for more. **HELP-2**
//! - a ticket that is not light goes into a queue of its own, so that nobody sifts it again. It is
//!   announced like any other: it was in no queue for a moment, in which a worker may have gone to
//!   sleep. **HELP-3**
//!
//! A foreign executor is never asked to serve what is light: the worker that calls it does.
//!
//! Steps 4 and 5 are the ticker's half of `shard/doorbell.rs` and of `shard/backlog.rs`.
//!
//! In steps 4 and 5, a stripe that is held back counts as due when the share begins, whatever is
//! published for it. Nothing of this shard can expire earlier, so no deadline is slept through. All
//! other stripes count with their published moments. So a ticker that holds entries back still
//! wakes for another stripe's cascade. It may also wake only to find that the other stripe must be
//! held, too; then it sleeps again.

use super::pace::Share;
use super::{Engine, ExecutorKind, Frontend, Server};
use crate::executor::{Growth, GrowthWatch, NewWorkers, OldTickets, PoolCrew, TickerQueue, Worker};
use crate::job::Ticket;
use crate::shard::{Collected, Ticker};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::tick::Time;
use crate::tickers::TickerStep;
use std::time::Duration;

/// The number of rounds, of up to 32 tasks each, that a ticker with inline execution runs before it
/// checks the wheels again.
const INLINE_STEPS: usize = 8;
/// Number of tickets that are handed over at once, if that many are due: they may come from several
/// stripes. With fewer, a worker's steal takes two or three and can't prefetch for them together,
/// and the ticker pays for a fence and a look at the clock for each stripe.
const HAND_OVER_FROM: usize = 64;
/// The number of tickets that a ticker sifts before it checks the wheels again.
const SIFTED_AT_ONCE: usize = 1_024;

/// The result of checking the stripes.
enum Looked {
    Batch,
    /// Due entries may not expire before this moment.
    HeldUntil(Time),
    Nothing,
}

/// The state that one ticker owns.
#[derive(Debug)]
pub(crate) struct TickerState {
    ticker: Ticker,
    ticker_queue: TickerQueue,
    /// The worker that this ticker acts as, with inline execution.
    inline: Option<Worker>,
    growth: GrowthWatch,
    /// The ticker's share of the pace; unused without a pace.
    share: Share,
    stalled: bool,
    saturated: bool,
    /// What was noted last of tickets that wait.
    noted: Option<OldTickets>,
    /// Whether all workers are in long tasks, so that this ticker serves what is light.
    helping: bool,
    /// Whether the ticker is woken for a shutdown that has no thread.
    registered: bool,
}

impl TickerState {
    pub(super) fn new(
        ticker: Ticker,
        ticker_queue: TickerQueue,
        inline: Option<Worker>,
        limit: Duration,
    ) -> Self {
        TickerState {
            ticker,
            ticker_queue,
            inline,
            growth: GrowthWatch::new(limit),
            share: Share::default(),
            stalled: false,
            saturated: false,
            noted: None,
            helping: false,
            registered: false,
        }
    }

    pub(crate) fn shard(&self) -> usize {
        self.ticker.shard()
    }

    /// Returns whether this is the first call.
    pub(super) fn registers(&mut self) -> bool {
        !std::mem::replace(&mut self.registered, true)
    }
}

impl<F: Frontend> Engine<F> {
    /// Takes one step of the ticker in `ticker_state`. `start_workers` starts these workers, and
    /// returns whether the system gave a thread to each.
    pub(crate) fn ticker_step(
        &self,
        server: &Arc<Server<F>>,
        ticker_state: &mut TickerState,
        start_workers: &mut dyn FnMut(NewWorkers) -> bool,
    ) -> TickerStep {
        let shard = self.shards().shard(ticker_state.ticker.shard());
        shard.bell.awake();
        if self.closing().is_stopped() {
            return TickerStep::Stop;
        }
        let now = self.now();
        self.signs[ticker_state.shard()].steps(now);
        self.wake_at_limits(ticker_state.shard(), now);
        #[cfg(feature = "tracing")]
        let was_stalled = ticker_state.stalled;
        // Stall at the bound, and resume only at half of it: the claim that reaches half is the one
        // that rings. Due entries wait in the wheel meanwhile, where they can be moved or
        // cancelled.
        ticker_state.stalled = if ticker_state.helping {
            false
        } else if ticker_state.stalled {
            !shard.backlog.recovered()
        } else {
            shard.backlog.room() == 0
        };
        #[cfg(feature = "tracing")]
        if ticker_state.stalled && !was_stalled {
            // Relaxed: a count.
            self.faults().stalled.fetch_add(1, Ordering::Relaxed);
        }
        let mut held_until = None;
        if !ticker_state.stalled {
            // HELP-1.
            let room = if ticker_state.helping {
                usize::MAX
            } else {
                shard.backlog.room()
            };
            match self.collect(ticker_state, now, room) {
                Looked::Batch => {
                    self.hand_over(server, ticker_state);
                    self.serve_inline(server, ticker_state);
                    return TickerStep::Worked;
                }
                Looked::HeldUntil(begin) if begin <= now => return TickerStep::Worked,
                Looked::HeldUntil(begin) => held_until = Some(begin),
                Looked::Nothing => {}
            }
        }
        // Tickets that were due when they were armed do not come from a wheel: the call injected
        // them.
        if self.serve_inline(server, ticker_state) {
            return TickerStep::Worked;
        }
        let waiting = self.waits_for_workers(ticker_state.shard());
        let look_again = self.watch(ticker_state, now, waiting, start_workers);
        if self.help(server, ticker_state) {
            return TickerStep::Worked;
        }
        // A share that begins later delays the held stripes only; see the file head.
        let least_due = || match held_until {
            None => shard.least_due(),
            Some(begin) => ticker_state.ticker.least_due(self.shards(), begin),
        };
        let due = least_due();
        // Due entries can't wake a stalled ticker. The claim that reaches half of the bound does.
        let wakes = if ticker_state.stalled { Time::MAX } else { due };
        let limit = || self.next_limit(ticker_state.ticker.shard());
        let at = wakes.min(look_again).min(limit());
        shard.bell.promise(at);
        // A producer that published before the promise saw an awake ticker and did not ring. So
        // everything it may have published is checked again. New tickets matter here because the
        // watch of the pool begins with them.
        let news = self.closing().is_stopped()
            || (!waiting && self.waits_for_workers(ticker_state.shard()))
            || (self.is_inline() && self.pool().has_tickets())
            // HELP-2.
            || (ticker_state.helping && self.pool().has_unsifted())
            || limit() < at
            || if ticker_state.stalled {
                shard.backlog.recovered()
            } else {
                least_due() < at
            };
        if news {
            shard.bell.awake();
            return TickerStep::Worked;
        }
        // Rare work that no producer should have to do: the ticker does it before it sleeps.
        self.shards().relax_permits();
        ticker_state.ticker.before_sleep(now, due);
        TickerStep::SleepUntil(at)
    }

    /// Collects one batch from one stripe, or returns what there is to wait for.
    fn collect(&self, ticker_state: &mut TickerState, now: Time, room: usize) -> Looked {
        let Some(pace) = &self.pace else {
            return self.collect_stripes(ticker_state, now, room);
        };
        let allowed = pace.allowed(&mut ticker_state.share, now);
        let mut left = allowed;
        let collected = ticker_state
            .ticker
            .collect(self.shards(), now, room, &mut left);
        ticker_state.share.take(allowed - left);
        match collected {
            Collected::Batch => Looked::Batch,
            Collected::Held => {
                Looked::HeldUntil(pace.reserve(&mut ticker_state.share, || self.now()))
            }
            Collected::Nothing => Looked::Nothing,
        }
    }

    /// Collects from one stripe after the other, until there are enough tickets. A batch without a
    /// ticket ends it: other stripes may have become due while one cascaded.
    fn collect_stripes(&self, ticker_state: &mut TickerState, now: Time, room: usize) -> Looked {
        let enough = HAND_OVER_FROM.min(room);
        let ticker = &mut ticker_state.ticker;
        let mut looked = Looked::Nothing;
        loop {
            let before = ticker.tickets.len();
            let mut all = usize::MAX;
            match ticker.collect(self.shards(), now, room - before, &mut all) {
                Collected::Batch => looked = Looked::Batch,
                Collected::Held | Collected::Nothing => return looked,
            }
            let collected = ticker.tickets.len();
            if collected >= enough || collected == before {
                return looked;
            }
        }
    }

    /// Hands the collected batch to the executor.
    fn hand_over(&self, server: &Arc<Server<F>>, ticker_state: &mut TickerState) {
        if ticker_state.ticker.tickets.is_empty() {
            return;
        }
        let shard = self.shards().shard(ticker_state.ticker.shard());
        // Counted before the hand-over, so that the count is never below the truth.
        shard.backlog.issue(ticker_state.ticker.tickets.len());
        if F::LIGHT && ticker_state.helping {
            for ticket in ticker_state.ticker.tickets.drain(..) {
                self.sift(server, ticket);
            }
            return;
        }
        for ticket in ticker_state.ticker.tickets.drain(..) {
            ticker_state.ticker_queue.push(ticket);
        }
        ticker_state.ticker_queue.announce();
    }

    /// Returns whether a ticket waits for a worker. In the pool, that is one of the shard that is
    /// unclaimed. What an executor of the user keeps is unclaimed, too, and waits for its threads.
    fn waits_for_workers(&self, shard: usize) -> bool {
        match &self.executor_kind {
            ExecutorKind::Foreign(_) => self.pool().has_tickets(),
            ExecutorKind::Pool | ExecutorKind::Inline => {
                self.shards().shard(shard).backlog.unclaimed() > 0
            }
        }
    }

    /// Runs some tasks on the ticker's own thread with inline execution. Returns whether there were
    /// any.
    fn serve_inline(&self, server: &Arc<Server<F>>, ticker_state: &mut TickerState) -> bool {
        let Some(worker) = &mut ticker_state.inline else {
            return false;
        };
        // Bounded, since tasks may keep arming others that are due at once.
        (0..INLINE_STEPS)
            .take_while(|_| worker.step(server.as_ref()))
            .count()
            > 0
    }

    /// Serves what is light if the pool is stuck. Returns whether there was anything to sift, or to
    /// collect now.
    fn help(&self, server: &Arc<Server<F>>, ticker_state: &mut TickerState) -> bool {
        if !F::LIGHT {
            return false;
        }
        let before = ticker_state.helping;
        ticker_state.helping = self.frontend.has_light() && ticker_state.growth.is_stuck();
        if !ticker_state.helping {
            return false;
        }
        let sifted = (0..SIFTED_AT_ONCE)
            .map_while(|_| ticker_state.ticker_queue.take_unsifted())
            .map(|ticket| self.sift(server, ticket))
            .count();
        sifted > 0 || (!before && ticker_state.stalled)
    }

    /// Serves a ticket that is light. Leaves another one to the workers (HELP-3).
    fn sift(&self, server: &Arc<Server<F>>, ticket: Ticket) {
        if server.serve_if_light(ticket) {
            self.pool().count_helped();
        } else {
            self.pool().put_sifted(ticket);
        }
    }

    /// Lets the pool grow if tickets wait. Returns until when the ticker may sleep.
    fn watch(
        &self,
        ticker_state: &mut TickerState,
        now: Time,
        waiting: bool,
        start_workers: &mut dyn FnMut(NewWorkers) -> bool,
    ) -> Time {
        if self.is_inline() {
            return Time::MAX;
        }
        let pool = self.pool();
        let mut crew = PoolCrew::new(pool, || match &self.executor_kind {
            ExecutorKind::Foreign(_) => pool.queued_hint(),
            ExecutorKind::Pool | ExecutorKind::Inline => self.shards().unclaimed(),
        });
        let growth = ticker_state.growth.look(now, waiting, &mut crew);
        let old_tickets = ticker_state.growth.old_tickets();
        if ticker_state.noted != old_tickets {
            ticker_state.noted = old_tickets;
            self.signs[ticker_state.shard()].finds(old_tickets);
        }
        let saturated = waiting && growth != Growth::Calm && pool.free_slots() == 0;
        if saturated && !ticker_state.saturated {
            // Relaxed: a count.
            self.faults().saturated.fetch_add(1, Ordering::Relaxed);
        }
        ticker_state.saturated = saturated;
        let look_again = match growth {
            Growth::Calm => Time::MAX,
            Growth::LookAgain(at) => at,
            Growth::Start {
                workers,
                look_again,
            } => {
                if workers.spare {
                    pool.ask_for_spare();
                }
                let all_started = start_workers(workers);
                crew.asked_for_threads(now, all_started)
                    .unwrap_or(look_again)
            }
        };
        // Dropped after the start: the crew may hold the lock of the sightings, and the next ticker
        // that checks must see the new workers.
        drop(crew);
        look_again
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Timer;

    #[test]
    fn a_ticker_that_stalls_keeps_its_buffers_while_timers_are_due() {
        let ((server, mut tickers), hand) = Timer::builder().stepped_parts(7).unwrap();
        let timer = Timer::of(Arc::clone(&server));
        // A ticker hands over at most 65,536 tickets before workers claim some. The first 40,000
        // timers are fewer, so their buffer is emptied.
        for (count, due) in [(40_000, 1), (60_000, 2)] {
            for _ in 0..count {
                let _ = timer.after(Duration::from_secs(due), || ()).unwrap();
            }
        }
        let ticker = &mut tickers[0];
        let mut step = || {
            let engine = server.engine();
            while let TickerStep::Worked = engine.ticker_step(&server, ticker, &mut |_| true) {}
            (ticker.stalled, ticker.ticker.spare_room())
        };
        hand.advance(Duration::from_secs(3));
        let (stalled, kept) = step();
        assert!(stalled && kept > 0, "{stalled}, {kept}");

        // A worker runs what was collected, and the ticker collects the rest.
        let pool = server.engine().pool();
        let mut worker = pool.take_slot().unwrap();
        for _ in 0..3 {
            while worker.step(server.as_ref()) {}
            let _ = step();
        }
        assert_eq!(step(), (false, 0));
    }
}
