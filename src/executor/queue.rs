//! The queues of tickets, and the order in which a worker looks at them:
//!
//! ```text
//!   ticker's deque ---.  in batches            .--- other workers steal from it, too
//!   ticker's deque ---+----------------> local deque --> served
//!   injector ---------'
//! ```
//!
//! 1. at every 32nd ticket the injector, so that steady expiry does not starve injected tickets;
//! 2. the worker's own deque;
//! 3. the sifted tickets, one at a time: a ticker has found that none of them is light, while all
//!    workers were in long tasks (`engine/drive.rs`). They are the oldest;
//! 4. the tickers' deques, beginning with the worker's own ticker, or with a ticker whose worker is
//!    in a long task;
//! 5. the injector;
//! 6. the deques of the other workers: a worker in a long task keeps nothing to itself.
//!
//! A thread that puts tickets into a queue must list the pool afterwards (`workers.rs`). That
//! includes a thief, whose steal moves a batch into its own deque; [`FoundTicket::stolen`] reports
//! it.

use super::marks::Marks;
use crate::job::Ticket;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::deque::{Injector, Steal, Stealer, Worker as Deque};
use crate::sync::{Arc, CachePadded, OnceLock};

/// Number of attempts at a steal that other thieves disturb, before the worker looks at the next
/// queue. Giving up does not count as finding the queue empty: only [`Queues::any`] lets a worker
/// sleep.
const TRIES: usize = 4;

/// Number of tickets that a worker takes from the injector at once. It is smaller than for a
/// ticker's deque, because the injector often holds a single ticket whose caller waits.
const INJECTOR_BATCH: usize = 8;

/// All queues of a pool.
pub(super) struct Queues {
    /// Stealers of the tickers' deques.
    ticker_queues: Box<[Stealer<Ticket>]>,
    /// Which deques have tickets: those of the tickers, then those of the worker slots.
    marks: Marks,
    /// What others see of the worker slots that were made, by number.
    locals: Box<[OnceLock<Box<Local>>]>,
    /// How many worker slots were made. Most schedulers never grow to `max_workers`.
    used: AtomicUsize,
    injector: Injector<Ticket>,
    injector_bound: usize,
    /// Tickets that a ticker has sifted. Made with the first one: most pools are never stuck.
    sifted: OnceLock<Injector<Ticket>>,
    /// Whether it was made.
    sifts: AtomicBool,
}

/// What others see of a worker slot.
struct Local {
    /// Steals from the deque.
    stealer: Stealer<Ticket>,
    /// Number of tickets handed to `Claim::serve`. Only the owner of the slot writes.
    claims: Arc<CachePadded<AtomicU64>>,
}

/// A ticket, and whether it came from a queue other than the finder's own, perhaps with a batch.
pub(super) struct FoundTicket {
    pub(super) ticket: Ticket,
    pub(super) stolen: bool,
}

impl FoundTicket {
    fn stolen(ticket: Ticket) -> Self {
        let stolen = true;
        FoundTicket { ticket, stolen }
    }
}

impl Queues {
    pub(super) fn new(
        ticker_queues: Box<[Stealer<Ticket>]>,
        max_workers: usize,
        injector_bound: usize,
    ) -> Self {
        Queues {
            sifted: OnceLock::new(),
            sifts: AtomicBool::new(false),
            marks: Marks::new(ticker_queues.len() + max_workers),
            ticker_queues,
            locals: (0..max_workers).map(|_| OnceLock::new()).collect(),
            used: AtomicUsize::new(0),
            injector: Injector::new(),
            injector_bound,
        }
    }

    /// Adds the worker slot that comes next. The caller holds the lock of the slots.
    pub(super) fn add_local(
        &self,
        slot: usize,
        stealer: Stealer<Ticket>,
        claims: Arc<CachePadded<AtomicU64>>,
    ) {
        // Slots are made once, in their order.
        let _ = self.locals[slot].set(Box::new(Local { stealer, claims }));
        // Release pairs with the Acquire in `made`. A deque gets its first ticket after this and
        // before its producer's fence, so a look that must see the ticket sees this number, too.
        self.used.store(slot + 1, Ordering::Release);
    }

