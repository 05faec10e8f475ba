//! Walks over all entries: the end of a stripe, and inspection.

use super::super::entry::{End, Phase};
use super::answers::Taken;
use super::{Gate, Sight, Stripe};
use crate::job::contain;
use crate::tick::{Tick, Time};
use crate::wheel::Place;

impl<K, V> Stripe<K, V> {
    /// Nothing new is armed from here on. Returns whether it was open.
    pub(crate) fn close(&mut self) -> bool {
        let was_open = self.gate == Gate::Open;
        self.gate = Gate::Closed;
        self.left = true;
        was_open
    }

    /// Everything pending becomes due now, whatever its deadline; kept armings when their run ends.
    pub(crate) fn make_all_due(&mut self, now: Time) {
        self.file_staged(self.staging.all(), now);
        self.table.all_due = true;
        let tick = self.table.tick();
        self.wheel.catch_up(tick.begun_by(now));
        for slot in 0..self.table.len() {
            if self
                .table
                .armed(slot)
                .is_some_and(|armed| armed.phase == Phase::Pending && armed.place == Place::NONE)
            {
                // `Time::MAX`: never filed until now.
                self.wheel.insert(slot, Tick::ZERO, &mut self.table);
            }
        }
        self.wheel.make_all_due(&mut self.table);
        self.publish(self.next_wake());
    }

    /// Takes up to `limit` pending armings out, from slot `from` on, as (key or what stands for it,
    /// deadline, value). Returns where to go on; `None` when through. Kept armings are
    /// handed back with a clone of the key, since the run in progress needs it too; without one if
    /// that panicked, and then count as cancelled.
    pub(crate) fn take_pending(
        &mut self,
        from: u32,
        limit: usize,
        handed_back: bool,
        out: &mut Vec<Taken<K, V>>,
    ) -> Option<u32>
    where
        K: Clone,
    {
        let mut left = limit;
        for slot in from..self.table.len() {
            if left == 0 {
                return Some(slot);
            }
            left -= 1;
            let run = self.run_at(slot);
            if let Some(at) = run.filter(|_| !handed_back) {
                self.runs[at].end_repetition();
            }
            let taken = if self.table.armed(slot).is_some() {
                let end = if handed_back {
                    End::HandedBack
                } else {
                    End::Cancelled
                };
                let (deadline, key, value) = self.take_out(slot, end);
                (Some(key), deadline, value)
            } else if let Some(at) = run
                && let Some(kept) = self.runs[at].kept.take()
            {
                // What is cancelled needs no key.
                let key = self.table.key(slot).filter(|_| handed_back);
                let key = key.and_then(|key| contain(|| key.clone()).ok());
                (key, kept.deadline, kept.value)
            } else {
                continue;
            };
            if handed_back && taken.0.is_some() {
                self.counters.handed_back += 1;
            } else {
                self.counters.cancelled += 1;
            }
            match run {
                Some(at) => self.kept_is_gone(at),
                None => self.no_longer_pending(),
            }
            out.push(taken);
        }
        None
    }

    /// Looks at up to `limit` slots from `from` on. Returns where to go on; `None` when through.
    pub(crate) fn look(&self, from: u32, limit: usize, out: &mut Vec<(K, Sight)>) -> Option<u32>
    where
        K: Clone,
    {
        let end = from.saturating_add(u32::try_from(limit).unwrap_or(u32::MAX));
        for slot in from..end.min(self.table.len()) {
            if let Some(sight) = self.sight(slot)
                && let Some(key) = self.table.key(slot)
            {
                out.push((key.clone(), sight));
            }
        }
        (end < self.table.len()).then_some(end)
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn wear_out(&mut self, slot: u32, generation: u32) {
        self.table.set_generation(slot, generation);
    }
}
