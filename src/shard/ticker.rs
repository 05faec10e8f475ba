//! The work of a ticker, without its thread: find the due stripes, collect one batch from one of
//! them, go on to the next. The ticker's thread, the deterministic scheduler and the models all
//! drive it.
//!
//! - Batches are bounded, and the next due stripe has its turn after each batch. With std's mutex,
//!   a thread that has just unlocked can take the lock again at once, and producers would wait.
//! - Due slots come before cascades. A stripe that only has to cascade is passed over while other
//!   stripes are due, for up to 16 batches.
//! - A pace bounds how many timers may expire. A stripe whose next timer may not expire is *held*.
//!   It is not checked again before some timer may expire, because nothing that is published for it
//!   meanwhile could expire either.
//! - All other stripes go on: cascading, and filing entries again that were moved to a later
//!   deadline, do not wait for the pace. Checks that cannot expire anything use a second
//!   cursor. Otherwise they would decide which stripe uses what the pace allows.
//! - The buffers that a wheel no longer needs are freed when nothing will be due for a while, and
//!   not between two batches.
//! - Only the ticker raises `next_due` of a stripe, under the stripe's lock, to its exact value.

use std::time::Duration;

use super::{Locked, Shards};
use crate::job::Ticket;
use crate::sync::atomic::Ordering;
use crate::tick::Time;
use crate::wheel::{Budget, CoreProgress};

/// Greatest number of timers that are collected under one hold of a stripe's lock.
const EXPIRED_PER_HOLD: usize = 256;
/// Greatest number of timers that cascade under one hold of a stripe's lock: about 0.1 ms for each
/// of the two limits.
const CASCADED_PER_HOLD: usize = 64;

/// Room, in numbers, of the emptied buffers that all tickers together keep until nothing is due: 32
/// MB, which the slots of some 8 million timers take.
const SPARE_ROOM: usize = 1 << 23;

/// Buffers are freed if nothing will be due for this long. While many timers come due, that is a
/// tick.
const QUIET: Duration = Duration::from_millis(100);

/// Number of batches after which a cascade has its turn. A stripe that is always due must not keep
/// another one from cascading forever, because timers in the cascade come due, too.
const CASCADE_AT_LEAST_EVERY: u32 = 16;

/// Result of [`Ticker::collect`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// A batch was collected; its tickets are in [`Ticker::tickets`].
    Batch,
    /// All due timers are held back by the pace.
    Held,
    /// No stripe is due.
    Nothing,
}

/// The remaining work of a stripe after its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StripeBacklog {
    Anything,
    /// The stripe only has to cascade.
    Cascade,
    /// A due timer that was not allowed to expire.
    Held,
}

/// The ticker of one shard.
#[derive(Debug)]
pub(crate) struct Ticker {
    shard: usize,
    /// The stripe to check next, for checks with expiration (first) and without (second).
    cursors: [usize; 2],
    /// Remaining work of each stripe of the shard.
    left: Vec<StripeBacklog>,
    /// Number of batches since a cascade had its turn.
    since_cascade: u32,
    /// Slots of the batch, reused to avoid allocations.
    slots: Vec<u32>,
    /// Emptied buffers of the wheels, and their room. They are freed before a sleep if nothing will
    /// be due for `QUIET`, or at the ticker's part of `SPARE_ROOM`.
    ///
    /// The thread that armed the timers has allocated them. So when one is freed, glibc merges all
    /// that the workers have freed in that thread's arena meanwhile. Where many timers come due,
    /// that delays them by 30 to 100 ms for every million tasks.
    spare: Vec<Vec<u32>>,
    spare_room: usize,
    /// Tickets of the last batch, to be handed over.
    pub(crate) tickets: Vec<Ticket>,
}

impl Ticker {
    pub(crate) fn new(shard: usize, stripes_of_shard: usize) -> Self {
        Ticker {
            shard,
            cursors: [0; 2],
            left: vec![StripeBacklog::Anything; stripes_of_shard],
            since_cascade: 0,
            spare: Vec::new(),
            spare_room: 0,
            slots: Vec::new(),
            tickets: Vec::new(),
        }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Returns the room of the emptied buffers that are kept.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spare_room(&self) -> usize {
        self.spare_room
    }

    /// Collects one batch of at most `room` tickets from the next due stripe. The number of timers
    /// that expire is subtracted from `allowed`.
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
        // Not under the lock, and not before something is due: most of many instances are idle.
        self.slots.reserve(EXPIRED_PER_HOLD);
        let spare = {
            let mut locked = Locked::new(shards, number);
            let progress = locked.0.collect(now, &mut budget, &mut self.slots);
            // Remembered for `next_stripe`, which passes over a stripe that can't expire anything.
            self.left[stripe] = match progress {
                CoreProgress::Cascade => StripeBacklog::Cascade,
                CoreProgress::Held => StripeBacklog::Held,
                CoreProgress::Done | CoreProgress::Expired => StripeBacklog::Anything,
            };
            // Stored under the same hold of the lock: a producer that locks later can lower it
            // again (STRIPE-3).
            let due = locked.0.republish();
            // Relaxed: STRIPE-3; only the ticker raises it.
            shards.shards[self.shard].next_due[stripe].store(due.as_nanos(), Ordering::Relaxed);
            locked.0.take_spare()
        };
        if !spare.is_empty() {
            self.keep(spare, SPARE_ROOM / count);
        }
        *allowed = budget.allowed;
        let stripe = u32::try_from(number).unwrap_or(u32::MAX);
        self.tickets
            .extend(self.slots.drain(..).map(|slot| Ticket { stripe, slot }));
        Collected::Batch
    }

