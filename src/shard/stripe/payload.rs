//! Access to payloads in place, for the front end whose payload is a value. The closures are user
//! code and run under the lock. Each one is called before anything is changed for its entry, so a
//! panic leaves the stripe intact.

use std::borrow::Borrow;

use super::super::entry::Armed;
use super::{EntryId, JudgedMove, KeyHash, Phase, PutOff, Stripe, Successor};
use crate::job::catch_panic;
use crate::tick::Time;

/// The usual entry of a key, with its slot, if the key has one.
type Usual<'a, K, V> = Option<(u32, &'a mut Armed<K, V>)>;

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

    /// Returns the usual entry of `key` and its slot: armed, and named by the only line with its
    /// bits in its home row. All others are left to [`find_by_search`](Self::find_by_search).
    ///
    /// A search would compare the key and return the slot, and the caller would look at the entry a
    /// second time.
    #[inline(always)]
    pub(super) fn usual<Q>(&mut self, hash: KeyHash, key: &Q) -> Usual<'_, K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.usual_after(hash, key, || ()).1
    }

    /// Returns the usual entry of `key` and its slot, and what `read` returns, which is called
    /// between the reads of the row and of the entry.
    ///
    /// The clock is read there, since a reading waits for nothing. Before the row or behind the
    /// entry it would take room in the processor's window, which the row of the next call then has
    /// not.
    ///
    /// Why the home row names no slot is not returned: it would have to be kept during the reading,
    /// in every call, for the few that ask about it.
    #[inline(always)]
    pub(super) fn usual_after<Q, T>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> T,
    ) -> (T, Usual<'_, K, V>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.index.candidate(hash.bits());
        let read = read();
        match self.table.armed_mut(slot) {
            Some(armed) if armed.key.borrow() == key => (read, Some((slot, armed))),
            _ => (read, None),
        }
    }

    /// Puts the [usual](Self::usual) entry of `key` off, if writing the deadline down is enough.
    /// Otherwise this changes nothing and returns `None`.
    ///
    /// `read` is called between the reads of the row and of the entry, as in
    /// [`usual_after`](Self::usual_after). `judge` returns the new deadline and the argument of
    /// `change`. The deadline lies in the future, unless a caller gave an old moment, and it is not
    /// `Time::MAX`. `change` is called only if the entry is put off.
    #[inline(always)]
    pub(crate) fn put_usual_off<Q, T, U>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> Option<T>,
        judge: impl FnOnce(&V, T) -> Option<(Time, U)>,
        change: impl FnOnce(&mut V, U),
    ) -> Option<PutOff>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.index.candidate(hash.bits());
        let read = read()?;
        let armed = self.table.armed_mut(slot)?;
        if armed.key.borrow() != key {
            return None;
        }
        let (deadline, new) = judge(&armed.value, read)?;
        let before = armed.deadline;
        if !armed.put_off_to_future(deadline) {
            return None;
        }
        change(&mut armed.value, new);
        Some(PutOff { before, deadline })
    }

    /// Puts the armed entry `id` off to a deadline as in [`put_usual_off`](Self::put_usual_off), if
    /// writing the deadline down is enough, and returns the deadline before. Otherwise this changes
    /// nothing and returns `None`.
    #[inline(always)]
    pub(crate) fn put_usual_off_by_id(&mut self, id: EntryId, deadline: Time) -> Option<Time> {
        let armed = self.table.armed_mut(id.slot)?;
        let before = armed.deadline;
        (armed.generation == id.generation && armed.put_off_to_future(deadline)).then_some(before)
    }

    /// Returns the pending payload of `key` and its deadline.
    #[inline(always)]
    pub(crate) fn payload_of<Q>(&self, hash: KeyHash, key: &Q) -> Option<(&V, Time)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.table.armed(self.index.candidate(hash.bits())) {
            Some(armed) if armed.key.borrow() == key => Some((&armed.value, armed.deadline)),
            _ => self.pending_payload(self.find_by_search(hash, key)?),
        }
    }

    /// Calls `change` with the pending payload of `key`, if there is one.
    #[inline(always)]
    pub(crate) fn change_payload_of<Q, R>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let payload = match self.usual(hash, key) {
            Some((_, armed)) => &mut armed.value,
            None => {
                let slot = self.find_by_search(hash, key)?;
                self.pending_payload_mut(slot)?.0
            }
        };
        Some(change(payload))
    }

    /// Moves the pending payload of `key` to the deadline that `judge` returns for it, unless that
    /// is not later than the present one. `judge` may change the payload. It gets what `read`
    /// returns behind the current time; see [`usual_after`](Self::usual_after).
    #[inline(always)]
    pub(crate) fn put_key_off<Q, T>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> (Time, T),
        judge: impl FnOnce(&mut V, T) -> Option<Time>,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.move_key_judged(hash, key, read, judge, no_later)
    }

    /// Moves the timer of `key` to the deadline that `judge` returns, an earlier one too.
    #[inline(always)]
    pub(crate) fn move_key<Q, T>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> (Time, T),
        judge: impl FnOnce(&mut V, T) -> Option<Time>,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.move_key_judged(hash, key, read, judge, |deadline, before| {
            deadline == before
        })
    }

    #[inline(always)]
    fn move_key_judged<Q, T>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> (Time, T),
        judge: impl FnOnce(&mut V, T) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let ((now, read), found) = self.usual_after(hash, key, read);
        let judge = move |value: &mut V| judge(value, read);
        match found {
            Some((slot, armed)) => {
                let judged = armed.move_judged(now, judge, stays);
                self.refile_judged(slot, judged, now)
            }
            None => match self.find_by_search(hash, key) {
                Some(slot) => self.move_judged(slot, now, judge, stays),
                None => JudgedMove::NotFound,
            },
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
        self.move_judged(slot, now, judge, no_later)
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
        match self.table.armed_mut(slot) {
            Some(armed) => {
                let judged = armed.move_judged(now, judge, stays);
                self.refile_judged(slot, judged, now)
            }
            None => self.move_successor_judged(slot, judge, stays),
        }
    }

    /// Files an armed entry again if its move needs that.
    #[inline(always)]
    fn refile_judged(
        &mut self,
        slot: u32,
        judged: Result<JudgedMove, Time>,
        now: Time,
    ) -> JudgedMove {
        judged.unwrap_or_else(|deadline| {
            self.refile_or_pull_in(slot, deadline, now);
            JudgedMove::Moved(deadline)
        })
    }

    /// Moves the successor of the run in `slot`, if there is one.
    ///
    /// It is inlined, since a function that gets `judge` would get it in memory, and so would the
    /// usual way.
    #[inline(always)]
    fn move_successor_judged(
        &mut self,
        slot: u32,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> JudgedMove {
        let Some(successor) = self.successor_mut(slot) else {
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

    /// Returns the successor of the run in `slot`.
    #[cold]
    #[inline(never)]
    fn successor_mut(&mut self, slot: u32) -> Option<&mut Successor<V>> {
        let at = self.run_at(slot)?;
        self.runs[at].successor.as_mut()
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

    /// Calls `show` with slot, key, payload and deadline of each pending payload in up to `limit`
    /// slots, from slot `from` on. Returns the slot to continue with, or `None` when all slots were
    /// visited.
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

impl<K, V> Armed<K, V> {
    /// Moves the entry to the deadline that `judge` returns, unless `stays` returns true for that
    /// and the present one.
    ///
    /// # Errors
    ///
    /// The entry has to be filed again for this deadline.
    #[inline(always)]
    fn move_judged(
        &mut self,
        now: Time,
        judge: impl FnOnce(&mut V) -> Option<Time>,
        stays: impl FnOnce(Time, Time) -> bool,
    ) -> Result<JudgedMove, Time> {
        let Some(deadline) = judge(&mut self.value) else {
            return Ok(JudgedMove::Refused);
        };
        if stays(deadline, self.deadline) {
            return Ok(JudgedMove::Stays(self.deadline));
        }
        if !self.put_off(deadline, now) {
            return Err(deadline);
        }
        Ok(JudgedMove::Moved(deadline))
    }
}

/// Returns whether a deadline that must not become earlier stays as it was.
fn no_later(deadline: Time, before: Time) -> bool {
    deadline <= before
}
