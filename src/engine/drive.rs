//! A ticker's step. It never blocks: it says until when the ticker may sleep.
//!
//! 1. Awake: the promise is 0, nobody rings.
//! 2. Collect one batch, unless the backlog is at its bound, and hand it over. Worked: once more.
//!    With a pace, no more than is left of the share that is reserved. If that holds something
//!    back, reserve the next share; if it has begun: once more.
//! 3. Nothing due: look whether tickets have grown old while workers are blocked, and let the pool
//!    grow.
//! 4. Promise to wake at the earlier of the least due moment and the next look at the pool. What is
//!    held back is due when the share begins.
//! 5. Look again at everything that is published for a ticker: due moments, the backlog, the end.
//!    Something new: awake, once more. Else sleep until the promise. A ticker that hands injected
//!    tickets over itself also looks at the queues: a ticket is counted before it is pushed, so a
//!    backlog that was seen before the promise says nothing of what could be served.
//!
//! Steps 4 and 5 are the ticker's half of `shard/doorbell.rs` and of `shard/backlog.rs`.
//!
//! A stripe that is held counts with the beginning of the share in both of them, whatever is
//! published for it: nothing of this shard can expire before, so there is nothing to be slept
//! through. All other stripes count as always. So a ticker that holds something back wakes for
//! another stripe's cascade, or to find that the other stripe is to be held, too; and sleeps then.

use super::pace::Share;
use super::{Engine, Face, Place, Server};
use crate::executor::{Feeder, Growth, GrowthWatch, PoolCrew, Worker};
use crate::shard::{Collected, Ticker};
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, Parker};
use crate::tick::Time;
use std::time::Duration;

/// So many rounds of up to 32 tasks a ticker that is its own worker runs before it looks at the
/// wheels again.
const INLINE_STEPS: usize = 8;
/// So many injected tickets are handed to a foreign executor before the wheels are looked at again.
const INJECTED_AT_ONCE: usize = 256;

/// What a ticker should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There may be more at once.
    Worked,
    /// Nothing before this moment, unless the bell rings.
    SleepUntil(Time),
    Stop,
}

/// What a look at the stripes brought.
enum Looked {
    Batch,
    /// What is due may not expire before this moment.
    HeldUntil(Time),
    Nothing,
}

/// Everything that one ticker owns.
#[derive(Debug)]
pub(crate) struct Seat {
    ticker: Ticker,
    parker: Parker,
    feeder: Feeder,
    /// With inline execution the ticker is a worker too.
    inline: Option<Worker>,
    growth: GrowthWatch,
    /// Of the pace, if there is one.
    share: Share,
    stalled: bool,
    saturated: bool,
}

impl Seat {
    pub(super) fn new(
        ticker: Ticker,
        parker: Parker,
        feeder: Feeder,
        inline: Option<Worker>,
        limit: Duration,
    ) -> Self {
        Seat {
            ticker,
            parker,
            feeder,
            inline,
            growth: GrowthWatch::new(limit),
            share: Share::default(),
            stalled: false,
            saturated: false,
        }
    }

    pub(crate) fn shard(&self) -> usize {
        self.ticker.shard()
    }

    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }
}

impl<F: Face> Engine<F> {
    /// One step of the ticker in `seat`; `start_workers` starts that many and says how many it
    /// could.
    pub(crate) fn ticker_step(
        &self,
        server: &Arc<Server<F>>,
        seat: &mut Seat,
        start_workers: &mut dyn FnMut(usize),
    ) -> Step {
        let shard = self.shards().shard(seat.ticker.shard());
        shard.bell.awake();
        if self.closing().is_stopped() {
            return Step::Stop;
        }
        let now = self.now();
        seat.stalled = if seat.stalled {
            !shard.backlog.recovered()
        } else {
            shard.backlog.room() == 0
        };
        let mut held_until = None;
        if !seat.stalled {
            match self.collect(seat, now, shard.backlog.room()) {
                Looked::Batch => {
                    self.hand_over(seat);
                    self.serve_inline(server, seat);
                    return Step::Worked;
                }
                Looked::HeldUntil(begin) if begin <= now => return Step::Worked,
                Looked::HeldUntil(begin) => held_until = Some(begin),
                Looked::Nothing => {}
            }
        }
        if self.serve_inline(server, seat) || self.submit_injected() {
            return Step::Worked;
        }
        let waiting = shard.backlog.unclaimed() > 0;
        let look_again = self.watch(seat, now, waiting, start_workers);
        let least_due = || match held_until {
            None => shard.least_due(),
            Some(begin) => seat.ticker.least_due(self.shards(), begin),
        };
        let due = if seat.stalled { Time::MAX } else { least_due() };
        let at = due.min(look_again);
        shard.bell.promise(at);
        let news = self.closing().is_stopped()
            || (!waiting && shard.backlog.unclaimed() > 0)
            || (!matches!(self.place, Place::Pool) && self.pool().has_tickets())
            || if seat.stalled {
                shard.backlog.recovered()
            } else {
                least_due() < at
            };
        if news {
            shard.bell.awake();
            return Step::Worked;
        }
        self.shards().relax_permits();
        Step::SleepUntil(at)
    }