    fn keep(&mut self, mut spare: Vec<Vec<u32>>, room: usize) {
        self.spare_room += spare.iter().map(Vec::capacity).sum::<usize>();
        self.spare.append(&mut spare);
        if self.spare_room > room {
            self.free_spare();
        }
    }

    /// Prepares for a sleep. `due` is when the shard has work next. It has come already if the
    /// ticker is stalled: then it sleeps in the middle of a mass of due timers.
    pub(crate) fn before_sleep(&mut self, now: Time, due: Time) {
        if now + QUIET <= due {
            self.free_spare();
        }
    }

    /// Frees the buffers. Called without a lock, since freeing many of them takes long.
    fn free_spare(&mut self) {
        self.spare = Vec::new();
        self.spare_room = 0;
    }

    /// Returns the next moment at which the shard has work, if held timers wait until `begin`.
    pub(crate) fn least_due<K, V>(&self, shards: &Shards<K, V>, begin: Time) -> Time {
        let next_due = &shards.shards[self.shard].next_due;
        let moments = next_due.iter().zip(&self.left).map(|(due, left)| {
            // Relaxed: ordered by the doorbell's fences.
            let due = Time::from_nanos(due.load(Ordering::Relaxed));
            // Nothing of a held stripe can expire before `begin`, so waking earlier for it would be
            // in vain.
            if *left == StripeBacklog::Held {
                due.max(begin)
            } else {
                due
            }
        });
        moments.min().unwrap_or(Time::MAX)
    }

    /// Returns the next due stripe, starting at the cursor, and whether the stripe may cascade.
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
            // Relaxed: the ticker reads it again before it sleeps.
            let due = Time::from_nanos(next_due[at].load(Ordering::Relaxed));
            // `Time::MAX` means never, also when the clock has reached it.
            if due > now || due == Time::MAX {
                continue;
            }
            match self.left[at] {
                // Remembered, and used only if no stripe is due or its turn has come.
                StripeBacklog::Cascade => {
                    cascade = cascade.or(Some(at));
                    continue;
                }
                StripeBacklog::Held if !may_expire => {
                    held = true;
                    continue;
                }
                StripeBacklog::Held | StripeBacklog::Anything => {}
            }
            // Another stripe is due, but the stripe with a cascade has waited long enough.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Layout, Stripe};
    use super::*;
    use crate::tick::TickSize;

    /// So many that the buffer of their slot is none that the wheel keeps.
    const TIMERS: u64 = 10_000;

    fn one_stripe() -> Shards<u64, ()> {
        let layout = Layout {
            shards: 1,
            stripes: 1,
            tick: TickSize::from_nanos(1_000_000),
            now: Time::ZERO,
            backlog: usize::MAX,
            max_pending: None,
            paced: false,
            seed: 7,
        };
        Shards::new(&layout)
    }

    #[test]
    fn a_stripe_is_collected_at_the_moment_it_is_due_and_not_before() {
        let shards = one_stripe();
        let due = Time::ZERO + Duration::from_secs(1);
        let arm = |stripe: &mut Stripe<u64, ()>| {
            let admission = stripe.admit_keyless().expect("it is open");
            stripe.arm_keyless(admission, 1, || (), due, Time::ZERO);
        };
        shards.with(0, arm, drop);
        let due = shards.shards[0].next_due[0].load(Ordering::Relaxed);
        let mut ticker = Ticker::new(0, 1);
        for (now, tickets) in [(due - 1, 0), (due, 1)] {
            let (now, mut all) = (Time::from_nanos(now), usize::MAX);
            while ticker.collect(&shards, now, usize::MAX, &mut all) == Collected::Batch {}
            assert_eq!(ticker.tickets.len(), tickets);
        }
    }

    #[test]
    fn buffers_are_kept_until_nothing_is_due_for_a_while() {
        let shards = one_stripe();
        let now = Time::ZERO + Duration::from_secs(1);
        let arm = |stripe: &mut Stripe<u64, ()>| {
            for key in 0..TIMERS {
                let admission = stripe.admit_keyless().expect("it is open");
                stripe.arm_keyless(admission, key, || (), now, Time::ZERO);
            }
        };
        shards.with(0, arm, drop);
        let mut ticker = Ticker::new(0, 1);
        let after = now + Duration::from_millis(2);
        let mut all = usize::MAX;
        while ticker.collect(&shards, after, usize::MAX, &mut all) == Collected::Batch {}
        assert_eq!(ticker.tickets.len() as u64, TIMERS);
        let kept: usize = ticker.spare.iter().map(Vec::capacity).sum();
        assert!(kept as u64 >= TIMERS, "{kept}");
        assert_eq!(ticker.spare_room, kept);

        // Stalled, and almost quiet.
        for due in [now, after + (QUIET - Duration::from_nanos(1))] {
            ticker.before_sleep(after, due);
            assert_eq!(ticker.spare_room, kept);
        }
        ticker.before_sleep(after, after + QUIET);
        assert_eq!((ticker.spare.len(), ticker.spare_room), (0, 0));
    }

    #[test]
    fn the_room_of_kept_buffers_is_bounded() {
        let mut ticker = Ticker::new(0, 1);
        ticker.keep(vec![Vec::with_capacity(100)], 100);
        assert_eq!(ticker.spare_room, 100);
        ticker.keep(vec![Vec::with_capacity(100)], 100);
        assert_eq!((ticker.spare.len(), ticker.spare_room), (0, 0));
    }
}
