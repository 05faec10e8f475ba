//! Looking at payloads in place, for the face whose payload is a value. The closures are user code
//! and run under the lock: each is called before anything is changed for its entry, so that its
//! panic leaves the stripe whole.

use super::{EntryId, Stripe};
use crate::job::contain;
use crate::tick::Time;

impl<K, V> Stripe<K, V> {
    /// The payload in `slot` that no run has taken, and its deadline: that of the armed entry, or
    /// of the arming kept for after a run.
    #[inline]
    pub(crate) fn unclaimed(&self, slot: u32) -> Option<(&V, Time)> {
        if let Some(armed) = self.table.armed(slot) {
            return Some((&armed.value, armed.deadline));
        }
        let kept = self.runs[self.run_at(slot)?].kept.as_ref()?;
        Some((&kept.value, kept.deadline))
    }

    /// The same, to change the payload.
    #[inline]
    pub(crate) fn unclaimed_mut(&mut self, slot: u32) -> Option<(&mut V, Time)> {
        if self.table.armed(slot).is_some() {
            let armed = self.table.armed_mut(slot)?;
            return Some((&mut armed.value, armed.deadline));
        }
        let at = self.run_at(slot)?;
        let kept = self.runs[at].kept.as_mut()?;
        Some((&mut kept.value, kept.deadline))
    }

    /// The payload of the arming `id`, if it is Pending or Queued.
    #[inline]
    pub(crate) fn unclaimed_of(&mut self, id: EntryId) -> Option<&mut V> {
        let armed = self.table.armed_mut(id.slot)?;
        (armed.generation == id.generation).then_some(&mut armed.value)
    }

    /// The slot of the arming `id`, if no run has taken it.
    #[inline]
    pub(crate) fn unclaimed_id(&self, id: EntryId) -> Option<u32> {
        (self.id_of_unclaimed(id.slot)? == id).then_some(id.slot)
    }

    /// The key in a slot that is not free.
    pub(crate) fn key(&self, slot: u32) -> Option<&K> {
        self.table.key(slot)
    }

    /// The id of what is unclaimed in `slot`.
    #[inline]
    pub(crate) fn id_of_unclaimed(&self, slot: u32) -> Option<EntryId> {
        let generation = match self.table.armed(slot) {
            Some(armed) => armed.generation,
            None => self.runs[self.run_at(slot)?].kept.as_ref()?.generation,
        };
        Some(EntryId { slot, generation })
    }

    /// Cancels the arming `id`, if no run has taken it. If it was kept for after a run, the key is
    /// a clone, since the run needs it, too: none if that panicked.
    pub(crate) fn take_unclaimed(&mut self, id: EntryId) -> Option<(Option<K>, V)>
    where
        K: Clone,
    {
        let slot = self.unclaimed_id(id)?;
        if let Some((_, key, value)) = self.cancel_armed(slot) {
            return Some((Some(key), value));
        }
        let at = self.run_at(slot)?;
        let key = self.table.key(slot);
        let key = key.and_then(|key| contain(|| key.clone()).ok());
        let kept = self.runs[at].kept.take()?;
        self.counters.cancelled += 1;
        self.kept_is_gone(at);
        Some((key, kept.value))
    }

    /// Shows what is unclaimed in up to `limit` slots from `from` on. Returns where to go on;
    /// `None` when through.
    pub(crate) fn walk(
        &self,
        from: u32,
        limit: u32,
        mut show: impl FnMut(&K, &V, Time),
    ) -> Option<u32> {
        let end = from.saturating_add(limit).min(self.table.len());
        for slot in from..end {
            if let Some(key) = self.table.key(slot)
                && let Some((value, deadline)) = self.unclaimed(slot)
            {
                show(key, value, deadline);
            }
        }
        (end < self.table.len()).then_some(end)
    }

    /// Cancels what `keep` refuses of the unclaimed in up to `limit` slots from `from` on; keys and
    /// values go to `out`. Returns where to go on; `None` when through.
    pub(crate) fn sieve(
        &mut self,
        from: u32,
        limit: u32,
        mut keep: impl FnMut(&K, &mut V, Time) -> bool,
        out: &mut Vec<(Option<K>, Option<V>)>,
    ) -> Option<u32> {
        let end = from.saturating_add(limit).min(self.table.len());
        for slot in from..end {
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
            if let Some(kept) = self.runs[at].kept.as_mut()
                && let Some(key) = self.table.key(slot)
                && !keep(key, &mut kept.value, kept.deadline)
                && let Some(kept) = self.runs[at].kept.take()
            {
                self.counters.cancelled += 1;
                self.kept_is_gone(at);
                out.push((None, Some(kept.value)));
            }
        }
        (end < self.table.len()).then_some(end)
    }
}
