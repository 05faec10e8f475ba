//! Access to payloads in place, for the front end whose payload is a value. The closures are user
//! code and run under the lock. Each one is called before anything is changed for its entry, so a
//! panic leaves the stripe intact.

use std::borrow::Borrow;

use super::super::entry::Armed;
use super::{EntryId, JudgedMove, KeyHash, Phase, Stripe};
use crate::job::catch_panic;
use crate::tick::Time;

impl<K, V> Stripe<K, V> {
    /// Returns the pending payload in `slot` and its deadline: those of the armed entry, or of the
    /// successor of a run.
    #[inline]
    pub(crate) fn pending_payload(&self, slot: u32) -> Option<(&V, Time)> {
        if let Some(armed) = self.table.armed(slot) {
            return Some((&armed.value, armed.deadline));
        }
        let successor = self.runs[self.run_at(slot)?].successor.as_ref()?;
        Some((&successor.value, successor.deadline))
    }

    /// Returns the pending payload in `slot` for changes, and its deadline.
    #[inline]
    pub(crate) fn pending_payload_mut(&mut self, slot: u32) -> Option<(&mut V, Time)> {
        if self.table.armed(slot).is_some() {
            let armed = self.table.armed_mut(slot)?;
            return Some((&mut armed.value, armed.deadline));
        }
        let at = self.run_at(slot)?;
        let successor = self.runs[at].successor.as_mut()?;
        Some((&mut successor.value, successor.deadline))
    }

