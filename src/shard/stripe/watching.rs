//! Tasks that watch a run for its cancellation.
//!
//! Unlike waiters for the end of a run, watchers do not keep the key from being armed. All of them
//! are released at once: by the cancellation, or by the end of the run.

use super::super::waiter::Waiter;
use super::{EntryId, Run, Stripe};

impl<K, V> Stripe<K, V> {
    /// Registers a watcher of the run `id`, and returns its number.
    ///
    /// # Errors
    ///
    /// Returns the waiter if the run was cancelled already, or has ended.
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

    /// Returns the watcher with this number of the run `id`, until the run is cancelled or ends.
    pub(crate) fn watcher(&mut self, id: EntryId, number: u64) -> Option<&mut Waiter> {
        let mut watchers = self.watched(id)?.watchers.iter_mut();
        watchers.find_map(|(own, waiter)| (*own == number).then_some(waiter))
    }

    /// Removes a watcher, and returns it if it was still registered.
    pub(crate) fn unwatch(&mut self, id: EntryId, number: u64) -> Option<Waiter> {
        let watchers = &mut self.watched(id)?.watchers;
        let at = watchers.iter().position(|(own, _)| *own == number)?;
        // Not `swap_remove`: the next number is made from the last watcher, which must stay last.
        Some(watchers.remove(at).1)
    }

    /// Returns the run `id`, if it is in progress.
    fn watched(&mut self, id: EntryId) -> Option<&mut Run<V>> {
        let at = self.run_of(id)?;
        Some(&mut self.runs[at])
    }
}
