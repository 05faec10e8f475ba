//! Checks of a stripe from the inside, and its end.

use super::SOON;
use super::pair::{Ended, HASH, Pair, State, at};
use crate::shard::entry::{End, Phase, Slot};
use crate::shard::permits::LocalPermits;
use crate::shard::stripe::{Cancelling, Claimed, DeferredActions, EntryPhase, Moving, Refusal};

impl Pair {
    /// Performs the deferred actions, as after every hold of the lock, and checks everything.
    pub(super) fn check_deferred(&mut self) {
        let DeferredActions {
            lowered,
            ticket,
            emptied,
            // No task watches a run in these tests.
            #[cfg(feature = "tokio")]
                to_notify: _,
        } = self.stripe.take_deferred();
        assert!(!emptied, "the stripe is open");
        if let Some(lowered) = lowered {
            assert!(lowered < self.seen);
            self.seen = lowered;
        }
        self.tickets.extend(ticket);
        for (number, slot) in self.tickets.iter().enumerate() {
            assert!(
                !self.tickets[..number].contains(slot),
                "ENTRY-1: two tickets"
            );
        }
        self.look_at_slots();
        self.look_at_keys();
        self.look_at_ids();
        let counters = self.stripe.counters();
        assert_eq!(counters.scheduled, self.ends.len() as u64);
        assert_eq!(counters.ran, self.count(Ended::Ran));
        assert_eq!(counters.cancelled, self.count(Ended::Cancelled));
        assert_eq!(counters.replaced, self.count(Ended::Replaced));
        assert_eq!(counters.pending, self.pending() as u64);
        let queued = self
            .keys
            .iter()
            .filter(|key| matches!(key, State::Armed { queued: true, .. }));
        assert_eq!(counters.queued, queued.count() as u64);
    }

    /// Checks ENTRY-1, ENTRY-2, ENTRY-4 and ENTRY-5.
    fn look_at_slots(&self) {
        let mut running = 0;
        let mut filed = 0;
        for slot in 0..self.stripe.table.len() {
            let ticket = match self.stripe.table.slot(slot) {
                Some(Slot::Armed(armed)) => {
                    let pending = armed.phase == Phase::Pending;
                    filed += usize::from(pending);
                    let nowhere = armed.wheel_position == crate::wheel::WheelPosition::NONE;
                    assert_eq!(pending, !nowhere, "ENTRY-5");
                    // A Queued entry has a ticket under way.
                    assert!(pending || armed.ticket, "ENTRY-1");
                    armed.ticket
                }
                Some(Slot::Running(_)) => {
                    running += 1;
                    assert!(self.stripe.run_at(slot).is_some(), "ENTRY-4");
                    false
                }
                Some(Slot::Free(_)) => {
                    let out = self.tickets.contains(&slot);
                    assert_eq!(self.stripe.table.is_listed_free(slot), !out, "ENTRY-2");
                    out
                }
                None => unreachable!("below the length"),
            };
            assert_eq!(
                ticket,
                self.tickets.contains(&slot),
                "ENTRY-1: the bit is set"
            );
        }
        assert_eq!(self.stripe.running(), running, "ENTRY-4");
        let staged = self.stripe.staging.iter();
        let staged = staged.inspect(|(position, slot, deadline)| {
            let armed = self.stripe.table.armed(*slot).expect("STAGE-1");
            assert_eq!(
                armed.wheel_position,
                crate::wheel::WheelPosition::STAGED,
                "STAGE-1"
            );
            assert_eq!(armed.position, *position, "STAGE-1");
            assert!(*deadline <= armed.deadline, "STAGE-2");
        });
        assert_eq!(self.stripe.wheel.len() + staged.count(), filed, "ENTRY-5");
    }

    fn look_at_keys(&self) {
        for (key, state) in self.keys.iter().enumerate() {
            let entry_info = self.stripe.get(HASH, &key);
            let (arming, phase) = match *state {
                State::Absent => {
                    assert!(entry_info.is_none(), "{entry_info:?}");
                    continue;
                }
                State::Armed {
                    arming,
                    queued: true,
                } => (arming, EntryPhase::Queued),
                State::Armed { arming, .. } => {
                    // A timer whose ticket was given back expires with the next tick.
                    let due = arming.deadline.max(self.now + 1);
                    assert!(self.seen <= at(due), "the due moment is published");
                    (arming, EntryPhase::Pending)
                }
                State::Running {
                    arming,
                    told,
                    successor,
                    ..
                } => {
                    assert_eq!(self.stripe.is_cancelled(arming.id), told);
                    assert!(self.stripe.is_running(arming.id));
                    let successor =
                        successor.map(|successor| (successor.id, at(successor.deadline)));
                    (arming, EntryPhase::Running { successor })
                }
            };
            let entry_info = entry_info.expect("the key is in use");
            assert_eq!((entry_info.id, entry_info.phase), (arming.id, phase));
            assert_eq!(entry_info.deadline, at(arming.deadline));
        }
    }