    /// Returns the usual entry of `key` and its slot: armed, and first in its home row. All others
    /// are left to [`find`](Self::find).
    ///
    /// A search would compare the key and return the slot, and the caller would look at the entry a
    /// second time.
    #[inline(always)]
    pub(super) fn usual<Q>(&mut self, hash: KeyHash, key: &Q) -> Option<(u32, &mut Armed<K, V>)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.index.first_at_home(hash.bits());
        let armed = self.table.armed_mut(slot)?;
        (armed.key.borrow() == key).then_some((slot, armed))
    }

    /// Moves the pending payload of `key` to the deadline that `judge` returns for it, unless that
    /// is not later than the present one. `judge` may change the payload.
    #[inline(always)]
    pub(crate) fn put_key_off<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.move_key_judged(hash, key, now, judge, |deadline, before| deadline <= before)
    }

    /// Does the same to any deadline, an earlier one too.
    #[inline(always)]
    pub(crate) fn move_key<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.move_key_judged(hash, key, now, judge, |deadline, before| deadline == before)
    }

    #[inline(always)]
    fn move_key_judged<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some((slot, armed)) = self.usual(hash, key) else {
            // A closure of its own: this one would be in memory for both ways.
            return self.move_other_key_judged(hash, key, now, move |value| judge(value), stays);
        };
        let Some(deadline) = judge(&mut armed.value) else {
            return JudgedMove::Refused;
        };
        if stays(deadline, armed.deadline) {
            return JudgedMove::Stays(armed.deadline);
        }
        if !armed.put_off(deadline, now) {
            self.refile_or_pull_in(slot, deadline, now);
        }
        JudgedMove::Moved(deadline)
    }

    /// Does the same for a key whose entry is not the usual one, or that has none.
    #[cold]
    #[inline(never)]
    fn move_other_key_judged<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.find(hash, key) {
            Some(slot) => self.move_judged(slot, now, judge, stays),
            None => JudgedMove::NotFound,
        }
    }

    /// Moves the pending payload in `slot` to the deadline that `judge` returns for it, unless that
    /// is not later than the present one. `judge` may change the payload.
    #[inline(always)]
    pub(crate) fn put_off(
        &mut self,
        slot: u32,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
    ) -> JudgedMove {
        self.move_judged(slot, now, judge, |deadline, before| deadline <= before)
    }

    /// Moves the pending payload in `slot` to the deadline that `judge` returns for it, unless
    /// `stays` returns true for that and the present one.
    #[inline(always)]
    fn move_judged(
        &mut self,
        slot: u32,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove {
        let Some(armed) = self.table.armed_mut(slot) else {
            return self.move_successor_judged(slot, move |value| judge(value), stays);
        };
        let Some(deadline) = judge(&mut armed.value) else {
            return JudgedMove::Refused;
        };
        if stays(deadline, armed.deadline) {
            return JudgedMove::Stays(armed.deadline);
        }
        if !armed.put_off(deadline, now) {
            self.refile_or_pull_in(slot, deadline, now);
        }
        JudgedMove::Moved(deadline)
    }

    /// Does the same for the successor of the run in `slot`.
    #[cold]
    #[inline(never)]
    fn move_successor_judged(
        &mut self,
        slot: u32,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove {
        let Some(at) = self.run_at(slot) else {
            return JudgedMove::Refused;
        };
        let Some(successor) = self.runs[at].successor.as_mut() else {
            return JudgedMove::Refused;
        };
        let Some(deadline) = judge(&mut successor.value) else {
            return JudgedMove::Refused;
        };
        if stays(deadline, successor.deadline) {
            return JudgedMove::Stays(successor.deadline);
        }
        // A successor is filed when its run ends, so nothing else has to move.
        successor.deadline = deadline;
        JudgedMove::Moved(deadline)
    }

    /// Returns the payload of the arming `id` if it is Pending or Queued.
    #[inline]
    pub(crate) fn pending_payload_by_id(&mut self, id: EntryId) -> Option<&mut V> {
        let armed = self.table.armed_mut(id.slot)?;
        (armed.generation == id.generation).then_some(&mut armed.value)
    }

    /// Returns the slot of the arming `id`, if its payload is still pending.
    #[inline]
    pub(crate) fn pending_slot(&self, id: EntryId) -> Option<u32> {
        (self.pending_id(id.slot)? == id).then_some(id.slot)
    }

    /// Returns the key in a slot in use.
    pub(crate) fn key(&self, slot: u32) -> Option<&K> {
        self.table.key(slot)
    }

    /// Returns the id of the pending payload in `slot`.
    #[inline]
    pub(crate) fn pending_id(&self, slot: u32) -> Option<EntryId> {
        let generation = match self.table.armed(slot) {
            Some(armed) => armed.generation,
            None => self.runs[self.run_at(slot)?].successor.as_ref()?.generation,
        };
        Some(EntryId { slot, generation })
    }

    /// Cancels the arming `id` and returns its key and value, if its payload is still pending. For
    /// a successor the key is a clone, because the run needs the key, too; it is `None` if `Clone`
    /// panicked.
    pub(crate) fn take_pending_payload(&mut self, id: EntryId) -> Option<(Option<K>, V)>
    where
        K: Clone,
    {
        let slot = self.pending_slot(id)?;
        if let Some((_, key, value)) = self.cancel_armed(slot) {
            return Some((Some(key), value));
        }
        let at = self.run_at(slot)?;
        let key = self.table.key(slot);
        // The clone is user code, so it comes before anything is changed.
        let key = key.and_then(|key| catch_panic(|| key.clone()).ok());
        let successor = self.runs[at].successor.take()?;
        self.counters.cancelled += 1;
        self.successor_removed(at);
        Some((key, successor.value))
    }

    /// Calls `show` with slot, key, payload and deadline of each pending payload in up to `limit` slots, from slot `from` on. Returns
    /// the slot to continue with, or `None` when all slots were visited.
    pub(crate) fn for_each_range(
        &self,
        from: u32,
        limit: u32,
        mut show: impl FnMut(u32, &K, &V, Time),
    ) -> Option<u32> {
        let end = from.saturating_add(limit).min(self.table.len());
        for slot in from..end {
            if let Some(key) = self.table.key(slot)
                && let Some((value, deadline)) = self.pending_payload(slot)
            {
                show(slot, key, value, deadline);
            }
        }
        (end < self.table.len()).then_some(end)
    }

    /// Returns a moment that no deadline lies before, of all armings that are not queued.
    pub(crate) fn no_deadline_before(&self) -> Time {
        // The wheel wakes at the tick that follows a deadline. A successor is not filed yet.
        let filed = self.next_wake() - self.table.tick().length();
        let successors = self.runs.iter().filter_map(|run| run.successor.as_ref());
        successors
            .map(|successor| successor.deadline)
            .fold(filed, Time::min)
    }

    /// Returns the earliest deadline after `now` of the armings in up to `limit` slots, from slot
    /// `from` on, and the slot to continue with, or `None` when all slots were visited.
    pub(crate) fn earliest_in_range(
        &self,
        from: u32,
        limit: u32,
        now: Time,
    ) -> (Time, Option<u32>) {
        let end = from.saturating_add(limit).min(self.table.len());
        let deadline = |slot| match self.table.armed(slot) {
            Some(armed) => (armed.phase == Phase::Pending).then_some(armed.deadline),
            None => self.pending_payload(slot).map(|(_, deadline)| deadline),
        };
        let earliest = (from..end)
            .filter_map(deadline)
            .filter(|deadline| *deadline > now)
            .min();
        (
            earliest.unwrap_or(Time::MAX),
            (end < self.table.len()).then_some(end),
        )
    }

    /// Cancels each pending payload that `keep` refuses in up to `limit` slots, from slot `from`
    /// on. Keys and values go to `out`. Returns the slot to continue with, or `None` when all slots
    /// were visited.
    pub(crate) fn retain_range(
        &mut self,
        from: u32,
        limit: u32,
        mut keep: impl FnMut(&K, &mut V, Time) -> bool,
        out: &mut Vec<(Option<K>, Option<V>)>,
    ) -> Option<u32> {
        let end = from.saturating_add(limit).min(self.table.len());
        for slot in from..end {
            // A closure that panics has changed its own value at most: the entry is cancelled
            // afterwards.
            if let Some(armed) = self.table.armed_mut(slot) {
                if !keep(&armed.key, &mut armed.value, armed.deadline)
                    && let Some((_, key, value)) = self.cancel_armed(slot)
                {
                    out.push((Some(key), Some(value)));
                }
                continue;
            }
            let Some(at) = self.run_at(slot) else {
                continue;
            };
            if let Some(successor) = self.runs[at].successor.as_mut()
                && let Some(key) = self.table.key(slot)
                && !keep(key, &mut successor.value, successor.deadline)
                && let Some(successor) = self.runs[at].successor.take()
            {
                self.counters.cancelled += 1;
                self.successor_removed(at);
                // The key stays with the run.
                out.push((None, Some(successor.value)));
            }
        }
        (end < self.table.len()).then_some(end)
    }
}
