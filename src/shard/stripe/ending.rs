//! Operations that iterate over all entries: closing a stripe, emptying it, and inspection.

use super::super::entry::{End, Phase, Slot};
use super::answers::Taken;
use super::{EntryInfo, EntryPhase, Stripe, StripeGate, Successor};
use crate::job::catch_panic;
use crate::tick::{Tick, Time};
use crate::wheel::WheelPosition;

impl<K, V> Stripe<K, V> {
    /// Refuses new armings from now on. Returns whether the stripe was open. `keeps` says whether
    /// what follows a run is kept until [`take_kept`](Self::take_kept); only the first call decides
    /// that.
    pub(crate) fn close(&mut self, keeps: bool) -> bool {
        let was_open = self.gate == StripeGate::Open;
        if matches!(self.gate, StripeGate::UnderLock | StripeGate::Forked) {
            // It stays what it is: the next call asks for the reason again.
            return false;
        }
        self.gate = StripeGate::Closed;
        self.keeps |= was_open && keeps;
        // A stripe that is empty already must report it, too.
        self.has_deferred = true;
        was_open
    }

    /// Makes every pending arming due now, whatever its deadline. Successors become due when their
    /// run ends.
    pub(crate) fn make_all_due(&mut self, now: Time) {
        self.file_staged(self.staging.all(), now);
        self.table.all_due = true;
        let tick = self.table.tick();
        self.wheel.catch_up(tick.begun_by(now));
        for slot in 0..self.table.len() {
            if self.table.armed(slot).is_some_and(|armed| {
                armed.phase == Phase::Pending && armed.wheel_position == WheelPosition::NONE
            }) {
                // Its deadline is `Time::MAX`, so it was never filed.
                self.wheel.insert(slot, Tick::ZERO, &mut self.table);
            }
        }
        self.wheel.make_all_due(&mut self.table);
        self.publish(self.next_wake());
    }

    /// Visits the deadlines of pending armings in up to `limit` slots, from slot `from` on. Returns
    /// the slot to continue with, or `None` when all slots were visited.
    pub(crate) fn visit_pending(
        &self,
        from: u32,
        limit: u32,
        mut visit: impl FnMut(Time),
    ) -> Option<u32> {
        let end = self.table.len().min(from.saturating_add(limit));
        for slot in from..end {
            match self.entry_info(slot) {
                Some(EntryInfo {
                    phase: EntryPhase::Running { successor },
                    ..
                }) => {
                    successor.inspect(|(_, deadline)| visit(*deadline));
                }
                Some(EntryInfo { deadline, .. }) => visit(deadline),
                None => {}
            }
        }
        (end < self.table.len()).then_some(end)
    }

    /// Takes up to `limit` pending armings out, from slot `from` on, as (key, deadline, value).
    /// Returns the slot to continue with, or `None` when all slots were visited.
    ///
    /// A successor is handed back with a clone of the key, because the run in progress needs the
    /// key, too. If that clone panics, the successor has no key and counts as cancelled.
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
            // Slots are counted and not armings, so that the lock is held briefly in a sparse
            // table, too.
            left -= 1;
            let run = self.run_at(slot);
            // Cancelling everything ends repetition as well. At a shutdown the closed gate does
            // that.
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
            } else if let Some(at) = run {
                out.extend(self.take_successor(at, handed_back));
                continue;
            } else {
                continue;
            };
            if handed_back {
                self.counters.handed_back += 1;
            } else {
                self.counters.cancelled += 1;
            }
            self.no_longer_pending();
            out.push(taken);
        }
        None
    }

    /// Takes out what is armed to follow the run `at`.
    fn take_successor(&mut self, at: usize, handed_back: bool) -> Option<Taken<K, V>>
    where
        K: Clone,
    {
        let run = &mut self.runs[at];
        let successor = run.successor.take()?;
        // A cancelled successor needs no key.
        let key = self.table.key(run.id.slot).filter(|_| handed_back);
        let key = key.and_then(|key| catch_panic(|| key.clone()).ok());
        if key.is_some() {
            self.counters.handed_back += 1;
        } else {
            self.counters.cancelled += 1;
        }
        self.successor_removed(at);
        Some((key, successor.deadline, successor.value))
    }

    /// Keeps what was to follow the run in `slot`, which has ended (CLOSE-5).
    #[inline(never)]
    pub(super) fn keep_successor(&mut self, slot: u32, successor: Successor<V>) {
        let Slot::Running(busy) = self.table.vacate(slot, End::HandedBack) else {
            unreachable!("ENTRY-4: a run has a Running slot");
        };
        self.index.remove(busy.hash, slot);
        self.kept
            .push((Some(busy.key), successor.deadline, successor.value));
        self.counters.handed_back += 1;
        self.no_longer_pending();
    }

    /// Takes out what followed the runs that have ended, and what is armed to follow one that has
    /// not. From now on no round follows a run.
    pub(crate) fn take_kept(&mut self, out: &mut Vec<Taken<K, V>>)
    where
        K: Clone,
    {
        if !std::mem::take(&mut self.keeps) {
            return;
        }
        out.append(&mut self.kept);
        for at in 0..self.runs.len() {
            out.extend(self.take_successor(at, true));
        }
    }

    /// Copies the entry info of up to `limit` slots, from slot `from` on. Returns the slot to
    /// continue with, or `None` when all slots were visited.
    pub(crate) fn look(&self, from: u32, limit: usize, out: &mut Vec<(K, EntryInfo)>) -> Option<u32>
    where
        K: Clone,
    {
        let end = from.saturating_add(u32::try_from(limit).unwrap_or(u32::MAX));
        for slot in from..end.min(self.table.len()) {
            if let Some(entry_info) = self.entry_info(slot)
                && let Some(key) = self.table.key(slot)
            {
                out.push((key.clone(), entry_info));
            }
        }
        (end < self.table.len()).then_some(end)
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn limit_slots(&mut self, most: u32) {
        self.table.limit_slots(most);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn wear_out(&mut self, slot: u32, generation: u32) {
        self.table.set_generation(slot, generation);
    }
}