    /// Returns the worker slots that were made.
    fn made(&self) -> &[OnceLock<Box<Local>>] {
        // Acquire pairs with the Release in `add_local`.
        &self.locals[..self.used.load(Ordering::Acquire)]
    }

    fn locals(&self) -> impl Iterator<Item = &Local> {
        self.made().iter().filter_map(|local| Some(&**local.get()?))
    }

    /// Returns how many tickets have been handed to `Claim::serve` so far.
    pub(super) fn claims(&self) -> u64 {
        self.locals()
            // Relaxed: each counter only grows, and readers only compare sums.
            .map(|local| local.claims.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Returns how many of them the worker in this slot was handed.
    pub(super) fn claims_of(&self, slot: usize) -> u64 {
        let local = self.made().get(slot).and_then(OnceLock::get);
        // Relaxed: as above.
        local.map_or(0, |local| local.claims.load(Ordering::Relaxed))
    }

    /// Puts a ticket into the injector, or returns it if the injector is full. Concurrent callers
    /// may all find the last place free, so the bound is exceeded by their number at most. The
    /// caller must list the pool.
    pub(super) fn inject(&self, ticket: Ticket) -> Result<(), Ticket> {
        if self.injector.len() >= self.injector_bound {
            return Err(ticket);
        }
        self.injector.push(ticket);
        Ok(())
    }

    /// Returns the next ticket for the worker in slot `slot`. `None` may also mean that other
    /// thieves were faster several times.
    pub(super) fn find(
        &self,
        slot: usize,
        local: &Deque<Ticket>,
        injector_first: bool,
        start: usize,
    ) -> Option<FoundTicket> {
        if injector_first && let Some(ticket) = retry_steal(|| self.injector.steal()) {
            return Some(FoundTicket::stolen(ticket));
        }
        if let Some(ticket) = local.pop() {
            let stolen = false;
            return Some(FoundTicket { ticket, stolen });
        }
        let own = self.mark_of(slot);
        if self.marks.is_set(own) {
            self.marks.clear(own, || local.is_empty());
        }
        if let Some(sifted) = self.sifted()
            && let Some(ticket) = retry_steal(|| sifted.steal())
        {
            return Some(FoundTicket::stolen(ticket));
        }
        let tickers = self.ticker_queues.len();
        for ticker in self
            .marks
            .from(start.checked_rem(tickers).unwrap_or(0), 0, tickers)
        {
            let ticker_queue = &self.ticker_queues[ticker];
            let found = retry_steal(|| ticker_queue.steal_batch_and_pop(local));
            self.marks.clear(ticker, || ticker_queue.is_empty());
            if let Some(ticket) = found {
                return Some(FoundTicket::stolen(ticket));
            }
        }
        let batch = || {
            self.injector
                .steal_batch_with_limit_and_pop(local, INJECTOR_BATCH)
        };
        if let Some(ticket) = retry_steal(batch) {
            return Some(FoundTicket::stolen(ticket));
        }
        // The last deque in this order is the finder's own, which it has just found empty.
        let made = self.made();
        for mark in self.marks.from(own, tickers, self.mark_of(made.len())) {
            let Some(other) = made[mark - tickers].get().filter(|_| mark != own) else {
                continue;
            };
            let found = retry_steal(|| other.stealer.steal_batch_and_pop(local));
            self.marks.clear(mark, || other.stealer.is_empty());
            if let Some(ticket) = found {
                return Some(FoundTicket::stolen(ticket));
            }
        }
        None
    }

    /// Returns the number of the mark of a worker slot.
    fn mark_of(&self, slot: usize) -> usize {
        self.ticker_queues.len() + slot
    }

    /// Notes that there are tickets in the deque of a ticker. The caller must list the pool.
    pub(super) fn mark_ticker(&self, ticker: usize) {
        self.marks.set(ticker);
    }

    /// Notes that there are tickets in the deque of a worker slot, if there are. The caller must
    /// list the pool.
    pub(super) fn mark_local(&self, slot: usize, local: &Deque<Ticket>) {
        if !local.is_empty() {
            self.marks.set(self.mark_of(slot));
        }
    }

    /// Returns whether there is a ticket in any queue. After a fence, the answer includes every
    /// ticket that was pushed before the fence of its producer.
    pub(super) fn any(&self) -> bool {
        self.marks.any()
            || !self.injector.is_empty()
            || self.sifted().is_some_and(|sifted| !sifted.is_empty())
    }

    /// Returns whether there is a ticket that [`take_unsifted`](Self::take_unsifted) would take,
    /// like [`any`](Self::any).
    pub(super) fn any_unsifted(&self) -> bool {
        !self.injector.is_empty() || self.locals().any(|local| !local.stealer.is_empty())
    }

    /// Takes a ticket that no ticker has sifted out of the injector or a worker's deque.
    pub(super) fn take_unsifted(&self) -> Option<Ticket> {
        retry_steal(|| self.injector.steal()).or_else(|| {
            let mut locals = self.locals();
            locals.find_map(|local| retry_steal(|| local.stealer.steal()))
        })
    }

    /// Adds a sifted ticket. The caller must list the pool.
    pub(super) fn put_sifted(&self, ticket: Ticket) {
        self.sifted.get_or_init(Injector::new).push(ticket);
        // Release pairs with the Acquire in `sifted`. The producer's fence follows, as in
        // `add_local`.
        self.sifts.store(true, Ordering::Release);
    }

    /// Returns the queue of the sifted tickets, if there ever was one.
    #[inline]
    fn sifted(&self) -> Option<&Injector<Ticket>> {
        // Acquire: see `put_sifted`.
        let made = self.sifts.load(Ordering::Acquire);
        made.then(|| self.sifted.get()).flatten()
    }

    /// Returns approximately how many tickets wait.
    pub(super) fn len(&self) -> usize {
        let ticker_queues = self.ticker_queues.iter().map(Stealer::len).sum::<usize>();
        let locals = self
            .locals()
            .map(|local| local.stealer.len())
            .sum::<usize>();
        let sifted = self.sifted().map_or(0, Injector::len);
        self.injector.len() + sifted + ticker_queues + locals
    }
}

/// Retries a steal a few times when another thief came between.
fn retry_steal(mut steal: impl FnMut() -> Steal<Ticket>) -> Option<Ticket> {
    for _ in 0..TRIES {
        match steal() {
            Steal::Success(ticket) => return Some(ticket),
            Steal::Empty => return None,
            Steal::Retry => core::hint::spin_loop(),
        }
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ticket(slot: u32) -> Ticket {
        Ticket { stripe: 0, slot }
    }

    struct Parts {
        queues: Queues,
        ticker_queues: Vec<Deque<Ticket>>,
        locals: Vec<Deque<Ticket>>,
    }

    fn parts(ticker_queues: usize, locals: usize, bound: usize) -> Parts {
        let ticker_queues: Vec<_> = (0..ticker_queues).map(|_| Deque::new_fifo()).collect();
        let locals: Vec<_> = (0..locals).map(|_| Deque::new_fifo()).collect();
        let queues = Queues::new(
            ticker_queues.iter().map(Deque::stealer).collect(),
            locals.len(),
            bound,
        );
        for (slot, local) in locals.iter().enumerate() {
            queues.add_local(slot, local.stealer(), Arc::default());
        }
        Parts {
            queues,
            ticker_queues,
            locals,
        }
    }

    impl Parts {
        fn feed(&self, ticker: usize, slot: u32) {
            self.ticker_queues[ticker].push(ticket(slot));
            self.queues.mark_ticker(ticker);
        }

        fn keep(&self, worker: usize, slot: u32) {
            self.locals[worker].push(ticket(slot));
            self.queues.mark_local(worker, &self.locals[worker]);
        }

        fn find(&self, worker: usize, start: usize) -> Option<FoundTicket> {
            self.queues.find(worker, &self.locals[worker], false, start)
        }
    }

    #[test]
    fn own_then_tickers_then_injector_then_others() {
        let p = parts(2, 2, 10);
        p.keep(1, 5);
        p.queues.inject(ticket(4)).unwrap();
        p.feed(1, 3);
        p.feed(0, 2);
        p.keep(0, 1);
        let mut order = Vec::new();
        while let Some(found) = p.find(0, 0) {
            order.push(found.ticket.slot);
        }
        assert_eq!(order, [1, 2, 3, 4, 5]);
        assert!(!p.queues.any());
    }

    #[test]
    fn the_start_decides_which_ticker_comes_first() {
        let p = parts(3, 1, 10);
        for ticker in 0..3 {
            p.feed(ticker, ticker as u32);
        }
        let first = p.find(0, 4).unwrap();
        assert_eq!(first.ticket.slot, 1);
    }

    #[test]
    fn the_injector_comes_first_when_its_turn_has_come() {
        let p = parts(1, 1, 10);
        p.keep(0, 1);
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
            p.feed(0, slot);
        }
        assert!(p.find(0, 0).unwrap().stolen);
        assert!(!p.locals[0].is_empty(), "the steal moved a batch");
        assert!(!p.find(0, 0).unwrap().stolen);
    }

    #[test]
    fn who_takes_the_last_ticket_clears_the_mark() {
        let p = parts(2, 2, 10);
        for ticker in 0..2 {
            p.feed(ticker, 1);
            assert!(p.queues.any());
            assert!(p.find(0, 0).unwrap().stolen);
            assert!(!p.queues.any());
        }
        // What a worker keeps is known until another one takes it, or it finds nothing itself.
        p.keep(0, 2);
        assert!(p.find(1, 0).unwrap().stolen && !p.queues.any());
        p.keep(0, 3);
        assert!(!p.find(0, 0).unwrap().stolen && p.queues.any());
        assert!(p.find(0, 0).is_none() && !p.queues.any());
        // The owner of a deque takes tickets out of it, too.
        p.feed(0, 4);
        let _ = p.ticker_queues[0].pop();
        assert!(p.find(0, 0).is_none() && !p.queues.any());
    }

    #[test]
    fn the_injector_is_bounded() {
        let p = parts(0, 1, 2);
        assert_eq!(p.queues.inject(ticket(1)), Ok(()));
        assert_eq!(p.queues.inject(ticket(2)), Ok(()));
        assert_eq!(p.queues.inject(ticket(3)), Err(ticket(3)));
        assert_eq!(p.queues.len(), 2);
        assert!(p.find(0, 0).is_some());
        while p.locals[0].pop().is_some() {}
        assert_eq!(p.queues.inject(ticket(3)), Ok(()));
    }

    #[test]
    fn a_slot_is_looked_at_once_it_was_made() {
        let (local, far) = (Deque::new_fifo(), Deque::new_fifo());
        let queues = Queues::new([].into(), 3, 1);
        queues.add_local(0, local.stealer(), Arc::default());
        assert!(queues.find(0, &local, false, 0).is_none() && !queues.any());
        queues.add_local(1, far.stealer(), Arc::default());
        far.push(ticket(1));
        queues.mark_local(1, &far);
        assert!(queues.any());
        assert!(queues.find(0, &local, false, 0).is_some());
        assert_eq!((queues.claims_of(2), queues.claims_of(3)), (0, 0));
    }
}
