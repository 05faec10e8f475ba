//! Returning memory after a peak, on request.

use super::Stripe;

impl<K, V> Stripe<K, V> {
    /// Returns memory that the entries do not need. Entries stay in their slots, because ids name
    /// the slots; so all slots up to the highest one in use stay. No user code runs: the index has
    /// the hashes, and a free slot has no key.
    #[cold]
    #[inline(never)]
    pub(crate) fn shrink_to_fit(&mut self) {
        self.table.shrink_to_fit(&mut self.floors);
        self.index.shrink_to_fit();
        self.wheel.shrink_to_fit();
        self.runs.shrink_to_fit();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::super::{Cancelling, Claimed, EXHAUSTED, EntryId, KeyHash, Moving, Stripe};
    use crate::tick::{TickSize, Time};
    use crate::wheel::{Budget, CHUNK};

    const NOW: Time = Time::from_nanos(1_000);
    const LATER: Time = Time::from_nanos(9_000_000);

    fn stripe() -> Stripe<u32, ()> {
        Stripe::new(TickSize::from_nanos(1), NOW, 0, None)
    }

    fn arm(stripe: &mut Stripe<u32, ()>, key: u32, at: Time) -> EntryId {
        let hash = KeyHash(crate::shard::splitmix64(u64::from(key)));
        let admission = stripe.admit(hash, &key, false).unwrap();
        stripe.arm(admission, hash, key, (), at, NOW).id
    }

    #[track_caller]
    fn cancel(stripe: &mut Stripe<u32, ()>, id: EntryId) {
        assert!(matches!(stripe.cancel_id(id), Cancelling::Cancelled { .. }));
    }

    fn walked(stripe: &Stripe<u32, ()>) -> usize {
        let mut seen = 0;
        assert_eq!(
            stripe.for_each_range(0, u32::MAX, |_, _, (), _| seen += 1),
            None
        );
        seen
    }

    /// Holds for every entry that stays, and for every peak; and no id ever means another arming.
    #[test]
    fn after_a_peak_there_is_memory_up_to_the_slot_that_is_left() {
        const MANY: u32 = 2 * CHUNK as u32 + 10_000;
        let mut stripe = stripe();
        let mut given = HashSet::new();
        for stays in [0, 1, 5_000, MANY - CHUNK as u32, MANY - 1, 0, 0] {
            let ids: Vec<_> = (0..MANY).map(|key| arm(&mut stripe, key, LATER)).collect();
            assert!(
                ids.iter().all(|id| given.insert(*id)),
                "ENTRY-6: an id comes back"
            );
            let left = ids[stays as usize];
            for id in ids.iter().filter(|id| **id != left) {
                cancel(&mut stripe, *id);
            }
            assert_eq!(stripe.table.len(), MANY, "kept until somebody asks");
            assert!(stripe.index.rows() > 1_000);
            stripe.shrink_to_fit();
            assert_eq!(stripe.table.len(), left.slot + 1);
            assert!(stripe.table.room() <= (left.slot as usize + 1).next_multiple_of(CHUNK));
            assert_eq!(stripe.index.rows(), 1);
            assert!(stripe.wheel.room() <= 1_024, "{}", stripe.wheel.room());
            assert_eq!(walked(&stripe), 1);
            for id in ids.iter().filter(|id| **id != left) {
                assert!(stripe.get_id(*id).is_none(), "{id:?}");
                assert!(matches!(stripe.cancel_id(*id), Cancelling::NotFound));
                let moved = stripe.reschedule_id(*id, LATER, NOW, false);
                assert_eq!(moved, Moving::NotFound);
            }
            assert_eq!(
                stripe.get_id(left).map(|entry_info| entry_info.id),
                Some(left)
            );
            cancel(&mut stripe, left);
            stripe.shrink_to_fit();
            assert_eq!((stripe.table.len(), stripe.table.room()), (0, 0));
            assert_eq!((stripe.index.rows(), stripe.wheel.room()), (0, 0));
        }
    }

    /// A later call can then return the rest.
    #[test]
    fn new_entries_take_the_lowest_slots() {
        let mut stripe = stripe();
        let ids: Vec<_> = (0..100).map(|key| arm(&mut stripe, key, LATER)).collect();
        for id in ids[..99].iter().rev().step_by(2).chain(&ids[1..98]) {
            stripe.cancel_id(*id);
        }
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), 100);
        let next: Vec<_> = (200..250)
            .map(|key| arm(&mut stripe, key, LATER).slot)
            .collect();
        assert!(next.is_sorted() && next.len() == 50, "{next:?}");
        cancel(&mut stripe, ids[99]);
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), next[49] + 1);
    }

    /// ENTRY-1, ENTRY-2: slots whose tickets are out stay, and so do those that run.
    #[test]
    fn tickets_and_runs_outlive_it() {
        let mut stripe = stripe();
        let due = |stripe: &mut Stripe<u32, ()>, key| {
            let id = arm(stripe, key, NOW);
            assert_eq!(stripe.take_deferred().ticket, Some(id.slot));
            id
        };
        let [runs, queued, gone] = [1, 2, 3].map(|key| due(&mut stripe, key));
        let claimed = stripe.claim(runs.slot, NOW);
        assert!(matches!(claimed, Claimed::Run { id, .. } if id == runs));
        cancel(&mut stripe, gone);
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), gone.slot + 1, "its ticket is out");
        assert!(matches!(stripe.claim(gone.slot, NOW), Claimed::Nothing));
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), queued.slot + 1);
        let claimed = stripe.claim(queued.slot, NOW);
        assert!(matches!(claimed, Claimed::Run { id, .. } if id == queued));
        assert_eq!(stripe.complete(runs, false, || NOW).key, Some(1));
        stripe.shrink_to_fit();
        assert!(stripe.is_running(queued));
        assert_eq!(stripe.complete(queued, false, || NOW).key, Some(2));
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), 0);
    }

    /// Shrinks while a slot of the wheel is half drained, with entries on all levels.
    #[test]
    fn what_is_filed_is_found_where_it_was() {
        let mut stripe = stripe();
        let deadline = |key: u32| NOW + std::time::Duration::from_nanos(1 << (key % 45));
        for key in 0..900 {
            arm(&mut stripe, key, deadline(key));
        }
        let mut collected = 0;
        let mut now = NOW;
        while collected < 900 {
            now = stripe.next_due().max(now);
            let mut budget = Budget {
                expired: 7,
                allowed: 7,
                cascaded: 64,
            };
            let mut tickets = Vec::new();
            let _ = stripe.collect(now, &mut budget, &mut tickets);
            stripe.republish();
            stripe.shrink_to_fit();
            for slot in tickets {
                let Claimed::Run { key, id, .. } = stripe.claim(slot, now) else {
                    panic!("it was due");
                };
                assert!(deadline(key) <= now);
                stripe.complete(id, false, || now);
                collected += 1;
            }
        }
        assert_eq!(stripe.counters().pending, 0);
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), 0);
    }

    /// ENTRY-3, ENTRY-6: later slots must not begin at a generation that is nearly exhausted.
    #[test]
    fn a_slot_that_is_old_or_used_up_stays() {
        for generation in [1 << 30, EXHAUSTED, u32::MAX] {
            let mut stripe = stripe();
            let first = arm(&mut stripe, 0, LATER);
            let old = arm(&mut stripe, 1, LATER);
            stripe.wear_out(old.slot, generation);
            let behind = arm(&mut stripe, 2, LATER);
            let old = EntryId { generation, ..old };
            for id in [first, old, behind] {
                cancel(&mut stripe, id);
            }
            stripe.shrink_to_fit();
            assert_eq!(stripe.table.len(), old.slot + 1);
            let ids: Vec<_> = (3..20).map(|key| arm(&mut stripe, key, LATER)).collect();
            let young = ids.iter().filter(|id| id.generation <= 2).count();
            assert!(young >= ids.len() - 1, "one may be in the old slot");
        }
    }

    /// A run moves from a slot that is nearly exhausted to a new one, which may have existed
    /// before.
    #[test]
    fn a_run_that_leaves_an_exhausted_slot_gets_an_id_that_is_new() {
        let mut stripe = stripe();
        let exhausted = arm(&mut stripe, 1, NOW);
        let ticket = stripe.take_deferred().ticket.unwrap();
        stripe.wear_out(exhausted.slot, EXHAUSTED);
        let cut = arm(&mut stripe, 2, LATER);
        cancel(&mut stripe, cut);
        stripe.shrink_to_fit();
        let Claimed::Run { id, .. } = stripe.claim(ticket, NOW) else {
            panic!("it was due");
        };
        assert_eq!(id.slot, cut.slot);
        assert!(id.generation > cut.generation && id.generation < EXHAUSTED);
        assert!(stripe.get_id(cut).is_none());
        // The old slot is retired, and stays so.
        stripe.complete(id, false, || NOW);
        stripe.shrink_to_fit();
        assert_eq!(stripe.table.len(), exhausted.slot + 1);
        assert_ne!(arm(&mut stripe, 3, LATER).slot, exhausted.slot);
    }
}
