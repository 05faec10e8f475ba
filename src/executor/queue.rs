//! The queues that tickets wait in, and the order in which a worker looks at them.
//!
//! ```text
//!   ticker's deque ---.  in batches            .--- other workers steal from it, too
//!   ticker's deque ---+----------------> local deque --> served
//!   injector ---------'
//! ```
//!
//! 1. at every 32nd ticket the injector, so that steady expiry does not starve what was injected;
//! 2. the worker's own deque;
//! 3. the tickers' deques, beginning with the worker's own, or with one whose worker is in a long
//!    task;
//! 4. the injector;
//! 5. the deques of the other workers: a worker in a long task keeps nothing to itself.
//!
//! Whoever puts tickets into a deque has to fence and to wake a sleeper afterwards. That holds for
//! a thief too, whose steal moves a batch into its own deque; [`Found::stolen`] tells it.

use crate::job::Ticket;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::deque::{Injector, Steal, Stealer, Worker as Deque};

/// How often a steal that another thief disturbed is tried again before the next queue is looked
/// at. Nobody takes that for empty: only [`Queues::any`] lets a worker sleep.
const TRIES: usize = 4;

/// How much a worker takes from the injector at once. Less than from a ticker, since what is
/// injected is often one ticket whose caller waits.
const INJECTOR_BATCH: usize = 8;

pub(super) struct Queues {
    /// Of the tickers' deques.
    feeders: Box<[Stealer<Ticket>]>,
    /// Of the workers' deques, by seat.
    locals: Box<[Stealer<Ticket>]>,
    /// How many of `locals` can hold anything: one more than the highest seat ever taken. Most
    /// schedulers never grow to `max_workers`, and a look at an unused deque costs a fence.
    used: AtomicUsize,
    injector: Injector<Ticket>,
    injector_bound: usize,
}

/// A ticket, and whether it came from another queue than the finder's own, perhaps with a batch.
pub(super) struct Found {
    pub(super) ticket: Ticket,
    pub(super) stolen: bool,
}

impl Found {
    fn stolen(ticket: Ticket) -> Self {
        let stolen = true;
        Found { ticket, stolen }
    }
}

impl Queues {
    pub(super) fn new(
        feeders: Box<[Stealer<Ticket>]>,
        locals: Box<[Stealer<Ticket>]>,
        injector_bound: usize,
    ) -> Self {
        Queues {
            feeders,
            locals,
            used: AtomicUsize::new(0),
            injector: Injector::new(),
            injector_bound,
        }
    }

    /// Notes that a worker sits on this seat from now on. Under the lock of the free seats.
    pub(super) fn use_local(&self, seat: usize) {
        // Relaxed: a deque gets its first ticket after this and before the waker's fence of
        // `sleep.rs`, so a look after the worker's fence that must see the ticket sees this number,
        // too.
        let used = self.used.load(Ordering::Relaxed).max(seat + 1);
        self.used.store(used, Ordering::Relaxed);
    }

    fn locals(&self) -> &[Stealer<Ticket>] {
        // Relaxed: see `use_local`.
        &self.locals[..self.used.load(Ordering::Relaxed)]
    }

    /// Puts a ticket into the injector, or gives it back when that is full. Callers at the same
    /// moment may all find the last place free: the bound is exceeded by their number at most. The
    /// caller wakes a sleeper.
    pub(super) fn inject(&self, ticket: Ticket) -> Result<(), Ticket> {
        if self.injector.len() >= self.injector_bound {
            return Err(ticket);
        }
        self.injector.push(ticket);
        Ok(())
    }

    /// The next ticket for the worker on `seat`. `None` may also mean that other thieves were
    /// quicker several times.
    pub(super) fn find(
        &self,
        seat: usize,
        local: &Deque<Ticket>,
        injector_first: bool,
        start: usize,
    ) -> Option<Found> {
        if injector_first && let Some(ticket) = insist(|| self.injector.steal()) {
            return Some(Found::stolen(ticket));
        }
        if let Some(ticket) = local.pop() {
            let stolen = false;
            return Some(Found { ticket, stolen });
        }
        for feeder in rotated(&self.feeders, start) {
            if let Some(ticket) = insist(|| feeder.steal_batch_and_pop(local)) {
                return Some(Found::stolen(ticket));
            }
        }
        let batch = || {
            self.injector
                .steal_batch_with_limit_and_pop(local, INJECTOR_BATCH)
        };
        if let Some(ticket) = insist(batch) {
            return Some(Found::stolen(ticket));
        }
        // The last one in this order is the finder's own deque, which it has just found empty.
        let others = rotated(self.locals(), seat + 1).take(self.locals().len().saturating_sub(1));
        for other in others {
            if let Some(ticket) = insist(|| other.steal_batch_and_pop(local)) {
                return Some(Found::stolen(ticket));
            }
        }
        None
    }

    /// Whether there is a ticket anywhere. True after a fence for everything pushed before the
    /// fence of whoever pushed it.
    pub(super) fn any(&self) -> bool {
        !self.injector.is_empty()
            || self.feeders.iter().any(|feeder| !feeder.is_empty())
            || self.locals().iter().any(|local| !local.is_empty())
    }

