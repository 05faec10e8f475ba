//! Who wants to know when a run is told that it was cancelled.
//!
//! Unlike those who wait for its end they keep nobody from arming the key. All of them are let go
//! at once: by the cancellation, or by the end of the run.

use super::super::waiter::Waiter;
use super::{EntryId, Run, Stripe};

impl<K, V> Stripe<K, V> {
    /// Notes who watches the run `id`, under a number.
    ///
    /// # Errors
    ///
    /// The waiter: the run has been told already, or has ended.
    pub(crate) fn watch(&mut self, id: EntryId, waiter: Waiter) -> Result<u64, Waiter> {
        let Some(run) = self.watched(id) else {
            return Err(waiter);
        };
        if run.cancelled {
            return Err(waiter);
        }
        let watchers = &mut run.watchers;
        let number = watchers.last().map_or(0, |(last, _)| last + 1);
        watchers.push((number, waiter));
        Ok(number)
    }

    /// Who watches the run `id` under this number, until it is told or ends.
    pub(crate) fn watcher(&mut self, id: EntryId, number: u64) -> Option<&mut Waiter> {
        let mut watchers = self.watched(id)?.watchers.iter_mut();
        watchers.find_map(|(own, waiter)| (*own == number).then_some(waiter))
    }

    /// Watches no longer.
    pub(crate) fn unwatch(&mut self, id: EntryId, number: u64) -> Option<Waiter> {
        let watchers = &mut self.watched(id)?.watchers;
        let at = watchers.iter().position(|(own, _)| *own == number)?;
        Some(watchers.remove(at).1)
    }

    fn watched(&mut self, id: EntryId) -> Option<&mut Run<V>> {
        let at = self.run_of(id)?;
        Some(&mut self.runs[at])
    }
}
