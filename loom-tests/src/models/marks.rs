//! The marks of deques with tickets, on the real pool. `executor/marks.rs` has the protocol. That no
//! ticket is missed by sleeping workers is the matter of `sleep.rs`.
//!
//! Teeth, each for the model that the first line of the patch names:
//! - `teeth/marks-no-second-look.patch`: a push comes between the last steal and the clearing.
//! - `teeth/marks-hide-the-push.patch`: who clears the mark does not see the push.
//! - `teeth/marks-set-too-late.patch`: the pool is listed before the mark is set.
//! - `teeth/marks-worker-keeps-its-batch-to-itself.patch`: a stolen batch is not marked.
//! - `teeth/marks-before-the-prefetch.patch`: a thief finds the deque empty that is prefetched.

use std::sync::atomic::{AtomicUsize as Uncounted, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::executor::{Pool, PoolConfig, PoolWorkers, TickerQueue};
use crate::job::{AtLock, Claim, Ticket};
use crate::sync::Arc;

/// Counts the served tickets. One that does `one` task takes no further ticket with it.
#[derive(Default)]
struct Ledger {
    one: bool,
    /// A counter of std, not of loom: the protocol must not depend on it.
    served: Uncounted,
}

impl Claim for Ledger {
    fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        let mut next = Some(first);
        while next.is_some() {
            self.served.fetch_add(1, Relaxed);
            next = if self.one { None } else { more() };
        }
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

fn ticket(slot: u32) -> Ticket {
    Ticket { stripe: 0, slot }
}

fn pool() -> (Arc<Pool>, TickerQueue) {
    let config = PoolConfig {
        workers: 2,
        max_workers: 2,
        ticker_queues: 1,
        injector_bound: 4,
        shares_workers: false,
    };
    let clock = Clock::manual(&ManualClock::new());
    let workers = PoolWorkers::new(2, 2, Duration::from_nanos(5), clock);
    let (pool, mut ticker_queues) = Pool::new(config, Arc::new(workers));
    (pool, ticker_queues.pop().unwrap())
}

/// A look at the end finds what is left.
fn nothing_is_missed(pool: &Pool, served: usize, all: usize) {
    assert_eq!(served + pool.queued_hint(), all);
    assert!(served == all || pool.has_tickets());
}

#[test]
fn a_push_beside_the_last_steal_is_found() {
    check(3, || {
        let (pool, ticker_queue) = pool();
        let mut worker = pool.take_slot().unwrap();
        let producer = thread::spawn(move || {
            for slot in 0..2 {
                ticker_queue.push(ticket(slot));
                ticker_queue.announce();
            }
        });
        let ledger = Ledger::default();
        while worker.step(&ledger) {}
        producer.join().unwrap();
        nothing_is_missed(&pool, ledger.served.load(Relaxed), 2);
    });
}

/// One worker is in its first task for the rest of the model.
#[test]
fn a_thief_beside_a_stolen_batch_leaves_the_rest_known() {
    check(3, || {
        let (pool, ticker_queue) = pool();
        for slot in 0..3 {
            ticker_queue.push(ticket(slot));
        }
        ticker_queue.announce();
        let mut thief = pool.take_slot().unwrap();
        let stealing = thread::spawn(move || {
            let ledger = Ledger::default();
            while thief.step(&ledger) {}
            ledger.served.load(Relaxed)
        });
        let mut worker = pool.take_slot().unwrap();
        let ledger = Ledger {
            one: true,
            ..Ledger::default()
        };
        let _ = worker.step(&ledger);
        let stolen = stealing.join().unwrap();
        nothing_is_missed(&pool, stolen + ledger.served.load(Relaxed), 3);
    });
}