    /// Takes up to `limit` tickets out of the injector.
    pub(super) fn take_injected(&self, limit: usize) -> Vec<Ticket> {
        std::iter::from_fn(|| insist(|| self.injector.steal()))
            .take(limit)
            .collect()
    }

    /// About how many tickets wait.
    pub(super) fn len(&self) -> usize {
        let feeders = self.feeders.iter().map(Stealer::len).sum::<usize>();
        let locals = self.locals().iter().map(Stealer::len).sum::<usize>();
        self.injector.len() + feeders + locals
    }
}

/// Steals again, a few times, when another thief came between.
fn insist(mut steal: impl FnMut() -> Steal<Ticket>) -> Option<Ticket> {
    for _ in 0..TRIES {
        match steal() {
            Steal::Success(ticket) => return Some(ticket),
            Steal::Empty => return None,
            Steal::Retry => core::hint::spin_loop(),
        }
    }
    None
}

/// All of `list`, beginning with number `start` modulo its length.
fn rotated<T>(list: &[T], start: usize) -> impl Iterator<Item = &T> {
    let (before, from) = list.split_at(start.checked_rem(list.len()).unwrap_or(0));
    from.iter().chain(before)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ticket(slot: u32) -> Ticket {
        Ticket { stripe: 0, slot }
    }

    struct Parts {
        queues: Queues,
        feeders: Vec<Deque<Ticket>>,
        locals: Vec<Deque<Ticket>>,
    }

    fn parts(feeders: usize, locals: usize, bound: usize) -> Parts {
        let feeders: Vec<_> = (0..feeders).map(|_| Deque::new_fifo()).collect();
        let locals: Vec<_> = (0..locals).map(|_| Deque::new_fifo()).collect();
        let queues = Queues::new(
            feeders.iter().map(Deque::stealer).collect(),
            locals.iter().map(Deque::stealer).collect(),
            bound,
        );
        for seat in 0..locals.len() {
            queues.use_local(seat);
        }
        Parts {
            queues,
            feeders,
            locals,
        }
    }

    #[test]
    fn own_then_tickers_then_injector_then_others() {
        let p = parts(2, 2, 10);
        p.locals[1].push(ticket(5));
        p.queues.inject(ticket(4)).unwrap();
        p.feeders[1].push(ticket(3));
        p.feeders[0].push(ticket(2));
        p.locals[0].push(ticket(1));
        let mut order = Vec::new();
        while let Some(found) = p.queues.find(0, &p.locals[0], false, 0) {
            order.push(found.ticket.slot);
        }
        assert_eq!(order, [1, 2, 3, 4, 5]);
        assert!(!p.queues.any());
    }

    #[test]
    fn the_start_decides_which_ticker_comes_first() {
        let p = parts(3, 1, 10);
        for (slot, feeder) in (0..).zip(&p.feeders) {
            feeder.push(ticket(slot));
        }
        let first = p.queues.find(0, &p.locals[0], false, 4).unwrap();
        assert_eq!(first.ticket.slot, 1);
    }

    #[test]
    fn the_injector_comes_first_when_its_turn_has_come() {
        let p = parts(1, 1, 10);
        p.locals[0].push(ticket(1));
        p.queues.inject(ticket(2)).unwrap();
        let found = p.queues.find(0, &p.locals[0], true, 0).unwrap();
        assert_eq!(found.ticket.slot, 2);
        let found = p.queues.find(0, &p.locals[0], true, 0).unwrap();
        assert_eq!(
            found.ticket.slot, 1,
            "an empty injector does not end the search"
        );
    }

    #[test]
    fn only_what_comes_from_elsewhere_counts_as_stolen() {
        let p = parts(1, 1, 10);
        for slot in 0..4 {
            p.feeders[0].push(ticket(slot));
        }
        assert!(p.queues.find(0, &p.locals[0], false, 0).unwrap().stolen);
        assert!(!p.locals[0].is_empty(), "a batch came along");
        assert!(!p.queues.find(0, &p.locals[0], false, 0).unwrap().stolen);
    }

    #[test]
    fn the_injector_is_bounded() {
        let p = parts(0, 1, 2);
        assert_eq!(p.queues.inject(ticket(1)), Ok(()));
        assert_eq!(p.queues.inject(ticket(2)), Ok(()));
        assert_eq!(p.queues.inject(ticket(3)), Err(ticket(3)));
        assert_eq!(p.queues.len(), 2);
        assert!(p.queues.find(0, &p.locals[0], false, 0).is_some());
        while p.locals[0].pop().is_some() {}
        assert_eq!(p.queues.inject(ticket(3)), Ok(()));
    }

    #[test]
    fn an_unused_seat_is_not_looked_at() {
        let local = Deque::new_fifo();
        let far = Deque::new_fifo();
        let locals = [&local, &far].map(Deque::stealer).into();
        let queues = Queues::new([].into(), locals, 1);
        assert!(queues.find(0, &local, false, 0).is_none());
        queues.use_local(0);
        assert!(queues.find(0, &local, false, 0).is_none());
        far.push(ticket(1));
        assert!(!queues.any());
        queues.use_local(1);
        queues.use_local(0);
        assert!(queues.any());
        assert!(queues.find(0, &local, false, 0).is_some());
    }
}