    /// Checks that an id means its arming and no other one, whatever its slot is used for now.
    fn look_at_ids(&self) {
        for (id, how) in &self.ends {
            let entry_info = self.stripe.get_id(*id);
            let running = self.stripe.is_running(*id);
            let there = match how {
                Ended::Not => true,
                Ended::Ran => running,
                _ => false,
            };
            assert_eq!(
                entry_info.map(|entry_info| entry_info.id),
                there.then_some(*id)
            );
            let ended = match how {
                Ended::Ran if !running => Some(End::Ran),
                Ended::Cancelled => Some(End::Cancelled),
                _ => None,
            };
            if let Some(told) = self.stripe.end_of(*id) {
                assert_eq!(Some(told), ended);
            }
        }
    }

    pub(super) fn has_run(&self) -> bool {
        self.keys
            .iter()
            .any(|key| matches!(key, State::Running { .. }))
    }

    /// Checks that stale ids change nothing, then closes and empties the stripe. `keeps` says
    /// whether it keeps what follows a run.
    pub(super) fn finish(mut self, keeps: bool) {
        for (id, how) in self.ends.clone() {
            if how != Ended::Not && !self.stripe.is_running(id) {
                let moved = self
                    .stripe
                    .reschedule_id(id, at(self.now + SOON), at(self.now), false);
                assert_eq!(moved, Moving::NotFound);
                assert!(matches!(self.stripe.cancel_id(id), Cancelling::NotFound));
            }
        }
        self.check_deferred();
        assert!(self.stripe.close(keeps));
        assert_eq!(
            self.stripe.admit(HASH, &0, false).err(),
            Some(Refusal::Closed)
        );
        let mut taken = Vec::new();
        assert_eq!(self.stripe.take_pending(0, 10, true, &mut taken), None);
        for key in 0..2 {
            let pending = match &mut self.keys[key] {
                State::Absent => None,
                State::Armed { arming, .. } => Some(*arming),
                State::Running { successor, .. } => successor.take(),
            };
            let number = pending.map(|arming| arming.number);
            let found = taken.iter().position(|taken| taken.0 == Some(key));
            let found = found.map(|wheel_position| taken.swap_remove(wheel_position));
            assert_eq!(found.map(|(_, _, value)| value), number);
            if let Some(arming) = pending {
                self.end(arming, Ended::HandedBack);
            }
            if let State::Armed { .. } = self.keys[key] {
                self.keys[key] = State::Absent;
            }
        }
        assert!(taken.is_empty());
        let mut reports = u32::from(self.stripe.take_deferred().emptied);
        for slot in std::mem::take(&mut self.tickets) {
            let claimed = self.stripe.claim(slot, at(self.now));
            assert!(matches!(claimed, Claimed::Nothing));
        }
        let mut rounds = 0;
        for key in self.keys {
            if let State::Running {
                arming,
                repeats,
                told,
                ..
            } = key
            {
                assert_eq!(reports, 0, "the stripe is not empty while something runs");
                if repeats.is_some() {
                    let next = Some(at(self.now));
                    let left = self.stripe.arm_next_round(arming.id, usize::MAX, next);
                    if keeps && !told {
                        assert_eq!(left, None, "it comes out with the report");
                        rounds += 1;
                    } else {
                        assert_eq!(left, Some(usize::MAX), "it comes out");
                    }
                }
                self.stripe.complete(arming.id, false, || at(self.now));
            }
        }
        reports += u32::from(self.stripe.take_deferred().emptied);
        reports += u32::from(self.stripe.take_deferred().emptied);
        assert_eq!(reports, 1, "reported exactly once");
        self.stripe.take_kept(&mut taken);
        assert!(taken.iter().all(|taken| taken.2 == usize::MAX));
        assert_eq!(taken.len() as u64, rounds);
        let all = (0..self.stripe.table.len()).all(|slot| self.stripe.table.is_listed_free(slot));
        assert!(all, "ENTRY-2: every slot can be used again");
        let counters = self.stripe.counters();
        assert_eq!(counters.handed_back, self.count(Ended::HandedBack) + rounds);
        assert_eq!((counters.pending, counters.queued), (0, 0));
        assert!(self.stripe.index.is_empty() && self.stripe.wheel.is_empty());
        assert!(self.ends.iter().all(|(_, how)| *how != Ended::Not));
        if let Some(pool) = &self.pool {
            let mut permits = LocalPermits::default();
            assert!(pool.take(&mut permits), "one permit is free");
            assert!(!pool.take(&mut permits), "and only one");
        }
    }
}