    /// Collects one batch from one stripe, or says what there is to wait for.
    fn collect(&self, seat: &mut Seat, now: Time, room: usize) -> Looked {
        let Some(pace) = &self.pace else {
            let mut all = usize::MAX;
            return match seat.ticker.collect(self.shards(), now, room, &mut all) {
                Collected::Batch => Looked::Batch,
                Collected::Held | Collected::Nothing => Looked::Nothing,
            };
        };
        let allowed = pace.allowed(&mut seat.share, now);
        let mut left = allowed;
        let collected = seat.ticker.collect(self.shards(), now, room, &mut left);
        seat.share.take(allowed - left);
        match collected {
            Collected::Batch => Looked::Batch,
            Collected::Held => Looked::HeldUntil(pace.reserve(&mut seat.share, || self.now())),
            Collected::Nothing => Looked::Nothing,
        }
    }

    fn hand_over(&self, seat: &mut Seat) {
        if seat.ticker.tickets.is_empty() {
            return;
        }
        let shard = self.shards().shard(seat.ticker.shard());
        shard.backlog.issue(seat.ticker.tickets.len());
        match &self.place {
            Place::Foreign(executor) => {
                let batch = seat.ticker.tickets.drain(..).collect();
                self.submit(executor.as_ref(), batch);
            }
            Place::Pool | Place::Inline => {
                for ticket in seat.ticker.tickets.drain(..) {
                    seat.feeder.push(ticket);
                }
                seat.feeder.announce();
            }
        }
    }

    /// With a foreign executor: hands over some of what was injected. Whether there was anything.
    fn submit_injected(&self) -> bool {
        let Place::Foreign(executor) = &self.place else {
            return false;
        };
        let injected = self.pool().take_injected(INJECTED_AT_ONCE);
        let any = !injected.is_empty();
        // A job each: they did not come as a batch, and none should wait for another.
        for ticket in injected {
            self.submit(executor.as_ref(), vec![ticket]);
        }
        any
    }

    /// With inline execution: runs some of what there is. Whether there was anything.
    fn serve_inline(&self, server: &Arc<Server<F>>, seat: &mut Seat) -> bool {
        let Some(worker) = &mut seat.inline else {
            return false;
        };
        // Bounded, since tasks that are due at once may go on arming more of them.
        (0..INLINE_STEPS)
            .take_while(|_| worker.step(server.as_ref()))
            .count()
            > 0
    }

    /// Lets the pool grow when tickets wait. Until when the ticker may sleep at most.
    fn watch(
        &self,
        seat: &mut Seat,
        now: Time,
        waiting: bool,
        start_workers: &mut dyn FnMut(usize),
    ) -> Time {
        if !matches!(self.place, Place::Pool) {
            return Time::MAX;
        }
        let pool = self.pool();
        let free = pool.free_seats();
        let mut crew = PoolCrew::new(pool, || self.shards().unclaimed());
        let growth = seat.growth.look(now, waiting, &mut crew);
        let saturated = waiting && free == 0 && growth != Growth::Calm;
        if saturated && !seat.saturated {
            // Relaxed: a count.
            self.faults().saturated.fetch_add(1, Ordering::Relaxed);
        }
        seat.saturated = saturated;
        let look_again = match growth {
            Growth::Calm => Time::MAX,
            Growth::LookAgain(at) => at,
            Growth::Start { count, look_again } => {
                start_workers(count);
                look_again
            }
        };
        // Not before: the next ticker that looks has to see those that were started.
        drop(crew);
        look_again
    }
}
