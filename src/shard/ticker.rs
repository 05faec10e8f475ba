//! A ticker's work without its thread: look which stripes are due, collect one batch from one of
//! them, go on to the next. Threads, the deterministic scheduler and the models drive it alike.
//!
//! - Batches are bounded, and after each batch the next due stripe has its turn: std's mutex lets
//!   the thread that just unlocked take it again, and a producer would wait.
//! - Due slots come before cascades: a stripe that has only cascading left is passed over while
//!   others are due, for up to 16 batches.
//! - With a pace only so many may expire. A stripe whose next one may not is *held*: it is not
//!   looked at again before some may, since whatever is published for it meanwhile could not expire
//!   either. All other stripes go on: cascading and filing again what was pushed out wait for no
//!   pace. Looks that can expire nothing have a cursor of their own, lest they decide who gets what
//!   the pace allows.
//! - `next_due` of a stripe is raised here alone, under the stripe's lock, to the truth.

use super::{Locked, Shards};
use crate::job::Ticket;
use crate::sync::atomic::Ordering;
use crate::tick::Time;
use crate::wheel::{Budget, CoreProgress};

/// At most so many timers are collected under one hold of a stripe's lock,
const EXPIRED_PER_HOLD: usize = 256;
/// and at most so many cascade to a lower level: about 0.1 ms each.
const CASCADED_PER_HOLD: usize = 64;

/// A stripe that is due at every look must not keep another from cascading for good: what lies
/// there comes due, too.
const CASCADE_AT_LEAST_EVERY: u32 = 16;

/// What a look brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// A batch was done; its tickets are in [`Ticker::tickets`].
    Batch,
    /// What is due is held back.
    Held,
    /// No stripe is due.
    Nothing,
}

/// What the last look at a stripe left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Anything,
    /// Only cascading.
    Cascade,
    /// Something due that was not allowed to expire.
    Held,
}

/// One shard's ticker.
#[derive(Debug)]
pub(crate) struct Ticker {
    shard: usize,
    /// The shard's next stripe to look at: when some may expire, and when none may.
    cursors: [usize; 2],
    /// Per stripe of the shard.
    left: Vec<Left>,
    /// Batches since a cascade had its turn.
    since_cascade: u32,
    slots: Vec<u32>,
    /// What the last batch collected, to be handed over.
    pub(crate) tickets: Vec<Ticket>,
}

impl Ticker {
    pub(crate) fn new(shard: usize, stripes_of_shard: usize) -> Self {
        Ticker {
            shard,
            cursors: [0; 2],
            left: vec![Left::Anything; stripes_of_shard],
            since_cascade: 0,
            slots: Vec::with_capacity(EXPIRED_PER_HOLD),
            tickets: Vec::with_capacity(EXPIRED_PER_HOLD),
        }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Collects one batch of at most `room` tickets from the next due stripe. As many as expire are
    /// taken from `allowed`.
    pub(crate) fn collect<K, V>(
        &mut self,
        shards: &Shards<K, V>,
        now: Time,
        room: usize,
        allowed: &mut usize,
    ) -> Collected {
        let (stripe, cascade) = match self.next_stripe(shards, now, *allowed > 0) {
            Ok(found) => found,
            Err(why_not) => return why_not,
        };
        let mut budget = Budget {
            expired: EXPIRED_PER_HOLD.min(room),
            allowed: *allowed,
            cascaded: if cascade { CASCADED_PER_HOLD } else { 0 },
        };
        let count = shards.shards();
        let number = stripe * count + self.shard;
        let spare = {
            let mut locked = Locked::new(shards, number);
            let progress = locked.0.collect(now, &mut budget, &mut self.slots);
            self.left[stripe] = match progress {
                CoreProgress::Cascade => Left::Cascade,
                CoreProgress::Held => Left::Held,
                CoreProgress::Done | CoreProgress::Expired => Left::Anything,
            };
            let due = locked.0.republish();
            // Relaxed: STRIPE-3; the ticker is the only one that raises it.
            shards.shards[self.shard].next_due[stripe].store(due.as_nanos(), Ordering::Relaxed);
            locked.0.take_spare()
        };
        drop(spare);
        *allowed = budget.allowed;
        let stripe = u32::try_from(number).unwrap_or(u32::MAX);
        self.tickets
            .extend(self.slots.drain(..).map(|slot| Ticket { stripe, slot }));
        Collected::Batch
    }

    /// When the shard has something to do, if what is held back waits until `begin`.
    pub(crate) fn least_due<K, V>(&self, shards: &Shards<K, V>, begin: Time) -> Time {
        let next_due = &shards.shards[self.shard].next_due;
        let moments = next_due.iter().zip(&self.left).map(|(due, left)| {
            // Relaxed: ordered by the doorbell's fences.
            let due = Time::from_nanos(due.load(Ordering::Relaxed));
            if *left == Left::Held {
                due.max(begin)
            } else {
                due
            }
        });
        moments.min().unwrap_or(Time::MAX)
    }

    /// The next stripe that is due, from the cursor on, and whether it is a cascade's turn.
    fn next_stripe<K, V>(
        &mut self,
        shards: &Shards<K, V>,
        now: Time,
        may_expire: bool,
    ) -> Result<(usize, bool), Collected> {
        let next_due = &shards.shards[self.shard].next_due;
        let stripes = next_due.len();
        let cursor = &mut self.cursors[usize::from(!may_expire)];
        let mut cascade = None;
        let mut held = false;
        for step in 0..stripes {
            let at = (*cursor + step) % stripes;
            // Relaxed: a stale value is looked at again before the ticker sleeps.
            let due = Time::from_nanos(next_due[at].load(Ordering::Relaxed));
            // Never is never, also when the clock stands at its end.
            if due > now || due == Time::MAX {
                continue;
            }
            match self.left[at] {
                Left::Cascade => {
                    cascade = cascade.or(Some(at));
                    continue;
                }
                Left::Held if !may_expire => {
                    held = true;
                    continue;
                }
                Left::Held | Left::Anything => {}
            }
            if cascade.is_some() && self.since_cascade >= CASCADE_AT_LEAST_EVERY {
                break;
            }
            self.since_cascade += 1;
            *cursor = (at + 1) % stripes;
            return Ok((at, false));
        }
        let Some(at) = cascade else {
            return Err(if held {
                Collected::Held
            } else {
                Collected::Nothing
            });
        };
        self.since_cascade = 0;
        *cursor = (at + 1) % stripes;
        Ok((at, true))
    }
}
