//! The waiters of a run. The event that they wait for takes all of them out at once.

use super::super::waiter::Waiter;
use super::{EntryId, Run, Stripe};

/// What a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunEvent {
    /// The end of the run. While there are waiters for it, the key can't be armed.
    End,
    /// The cancellation of the run, or its end. The key can be armed meanwhile.
    #[cfg(feature = "tokio")]
    Cancellation,
}

impl<K, V> Stripe<K, V> {
    /// Registers a waiter with the run `id`, under a number.
    ///
    /// # Errors
    ///
    /// The waiter: the event has occurred already.
    pub(crate) fn register(
        &mut self,
        id: EntryId,
        event: RunEvent,
        waiter: Waiter,
    ) -> Result<u64, Waiter> {
        let Some(at) = self.run_of(id) else {
            return Err(waiter);
        };
        let run = &mut self.runs[at];
        #[cfg(feature = "tokio")]
        if event == RunEvent::Cancellation && run.cancelled {
            return Err(waiter);
        }
        self.waiters_seen += 1;
        run.waiters_of(event).push((self.waiters_seen, waiter));
        Ok(self.waiters_seen)
    }

    /// The waiter of this number, until the event takes it out.
    pub(crate) fn waiter(
        &mut self,
        id: EntryId,
        event: RunEvent,
        number: u64,
    ) -> Option<&mut Waiter> {
        let at = self.run_of(id)?;
        let mut waiters = self.runs[at].waiters_of(event).iter_mut();
        waiters.find_map(|(own, waiter)| (*own == number).then_some(waiter))
    }

    /// Takes the waiter of this number back. `None`: the event has taken it out already.
    pub(crate) fn unregister(
        &mut self,
        id: EntryId,
        event: RunEvent,
        number: u64,
    ) -> Option<Waiter> {
        let at = self.run_of(id)?;
        let waiters = self.runs[at].waiters_of(event);
        let at = waiters.iter().position(|(own, _)| *own == number)?;
        Some(waiters.swap_remove(at).1)
    }
}

impl<V> Run<V> {
    fn waiters_of(&mut self, event: RunEvent) -> &mut Vec<(u64, Waiter)> {
        match event {
            RunEvent::End => &mut self.waiters,
            #[cfg(feature = "tokio")]
            RunEvent::Cancellation => &mut self.watchers,
        }
    }
}
